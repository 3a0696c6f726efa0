"""Runs the policies in their one order and merges what they answer.

Posture lives here and nowhere else: observe or enforce, what each policy may do (its ``action``),
and what happens when a policy raises. Policies contain no such switch: they say what they saw and
what they would do; the chain decides what is done and keeps the rest as ``would`` entries.

Pure: same views and memories, same ruling. A policy that raises is reported through ``on_fault``
and counts as having said nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast, get_args

from proxy.claims import owned
from proxy.model import Event
from proxy.ports import Policy, View
from proxy.structs import replace, struct
from proxy.verdict import Action, Claim, Decision, Edit, Finding, Reached, Terminal

Mode = Literal["enforce", "observe"]
Point = Literal["turn_start", "step_start", "step_end", "turn_end"]
POINTS: tuple[Point, ...] = get_args(Point)

FAULTS = (Exception, SystemExit)
"""What a policy may raise: a library that it uses may want to end the process, which is not its to end."""
_EDITS = frozenset({"nudge", "clamp", "land"})
"""What may precede an end. A ``repair`` is none: who wants faults refused does not want them mended."""
_TERMINALS = ("hold", "message", "deny", "cut")
"""Weakest first: when several policies want to end a request, the strongest does."""
_AT_THE_DOOR = frozenset({"turn_start", "step_start"})
"""The points at which a request can still wait."""


@dataclass(frozen=True, slots=True)
class Link:
    """A policy in the chain, and the most that it may do."""

    policy: Policy
    action: Action = "observe"

    def may(self, kind: str) -> bool:
        """Whether this policy's configured action covers an intervention of that kind."""
        if self.action in (*_TERMINALS, "land"):
            return kind in _EDITS or kind == self.action
        return kind == self.action

    @property
    def on_exhausted(self) -> Reached:
        """What becomes of a request that has no room for this policy's claims."""
        if self.action not in (*_TERMINALS, "land"):
            return "observe"
        return "message" if self.action == "message" else "hold" if self.action == "hold" else "deny"


Asked = tuple[Link, Callable[[View], Decision]]
"""A policy and its hook for the point in question."""


@struct(frozen=True, slots=True)
class Withheld:
    """An intervention that a policy asked for and that was only recorded (``would_…``)."""

    policy: str
    kind: str
    code: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What it was about."""


@struct(frozen=True, slots=True)
class Ruling:
    """What the whole chain answers at one point."""

    findings: tuple[Finding, ...] = ()
    edits: tuple[Edit, ...] = ()
    terminal: Terminal | None = None
    withheld: tuple[Withheld, ...] = ()
    memories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Only the memories that changed, by policy name."""


SILENT = Ruling()


