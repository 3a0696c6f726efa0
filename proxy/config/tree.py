"""The settings tree: every key, its type and its default, stated here and nowhere else.

Only shapes and single values are checked here; what several keys say together is checked in
``checks``. Everything is frozen. Keys of the YAML file are the attributes' names.
"""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from proxy.config.file import Source, show
from proxy.config.values import (
    Address,
    Bytes,
    Count,
    Duration,
    Flag,
    HeaderName,
    HeaderValue,
    Label,
    Money,
    Price,
    RedisUrl,
    Secret,
    Sha256,
    Share,
    Text,
    Texts,
    WebhookUrl,
    refuse,
    url_problem,
)
from proxy.model import Api
from proxy.verdict import Action

LIFE_SCOPES = ("step", "turn", "thread", "session")
"""Scopes that end by themselves: without a window their limit is for their life."""
LASTING_SCOPES = ("key", "team", "org", "model", "upstream")
SCOPES = LIFE_SCOPES + LASTING_SCOPES
WINDOWS = ("minute", "hour", "day", "week", "month", "total")
RESERVED_NAMES = frozenset(
    {"v1", "v1beta", "v1alpha", "v1beta1", "healthz", "readyz", "metrics", "api", "upload"}
)
"""First path segments that providers or probes use, so that no upstream may be called so."""

Window = Literal["minute", "hour", "day", "week", "month", "total"]


class Section(BaseModel):
    """A mapping in the file. Unknown keys are refused; ``key:`` with nothing behind it is empty."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=False, use_attribute_docstrings=True
    )


def _empty(value: Any) -> Any:
    return {} if value is None else value


def _empty_list(value: Any) -> Any:
    return () if value is None else value


_OrEmpty = BeforeValidator(_empty)
_OrNone = BeforeValidator(_empty_list)


def _scope(value: Any) -> str:
    label = value.removeprefix("label:") if isinstance(value, str) else ""
    if value in SCOPES or (isinstance(value, str) and value.startswith("label:") and label):
        return str(value)
    raise refuse(f"{show(value)} is no scope", f"one of {', '.join(SCOPES)}, label:NAME")


def _upstream_url(value: Any) -> str:
    problem = url_problem(value, ("https", "http"), "https://api.example.com/v1")
    if problem is not None:
        raise refuse(*problem)
    text = str(value)
    if "@" in text.split("://", 1)[1].split("/", 1)[0]:
        raise refuse("the URL holds credentials", "clients send their own, or set api_key")
    if "?" in text or "#" in text:
        raise refuse("the URL holds a query or fragment", "end it at the path")
    return text.rstrip("/")


Scope = Annotated[
    str,
    BeforeValidator(_scope),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{'|'.join(SCOPES)}|label:.+)$"}),
]


class UpstreamSettings(Section):
    """Where requests go. Named by the first path segment."""

    url: Annotated[str, BeforeValidator(_upstream_url), WithJsonSchema({"type": "string", "format": "uri"})]
    """The provider's real base URL."""
    api: Api
    """Whose API it speaks; with the path this gives the dialect."""
    provider: Text | None = None
    """Whose price list counts (a genai-prices provider id); without it the URL tells."""
    ca_file: Path | None = None
    """PEM file of the authorities to trust instead of the system's."""
    api_key: Secret | None = None
    """The provider's key, put in for clients that present a virtual key (``lt_…``)."""


class HoldUsd(Section):
    """Hold a flat amount for each request that cannot be priced."""

    hold_usd: Money


class StoreSettings(Section):
    """The record of what happened."""

    path: Path = Field(default_factory=lambda: Path("~/.local/share/looptap").expanduser())
    """The data directory."""
    record: Literal["full", "digest"] = "full"
    """``digest`` keeps no content; it is the default where other machines reach the data port."""
    keep: Duration = Duration(30 * 86_400 * 10**9)
    max_size: Bytes = 5_000_000_000


class LedgerSettings(Section):
    """Where spent and held amounts are counted."""

    url: RedisUrl | None = None
    """``redis://…`` shares the ledger between instances; nothing: embedded in the store."""
    away: Literal["closed", "open"] = "closed"
    """While the shared ledger is away, requests under a budget are refused, or let through."""
    ttl: Duration = Duration(15 * 60 * 10**9)
    """How long a reservation outlives a holder that died."""
    lease: Money | None = None
    """Spend that an instance may draw ahead, to ask the shared ledger less often."""


