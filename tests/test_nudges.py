"""Nudges through the whole core: begun once, put back ever after, and never the client's own fault."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from policies.base import Policy
from policies.history import History
from policies.pairing import Pairing
from policies.repeats import Repeats, RepeatsOptions
from policies.thinking import Thinking
from proxy.chain import Chain, Link, Mode
from proxy.core import Opened
from proxy.model import (
    Carrier,
    Exchange,
    Head,
    Message,
    ModelRequest,
    Nudge,
    Record,
    ResponseHead,
    Upstream,
)
from proxy.ports import View
from proxy.reading.insertions import without
from proxy.replay import Replay
from proxy.tracking.nudges import at_the_end, joined, standing
from proxy.verdict import Action, Decision, Edit, Terminal

UPSTREAM = Upstream("anthropic", "https://models.test", "anthropic", "anthropic")
SECOND_NS = 1_000_000_000
OPUS = "claude-opus-5-5"
NOTE = "Note: the same call of bash with the same result, 3 times in a row."
STOP = " It will not change by itself; try another way."


class Says(Policy):
    """Nudges where it is told to, by the step's number."""

    name = "says"

    def __init__(self, *steps: int, at_end: bool = False, terminal: bool = False) -> None:
        super().__init__()
        self.steps, self.at_end, self.terminal = steps, at_end, terminal

    def step_start(self, view: View) -> Decision:
        if self.at_end or view.step_index not in self.steps:
            return Decision()
        why = Terminal("deny", self.name, "no", "no more", any_form=True) if self.terminal else None
        return Decision(edits=(Edit("nudge", f"mind step {view.step_index}"),), terminal=why)

    def step_end(self, view: View) -> Decision:
        return Decision(edits=(Edit("nudge", "too late"),) if self.at_end else ())


class Stage:
    """A core, a clock, and an agent that calls the same tool again and again."""

    def __init__(
        self, *policies: Policy, action: Action = "nudge", mode: Mode = "enforce", model: str = OPUS
    ) -> None:
        self.records: list[Record] = []
        self.chain = Chain([Link(policy, action) for policy in policies], mode=mode)
        self.replay = Replay(chain=self.chain, on_record=self.records.append)
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.number = 0
        self.model = model
        self.messages: list[Any] = [{"role": "user", "content": "go"}]

    @property
    def core(self) -> Any:
        return self.replay.core

    def restart(self) -> None:
        """Another process takes over what the heads say."""
        heads = json.loads(json.dumps(self.core.tracker.heads()))
        self.replay = Replay(chain=self.chain, on_record=self.records.append)
        assert self.core.tracker.load(heads) == len(heads)

    def open(
        self, messages: list[Any] | None = None, *, path: str = "/v1/messages", coding: str = "", **more: Any
    ) -> Opened:
        self.now_ns += SECOND_NS
        told = self.messages if messages is None else messages
        body = {"model": self.model, "max_tokens": 4096, "messages": told, "tools": [{"name": "bash"}]} | more
        raw = json.dumps(body).encode()
        fields = [(b"content-type", b"application/json")]
        if coding:
            raw = {"zstd": zstandard.ZstdCompressor().compress, "gzip": gzip.compress}[coding](raw)
            fields.append((b"content-encoding", coding.encode()))
        id = f"exc_{self.number:020d}"
        exchange = Exchange(id, self.number, Head("POST", path, tuple(fields)), UPSTREAM, path, self.now_ns)
        self.number += 1
        opened: Opened = self.core.open(exchange, raw, self.now_ns)
        return opened

    def answer(self, opened: Opened, *content: Any, status: int = 200, **more: Any) -> None:
        calls = any(block["type"] == "tool_use" for block in content)
        reply: dict[str, Any] = {
            "type": "message", "id": f"msg_{self.number}", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": "tool_use" if calls else "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5}, **more,
        }  # fmt: skip
        if status != 200:
            reply = {"type": "error", "error": {"type": "invalid_request_error", **more}}
        opened.respond(ResponseHead(status, b"", ((b"content-type", b"application/json"),)), self.now_ns)
        opened.feed(json.dumps(reply).encode(), self.now_ns)
        opened.close("complete", self.now_ns)

    def step(self, result: str = "a b c") -> Opened:
        """Ask, get a call, and do it: its result goes out with the next request."""
        opened = self.open()
        assert opened.refusal is None
        id = f"toolu_{self.number:020d}"
        think = {"type": "thinking", "thinking": "", "signature": f"sig-{self.number}-" + "x" * 40}
        use = {"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}}
        self.answer(opened, think, use)
        self.messages += [
            {"role": "assistant", "content": [think, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]},
        ]
        return opened

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(one.data) for one in self.records if one.type == kind]

    @property
    def interventions(self) -> list[str]:
        return [one["kind"] for one in self.events("intervention")]