class Chain:
    """The policies of this process, in order."""

    def __init__(
        self,
        links: Sequence[Link] = (),
        *,
        mode: Mode = "enforce",
        on_fault: Callable[[str, BaseException], None] = lambda where, error: None,
    ) -> None:
        self.links = tuple(links)
        self.mode = mode
        self.on_fault = on_fault
        self._claimants = tuple(link for link in self.links if _speaks(link.policy, "claims"))
        self.repairs = mode == "enforce" and any(link.action == "repair" for link in self.links)
        """Whether any policy may put reasoning back."""
        self._watchers = tuple(link for link in self.links if link.policy.wants_deltas)
        self._speakers: dict[Point, tuple[Asked, ...]] = {
            point: tuple(
                (link, getattr(link.policy, point)) for link in self.links if _speaks(link.policy, point)
            )
            for point in POINTS
        }

    @property
    def wants_deltas(self) -> bool:
        """Whether any policy reads along while a reply streams."""
        return bool(self._watchers)

    def judge(self, point: Point, view: View, memories: Mapping[str, Mapping[str, Any]]) -> Ruling:
        """Ask every policy at one point and merge the answers."""
        speakers = self._speakers[point]
        return self._merge(speakers, memories, point, view) if speakers else SILENT

    def speaks(self, point: Point) -> bool:
        """Whether any policy has something to say at a point."""
        return bool(self._speakers[point])

    @property
    def has_claims(self) -> bool:
        """Whether any policy wants anything held."""
        return bool(self._claimants)

    @property
    def may_hold(self) -> bool:
        """Whether any policy lets requests wait for an operator."""
        return self.mode == "enforce" and any(link.action == "hold" for link in self.links)

    def claims(self, view: View, memories: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """Ask every policy what it wants held for a request that is about to go out."""
        found: list[Claim] = []
        for link in self._claimants:
            policy = link.policy
            try:
                memory = memories.get(policy.name)
                asked = policy.claims(view if memory is None else view.remembering(memory))
                found += owned(asked, policy.name, link.on_exhausted)
            except FAULTS as error:  # as for its findings: nothing of it is held
                self.on_fault(f"policy {policy.name}.claims", error)
        return found

    def delta(self, view: View, event: Event, memories: Mapping[str, Mapping[str, Any]]) -> Ruling:
        """Ask the policies that read along about one event of a running stream."""
        if not self._watchers:
            return SILENT
        watchers = [(link, partial(link.policy.delta, event=event)) for link in self._watchers]
        return self._merge(watchers, memories, "delta", view)

    def _merge(
        self,
        speakers: Sequence[Asked],
        memories: Mapping[str, Mapping[str, Any]],
        point: str,
        view: View,
    ) -> Ruling:
        findings: list[Finding] = []
        edits: list[Edit] = []
        withheld: list[Withheld] = []
        changed: dict[str, Mapping[str, Any]] = {}
        terminal: Terminal | None = None
        acting = self.mode == "enforce"
        for link, ask in speakers:
            policy = link.policy
            try:
                memory = memories.get(policy.name)
                decision = ask(view if memory is None else view.remembering(memory))
            except FAULTS as error:  # a policy's bug must cost its own findings, not the traffic
                self.on_fault(f"policy {policy.name}.{point}", error)
                continue
            if decision.findings:
                findings.extend(decision.findings)
            if decision.memory is not None:
                changed[policy.name] = decision.memory
            for edit in decision.edits:
                if acting and link.may(edit.kind):
                    edits.append(replace(edit, policy=policy.name))
                else:
                    withheld.append(Withheld(policy.name, edit.kind, data=_about(edit)))
            if decision.terminal is None:
                continue
            wish = _formed(decision.terminal, link.action, point)
            if link.action == "land" and wish.any_form:
                if acting and point in _AT_THE_DOOR:
                    edits.append(Edit("land", data={"why": wish}, policy=policy.name))
                else:
                    withheld.append(Withheld(policy.name, "land", wish.code))
                continue
            may = link.may(wish.kind) or (wish.any_form and link.action in _TERMINALS)
            if acting and may and (wish.kind != "hold" or point in _AT_THE_DOOR):
                terminal = _stronger(terminal, wish)
            else:
                withheld.append(Withheld(policy.name, wish.kind, wish.code))
        if not (findings or edits or withheld or changed) and terminal is None:
            return SILENT
        return Ruling(tuple(findings), tuple(edits), terminal, tuple(withheld), changed)


def _speaks(policy: Policy, hook: Point | Literal["claims"]) -> bool:
    """Whether a policy says anything when asked so; hooks that never do are marked ``says_nothing``."""
    return not getattr(getattr(policy, hook), "says_nothing", False)


def _about(edit: Edit) -> Mapping[str, Any]:
    return edit.data if edit.kind == "repair" else {}


def _formed(wish: Terminal, action: Action, point: str) -> Terminal:
    """A wish that leaves its form open, in the form of the action. Only a running stream can be cut."""
    if not wish.any_form or action not in _TERMINALS:
        return wish
    form = "deny" if action == "cut" and point != "delta" else action
    return replace(wish, kind=cast(Any, form))


def _stronger(one: Terminal | None, other: Terminal) -> Terminal:
    if one is None or _TERMINALS.index(other.kind) > _TERMINALS.index(one.kind):
        return other
    return one
