"""Allow and deny lists of tool names."""

from typing import Any

import pytest

from policies.tools import Tools, ToolsOptions
from proxy.model import Event, Item
from proxy.ports import View
from proxy.testing import Agent, Play


def begin(action: Any = "observe", **options: Any) -> tuple[Play, Agent]:
    play = Play(Tools(ToolsOptions(**options)), action=action)
    agent = play.agent(tools=["bash", "read_file", "web_search"])
    agent.asks("do it")
    return play, agent


def test_without_lists_it_says_nothing_and_reads_no_stream() -> None:
    play, agent = begin()
    agent.does("bash", {}, "x")
    agent.ends()
    assert play.findings == []
    assert Tools().wants_deltas is False


def test_a_denied_tool_is_told_where_offered_once_and_where_called_each_time() -> None:
    play, agent = begin(deny=("ba*",))
    agent.does("bash", {}, "x")
    agent.does("read_file", {}, "x")
    agent.does("bash", {}, "x")
    agent.ends()
    assert [(f["kind"], f["severity"], f["exchange"]) for f in play.findings] == [
        ("offered", "info", 0), ("called", "violation", 0), ("called", "violation", 2),
    ]  # fmt: skip
    evidence = play.findings[1]["evidence"]
    assert (evidence["tool"], evidence["by"]) == ("bash", "deny: ba*")
    assert evidence["calls"][0].startswith("toolu_")


@pytest.mark.parametrize(
    ("allow", "deny", "called"),
    [
        (("read_*",), (), ["bash"]),
        (("*",), ("bash",), ["bash"]),
        (("bash", "read_file"), (), []),
        ((), (), ["bash", "read_file"]),
    ],
)
def test_deny_goes_before_allow_and_an_empty_allow_allows_nothing(
    allow: tuple[str, ...], deny: tuple[str, ...], called: list[str]
) -> None:
    play, agent = begin(allow=allow, deny=deny)
    agent.does_all(("bash", {}, "x"), ("read_file", {}, "x"))
    assert [f["evidence"]["tool"] for f in play.findings if f["kind"] == "called"] == called


def test_a_refusing_action_stops_the_result_and_the_user_frees_it() -> None:
    play, agent = begin("deny", deny=("bash",))
    assert agent.does("bash", {}, "x").refusal is None
    for _ in range(2):
        refused = agent.does("read_file", {}, "x").refusal
        assert refused is not None
        assert b"looptap_tool_denied" in refused.body
        assert b"bash" in refused.body
    play.now_ns += 60_000_000_000
    agent.asks("without bash, please")
    assert agent.does("read_file", {}, "x").refusal is None


def test_offering_may_be_refused_at_the_door() -> None:
    _, agent = begin("deny", deny=("bash",), refuse="offered")
    assert agent.ends().refusal is not None


def test_observing_touches_nothing() -> None:
    _, agent = begin(deny=("bash",), refuse="offered")
    assert agent.does("bash", {}, "x").refusal is None
    assert agent.ends().refusal is None


def test_a_running_stream_may_be_cut_at_the_call() -> None:
    policy = Tools(ToolsOptions(deny=("bash",)))
    view = View(now_ns=1, mode="enforce", session="s", thread="h", turn="t", step="p", step_index=0)
    item = Item("tool_call", "assistant", tool="bash", call_id="c")
    terminal = policy.delta(view, Event("item", item)).terminal
    assert terminal is not None
    assert terminal.kind == "cut"
    assert policy.delta(view, Event("usage")).terminal is None
    allowed = Item("tool_call", "assistant", tool="read", call_id="c")
    assert policy.delta(view, Event("item", allowed)).terminal is None
