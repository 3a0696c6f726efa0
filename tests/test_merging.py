"""Trackers of several instances on one store: what each adds to a thread survives, whoever was first."""

import asyncio
from decimal import Decimal
from typing import Any

from proxy.model import Exchange, Head, Identity, ModelRequest
from proxy.stores.memory import MemoryThreads
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Thread
from tests.play import Play, assistant, call, claude, grown, request, result, results, said, user


class Instance(Play):
    """A tracker that looks a request up before it places it, and puts back what it did."""

    def __init__(self, name: int, store: MemoryThreads, *, alive: bool = True) -> None:
        super().__init__(ids=name * 1_000_000)
        self.store = store
        self.alive = alive
        """What the others are told of whoever is at work on a thread."""
        self.conflicts = 0

    def at(self, asked: ModelRequest, identity: Identity | None = None) -> Placement:
        """A request arrives here."""
        exchange = Exchange("exc", 0, Head("POST", "/"), None, "/", self.now_ns, identity or Identity())
        names, known = self.tracker.names(exchange, asked), self.tracker.known(exchange, asked)
        heads = asyncio.run(self.store.pull(names, known))
        self.tracker.absorb([{**head, "alive": self.alive} for head in heads], self.now_ns)
        placed = self.ask(asked, identity=identity)
        self.put(placed.thread_state)
        return placed

    def took(self, placed: Placement, *items: Any, **more: Any) -> None:
        """Its reply has come, and is put back."""
        self.answer(placed, *items, **more)
        self.put(placed.thread_state)

    def put(self, thread: Thread) -> None:
        while True:
            head, memories = self.tracker.shared_head(thread), dict(thread.memories)
            newer = asyncio.run(self.store.push([head]))
            if not newer:
                self.tracker.agree(thread, head, memories)
                return
            self.conflicts += 1
            self.tracker.absorb([{**one, "alive": True} for one in newer], self.now_ns)


def pair(**more: Any) -> tuple[Instance, Instance]:
    store = MemoryThreads()
    return Instance(1, store, **more), Instance(2, store, **more)


FIRST = request(user("a long task"))
SECOND = grown(FIRST, assistant(call("call_abcdef01")), results(result("call_abcdef01")))
THIRD = grown(SECOND, assistant(call("call_abcdef02")), results(result("call_abcdef02")))


def test_a_turn_goes_on_where_its_next_step_comes_to() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"))
    went_on = two.at(SECOND)
    assert (went_on.turn, went_on.thread, went_on.session) == (begun.turn, begun.thread, begun.session)
    assert (went_on.relation, went_on.step_index, went_on.new_turn) == ("continue", 1, False)
    assert [answer.call_id for answer in went_on.answers] == ["call_abcdef01"]
    two.took(went_on, call("call_abcdef02"))
    last = one.at(THIRD)
    one.took(last, said("done"))
    assert (last.turn, last.step_index) == (begun.turn, 2)
    assert last.step_state.turn.bill.usd == Decimal("0.003")
    assert one.shape() == [[[[[0], [1]]]]]
    assert two.shape() == [[[[[0]]]]]
    assert one.causes() == ["completed"]
    assert two.causes() == [None]
    two.at(grown(THIRD, assistant(said("done")), user("and now this")))
    assert two.causes() == ["completed", None]
    ends = [record.data for record in two.records if record.type == "turn/end"]
    assert [end["elsewhere"] for end in ends] == [True]


def test_two_that_finish_together_both_keep_what_they_added() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"))
    here = one.at(SECOND)
    there = two.at(THIRD)  # its client has read more of the reply than the instance that still reads it
    assert there.turn == here.turn
    one.answer(here, call("call_abcdef02"))
    two.answer(there, said("done"))
    two.put(there.thread_state)
    one.put(here.thread_state)
    assert (one.conflicts, two.conflicts) == (1, 0)
    again = two.at(grown(THIRD, assistant(said("done")), user("next")))
    for placed, turn in ((here, here.thread_state.turn), (again, there.step_state.turn)):
        assert turn is not None
        assert (turn.id, turn.steps, turn.bill.usd) == (begun.turn, 3, Decimal("0.003"))
        assert turn.bill.tokens == {"input_tokens": 30, "output_tokens": 15}
        assert [step.id for step in placed.thread_state.steps][:3] == [begun.step, here.step, there.step]
        assert all(not step.pending for step in placed.thread_state.steps)


