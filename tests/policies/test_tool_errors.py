"""Tools that keep failing, and calls that could not work; silence on healthy ones."""

from typing import Any

import pytest

from policies.tool_errors import ToolErrors, ToolErrorsOptions
from proxy.model import Attempt, Cost, Item, ModelRequest, Outcome, Tool
from proxy.ports import View
from proxy.testing import Agent, Failed, Play
from proxy.verdict import Decision

DOWN = Failed("Connection refused by the build server")


def begin(**options: Any) -> tuple[Play, Agent]:
    play = Play(ToolErrors(ToolErrorsOptions(**options)))
    agent = play.agent()
    agent.asks("do it")
    return play, agent


def test_a_tool_that_fails_five_steps_in_a_row_is_told_and_again_at_ten() -> None:
    play, agent = begin(least=100)
    for n in range(11):
        agent.does("fetch", {"url": f"http://x/{n}"}, DOWN)
    assert [(f["kind"], f["evidence"]["count"]) for f in play.findings] == [("retries", 5), ("retries", 10)]
    evidence = play.findings[0]["evidence"]
    assert (evidence["tool"], evidence["limit"]) == ("fetch", 5)
    assert evidence["quotes"] == {"error": DOWN.text}
    assert evidence["calls"][0].startswith("toolu_")


def test_a_success_and_a_new_turn_end_a_row_of_failures() -> None:
    play, agent = begin(least=100)
    for _ in range(3):
        for _ in range(4):
            agent.does("fetch", {"url": "http://x"}, DOWN)
        agent.does("fetch", {"url": "http://y"}, "fine")
    for _ in range(3):
        agent.ends()
        agent.asks("again")
        for _ in range(4):
            agent.does("fetch", {"url": "http://x"}, DOWN)
    agent.ends()
    assert play.findings == []


def test_a_step_fails_only_where_all_calls_of_the_tool_do() -> None:
    play, agent = begin(least=100)
    for _ in range(8):
        agent.does_all(("fetch", {"n": 1}, DOWN), ("fetch", {"n": 2}, "fine"))
    agent.ends()
    assert play.findings == []


def test_the_error_rate_of_a_tool_is_told_once() -> None:
    play, agent = begin(retries=50)
    for n in range(20):
        agent.does("fetch", {"n": n}, DOWN if n % 2 else "fine")
    agent.ends()
    (finding,) = play.findings
    assert (finding["kind"], finding["severity"]) == ("error_rate", "warning")
    assert finding["evidence"] == {"tool": "fetch", "calls": 10, "errors": 5, "rate": 0.5}


def test_an_error_that_says_nothing_is_told_once_a_turn_as_info() -> None:
    play, agent = begin(least=100)
    for text in ("", "Error", "Tool execution failed"):
        agent.does("fetch", {"text": text}, Failed(text))
    agent.ends()
    assert [(f["kind"], f["severity"]) for f in play.findings] == [("empty_error", "info")]


def test_a_command_that_ran_is_no_tool_error() -> None:
    play, agent = begin()
    for n in range(20):
        agent.does("Bash", {"command": f"pytest {n}"}, Failed("Exit code 1"))
    for n in range(20):
        agent.does(
            "exec_command", {"cmd": f"make {n}"}, "Chunk ID: 1\nProcess exited with code 2\nOutput:\nerror: x"
        )
    agent.ends()
    assert play.findings == []


def test_a_call_that_the_user_declined_is_no_tool_error() -> None:
    play, agent = begin(retries=2, least=2)
    for _ in range(6):
        agent.does(
            "Bash", {"command": "rm x"}, Failed("The user doesn't want to proceed with this tool use.")
        )
    agent.ends()
    assert play.findings == []


