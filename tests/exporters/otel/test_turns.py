"""Turns as traces, from the tracker's own records: shape, times, errors, what comes late, links."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from exporters.otel.content import Lens
from exporters.otel.events import Happening
from exporters.otel.link import scope
from exporters.otel.names import Dress
from exporters.otel.steps import Style
from exporters.otel.turns import MOST_TURNS, Turns
from proxy.model import Exchange, Head, Item, ModelRequest, Record, Tool
from proxy.tracking.placement import Placement
from proxy.tracking.telling import elsewhere
from proxy.verdict import Terminal
from tests.exporters.otel.collector import Span, forest, span_of
from tests.play import (
    SECOND,
    TOOLS,
    Play,
    assistant,
    call,
    claude,
    grown,
    request,
    result,
    results,
    said,
    thought,
    user,
)

PLAIN = Style()
WHO = Resource({"service.name": "test"})


def told(
    records: Sequence[Record],
    style: Style = PLAIN,
    log: list[Happening] | None = None,
    turns: Turns | None = None,
) -> list[Span]:
    """The spans that records make, as a collector gets them. A record every fifth of a second."""
    happenings: list[Happening] = [] if log is None else log
    made = turns or Turns(style, lambda happening, trace, span: happenings.append(happening))
    drafts = []
    for number, record in enumerate(records):
        made.take(record, number / 5)
        drafts += list(made.ripe(number / 5))
    drafts += list(made.close())
    return frozen(drafts)


def frozen(drafts: Sequence[Any]) -> list[Span]:
    encoded = encode_spans([draft.span(WHO, scope()) for draft in drafts])
    return [span_of(one) for r in encoded.resource_spans for s in r.scope_spans for one in s.spans]


def named(spans: Sequence[Span], name: str) -> list[Span]:
    return sorted((span for span in spans if span.name.startswith(name)), key=lambda span: span.start_ns)


def finding(play: Play, at: Any, policy: str, kind: str, **evidence: Any) -> None:
    data = {"policy": policy, "kind": kind, "severity": "warning", "evidence": evidence,
            "exchange": at.exchange.id, "number": at.exchange.number}  # fmt: skip
    play.records.append(Record(play.now_ns, "finding", at.session, at.thread, at.turn, at.step, data))


def conversation() -> Play:
    """Thinking and two calls at once, one of which fails; a failed try and its retry; an end."""
    play = Play()
    first = request(user("fix it"), hints=claude())
    at = play.ask(first)
    calls = (thought("hm"), call("toolu_1", "bash"), call("toolu_2", "grep"))
    play.answer(at, *calls)
    second = grown(
        first, assistant(*calls), results(result("toolu_1"), result("toolu_2", "no", is_error=True))
    )
    play.answer(play.ask(second), outcome="failed")
    again = play.ask(second)
    finding(play, again, "tool_errors", "retries", tool="grep", calls=["toolu_2"])
    finding(play, again, "thinking", "dropped", blocks=1, quotes="secret thought")
    play.answer(again, said("fixed"))
    finding(play, again, "growth", "forecast", slope=3.5)
    return play


def test_a_turn_with_thinking_parallel_tools_an_error_a_retry_and_findings() -> None:
    log: list[Happening] = []
    spans = told(conversation().records, log=log)
    (trace,) = forest(spans).values()
    (turn,) = named(trace, "invoke_agent claude-code")
    first, second = named(trace, "agent_step")
    bash, grep = (named(trace, f"execute_tool {name}")[0] for name in ("bash", "grep"))
    asked, failed, again = named(trace, "chat m")
    assert [span.parent for span in (first, second, asked, bash, grep, failed, again)] == [
        turn.id, turn.id, first.id, first.id, first.id, second.id, second.id,
    ]  # fmt: skip
    assert bash.overlaps(grep)
    assert bash.start_ns >= asked.start_ns
    assert (bash.failed, grep.failed, grep.attributes["error.type"]) == (False, True, "tool_error")
    assert (failed.failed, failed.attributes["error.type"], again.failed) == (True, "500", False)
    assert [link[1:] for link in again.links] == [(failed.id, {"looptap.link.kind": "retry_of"})]
    assert not any(span.failed for span in (turn, first, second))  # it came good
    assert asked.attributes["looptap.thinking.blocks"] == 1
    assert asked.attributes["gen_ai.response.finish_reasons"] == ["tool_call"]
    decision = "looptap.policy.decision"
    assert [(name, event["looptap.policy.rule"]) for name, event in again.events] == [(decision, "dropped")]
    assert [(name, event["looptap.policy.rule"]) for name, event in second.events] == [(decision, "forecast")]
    assert [event["looptap.policy.rule"] for _, event in grep.events] == ["retries"]
    assert again.events[0][1]["looptap.evidence.blocks"] == 1
    assert "secret" not in repr(spans) + repr(log)
    assert (turn.attributes["looptap.turn.steps"], turn.attributes["looptap.turn.tool_calls"]) == (2, 2)
    chats = [span.attributes.get("gen_ai.usage.input_tokens", 0) for span in (asked, failed, again)]
    assert turn.attributes["looptap.turn.usage.input_tokens"] == sum(chats) == 20
    assert {span.attributes["gen_ai.conversation.id"] for span in trace} == {"s1"}
    assert [one.name for one in log] == [
        "looptap.turn.started",
        decision,
        decision,
        "looptap.turn.ended",
        decision,
    ]


def test_the_same_records_give_the_same_ids_in_whatever_portions_they_come() -> None:
    records = conversation().records
    whole = told(records)
    made = Turns(PLAIN, lambda *_: None)
    drafts = []
    for record in records:
        made.take(record, 0.0)
    drafts += list(made.close())
    assert sorted((s.trace, s.id, s.parent) for s in whole) == sorted(
        (s.trace, s.id, s.parent) for s in frozen(drafts)
    )


def refused(play: Play, asked: ModelRequest) -> Placement:
    """A request that the budgets refuse, as the live parts do it."""
    play.now_ns += SECOND
    exchange = Exchange(
        f"exc_{play.count}", play.count, Head("POST", "/v1/messages"), None, "/v1/messages", play.now_ns
    )
    play.count += 1
    at = play.tracker.place(exchange, asked, play.now_ns)
    why = Terminal("deny", "budgets", "looptap_budget_exceeded", "no", "spend")
    play.tracker.refuse(at, why, play.now_ns)
    data = {"policy": "budgets", "kind": "deny", "code": why.code, "exchange": exchange.id,
            "budget": "turn", "limit": "5", "used": "5.1"}  # fmt: skip
    play.records.append(Record(play.now_ns, "intervention", at.session, at.thread, at.turn, at.step, data))
    play.answer(at, outcome="refused")
    return at


def stopped_halfway() -> tuple[Play, ModelRequest]:
    play = Play()
    first = request(user("go"))
    play.step(first, call("toolu_1"))
    second = grown(first, assistant(call("toolu_1")), results(result("toolu_1")))
    refused(play, second)
    return play, second


def test_a_refused_request_is_an_event_on_its_turn_and_no_step() -> None:
    play, _ = stopped_halfway()
    spans = told(play.records)
    forest(spans)
    (turn,) = named(spans, "invoke_agent")
    assert (turn.failed, turn.attributes["error.type"]) == (True, "budget_exceeded")
    assert turn.attributes["looptap.turn.cause"] == "spend"
    assert turn.attributes["looptap.policy.max_action"] == "deny"
    assert [name for name, _ in turn.events] == ["looptap.policy.decision", "looptap.attempt.refused"]
    assert turn.events[0][1]["looptap.budget.used"] == "5.1"
    assert [span.name for span in spans if span.parent == turn.id] == ["agent_step"]


def test_a_turn_that_goes_on_after_its_end_adds_to_the_same_trace() -> None:
    play, second = stopped_halfway()
    turns = Turns(PLAIN, lambda *_: None)
    early = told(play.records, turns=turns)
    before = len(play.records)
    play.step(second, said("done after all"), stop="end_turn")  # its budget was raised meanwhile
    late = told(play.records[before:], turns=turns)
    (root,) = named(early, "invoke_agent")
    (stretch,) = named(late, "invoke_agent")
    assert (stretch.parent, stretch.attributes["looptap.turn.resumed"]) == (root.id, True)
    assert (stretch.failed, stretch.attributes["looptap.turn.cause"]) == (False, "completed")
    forest([*early, *late], reaching=False)
    assert len(named([*early, *late], "agent_step")) == 2


def test_what_another_process_goes_on_with_finds_its_parents() -> None:
    play, second = stopped_halfway()
    early = told(play.records)
    before = len(play.records)
    play.step(second, call("toolu_2"))
    going_on = told(play.records[before:], turns=Turns(PLAIN, lambda *_: None, told=[]))
    forest([*early, *going_on], reaching=False)


def test_a_turn_whose_beginning_went_down_with_its_process_is_told_whole_by_the_next() -> None:
    play = Play()
    first = request(user("go"))
    play.step(first, call("toolu_1"))
    before = len(play.records)
    play.step(grown(first, assistant(call("toolu_1")), results(result("toolu_1"))), said("done"))
    spans = told(play.records[before:])
    (turn,) = named(spans, "invoke_agent")
    began = next(record.time_ns for record in play.records if record.type == "turn/start")
    assert (turn.parent, turn.start_ns) == ("", began)
    forest(spans)


def test_an_end_that_is_taken_back_at_once_is_not_told() -> None:
    play, second = stopped_halfway()
    play.step(second, said("done after all"), stop="end_turn")
    made = Turns(PLAIN, lambda *_: None)
    for record in play.records:
        made.take(record, 0.0)
    spans = frozen(list(made.close()))
    (turn,) = named(spans, "invoke_agent")
    assert (turn.failed, turn.attributes["looptap.turn.cause"]) == (False, "completed")
    forest(spans)


def test_a_sub_agent_is_a_trace_of_its_own_that_points_at_its_parents_turn() -> None:
    play = Play()
    first = request(user("research it"), hints=claude())
    play.step(first, call("toolu_9", "Agent", '{"prompt":"look into x"}'))
    child = request(user("look into x"), hints=claude(agent="a1", parent="main"))
    play.step(child, said("found"), stop="end_turn")
    done = grown(
        first, assistant(call("toolu_9", "Agent", '{"prompt":"look into x"}')), results(result("toolu_9"))
    )
    play.step(done, said("thanks"), stop="end_turn")
    play.step(grown(done, assistant(said("thanks")), user("and now?")), said("nothing"), stop="end_turn")
    spans = told(play.records)
    assert len(forest(spans)) == 3
    parent, sub, after = named(spans, "invoke_agent claude-code")
    assert sub.attributes["looptap.thread.kind"] == "subagent"
    assert sub.links == [(parent.trace, parent.id, {"looptap.link.kind": "spawned_by"})]
    assert after.links == [(parent.trace, parent.id, {"looptap.link.kind": "previous_turn"})]
    assert after.attributes["looptap.turn.previous_turn.trace_id"] == parent.trace


def test_content_is_only_what_is_new_and_less_secrets_and_signatures() -> None:
    play = Play()
    play.tracker.content_chars = 8_000
    key = "sk-ant-" + 24 * "x"
    first = request(user(f"my key is {key} for cust-77"))
    items = (thought("private musing", "SIGNATURE"), call("toolu_1", "bash", '{"command":"ls"}'))
    play.step(first, *items)
    done = grown(first, assistant(*items), results(result("toolu_1", f"Bearer {key}")))
    play.step(done, said("all done"), stop="end_turn")
    quiet = repr(told(play.records))
    assert not any(word in quiet for word in ("my key", "command", "all done", "musing"))
    shown = told(play.records, Style(Dress(), Lens(True, False, ("cust-[0-9]+",))))
    text = repr(shown)
    assert not any(word in text for word in (key, "cust-77", "musing", "SIGNATURE"))
    asked, after = named(shown, "chat")
    assert asked.attributes["gen_ai.input.messages"] == (
        '[{"role": "user", "parts": [{"type": "text", "content": "my key is ••• for •••"}]}]'
    )
    assert "my key" not in after.attributes["gen_ai.input.messages"]  # told a step ago
    assert '"type": "tool_call_response", "id": "toolu_1"' in after.attributes["gen_ai.input.messages"]
    (tool,) = named(shown, "execute_tool bash")
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"command": "ls"}'
    assert tool.attributes["gen_ai.tool.call.result"] == "•••"
    (turn,) = named(shown, "invoke_agent")
    assert "my key" in turn.attributes["gen_ai.input.messages"]
    assert "all done" in turn.attributes["gen_ai.output.messages"]
    thinking = told(play.records, Style(Dress(), Lens(True, True)))
    assert "musing" in repr(thinking)
    assert "SIGNATURE" not in repr(thinking)


def test_names_beside_the_newest_can_be_had_or_left_out() -> None:
    def keys(dress: Dress) -> set[str]:
        return {key for span in told(conversation().records, Style(dress)) for key in span.attributes}

    latest, compat, both = keys(Dress(False)), keys(Dress()), keys(Dress(True, True))
    assert compat - latest == {"gen_ai.system"}
    assert {"llm.model_name", "llm.token_count.prompt", "llm.cost.total", "tool.name"} <= both - compat


def test_a_sample_takes_whole_turns() -> None:
    records = [record for number in range(64) for record in _renamed(conversation().records, number)]
    kept = forest(told(records, Style(ratio=0.5)))
    assert 10 < len(kept) < 54
    assert {len(trace) for trace in kept.values()} == {8}
    assert told(records, Style(ratio=0.0)) == []


def _renamed(records: Sequence[Record], number: int) -> list[Record]:
    return [replace(one, turn=f"{one.turn}{number}" if one.turn else None) for one in records]


def test_OBS_04_every_span_ends_once_wherever_streams_are_cut() -> None:
    randomness = random.Random(4)
    play = Play()
    outcomes = ("complete", "cut", "client_gone", "failed", "refused")
    attempts = 0
    for number in range(200):
        asked = request(user(f"task {number}"))
        for _ in range(randomness.randrange(1, 4)):
            at = play.ask(asked)
            outcome = randomness.choice(outcomes[:4])
            items = [call(f"toolu_{number}_{n}") for n in range(randomness.randrange(3))]
            if randomness.random() < 0.95:  # else its end is never seen
                play.answer(at, *items, outcome=outcome)
                attempts += 1
    play.tracker.tick(play.now_ns + 10**18)
    spans = told(play.records)
    forest(spans)
    assert len(named(spans, "chat")) == attempts
    started = {record.step for record in play.records if record.type == "step/start"}
    assert len(named(spans, "agent_step")) == len(started)
    assert len(named(spans, "invoke_agent")) == len({record.turn for record in play.records if record.turn})
    cut = [span for span in spans if span.attributes.get("looptap.outcome") == "cut"]
    assert all(span.failed and span.attributes["error.type"] == "stream_truncated" for span in cut)
    gone = [span for span in spans if span.attributes.get("looptap.outcome") == "client_gone"]
    assert gone
    assert not any(span.failed for span in gone)


def test_turns_in_the_making_are_bounded() -> None:
    made = Turns(PLAIN, lambda *_: None)
    for number in range(MOST_TURNS + 100):
        made.take(Record(1, "turn/start", "ses_1", "thr_1", f"trn_{number}", None, {"index": 0}), 0.0)
    assert len(list(made.ripe(10.0))) == 100
    assert len(list(made.close())) == MOST_TURNS


def test_a_step_whose_beginning_went_down_with_its_process_is_told_by_the_next() -> None:
    play = Play()
    first = request(user("go"))
    play.step(first, call("toolu_1"))
    before = len(play.records)
    early = [span for span in told(play.records) if span.name.startswith("chat")]  # all that came out
    play.step(grown(first, assistant(call("toolu_1")), results(result("toolu_1"))), said("done"))
    late = told(play.records[before:])
    assert len(named(late, "agent_step")) == 2
    forest([*early, *late])


def test_what_another_instance_tells_is_not_told_again() -> None:
    play = Play()
    first = request(user("go"))
    play.step(first, call("toolu_1"))
    before = len(play.records)
    play.step(grown(first, assistant(call("toolu_1")), results(result("toolu_1"))), said("done"))
    ends = [one for one in play.records[before:] if one.type in ("step/end", "turn/end")]
    began = [one for one in play.records[:before] if one.type == "turn/start"]
    here = told([*play.records[:before], *map(elsewhere, (ends[0], ends[-1]))])
    there = told([*map(elsewhere, began), *play.records[before:]])
    assert sorted(span.name.split()[0] for span in here) == ["agent_step", "chat", "execute_tool"]
    assert sorted(span.name.split()[0] for span in there) == ["agent_step", "chat", "invoke_agent"]
    forest([*here, *there])


def test_content_is_cut_and_says_so() -> None:
    play = Play()
    play.tracker.content_chars = 8_000
    items = [call(f"toolu_{number}", "bash", "x" * 9_000) for number in range(30)]
    play.step(request(user("y" * 20_000)), *items)
    (chat,) = named(told(play.records, Style(lens=Lens(True))), "chat")
    assert 8_000 < len(chat.attributes["gen_ai.input.messages"]) < 8_200
    assert 100_000 < len(chat.attributes["gen_ai.output.messages"]) < 140_000
    assert chat.attributes["looptap.content.truncated"] is True


def test_instructions_and_tools_are_shown_where_they_are_new() -> None:
    def system(*texts: str) -> tuple[Item, ...]:
        return tuple(Item("system", "system", text, digest=text.encode()) for text in texts)

    def turns(play: Play) -> None:
        first = request(user("go"), system=system("be brief for cust-77", "be kind " * 2_000))
        items = (call("toolu_1", "bash"),)
        play.step(first, *items)
        then = replace(grown(first, assistant(*items), results(result("toolu_1"))), system=first.system)
        play.step(then, said("gone"))
        more = replace(grown(then, assistant(said("gone")), user("more")), system=system("be slow"))
        play.answer(play.ask(more), outcome="failed")
        play.answer(play.ask(more), said("more"))
        tools = (*TOOLS, Tool("web_search", b"web", server=True))
        play.step(replace(grown(more, assistant(said("more")), user("now")), system=more.system, tools=tools))

    play = Play()
    play.tracker.content_chars = 8_000
    turns(play)
    assert "gen_ai.system" not in repr(
        [[*span.attributes] for span in told(play.records, Style(Dress(False)))]
    )
    chats = named(told(play.records, Style(Dress(False), Lens(True, False, ("cust-[0-9]+",)))), "chat")
    shown = [span.attributes.get("gen_ai.system_instructions") for span in chats]
    brief, kind = json.loads(shown[0])
    assert brief == {"type": "text", "content": "be brief for •••"}
    assert (len(kind["content"]), chats[0].attributes["looptap.content.truncated"]) == (8_000, True)
    assert shown[1:] == [None, '[{"type": "text", "content": "be slow"}]', None, None]
    tools = [span.attributes.get("gen_ai.tool.definitions") for span in chats]
    here = [{"type": "function", "name": "bash"}, {"type": "function", "name": "Agent"}]
    assert json.loads(tools[0]) == here
    assert tools[1:4] == [None, None, None]
    assert json.loads(tools[4]) == [*here, {"type": "extension", "name": "web_search"}]
    off = Play()
    turns(off)  # nobody asked for content: it does not even come along
    assert not any(record.content for record in off.records)


def test_odd_values_are_sent_as_text_and_lose_nothing_else() -> None:
    play = Play()
    at = play.ask(request(user("go"), model="m\ud800"))
    play.answer(at, call("toolu_1", "b\udfffsh"), said("done"))
    finding(play, at, "growth", "forecast", tokens=2**70, words="\ud800", many=list(range(100)), none=None)
    spans = told(play.records)
    forest(spans)
    (event,) = [event for span in spans for _, event in span.events]
    assert event["looptap.evidence.tokens"] == str(2**70)
    assert len(event["looptap.evidence.many"]) == 20


def test_a_long_turn_keeps_only_what_may_still_change() -> None:
    play, made, drafts = Play(), Turns(PLAIN, lambda *_: None), []
    asked = request(user("count"))
    for number in range(100):
        play.step(asked, call(f"toolu_{number:08d}"))
        asked = grown(asked, assistant(call(f"toolu_{number:08d}")), results(result(f"toolu_{number:08d}")))
    late = play.records[-1]
    for second, record in enumerate(play.records):
        made.take(record, float(second))
        drafts += list(made.ripe(float(second)))
        assert all(len(turn.steps) < 8 for turn in made._turns.values())
    first = next(record for record in play.records if record.type == "step/attempt")
    again = replace(first, data={**first.data, "attempt": 7, "exchange": "exc_late"}, time_ns=late.time_ns)
    made.take(again, 1e6)
    drafts += list(made.close())
    spans = frozen(drafts)
    forest(spans, reaching=False)
    assert (len(named(spans, "agent_step")), len(named(spans, "chat"))) == (100, 101)
    assert len(named(spans, "execute_tool")) == 100
