"""Reasoning put back through the whole core: once asked for, there ever after, and only where it was."""

import copy
import gzip
import json
from typing import Any

import pytest

from policies.history import History
from policies.thinking import Thinking
from proxy.core import Opened
from proxy.model import Carrier, Kept, Thought
from proxy.reading.insertions import without
from proxy.replay import Replay
from proxy.tracking import repairs
from tests.test_nudges import Stage

MODEL = "claude-sonnet-4-6"
BOUND = "claude-opus-5-5"


def thinking(number: int) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "", "signature": f"sig-{number}-" + "x" * 40}


class Forgetful(Stage):
    """An agent whose client drops all thinking of a model that needs it."""

    def __init__(self, *, model: str = MODEL, **how: Any) -> None:
        super().__init__(Thinking(), History(), **{"action": "repair", **how}, model=model)
        self.lawful: list[Any] = list(self.messages)
        """What a client that loses nothing would send."""

    def step(self, result: str = "a b c") -> Opened:
        """Ask, get a call with thinking, and do it."""
        opened = self.open()
        id = f"toolu_{self.number:020d}"
        think = thinking(self.number)
        use = {"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}}
        answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}
        self.answer(opened, think, use)
        self.messages += [{"role": "assistant", "content": [use]}, answer]
        self.lawful += [{"role": "assistant", "content": [think, use]}, answer]
        return opened

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.events("intervention") if one["kind"] == kind]

    def whys(self) -> list[str]:
        return [one["why"] for one in self.told("would_repair")]


def sent(opened: Opened) -> list[Any]:
    messages: list[Any] = json.loads(opened.body)["messages"]
    return messages


@pytest.mark.parametrize("model", [MODEL, BOUND])
def test_what_was_dropped_stands_there_again_in_every_later_request(model: str) -> None:
    agent = Forgetful(model=model)
    bodies = [sent(agent.step()) for _ in range(5)]
    last = agent.open()
    assert sent(last) == agent.lawful
    assert all(sent(last)[: len(before)] == before for before in bodies)
    assert without(last.body, last.out.ours) == last.out.plain
    assert [f["kind"] for f in agent.events("finding")] == ["dropped"] * 5
    first, *others = agent.told("repair")
    assert len(others) == 4
    assert first["policy"] == "thinking"
    assert (first["blocks"], first["of_exchange"]) == ([0], 0)
    assert first["paths"] == ["$['messages'][1]['content'][0]"]
    assert agent.whys() == []


def test_a_client_that_loses_nothing_is_left_alone() -> None:
    agent = Forgetful()
    for _ in range(4):
        opened = agent.step()
        agent.messages = copy.deepcopy(agent.lawful)
        assert opened.body is opened.out.plain
    assert agent.events("intervention") == []
    assert agent.events("finding") == []


@pytest.mark.parametrize("how", [{"action": "observe"}, {"mode": "observe"}, {"action": "warn"}])
def test_observing_says_what_would_have_been_put_back(how: dict[str, Any]) -> None:
    agent = Forgetful(**how)
    for _ in range(3):
        opened = agent.step()
        assert opened.body is opened.out.plain
    (one, _) = agent.told("would_repair")
    assert (one["blocks"], one["paths"]) == ([0], ["$['messages'][1]['content'][0]"])
    assert agent.core.tracker.shelf.threads[one_thread(agent)].kept == []


def one_thread(agent: Stage) -> str:
    (name,) = agent.core.tracker.shelf.threads
    return str(name)


def test_who_wants_faults_refused_gets_no_repair() -> None:
    agent = Forgetful(model=BOUND, action="deny")
    agent.step()
    assert agent.open().refusal is not None
    assert agent.interventions == ["deny", "would_repair"]