def sent(opened: Opened) -> list[Any]:
    """The messages as they went upstream."""
    messages: list[Any] = json.loads(opened.body)["messages"]
    return messages


def nudges(opened: Opened) -> list[tuple[int, str]]:
    """Where in the messages text of ours stands, and what it says."""
    return [(at, one["content"]) for at, one in enumerate(sent(opened)) if one["role"] == "system"]


def test_repeats_nudges_at_three_five_and_eight_and_each_stays_where_it_was() -> None:
    stage = Stage(Repeats())
    bodies = [sent(stage.step()) for _ in range(12)]
    last = stage.open()
    assert [at for at, _ in nudges(last)] == [7, 12, 19]
    texts = [text for _, text in nudges(last)]
    assert texts[0].startswith(NOTE)
    assert all("of bash" in text and '{"command":"ls"}' in text for text in texts[1:])
    assert "5 times" in texts[1]
    assert "8 times" in texts[2]
    for before, after in zip(bodies, [*bodies[1:], sent(last)], strict=True):
        assert after[: len(before)] == before
    assert stage.interventions == ["nudge"] * 3 + ["would_deny"] * 4
    assert {e["policy"] for e in stage.events("intervention")} == {"repeats"}
    assert stage.events("intervention")[0]["quotes"] == {"text": texts[0]}


def test_without_a_nudge_the_body_is_the_object_that_came() -> None:
    stage = Stage(Repeats())
    for _ in range(3):
        opened = stage.step()
        assert opened.body is opened.out.plain
    assert stage.step().body is not None
    assert stage.open([{"role": "user", "content": "another talk"}]).out.nudges == ()


def test_a_policy_of_ones_own_may_nudge_too_and_the_first_wish_is_taken() -> None:
    stage = Stage(Says(1), Repeats(RepeatsOptions(consecutive=2)))
    for _ in range(2):
        stage.step()
    assert nudges(stage.step()) == [(3, "mind step 1"), (6, NOTE.replace("3", "2") + STOP)]
    stage = Stage(Says(2), Repeats(RepeatsOptions(consecutive=2)))
    for _ in range(3):
        opened = stage.step()
    assert nudges(opened) == [(5, "mind step 2")]
    assert sorted(stage.interventions) == ["nudge", "would_nudge"]


def test_observing_says_what_would_have_been_said() -> None:
    for how in ({"action": "observe"}, {"mode": "observe"}):
        stage = Stage(Repeats(), **how)  # type: ignore[arg-type]
        for _ in range(6):
            opened = stage.step()
            assert opened.body is opened.out.plain
        assert stage.interventions == ["would_nudge"] * 2


def test_the_end_that_is_configured_comes_after_the_reminders() -> None:
    stage = Stage(Repeats(), action="deny")
    for _ in range(9):
        opened = stage.step()
    assert len(nudges(opened)) == 3
    assert stage.open().refusal is not None
    assert stage.interventions == ["nudge", "nudge", "nudge", "deny"]


def test_a_request_that_is_refused_is_not_nudged() -> None:
    stage = Stage(Says(0, terminal=True), action="deny")
    assert stage.open().refusal is not None
    assert stage.interventions == ["deny"]


def test_a_nudge_that_comes_too_late_is_told() -> None:
    stage = Stage(Says(at_end=True))
    stage.step()
    stage.step()
    assert stage.open().out.nudges == ()
    assert stage.interventions == ["would_nudge"] * 2


def test_a_retry_has_the_same_bytes_and_gets_nothing_new() -> None:
    stage = Stage(Says(1))
    stage.step()
    first = stage.open()
    stage.answer(first, status=529, message="overloaded")
    again = stage.open()
    assert again.body == first.body
    stage.restart()
    assert stage.open().body == first.body
    assert stage.interventions == ["nudge"]


def test_counting_tokens_counts_what_the_model_reads() -> None:
    stage = Stage(Says(1))
    stage.step()
    stage.step()
    assert len(nudges(stage.open(path="/v1/messages/count_tokens"))) == 1
    assert nudges(stage.open([{"role": "user", "content": "x"}], path="/v1/messages/count_tokens")) == []
    assert stage.interventions == ["nudge"]


def test_a_process_that_takes_over_puts_the_same_bytes_back() -> None:
    stage = Stage(Says(1, 3))
    for _ in range(4):
        before = stage.step()
    stage.restart()
    after = sent(stage.step())
    assert after[: len(sent(before))] == sent(before)
    assert len(nudges(stage.open())) == 2


