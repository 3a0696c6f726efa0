"""What is decided: findings, interventions, claims and the chain's answer.

Values only. Policies produce them, the chain merges them, the shells act on them. Names and
values are the product's public ones (``looptap replay --json``, events, spans, metrics).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

Severity = Literal["info", "warning", "violation"]
Consequence = Literal["hard", "soft"]
"""``hard``: the provider will refuse; ``soft``: accepted, but reasoning or cache is lost."""

Action = Literal["observe", "warn", "nudge", "repair", "clamp", "land", "deny", "message", "cut", "hold"]
Scope = str
"""step, turn, thread, session, key, team, org, model, upstream or ``label:NAME``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a policy saw, with evidence. ``path`` is a normalised JSONPath into the request."""

    policy: str
    kind: str
    severity: Severity
    evidence: Mapping[str, Any] = field(default_factory=dict)
    consequence: Consequence | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to the request before it goes out. Edits compose; each dialect picks the carrier.

    ``nudge``: ``text`` to be read by the model; ``repair``: thinking to put back; ``clamp``: a
    lower ``max_output_tokens``; ``land``: one last step without tools.
    """

    kind: Literal["nudge", "repair", "clamp", "land"]
    text: str = ""
    max_output_tokens: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The one thing that ends a request: what was reached, in words and in fields.

    ``code`` is stable for machines (``looptap_budget_exceeded``, ``looptap_step_limit``,
    ``looptap_policy_denied`` …); ``fields`` go into ``error.looptap``.
    """

    kind: Literal["deny", "message", "cut", "hold"]
    policy: str
    code: str
    message: str
    cause: str = "policy"
    """The turn's cause when this refusal ends it."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What one policy, and then the whole chain, answers."""

    findings: tuple[Finding, ...] = ()
    edits: tuple[Edit, ...] = ()
    terminal: Terminal | None = None
    memory: Mapping[str, Any] | None = None
    """The policy's new memory; None leaves it as it was."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a budget wants held before a request goes out."""

    budget: str
    scope: Scope
    subject: str
    dimension: str
    window: str
    amount: Decimal
    limit: Decimal
    resets_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Spend:
    """What one claim really cost."""

    budget: str
    scope: Scope
    subject: str
    dimension: str
    window: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Grant:
    """What the ledger held, or the claim that did not fit."""

    id: str | None
    refused: Claim | None = None
    used: Decimal | None = None
    reserved: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A settlement. ``applied`` is False when this grant had been settled before."""

    grant_id: str
    applied: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """A live counter of one budget and subject."""

    limit: Decimal
    used: Decimal
    reserved: Decimal
    resets_at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer of our own: a refusal in the client's dialect, or a synthetic message."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