def test_a_process_that_takes_over_a_retry_and_a_count_have_the_same_bytes() -> None:
    agent = Forgetful()
    for _ in range(3):
        agent.step()
    first = agent.open()
    agent.answer(first, status=529, message="overloaded")
    assert agent.open().body == first.body
    agent.restart()
    assert agent.open(path="/v1/messages/count_tokens").body == first.body
    again = agent.open()
    assert again.body == first.body
    assert sent(again) == agent.lawful
    agent.step()
    assert sent(agent.open()) == agent.lawful
    assert agent.whys() == []


def test_a_new_turn_and_a_fork_keep_what_stands_in_their_history() -> None:
    agent = Forgetful(model=BOUND)
    agent.step()
    agent.step()
    agent.answer(agent.open(), {"type": "text", "text": "Done."})
    more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "go on"}]
    agent.messages += more
    agent.lawful += more
    assert sent(agent.open()) == agent.lawful
    fork = [*agent.messages[:3], {"role": "assistant", "content": "no"}, {"role": "user", "content": "else"}]
    assert sent(agent.open(fork))[:2] == agent.lawful[:2]
    assert sent(agent.open([{"role": "user", "content": "We listed the folder."}])) == [
        {"role": "user", "content": "We listed the folder."}
    ]


def test_a_client_that_brings_it_back_itself_gets_no_second_one() -> None:
    agent = Forgetful()
    agent.step()
    agent.step()
    agent.messages = copy.deepcopy(agent.lawful)
    opened = agent.open()
    assert opened.body is opened.out.plain


@pytest.mark.parametrize(
    "damaged",
    [
        {"type": "thinking", "thinking": "", "signature": "other"},
        {"type": "thinking", "thinking": "Hm.", "signature": "other"},
        {"type": "redacted_thinking", "data": "other"},
    ],
)
def test_what_came_back_changed_is_replaced_and_the_clients_bytes_are_kept_beside(damaged: Any) -> None:
    agent = Forgetful()
    agent.step()
    agent.messages[1]["content"].insert(0, damaged)
    opened = agent.open()
    assert sent(opened) == agent.lawful
    assert without(opened.body, opened.out.ours) == opened.out.plain != opened.body
    assert [f["kind"] for f in agent.events("finding")] == ["modified"]
    assert sorted(agent.interventions) == ["repair", "would_deny"]


def test_each_block_stands_before_what_it_led_to() -> None:
    agent = Forgetful()
    use = {"type": "tool_use", "id": "toolu_b", "name": "bash", "input": {"command": "ls"}}
    said, result = {"type": "text", "text": "So."}, {"type": "tool_result", "tool_use_id": "toolu_b"}
    agent.answer(agent.open(), thinking(7), thinking(8), said, thinking(9), use)
    for left in ([said, use], [thinking(7), said, use], [thinking(8), said, thinking(9), use]):
        told = [
            agent.messages[0],
            {"role": "assistant", "content": left},
            {"role": "user", "content": [result]},
        ]
        assert sent(agent.open(told))[1]["content"] == [thinking(7), thinking(8), said, thinking(9), use]


def test_a_content_that_became_one_text_becomes_a_list() -> None:
    agent = Forgetful(model=BOUND)
    said: list[Any] = [agent.messages[0]]
    for number in range(3):
        blocks = [thinking(number), {"type": "text", "text": f"Answer {number}."}]
        agent.answer(agent.open(said), *blocks)
        said += [{"role": "assistant", "content": blocks}, {"role": "user", "content": f"And {number}?"}]
    holed = copy.deepcopy(said)
    holed[3]["content"] = "Answer 1."
    assert sent(agent.open(holed)) == said


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_coded_body_is_coded_again_and_a_lowered_limit_stands_beside_it(coding: str) -> None:
    agent = Forgetful()
    agent.step()
    opened = agent.open(coding=coding)
    plain = gzip.decompress(opened.body) if coding else opened.body
    assert json.loads(plain)["messages"] == agent.lawful
    if not coding:
        assert opened.clamp(100)
        assert sent(opened) == agent.lawful
        assert json.loads(opened.body)["max_tokens"] == 100


