"""What is decided: findings, interventions, claims and the chain's answer.

Policies produce these values, the chain merges them, the shells act on them (``Agreement`` alone keeps
a state: it compares them with what providers said). Names and values are the product's public ones
(``looptap replay --json``, events, spans, metrics).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any, Literal

from proxy.model import rfc3339
from proxy.structs import struct

Severity = Literal["info", "warning", "violation"]
Consequence = Literal["hard", "soft"]
"""``hard``: the provider will refuse; ``soft``: accepted, but reasoning or cache is lost."""

Action = Literal["observe", "warn", "nudge", "repair", "clamp", "land", "deny", "message", "cut", "hold"]
Reached = Literal["deny", "message", "cut", "land", "hold", "warn", "observe"]
"""What happens at a limit (``on_exhausted``)."""
Scope = str
"""step, turn, thread, session, key, team, org, model, upstream or ``label:NAME``."""


@struct(frozen=True, slots=True)
class Finding:
    """What a policy saw, with evidence. ``path`` is a normalised JSONPath into the request.

    Evidence holds JSON values: ids, counts, names. What it quotes of the traffic stands under
    ``quotes`` and is left out where no content may be kept (``record: digest``).
    """

    policy: str
    kind: str
    severity: Severity
    evidence: Mapping[str, Any] = field(default_factory=dict)
    consequence: Consequence | None = None
    path: str | None = None


VERDICTS = ("agreed", "missed", "unconfirmed")


class Agreement:
    """How often providers do what policies predict of them. Fed with records, it answers verdicts:

    ``agreed`` (a fault was predicted, and the provider tells of it), ``missed`` (it tells of one that
    nobody predicted), ``unconfirmed`` (a refusal was predicted, and a whole reply came).
    """

    _MOST = 1_024
    """Exchanges under way whose predictions are kept."""

    def __init__(self) -> None:
        self._predicted: dict[str, dict[str, None]] = {}

    def take(self, kind: str, data: Mapping[str, Any]) -> list[tuple[str, str]]:
        """One record by its type: (policy, verdict) for each that it settles."""
        exchange = str(data.get("exchange") or "")
        if kind == "finding":
            verdict = (data.get("evidence") or {}).get("verdict")
            if data.get("kind") == "reported" and isinstance(verdict, str):
                return [(str(data.get("policy")), verdict)]
            if data.get("consequence") == "hard":
                self._predicted.setdefault(exchange, {})[str(data.get("policy"))] = None
                if len(self._predicted) > self._MOST:
                    del self._predicted[next(iter(self._predicted))]
        elif kind == "intervention" and data.get("kind") == "repair":
            self._predicted.get(exchange, {}).pop(str(data.get("policy")), None)  # what went out has no fault
        elif kind == "step/attempt":
            policies = self._predicted.pop(exchange, {})
            if data.get("outcome") == "complete":
                return [(policy, "unconfirmed") for policy in policies]
        return []


@struct(frozen=True, slots=True)
class Edit:
    """A change to the request before it goes out. Edits compose; each dialect picks the carrier.

    ``nudge``: ``text`` to be read by the model (``data["unquoted"]``: the same without what it quotes of
    the traffic, for where none of that may be kept); ``repair``: thinking to put back; ``clamp``: a
    lower ``max_output_tokens``; ``land``: one last step without tools (``data["why"]``: the ``Terminal`` that
    it stands in for, where there is one).
    """

    kind: Literal["nudge", "repair", "clamp", "land"]
    text: str = ""
    max_output_tokens: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    """Who asked for it; the chain fills it in."""


@struct(frozen=True, slots=True)
class Terminal:
    """The one thing that ends a request: what was reached, in words and in fields.

    ``code`` is stable for machines (``looptap_budget_exceeded``, ``looptap_step_limit``,
    ``looptap_policy_denied`` …); ``fields`` go into ``error.looptap``.
    """

    kind: Literal["deny", "message", "cut", "hold"]
    """``hold``: nothing has ended, it waits for an operator; what it becomes without a yes is a ``deny``."""
    policy: str
    code: str
    message: str
    cause: str = "policy"
    """The turn's cause when this refusal ends it."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None
    """How long the client is to wait before it asks again: nothing has ended."""
    resets_s: int | None = None
    """For a refusal that is final for now: how long until the limit begins anew."""
    any_form: bool = False
    """The policy wants it ended and leaves to its configured action how."""


