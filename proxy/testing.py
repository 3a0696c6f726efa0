"""A test driver for policies: a conversation in, findings out, through the real core.

Shipped with the product, so that whoever writes a policy can test it without a network, a key or a
clock. Nothing in here pretends: requests and replies are real bodies of the Messages API, read by the
real dialect, placed by the real tracker and judged by the real chain. Time stands still but for a
second per exchange.

    play = Play(MyPolicy(), action="deny")
    agent = play.agent()
    agent.asks("mend the test")
    agent.does("bash", {"command": "pytest"}, "1 failed")
    agent.ends("done")
    assert [finding["kind"] for finding in play.findings] == []
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from policies.budgets import Budget, Budgets
from proxy.chain import Chain, Link, Mode
from proxy.core import Opened
from proxy.model import Exchange, Head, ResponseHead, Upstream
from proxy.money.bounds import Bounds
from proxy.money.demands import demand_of
from proxy.money.standing import Standing
from proxy.ports import Policy
from proxy.pricing import Pricing
from proxy.replay import Replay
from proxy.verdict import Action, Claim, Reply

_UPSTREAM = Upstream("anthropic", "https://api.anthropic.com", "anthropic", "anthropic")
_START_NS = 1_700_000_000_000_000_000
_SECOND_NS = 1_000_000_000


class PolicyFault(Exception):
    """The policy under test raised; live this would have cost its findings, not the traffic."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A tool result that is flagged as an error."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one request."""

    findings: tuple[Mapping[str, Any], ...]
    """What was found at it, before it went out and when its reply had come."""
    refusal: Reply | None
    """Our own answer, where it was refused."""
    body: bytes
    """The request as it went upstream."""
    claims: tuple[Claim, ...] = ()
    """What policies wanted held for it."""


class Play:
    """Some policies and the conversations that they watch."""

    def __init__(
        self,
        *policies: Policy,
        action: Action = "observe",
        mode: Mode = "enforce",
        budgets: Sequence[Budget] = (),
    ) -> None:
        """``budgets`` are what ``view.balances`` tells of; nothing is held here, for them or for claims."""
        chain = Chain([Link(policy, action) for policy in policies], mode=mode, on_fault=_raise)
        self._replay = Replay(chain=chain, standing=Standing(Budgets(budgets)) if budgets else None)
        self._prices = Pricing() if chain.has_claims else None
        self._bounds = Bounds()
        self._replay.core.reserves = chain.has_claims
        self._number = self._ids = 0
        self.now_ns = _START_NS

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Everything found so far, as ``looptap replay --json`` tells it."""
        return self._replay.forest.findings

    def tree(self) -> dict[str, Any]:
        """The sessions so far, as ``looptap replay --json`` tells them."""
        return self._replay.tree()

    def kinds(self, policy: str | None = None) -> list[str]:
        """Kinds of the findings, of one policy or of all."""
        return [f["kind"] for f in self.findings if policy is None or f["policy"] == policy]

    def new_id(self, prefix: str) -> str:
        """An id as the provider would give it."""
        self._ids += 1
        return f"{prefix}{self._ids:020d}"

    def agent(
        self, system: str = "You are a coding agent.", *, model: str = "claude-sonnet-4-5", **more: Any
    ) -> "Agent":
        """A conversation. ``tools`` are the names offered; else each request offers what its reply calls."""
        return Agent(self, system, model, **more)

    def exchange(self, request: Mapping[str, Any], reply: Mapping[str, Any], status: int = 200) -> Answered:
        """One request and its reply (Messages API bodies), through the core."""
        self.now_ns += _SECOND_NS
        head = Head("POST", "/v1/messages", ((b"content-type", b"application/json"),))
        id = f"exc_{self._number:020d}"
        exchange = Exchange(id, self._number, head, _UPSTREAM, head.path, self.now_ns)
        self._number += 1
        before = len(self.findings)
        core = self._replay.core
        core.tick(self.now_ns)
        opened = core.open(exchange, orjson.dumps(request), self.now_ns)
        claims = self._claimed(exchange, opened)
        if opened.refusal is not None:
            opened.close("refused", self.now_ns)
        else:
            told = ResponseHead(status, b"OK", ((b"content-type", b"application/json"),))
            opened.respond(told, self.now_ns)
            opened.feed(orjson.dumps(reply), self.now_ns)
            opened.close("complete", self.now_ns)
        if self._replay.faults:
            raise PolicyFault(self._replay.faults[0])
        return Answered(tuple(self.findings[before:]), opened.refusal, opened.body, claims)

    def _claimed(self, exchange: Exchange, opened: Opened) -> tuple[Claim, ...]:
        """What policies want held for a request, which is then let through."""
        placement, request = opened.placement, opened.request
        if self._prices is None or placement is None or request is None or opened.refusal is not None:
            return ()
        demand = demand_of(exchange, opened, placement, request, self._prices, self._bounds, self.now_ns)
        claims = opened.claims(demand, self.now_ns)
        opened.admit(self.now_ns)
        return tuple(claims)


class Agent:
    """One agent: its history, and what its model says next."""

    def __init__(self, play: Play, system: str, model: str, *, tools: Sequence[str] | None = None) -> None:
        self._play = play
        self._system = system
        self._model = model
        self._tools = tools
        self.messages: list[dict[str, Any]] = []
        """The history as the client would send it; change it to play a client that does."""
        self.input_tokens: int | None = None
        """What the next replies report as tokens read; else what the request's size suggests."""

    def asks(self, text: str) -> None:
        """The user says something; it goes out with the next request."""
        self.messages.append({"role": "user", "content": text})

    def does(self, tool: str, arguments: Mapping[str, Any], result: str | Failed) -> Answered:
        """A step with one call and its result."""
        return self.does_all((tool, arguments, result))

    def does_all(self, *calls: tuple[str, Mapping[str, Any], str | Failed]) -> Answered:
        """A step with several calls at once. The results go out with the next request."""
        blocks, results = [], []
        for tool, arguments, result in calls:
            id = self._play.new_id("toolu_")
            blocks.append({"type": "tool_use", "id": id, "name": tool, "input": dict(arguments)})
            text = result.text if isinstance(result, Failed) else result
            block = {"type": "tool_result", "tool_use_id": id, "content": text}
            results.append({**block, "is_error": True} if isinstance(result, Failed) else block)
        answered = self._send(blocks, "tool_use")
        if answered.refusal is None:
            self.messages.append({"role": "user", "content": results})
        return answered

    def ends(self, text: str = "done") -> Answered:
        """The model answers in words: the turn is over."""
        return self._send([{"type": "text", "text": text}], "end_turn")

    def _send(self, content: list[dict[str, Any]], stop_reason: str) -> Answered:
        names = (
            self._tools if self._tools is not None else sorted({b["name"] for b in content if "name" in b})
        )
        request = {
            "model": self._model,
            "max_tokens": 4096,
            "system": self._system,
            "tools": [{"name": name, "input_schema": {"type": "object"}} for name in names],
            "messages": self.messages,
        }
        read = self.input_tokens if self.input_tokens is not None else len(orjson.dumps(request)) // 4
        reply = {
            "type": "message",
            "id": self._play.new_id("msg_"),
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "usage": {"input_tokens": read, "output_tokens": len(orjson.dumps(content)) // 4},
        }
        answered = self._play.exchange(request, reply)
        if answered.refusal is None:
            self.messages.append({"role": "assistant", "content": content})
        return answered


def _raise(where: str, error: BaseException) -> None:
    raise PolicyFault(f"{where}: {type(error).__name__}: {error}") from error