def test_bound_reasoning_goes_again_where_what_stands_around_changes_later() -> None:
    for model, stays in ((BOUND, False), (MODEL, True)):
        agent = Forgetful(model=model)
        agent.step()
        agent.step()
        agent.answer(agent.open(), {"type": "text", "text": "Done."})
        more = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "go on"}]
        later = agent.open([*agent.messages, *more], system="Be brief.")
        assert (sent(later) == [*agent.lawful, *more]) is stays
        assert (later.body is later.out.plain) is not stays


# -- left alone, and why


def test_a_request_that_was_answered_without_it_gets_it_no_more() -> None:
    agent = Forgetful(action="observe")
    agent.step()
    agent.step()
    agent.chain = Forgetful(model=BOUND).chain
    agent.restart()
    agent.step()
    agent.step()
    assert sent(agent.open())[1] == agent.messages[1]
    assert sent(agent.open())[7] == agent.lawful[7]


CHANGED = "the history before it, or the reply, came back changed"


def test_a_reply_that_came_back_otherwise_is_left_alone() -> None:
    agent = Forgetful(model=BOUND)
    agent.step()
    agent.messages[1]["content"].insert(0, {"type": "text", "text": "I think."})
    opened = agent.open()
    assert opened.body is opened.out.plain
    assert agent.whys() == [CHANGED]
    assert [f["kind"] for f in agent.events("finding") if f["policy"] == "thinking"] == ["dropped"]


def test_so_is_one_whose_history_was_edited() -> None:
    agent = Forgetful(model=BOUND)
    agent.step()
    agent.step()
    agent.messages[2]["content"][0]["content"] = "another result"
    opened = agent.open()
    assert sent(opened)[1] == agent.lawful[1]
    assert sent(opened)[3] == agent.messages[3]
    assert agent.whys() == [CHANGED]


def test_another_model_and_thinking_that_is_off_are_left_as_they_are() -> None:
    for more in ({"model": "claude-other-1"}, {"thinking": {"type": "disabled"}}):
        agent = Forgetful()
        agent.step()
        opened = agent.open(**more)
        assert opened.body is opened.out.plain
        assert agent.events("intervention") == []


def test_what_stands_twice_or_elsewhere_is_left_and_the_finding_says_why() -> None:
    agent = Forgetful()
    agent.step()
    agent.messages[1]["content"] = [thinking(1), thinking(1), *agent.messages[1]["content"]]
    opened = agent.open()
    assert opened.body is opened.out.plain
    (found,) = agent.events("finding")
    assert (found["kind"], found["evidence"]["unmended"]) == ("duplicated", "it stands there twice")
    assert agent.interventions == ["would_deny"]


@pytest.mark.parametrize("more", [{"system": "Be brief."}, {"tools": [{"name": "zsh"}]}])
def test_bound_reasoning_is_left_alone_where_what_stands_around_changed(more: Any) -> None:
    for model, done in ((BOUND, False), (MODEL, True)):
        agent = Forgetful(model=model)
        agent.step()
        assert (sent(agent.open(**more)) == agent.lawful) is done
        assert agent.whys() == ([] if done else ["system text or tools changed, which it is bound to"])


def test_a_refusal_that_may_be_our_fault_ends_it() -> None:
    agent = Forgetful()
    agent.step()
    opened = agent.open()
    message = "messages.1.content.0: Invalid `signature` in `thinking` block"
    agent.answer(opened, status=400, message=message)
    (refused,) = [f for f in agent.events("finding") if f["kind"] == "repair_refused"]
    assert refused["evidence"]["quotes"] == {"error": message}
    again = agent.open()
    assert again.body is again.out.plain
    (reported,) = [f for f in agent.events("finding") if f["kind"] == "reported"]
    assert reported["evidence"]["verdict"] == "missed"
    agent.answer(again, {"type": "text", "text": "ok"})
    assert agent.core.tracker.shelf.threads[one_thread(agent)].mending is False