STOPPED = "looptap_stopped"
"""Code of a refusal because an operator stopped the turn, thread, session or key."""


Verdict = Literal["yes", "no", "room", "nobody", "gone", "shutdown"]
"""What became of a wait for an operator: yes or no (a stop); ``room``: what was wanted can be held by now;
nobody answered in time; the client left; we go ourselves."""


@struct(frozen=True, slots=True)
class Decision:
    """What one policy, and then the whole chain, answers."""

    findings: tuple[Finding, ...] = ()
    edits: tuple[Edit, ...] = ()
    terminal: Terminal | None = None
    memory: Mapping[str, Any] | None = None
    """The policy's new memory; None leaves it as it was."""


@struct(frozen=True, slots=True)
class Claim:
    """What a budget wants held before a request goes out, and the counter that it names.

    Numbers count the dimension's own unit: steps, tokens, calls; ``spend_usd`` counts
    nano-dollars (``to_nano``), never floats.
    """

    budget: str
    scope: Scope
    subject: str
    dimension: str
    """``steps``, ``spend_usd`` …; per tool ``calls:NAME``, ``tool_retries:NAME``."""
    window: str
    """``life`` (of the subject), ``minute``, ``hour``, ``day``, ``week``, ``month`` or ``total``."""
    amount: int
    """The worst case. 0 asks only whether the counter stands within its limit."""
    limit: int
    """What is told to people, and what ``alert_at`` are shares of."""
    hard: int | None = None
    """Where requests stop; None: at the limit."""
    minimum: int | None = None
    """Where less than ``amount`` is left, hold what is left if it is at least this much."""
    level: int | None = None
    """Set the counter to this first (a streak, a time that ran), instead of summing it up."""
    spare: int = 0
    """So much must stay free beside it, for a last step; it is not held."""
    last: int | None = None
    """The least with which it could go out as a last step; None: its budget gives none."""
    alert_at: tuple[int, ...] = ()
    """Shares of the limit at which to tell somebody, in ten-thousandths, ascending."""
    policy: str = ""
    """Which policy claims; empty: a budget of the configuration. The chain fills in this and the next."""
    on_exhausted: Reached = "observe"
    """What a policy's claim does where it does not fit."""


@struct(frozen=True, slots=True)
class Demand:
    """What one request takes at the most, and of whom: the facts by which budgets claim."""

    subjects: Mapping[Scope, str]
    """Who it is by scope: ids of step, turn (the root's), thread, session; names of key, team, org,
    model, upstream. What is not known is absent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    """1 for a new step; further attempts and side calls are none."""
    input_tokens: int = 0
    output_tokens: int = 0
    least_output: int = 0
    """Below this many tokens a lowered limit would be of no use."""
    spend_nano: int | None = 0
    """None: nobody knows its price."""
    input_nano: int = 0
    """The part of it that no output adds to."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Results that it brings, by tool."""
    streaks: Mapping[str, int] = field(default_factory=dict)
    """Error results in a row, by tool."""
    ran_ms: Mapping[Scope, int] = field(default_factory=dict)
    """Since the first request of step, turn, thread and session."""


Spend = Mapping[str, int | None] | Sequence[int | None]
"""What a grant really cost: by dimension (one fact for all of its budgets), or hold by hold.

A dimension that is missing or None is not known: it is charged as held, and so marked.
"""


