"""Where a request belongs: the tracker's answer, as the core and the policies see it.

Ids and facts are read through to the living state, so that a placement stays true while its turn
goes on. Only the tracker writes to it.
"""

from collections.abc import Mapping
from typing import Any

from proxy.model import Exchange, Item, MatchedBy, ModelRequest, ThreadKind
from proxy.ports import Answer
from proxy.structs import struct
from proxy.tracking.threads import Step, Thread
from proxy.tracking.waits import Waiting


@struct(slots=True, eq=False)
class Placement:
    """Where a request belongs. What the core and the policies need to know of it."""

    exchange: Exchange
    request: ModelRequest
    step_state: Step
    attempt: int
    delta: tuple[Item, ...] = ()
    """Items that this request newly brings."""
    results: tuple[Item, ...] = ()
    """Those of them that answer pending calls."""
    answers: tuple[Answer, ...] = ()
    """The same, each with the call that it answers."""
    brought: tuple[tuple[str, bool], ...] = ()
    """The same by tool and whether it is an error; also in another try of what has not gone out yet."""
    previous: ModelRequest | None = None
    """The thread's request before this one, as far as it is still at hand."""
    answered: ModelRequest | None = None
    """The newest one before this that got a whole reply."""
    matched_by: MatchedBy = "prefix"
    relation: str = "new"
    new_turn: bool = False
    new_thread: bool = False
    rewritten: bool = False
    """The last reply came back as other words."""
    clocks: tuple[Waiting, ...] = ()
    """What stands still while it waits for an operator."""
    refused: bool = False
    closed: bool = False

    @property
    def thread_state(self) -> Thread:
        """The thread, for the tracker itself."""
        return self.step_state.thread

    @property
    def session(self) -> str:
        """Id of the session."""
        return self.step_state.thread.session.id

    @property
    def thread(self) -> str:
        """Id of the thread."""
        return self.step_state.thread.id

    @property
    def turn(self) -> str:
        """Id of the turn."""
        return self.step_state.turn.id

    @property
    def step(self) -> str:
        """Id of the step."""
        return self.step_state.id

    @property
    def step_index(self) -> int:
        """Number of the step in its turn, from 0."""
        return self.step_state.place if self.step_state.started else self.step_state.turn.steps

    @property
    def root_turn(self) -> str:
        """The turn that this spend belongs to: a sub-agent's or side call's is its parent's."""
        turn = self.step_state.thread.root_turn()
        return turn.id if turn is not None else self.turn

    @property
    def kind(self) -> ThreadKind:
        """Main, sub-agent or side call."""
        return self.step_state.thread.kind

    @property
    def is_side(self) -> bool:
        """Whether steps of it count for nobody."""
        return self.step_state.thread.kind == "side"

    @property
    def epoch(self) -> int:
        """Stretch of the thread between two rewrites of its history."""
        return self.step_state.epoch

    @property
    def memories(self) -> Mapping[str, Mapping[str, Any]]:
        """What the policies remember of this thread, by name."""
        return self.step_state.thread.memories