def test_the_same_head_twice_changes_nothing() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"))
    two.took(two.at(SECOND), call("call_abcdef02"))
    (head,) = asyncio.run(one.store.pull([]))
    one.tracker.absorb([head], one.now_ns)
    before, count = one.tracker.shared_head(begun.thread_state), len(one.records)
    one.tracker.absorb([head], one.now_ns)
    assert one.tracker.shared_head(begun.thread_state) == before
    assert len(one.records) == count


def test_what_is_under_way_elsewhere_is_no_failure_while_its_instance_lives() -> None:
    one, two = pair()
    running = one.at(FIRST)
    beside = two.at(FIRST)
    assert (beside.relation, beside.turn == running.turn) == ("sibling", False)


def test_what_went_down_with_its_instance_is_asked_again_as_an_attempt() -> None:
    one, two = pair(alive=False)
    lost = one.at(FIRST)
    again = two.at(FIRST)
    assert (again.relation, again.step, again.turn) == ("attempt", lost.step, lost.turn)
    two.took(again, said("done"))
    assert two.shape() == [[[[[0]]]]]
    assert again.step_state.turn.steps == 1


def test_nobody_finds_a_thread_of_another_key() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"))
    strange = two.at(SECOND, Identity(key="other"))
    assert (strange.relation, strange.thread == begun.thread) == ("new", False)


def test_a_sub_agent_begun_elsewhere_is_charged_to_its_parents_turn() -> None:
    one, two = pair()
    main = one.at(request(user("a long task"), hints=claude()))
    one.took(main, call("call_abcdef01", "Agent", '{"prompt":"look into it"}'))
    agent = two.at(request(user("look into it"), hints=claude(agent="a1")))
    assert (agent.kind, agent.root_turn, agent.session) == ("subagent", main.turn, main.session)
    two.took(agent, call("call_abcdef09"))
    three = Instance(3, one.store)  # knows the sub-agent before it knows its parent
    on = three.at(grown(agent.request, assistant(call("call_abcdef09")), results(result("call_abcdef09"))))
    assert (on.kind, on.root_turn, on.turn) == ("subagent", main.turn, agent.turn)


def test_without_ids_a_sub_agent_is_known_by_its_task() -> None:
    one, two = pair()
    main = one.at(FIRST)
    task = "look into every corner of it"
    one.took(main, call("call_abcdef01", "Agent", f'{{"prompt":"{task}"}}'))
    agent = two.at(request(user(task)))
    assert (agent.kind, agent.root_turn) == ("subagent", main.turn)


def test_history_held_by_the_provider_is_found_by_its_id() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"), response_id="resp_1")
    chained = request(results(result("call_abcdef01")), held="resp_1")
    placed = two.at(chained)
    assert (placed.turn, placed.relation) == (begun.turn, "continue")


def test_an_idle_turn_is_not_ended_where_another_instance_goes_on_with_it() -> None:
    one, two = pair()
    begun = one.at(FIRST)
    one.took(begun, call("call_abcdef01"))
    two.now_ns = one.now_ns + 1_700 * 1_000_000_000
    two.took(two.at(SECOND), call("call_abcdef02"))
    later = one.now_ns + 1_900 * 1_000_000_000
    assert one.tracker.idle(later) == [begun.thread_state]
    one.tracker.absorb(asyncio.run(one.store.pull([])), later)
    one.tracker.tick(later)
    assert begun.step_state.turn.open
    one.tracker.tick(two.now_ns + 1_801 * 1_000_000_000)
    assert begun.step_state.turn.cause == "abandoned"
