"""Lets a tracker test read as a conversation: requests and replies in, the public tree out.

Not a double of anything: it drives the real ``Tracker`` and reads its records with the real
``Forest``. Items get the digests that the dialects give them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from proxy.model import (
    Attempt,
    AttemptOutcome,
    Cost,
    EndKind,
    Exchange,
    Head,
    Hints,
    Identity,
    Item,
    Message,
    ModelRequest,
    Outcome,
    Record,
    Tool,
    Usage,
)
from proxy.reading.identity import call_digest, result_digest, text_digest
from proxy.reading.library import SEED, fold
from proxy.tracker import Tracker
from proxy.tracking.placement import Placement
from proxy.trees import Forest

SECOND = 1_000_000_000
TOOLS = (Tool("bash", b"bash"), Tool("Agent", b"agent"))


def user(text: str) -> Message:
    return Message("user", (Item("user", "user", text, digest=text_digest("user", "user", text)),))


def system(text: str) -> Message:
    return Message("system", (Item("system", "system", text, digest=text_digest("system", "system", text)),))


def said(text: str) -> Item:
    return Item("text", "assistant", text, digest=text_digest("text", "assistant", text))


def thought(text: str, signature: str = "sig") -> Item:
    return Item("thinking", "assistant", text, signature=signature)


def call(id: str | None, tool: str = "bash", arguments: str = '{"command":"ls"}') -> Item:
    digest = call_digest(tool, arguments)
    return Item("tool_call", "assistant", tool=tool, call_id=id, arguments=arguments, digest=digest)


def result(id: str | None, text: str = "done", tool: str | None = None, *, is_error: bool = False) -> Item:
    digest = result_digest(text, is_error=is_error)
    return Item("tool_result", "tool", text, tool=tool, call_id=id, is_error=is_error, digest=digest)


def assistant(*items: Item) -> Message:
    return Message("assistant", items)


def results(*items: Item) -> Message:
    return Message("user", items)


def request(*messages: Message, **more: Any) -> ModelRequest:
    chain, at = [], SEED
    for message in messages:
        at = fold(at, message.items)
        chain.append(at)
    facts: dict[str, Any] = {"model": "m", "stream": True, "tools": TOOLS, "dialect": "anthropic", **more}
    return ModelRequest(operation="chat", messages=messages, chain=tuple(chain), **facts)


@dataclass
class Play:
    """One tracker and a clock."""

    now_ns: int = 1_700_000_000 * SECOND
    records: list[Record] = field(default_factory=list)
    count: int = 0
    ids: int = 0
    tracker: Tracker = field(init=False)

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.records.append, self._new_id)

    def _new_id(self, prefix: str, seed: str) -> str:
        self.ids += 1
        return f"{prefix}{self.ids:020d}"

    def ask(self, asked: ModelRequest, *, identity: Identity | None = None, after_s: float = 1) -> Placement:
        """A request arrives and goes out."""
        self.now_ns += int(after_s * SECOND)
        exchange = Exchange(
            f"exc_{self.count}", self.count, Head("POST", "/v1/messages"), None, "/v1/messages",
            self.now_ns, identity or Identity(),
        )  # fmt: skip
        self.count += 1
        placement = self.tracker.place(exchange, asked, self.now_ns)
        self.tracker.admit(placement, self.now_ns)
        return placement

    def answer(
        self,
        placement: Placement,
        *items: Item,
        outcome: AttemptOutcome = "complete",
        stop: str | None = None,
        response_id: str | None = None,
        end: EndKind | None = None,
        after_s: float = 1,
    ) -> None:
        """Its reply has come."""
        self.now_ns += int(after_s * SECOND)
        whole = outcome == "complete"
        calls = any(item.kind == "tool_call" for item in items)
        reason = stop or ("tool_use" if calls else "end_turn") if whole else None
        usage = Usage(input_tokens=10, output_tokens=5) if whole else None
        reply = Outcome(items, usage, stop_reason=reason, model="m-1", response_id=response_id, whole=whole)
        ends: dict[str, EndKind] = {
            "client_gone": "client_gone",
            "cut": "upstream_reset",
            "refused": "refused",
        }
        self.tracker.close(
            placement,
            Attempt(
                outcome=outcome,
                end=end or ends.get(outcome, "complete"),
                reply=reply,
                usage=usage,
                cost=Cost(Decimal("0.001") if whole else Decimal(0), "measured"),
                status=200 if whole else 500,
                arrived_ns=placement.exchange.arrived_ns,
                ended_ns=self.now_ns,
            ),
        )

    def step(self, asked: ModelRequest, *items: Item, **more: Any) -> Placement:
        """A request and its whole reply."""
        identity = more.pop("identity", None)
        placement = self.ask(asked, identity=identity)
        self.answer(placement, *items, **more)
        return placement

    def tree(self) -> dict[str, Any]:
        return Forest(self.records).tree()

    def shape(self) -> list[list[list[list[list[int]]]]]:
        """Sessions of threads of turns of steps of exchanges."""
        return [
            [[[s["exchanges"] for s in u["steps"]] for u in t["turns"]] for t in session["threads"]]
            for session in self.tree()["sessions"]
        ]

    def threads(self) -> list[dict[str, Any]]:
        return [thread for session in self.tree()["sessions"] for thread in session["threads"]]

    def causes(self) -> list[str | None]:
        """Causes of all turns, in the order of threads."""
        return [turn["cause"] for thread in self.threads() for turn in thread["turns"]]


def grown(asked: ModelRequest, *more: Message, **facts: Any) -> ModelRequest:
    """The same request with further messages."""
    after = request(*asked.messages, *more)
    return replace(asked, messages=after.messages, chain=after.chain, **facts)


def claude(session: str = "s1", agent: str | None = None, parent: str | None = None) -> Hints:
    return Hints(client="claude-code", session=session, agent=agent, parent_agent=parent)


def flat(values: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for inner in values for value in inner]