def test_another_refusal_is_nothing_to_us() -> None:
    agent = Forgetful()
    agent.step()
    agent.answer(agent.open(), status=400, message="max_tokens: too large")
    assert sent(agent.open()) == agent.lawful


def test_what_provider_and_prediction_say_is_of_what_went_out() -> None:
    agent = Forgetful(model=BOUND)
    for _ in range(3):
        agent.step()
    agent.answer(agent.open(), {"type": "text", "text": "ok"})
    assert {f["kind"] for f in agent.events("finding")} == {"dropped"}


# -- stored before it is read


@pytest.mark.parametrize("answered", [True, False])
def test_what_cannot_be_stored_does_not_go_out(answered: bool) -> None:
    agent = Forgetful()
    agent.step()
    agent.core.keeps = True
    opened = agent.open()
    assert opened.unsaved
    assert agent.told("repair") == []
    opened.keep(agent.now_ns, safe=False)
    assert opened.body is opened.out.plain
    assert agent.whys() == ["it could not be stored"]
    if answered:
        agent.answer(opened, {"type": "text", "text": "ok"})
    else:
        agent.answer(opened, status=529, message="overloaded")
    agent.core.keeps = False
    told = [*agent.messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and?"}]
    later = agent.open(told if answered else None)
    assert (sent(later)[1] == agent.lawful[1]) is not answered


def test_what_is_stored_goes_out() -> None:
    agent = Forgetful()
    agent.step()
    agent.core.keeps = True
    opened = agent.open()
    opened.keep(agent.now_ns, safe=True)
    assert sent(opened) == agent.lawful
    assert len(agent.told("repair")) == 1
    assert not agent.open().unsaved


# -- what is kept


def kept(number: int, size: int = 10, *, back: bool = False) -> Kept:
    thought = Thought(0, Carrier(b"x" * size), (b"n",))
    return Kept(f"stp_{number}", bytes([number]), "anthropic a", "m", b"", "ti", (thought,), back)


def test_memory_is_bounded_and_what_was_put_back_stays() -> None:
    some: list[Kept] = [kept(0, back=True)]
    for number in range(1, 100):
        some = repairs.with_reply(some, kept(number))
    assert [one.step for one in some] == ["stp_0", *(f"stp_{n}" for n in range(100 - repairs.MOST, 100))]
    some = repairs.with_reply(some, kept(100, repairs.MOST_BYTES - 25))
    assert [one.step for one in some] == ["stp_0", "stp_99", "stp_100"]
    assert repairs.with_reply(some, kept(101, repairs.MOST_BYTES)) == some
    some = repairs.marked(some, {"stp_99": True}, back=True)
    assert [(one.back, one.bound) for one in some] == [(True, False), (True, True), (False, False)]
    assert repairs.load(json.loads(json.dumps(repairs.dump(some)))) == some


def test_two_instances_agree_on_what_stands() -> None:
    mine, theirs = [kept(1), kept(2, back=True)], [kept(1, back=True), kept(2), kept(3)]
    both = repairs.joined(mine, theirs)
    assert {one.step: one.back for one in both} == {"stp_1": True, "stp_2": True, "stp_3": False}
    assert repairs.joined(both, both) == both


def test_another_instance_puts_the_same_bytes_back() -> None:
    agent = Forgetful(model=BOUND)
    for _ in range(3):
        agent.step()
    first = agent.open()
    agent.answer(first, status=529, message="overloaded")
    thread = agent.core.tracker.shelf.threads[one_thread(agent)]
    head = {**json.loads(json.dumps(agent.core.tracker.shared_head(thread))), "rev": 1}
    here = agent.replay
    agent.replay = Replay(chain=agent.chain, on_record=agent.records.append)
    agent.core.tracker.absorb([head], agent.now_ns)
    assert agent.open().body == first.body
    agent.replay = here
    here.core.tracker.absorb([{**head, "rev": 2}], agent.now_ns)
    assert agent.open().body == first.body