def test_a_fork_keeps_what_its_root_has_read_and_a_summary_does_not() -> None:
    stage = Stage(Says(1))
    for _ in range(4):
        stage.step()
    fork = [
        *stage.messages[:5],
        {"role": "assistant", "content": "enough"},
        {"role": "user", "content": "go on"},
    ]
    assert nudges(stage.open(fork)) == [(3, "mind step 1")]
    summary = [{"role": "user", "content": "We listed the folder four times."}]
    assert nudges(stage.open(summary)) == []
    assert nudges(stage.open()) == [(3, "mind step 1")]


def test_marks_that_a_client_moves_move_nothing_of_ours() -> None:
    stage = Stage(Says(1), model="claude-sonnet-4-5")
    stage.step()
    stage.step()
    for message in stage.messages:
        if message["role"] == "user" and isinstance(message["content"], list):
            message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    stage.messages[0]["content"] = [{"type": "text", "text": "go"}]
    opened = stage.open()
    assert sent(opened)[2]["content"][-1] == {"type": "text", "text": "mind step 1"}
    assert len(sent(opened)) == len(stage.messages)


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_coded_body_is_coded_again(coding: str) -> None:
    stage = Stage(Says(0))
    opened = stage.open(coding=coding)
    undo = {"zstd": zstandard.ZstdDecompressor().decompressobj().decompress, "gzip": gzip.decompress}
    told = json.loads(undo[coding](opened.body))["messages"]
    assert told[1] == {"role": "system", "content": "mind step 0"}
    assert opened.out.coded


def test_a_cut_reply_costs_what_the_model_read_in_whatever_coding_that_came() -> None:
    estimates = []
    for coding in ("", "zstd"):
        stage = Stage(Says(0))
        opened = stage.open([{"role": "user", "content": "go " * 1_000}], coding=coding)
        opened.respond(ResponseHead(200, b"", ((b"content-type", b"application/json"),)), stage.now_ns)
        opened.close("upstream_reset", stage.now_ns)
        estimates += [one["estimate"] for one in stage.events("step/attempt")]
    assert estimates[0] == estimates[1]
    assert estimates[0]["input_tokens"] > 750


def test_a_lowered_limit_and_a_nudge_stand_side_by_side() -> None:
    stage = Stage(Says(0))
    opened = stage.open()
    asked = opened.out.plain
    assert opened.clamp(100)
    assert nudges(opened) == [(1, "mind step 0")]
    assert without(opened.body, opened.out.ours) == asked.replace(b'"max_tokens": 4096', b'"max_tokens": 100')


def test_our_own_policies_see_nothing_of_it() -> None:
    stage = Stage(Repeats(), Thinking(), History(), Pairing())
    for _ in range(9):
        stage.step()
    assert len(nudges(stage.open())) == 3
    assert {e["policy"] for e in stage.events("finding")} == {"repeats"}
    (session,) = stage.replay.tree()["sessions"]
    (thread,) = session["threads"]
    assert thread["matched_by"] == "prefix"
    assert [len(turn["steps"]) for turn in thread["turns"]] == [10]


# -- stored before it is read


def test_a_nudge_that_cannot_be_stored_is_not_said() -> None:
    stage = Stage(Says(0, 1))
    stage.core.keeps = True
    opened = stage.open()
    assert opened.unsaved
    assert stage.events("step/start") == []
    opened.keep(stage.now_ns, safe=False)
    assert opened.body is opened.out.plain
    assert not opened.unsaved
    assert len(stage.events("step/start")) == 1
    stage.answer(opened, {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}})
    assert stage.interventions == ["would_nudge"]


def test_a_nudge_that_is_stored_goes_out() -> None:
    stage = Stage(Says(0))
    stage.core.keeps = True
    opened = stage.open()
    opened.keep(stage.now_ns, safe=True)
    assert nudges(opened) == [(1, "mind step 0")]
    assert stage.interventions == ["nudge"]


def test_where_no_content_is_kept_a_nudge_quotes_none() -> None:
    stage = Stage(Repeats())
    stage.core.settings = replace(stage.core.settings, quotes=False)
    for _ in range(6):
        opened = stage.step()
    (_, short), (_, long) = nudges(opened)
    assert short.startswith(NOTE)
    assert "5 times" in long
    assert "ls" not in long
    assert "quotes" not in stage.events("intervention")[0]


# -- what stands where

CARRIER = Carrier(b"{}")


def request(*names: bytes, held: str | None = None) -> ModelRequest:
    messages = tuple(Message("user", ()) for _ in names)
    return ModelRequest("openai_responses", "chat", "m", False, messages, names, held=held)