class LimitsSettings(Section):
    """How much memory bodies may take."""

    max_buffered: Bytes = 512_000_000
    body_cache: Bytes = 256_000_000
    decoded: Bytes = 128_000_000


COUNTED_LIMITS = (
    "steps",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "requests_per_minute",
    "tool_retries",
)
"""The limits of ``BudgetLimits`` that are plain whole numbers."""


class BudgetLimits(Section):
    """What a budget bounds; at least one."""

    steps: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    spend_usd: Money | None = None
    wall_clock: Duration | None = None
    requests_per_minute: Count | None = None
    calls: Annotated[Mapping[Text, Count], _OrEmpty] = {}
    """At most n calls of a tool: ``{Bash: 50}``."""
    tool_retries: Count | None = None
    """At most n error results of one tool in a row, within a turn."""


class BudgetMatch(Section):
    """Narrows a budget to some traffic; patterns may hold ``*`` and ``?``."""

    upstream: Texts = ()
    model: Texts = ()
    key: Texts = ()


class BudgetSettings(Section):
    """A cap, and for whom it holds."""

    name: Label
    scope: Scope
    window: Window | None = None
    """Nothing: the life of a step, turn, thread or session."""
    limits: BudgetLimits
    alert_at: Annotated[tuple[Share, ...], _OrNone] = ()
    """Shares of a limit at which to tell somebody, ascending."""
    hard_at: Share = Decimal(1)
    """The share of a limit at which requests are stopped."""
    on_exhausted: Literal["deny", "message", "cut", "land", "hold", "warn", "observe"] = "deny"
    clamp: Flag = False
    """Where less than the worst case is left, lower the request's max tokens instead of refusing."""
    hold: Literal["worst_case", "slices"] = "worst_case"
    match: Annotated[BudgetMatch, _OrEmpty] = BudgetMatch()

    @property
    def acts(self) -> bool:
        """Whether it refuses anything where the mode lets it, and does not only tell."""
        return self.on_exhausted not in ("observe", "warn")


class PolicySettings(BaseModel):
    """What every policy has; the rest is the policy's own (``policy_options``)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    enabled: Flag = True
    action: Action = "observe"

    @property
    def acts(self) -> bool:
        """Whether it changes or refuses anything where the mode lets it, and does not only tell."""
        return self.enabled and self.action not in ("observe", "warn")


class PriceRule(Section):
    """A price of one's own, USD per million tokens. The first rule that matches counts."""

    model: Text
    """Pattern of model ids; ``*`` and ``?`` stand for anything."""
    upstream: Text | None = None
    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None
    cache_write_1h: Price | None = None
    web_search: Price | None = None
    """USD per thousand searches of the provider's own search tool."""


class TeamSettings(Section):
    """A team's place."""

    org: Label = "default"


class KeySettings(Section):
    """Whom a credential belongs to."""

    name: Label
    sha256: Sha256
    """SHA-256 of the credential as the client presents it (without ``Bearer``)."""
    team: Label = "default"
    labels: Annotated[Mapping[Label, Label], _OrEmpty] = {}
    """Pinned: they win over what the client says."""


class JsonlSettings(Section):
    """Records as JSON lines, into a file of one's own."""

    path: Text


class WebhookSettings(Section):
    """Where alerts are posted as JSON."""

    url: WebhookUrl
    headers: Annotated[Mapping[HeaderName, HeaderValue], _OrEmpty] = {}
    events: tuple[Literal["budget/alert", "budget/exhausted", "intervention", "finding"], ...] = (
        "budget/alert",
        "budget/exhausted",
        "intervention",
    )


Options = Annotated[Mapping[str, Any], _OrEmpty]


def _kind_of_unmodelled(value: Any) -> str:
    return "hold" if isinstance(value, dict | HoldUsd) else "word"


_UNMODELLED_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": ["refuse", "pass"]},
        {
            "type": "object",
            "properties": {"hold_usd": {"type": ["number", "string"]}},
            "required": ["hold_usd"],
            "additionalProperties": False,
        },
    ]
}