@struct(frozen=True, slots=True)
class Balance:
    """A live counter of one budget, subject and dimension."""

    name: str
    scope: Scope
    subject: str
    window: str
    dimension: str
    limit: int
    """With what was topped up."""
    hard: int
    """Where requests stop, with what was topped up."""
    used: int
    reserved: int
    assumed: int = 0
    """The part of ``used`` that was charged as held, because nobody told what it really cost."""
    resets_at_ns: int | None = None

    @property
    def left(self) -> int:
        """What can still be held."""
        return max(0, self.hard - self.used - self.reserved)

    def public(self) -> dict[str, Any]:
        """As ``looptap budgets --json`` shows it: money as decimal text, times as RFC 3339.

        ``stops_at`` is there where requests go on beyond the limit.
        """
        further = {"stops_at": public_amount(self.dimension, self.hard)} if self.hard != self.limit else {}
        return {
            "name": self.name,
            "scope": self.scope,
            "subject": self.subject,
            "window": self.window,
            "dimension": self.dimension,
            "limit": public_amount(self.dimension, self.limit),
            **further,
            "used": public_amount(self.dimension, self.used),
            "reserved": public_amount(self.dimension, self.reserved),
            "resets_at": None if self.resets_at_ns is None else rfc3339(self.resets_at_ns),
        }


@struct(frozen=True, slots=True)
class Hold:
    """What one claim got: an amount of one counter, in the window in which it was taken."""

    claim: Claim
    amount: int
    key: str
    """The counter's key; it names the window, so that a late settlement still finds it."""
    starts_ns: int
    ends_ns: int | None


@struct(frozen=True, slots=True)
class Refusal:
    """Why nothing was held: a claim that did not fit, or a name that an operator stopped."""

    claim: Claim | None = None
    balance: Balance | None = None
    """The counter of the claim that did not fit, without this request."""
    stopped: str | None = None

    @property
    def available(self) -> int:
        """What was left for the claim that did not fit."""
        return self.balance.left if self.balance is not None else 0


@struct(frozen=True, slots=True)
class Alert:
    """A share of a limit that was just used up. Told once per share, budget, subject and window."""

    share: int
    """Ten-thousandths of the limit."""
    balance: Balance


@struct(frozen=True, slots=True)
class Grant:
    """What the ledger held, all claims or none. Keep it: settling needs the whole of it."""

    id: str
    holds: tuple[Hold, ...] = ()
    refusal: Refusal | None = None
    expires_ns: int = 0
    alerts: tuple[Alert, ...] = ()
    lease: str | None = None
    """Held, at least in part, from budget that this instance had drawn ahead."""


@struct(frozen=True, slots=True)
class Receipt:
    """A settlement. ``applied`` is False when this grant had been settled before."""

    grant_id: str
    applied: bool
    late: bool = False
    """The reservation had ended; its assumed charge was put right."""
    queued: bool = False
    """The ledger is away; the settlement is kept and lands when it is back."""
    alerts: tuple[Alert, ...] = ()
    overruns: tuple[Balance, ...] = ()
    """Counters that this settlement, being more than was held, took beyond where requests stop."""


@struct(frozen=True, slots=True)
class VirtualKey:
    """A key that Looptap hands out (``lt_…``); only its hash is kept."""

    name: str
    sha256: str
    team: str
    created_ns: int
    labels: Mapping[str, str] = field(default_factory=dict)
    revoked_ns: int | None = None


NANO = 1_000_000_000
_PLAIN_NAME = re.compile(r"\(none\)|[\w.:@/+*-]+")


def to_nano(usd: Decimal, *, up: bool = False) -> int:
    """Dollars in whole nano-dollars: holds round up, prices to the nearest."""
    return int((usd * NANO).to_integral_value(ROUND_CEILING if up else ROUND_HALF_EVEN))


def to_usd(nano: int) -> Decimal:
    """Nano-dollars in dollars, exactly."""
    return Decimal(nano).scaleb(-9)


def public_amount(dimension: str, amount: int) -> int | float | str:
    """An amount as people and ``--json`` get it: money as decimal text without needless zeros, time in
    seconds."""
    if dimension == "wall_clock":
        return amount // 1000 if amount % 1000 == 0 else amount / 1000
    if dimension != "spend_usd":
        return amount
    text = f"{to_usd(amount):f}".rstrip("0")
    return text.rstrip(".") or "0"


def public_name(name: str) -> str:
    """A subject or tool in a sentence: as it is, or in quotes where it could pass for other words."""
    return name if _PLAIN_NAME.fullmatch(name) else repr(name)


@struct(frozen=True, slots=True)
class Reply:
    """A complete answer of our own: a refusal in the client's dialect, or a synthetic message."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