def test_a_nudge_is_found_by_the_history_that_it_follows() -> None:
    nudge = at_the_end(request(b"a", b"b", b"b"), b"ask", "p", CARRIER)
    assert (nudge.after, nudge.beyond) == (b"b", 1)
    assert standing([nudge], request(b"a", b"b", b"b", b"c"), b"") == [(2, nudge)]
    assert standing([nudge], request(b"x", b"a", b"b", b"b"), b"") == [(3, nudge)]
    assert standing([nudge], request(b"a", b"b", b"c"), b"") == []
    assert standing([nudge], request(b"a"), b"") == []
    assert standing([replace(nudge, withdrawn=True)], request(b"a", b"b", b"b"), b"") == []


def test_where_the_provider_keeps_the_history_a_nudge_stands_in_its_own_request_alone() -> None:
    nudge = at_the_end(request(b"a", held="resp_1"), b"ask 1", "p", CARRIER)
    assert standing([nudge], request(b"a", held="resp_1"), b"ask 1") == [(0, nudge)]
    assert standing([nudge], request(b"a", held="resp_2"), b"ask 2") == []


def test_instances_agree_on_what_stands_and_on_what_was_withdrawn() -> None:
    one, two = (Nudge("p", name, 0, CARRIER) for name in (b"a", b"b"))
    gone = replace(one, withdrawn=True)
    assert joined([one], [one, two]) == [one, two]
    assert joined([gone], [one]) == joined([one], [gone]) == [gone]
    other = replace(one, carrier=Carrier(b"[]"))
    assert joined([one], [other]) == [other]


def test_who_asks_again_before_it_is_stored_waits_for_that_too() -> None:
    stage = Stage(Says(1))
    stage.step()
    stage.core.keeps = True
    first = stage.open()
    first.close("client_gone", stage.now_ns)
    again = stage.open()
    assert again.unsaved
    assert again.body == first.body
    again.keep(stage.now_ns, safe=True)
    stage.answer(again, status=529, message="overloaded")
    assert not stage.open().unsaved
    assert stage.interventions == ["nudge"]


# -- what the provider holds against it

BOUND = "The block is bound to a different conversation"


def test_a_strict_refusal_is_our_own_fault_candidate_and_ends_nudging() -> None:
    stage = Stage(Says(1, 3, 4))
    for _ in range(2):
        stage.step()
    refused = stage.open()
    stage.answer(refused, status=400, message=BOUND)
    (finding,) = stage.events("finding")
    assert (finding["policy"], finding["kind"], finding["severity"]) == ("says", "nudge_refused", "violation")
    assert finding["consequence"] == "hard"
    assert finding["evidence"] == {
        "says": "prefix", "nudges": 1, "status": 400, "quotes": {"error": BOUND},
    }  # fmt: skip
    stage.answer(stage.open(), status=400, message=BOUND)
    for _ in range(3):
        stage.step()
    assert nudges(stage.open()) == [(3, "mind step 1")]
    assert len(stage.events("finding")) == 1
    assert stage.interventions == ["nudge", "would_nudge", "would_nudge"]


@pytest.mark.parametrize(
    ("message", "severity", "says"),
    [
        ("role 'system' is not supported on this model", "violation", "role"),
        ("max_tokens: too large", "info", "unsaid"),
    ],
)
def test_what_is_refused_before_a_model_read_it_is_taken_back(message: str, severity: str, says: str) -> None:
    stage = Stage(Says(1, 2))
    stage.step()
    refused = stage.open()
    assert len(nudges(refused)) == 1
    stage.answer(refused, status=400, message=message)
    stage.restart()
    assert nudges(stage.open()) == []
    (finding,) = stage.events("finding")
    assert finding["severity"] == severity
    assert finding["evidence"]["says"] == says
    assert finding["evidence"]["withdrawn"] is True


def test_a_refusal_for_other_reasons_blames_nobody() -> None:
    stage = Stage(Says(1, 3))
    for _ in range(2):
        stage.step()
    stage.answer(stage.open(), status=400, message="prompt is too long")
    stage.step()
    assert stage.events("finding") == []
    assert len(nudges(stage.open())) == 2


def test_reasoning_that_the_provider_dropped_is_told_softly() -> None:
    stage = Stage(Says(1))
    for _ in range(2):
        stage.step()
    change = {"type": "thinking_dropped", "path": "messages.3.content.0", "reason": "prefix_binding_mismatch"}
    stage.answer(stage.open(), {"type": "text", "text": "ok"}, input_transformations=[change])
    (finding,) = stage.events("finding")
    assert (finding["severity"], finding["consequence"]) == ("warning", "soft")