class Settings(Section):
    """Everything that can be set, with its default."""

    mode: Literal["enforce", "observe"] = "enforce"
    """``observe``: nothing acts; decisions are recorded as ``would_…``."""
    listen: Address = Address("127.0.0.1", 4040)
    """The data port. ``--listen`` wins."""
    admin: Address = Address("127.0.0.1", 4041)
    """The admin port. ``--admin`` wins."""
    upstreams: Annotated[Mapping[str, UpstreamSettings], _OrEmpty] = {}
    """Added to the built-in ones; an entry of a built-in's name changes that one."""
    default_upstream: Text | None = None
    on_abort: Literal["cancel", "drain"] = "cancel"
    """When the client has gone: cancel the upstream, or read on (bounded) for exact usage."""
    on_internal_error: Literal["open", "closed"] = "open"
    """When we fail ourselves: relay, or refuse."""
    unmodelled: Annotated[
        Annotated[Literal["refuse", "pass"], Tag("word")] | Annotated[HoldUsd, Tag("hold")],
        Discriminator(_kind_of_unmodelled),
        WithJsonSchema(dict(_UNMODELLED_SCHEMA)),
    ] = "refuse"
    """A billable request that cannot be read or priced, under a hard spend cap."""
    response_headers: Flag = False
    """Put ``x-looptap-session|thread|turn|step|warning`` on answers."""
    traceparent: Literal["link", "join"] = "link"
    """A client's trace is linked, or joined by a span of ours."""
    store: Annotated[StoreSettings, _OrEmpty] = Field(default_factory=StoreSettings)
    ledger: Annotated[LedgerSettings, _OrEmpty] = LedgerSettings()
    hold_for: Duration = Duration(10 * 60 * 10**9)
    """How long a request waits for an operator's yes (``hold``) before it is refused."""
    idle_after: Duration = Duration(30 * 60 * 10**9)
    """After how long without a word from its client a turn is abandoned."""
    time_zone: Text = "UTC"
    """Where days, weeks and months of budgets begin."""
    budgets: Annotated[tuple[BudgetSettings, ...], _OrNone] = ()
    policies: Annotated[Mapping[str, Annotated[PolicySettings, _OrEmpty]], _OrEmpty] = {}
    prices: Annotated[tuple[PriceRule, ...], _OrNone] = ()
    teams: Annotated[Mapping[Label, Annotated[TeamSettings, _OrEmpty]], _OrEmpty] = {}
    keys: Annotated[tuple[KeySettings, ...], _OrNone] = ()
    exporters: Annotated[Mapping[str, Options], _OrEmpty] = Field(default={}, repr=False)
    """Each exporter's own options (``exporter_options``); they may hold credentials, so they do not print."""
    webhooks: Annotated[tuple[WebhookSettings, ...], _OrNone] = ()
    limits: Annotated[LimitsSettings, _OrEmpty] = LimitsSettings()

    _source: Source = PrivateAttr(default_factory=Source)
    _pinned: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _careful_record(cls, data: Any) -> Any:
        """Where other machines reach the data port, keep no content unless asked to."""
        if not isinstance(data, dict):
            return data
        try:
            loopback = Address.parse(data.get("listen", "127.0.0.1:0")).is_loopback
        except ValueError:
            return data
        store = data.get("store") or {}
        if loopback or not isinstance(store, dict) or "record" in store:
            return data
        return {**data, "store": {**store, "record": "digest"}}

    @property
    def holds(self) -> bool:
        """Whether any request may wait for an operator."""
        waits = any(budget.on_exhausted == "hold" for budget in self.budgets)
        return waits or any(one.enabled and one.action == "hold" for one in self.policies.values())

    @property
    def source(self) -> Source:
        """Where the values came from, for errors about options that are read later."""
        return self._source

    @property
    def pinned(self) -> tuple[str, ...]:
        """After a reload: keys that the file changed and that only a restart can apply."""
        return self._pinned


_PROVIDERS: tuple[tuple[str, str, Api, str | None], ...] = (
    ("anthropic", "https://api.anthropic.com", "anthropic", "anthropic"),
    ("openai", "https://api.openai.com/v1", "openai", "openai"),
    ("gemini", "https://generativelanguage.googleapis.com", "gemini", "google"),
    ("deepseek", "https://api.deepseek.com", "openai", "deepseek"),
    ("openrouter", "https://openrouter.ai/api/v1", "openai", "openrouter"),
    ("mistral", "https://api.mistral.ai/v1", "openai", "mistral"),
    ("groq", "https://api.groq.com/openai/v1", "openai", "groq"),
    ("xai", "https://api.x.ai/v1", "openai", "x-ai"),
    ("ollama", "http://127.0.0.1:11434/v1", "openai", "ollama"),
)
BUILT_IN: Mapping[str, UpstreamSettings] = {
    name: UpstreamSettings(url=url, api=api, provider=provider) for name, url, api, provider in _PROVIDERS
}
"""The providers that need no configuration."""