def test_an_unknown_tool_is_told_with_the_one_that_it_is_like() -> None:
    play = Play(ToolErrors())
    agent = play.agent(tools=["read_file", "bash"])
    agent.asks("do it")
    agent.does("read_fil", {"path": "a"}, "a")
    agent.does("read_fil", {"path": "b"}, "b")
    agent.does("bash", {"command": "ls"}, "a b")
    (finding,) = play.findings
    assert (finding["kind"], finding["severity"], finding["exchange"]) == ("unknown_tool", "warning", 0)
    evidence = finding["evidence"]
    assert (evidence["tool"], evidence["like"], evidence["offered"]) == ("read_fil", "read_file", 2)


def test_unknown_tools_of_one_reply_are_each_told_once_and_long_names_are_like_none() -> None:
    called = ["read_fil", "lst", "read_fil", "x" * 100_000, "lst"]
    tools = (Tool("read_file", b""), Tool("list", b""), Tool("x" * 99_999, b""))
    items = tuple(Item("tool_call", "assistant", tool=name, call_id=str(at), arguments="{}", form="function")
                  for at, name in enumerate(called))  # fmt: skip
    told = [one.evidence for one in step_end(*items, tools=tools).findings]
    likes = {one["call"]: one.get("like") for one in told}
    assert (len(told), likes) == (3, {"0": "read_file", "1": "list", "3": None})


def step_end(*items: Item, tools: tuple[Tool, ...] = (), stop: str = "tool_calls") -> Decision:
    reply = Outcome(items, stop_reason=stop, whole=True)
    attempt = Attempt("complete", "complete", reply, None, Cost(None, "unpriced"), 200, 0, 1)
    view = View(
        now_ns=1, mode="enforce", session="s", thread="th", turn="t", step="p", step_index=0,
        request=ModelRequest("openai_chat", "chat", "m", True, (), tools=tools),
        outcome=reply, attempt=attempt,
    )  # fmt: skip
    return ToolErrors().step_end(view)


@pytest.mark.parametrize(
    ("form", "arguments", "problem"),
    [
        ("function", '{"a":', "no JSON"),
        ("function", '["a"]', "no object"),
        ("function", '"a"', "no object"),
        ("function", "[" * 100_000, "too deep"),
        ("function", '{"a":1}', None),
        ("function", "", None),
        ("custom_tool_call", "*** Begin Patch", None),
    ],
)
def test_arguments_that_cannot_be_read(form: str, arguments: str, problem: str | None) -> None:
    item = Item("tool_call", "assistant", tool="f", call_id="c", arguments=arguments, form=form)
    found = step_end(item).findings
    assert [f.evidence["problem"] for f in found] == ([] if problem is None else [problem])
    assert all(f.kind == "bad_arguments" and f.severity == "warning" for f in found)


def test_arguments_that_the_length_limit_cut_are_only_info() -> None:
    item = Item("tool_call", "assistant", tool="f", call_id="c", arguments='{"a":', form="function")
    (finding,) = step_end(item, stop="length").findings
    assert (finding.severity, finding.evidence["cut"]) == ("info", True)


@pytest.mark.parametrize("tools", [(), (Tool("web_search", b"", server=True),)])
def test_without_a_list_of_tools_none_is_unknown(tools: tuple[Tool, ...]) -> None:
    item = Item("tool_call", "assistant", tool="f", call_id="c", arguments="{}", form="function")
    assert step_end(item, tools=tools).findings == ()


def test_memory_stays_small() -> None:
    policy = ToolErrors()
    memory: dict[str, Any] = {}
    for n in range(300):
        item = Item("tool_call", "assistant", tool=f"tool{n}", call_id="c", arguments="{}", form="function")
        reply = Outcome((item,), whole=True)
        view = View(
            now_ns=n, mode="enforce", session="s", thread="th", turn="t", step="p", step_index=n,
            request=ModelRequest("openai_chat", "chat", "m", True, (), tools=(Tool("other", b""),)),
            outcome=reply, memory=memory,
        )  # fmt: skip
        memory = dict(policy.step_end(view).memory or {})
    assert len(memory["told"]) <= 64
