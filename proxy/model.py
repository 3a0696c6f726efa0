"""The nouns of Looptap: what an agent loop is made of, as plain frozen values.

Nothing here does anything: no IO, no clock, no parsing, stdlib only. Every other module speaks
in these types. Units stand in the names (``_ns`` since the epoch, ``_tokens``, ``_usd``); a
number that a provider did not report is ``None``, never 0.

Reading order for a newcomer: model, verdict, ports, core, exchange.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, Protocol, get_args

from proxy.structs import struct

Role = Literal["system", "user", "assistant", "tool"]
"""Who speaks. ``developer`` reads as system, ``model`` as assistant, ``function`` as tool."""

ItemKind = Literal[
    "user", "text", "thinking", "tool_call", "tool_result", "media", "compaction", "system", "other"
]
"""``user``: text the user (or the harness in the user's name) wrote; ``text``: assistant text;
``media``: image, audio, file; ``system``: instructions standing inside the message list;
``compaction``: a provider's own summary block; ``other``: anything we carry but do not read."""

Api = Literal["anthropic", "openai", "gemini"]
DialectName = Literal["anthropic", "openai_chat", "openai_responses", "gemini"]

Operation = Literal["chat", "count", "compact", "fetch", "other"]
"""``chat`` is a model call and becomes a step; ``count`` is free (token counting);
``compact`` is a billed side call that only summarises (Responses' ``/compact``)."""

EndKind = Literal["complete", "client_gone", "shutdown", "upstream_reset", "timeout", "refused"]
"""How an exchange ended on the wire (the ``end`` field of an exchange log, where ``shutdown``, that it was
we who went before its end, is written as ``client_gone`` with ``stopped``)."""

AttemptOutcome = Literal["complete", "failed", "cut", "client_gone", "refused"]
"""``complete``: a whole good reply; ``failed``: an error answer (status >= 400, an error in the
body or stream) or none at all; ``cut``: the reply broke off in its middle; ``client_gone``: the
client left first, or we stopped; ``refused``: Looptap answered itself."""

ThreadKind = Literal["main", "subagent", "side", "unknown"]
MatchedBy = Literal["prefix", "content", "call_ids", "hint"]

Cause = Literal[
    "completed", "max_tokens", "refusal", "content_filter", "context_window",
    "steps", "tokens", "spend", "wall_clock", "calls", "tool_retries",
    "policy", "interrupted", "error", "superseded", "abandoned",
]  # fmt: skip
"""Why a turn ended; ``completed`` does not say that the work is right."""

CostQuality = Literal["measured", "estimated", "assumed", "unpriced"]
QUALITIES: tuple[CostQuality, ...] = get_args(CostQuality)
"""Best first: a sum is as well known as its worst part. The record stores their places, so a new one is
put last."""
TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
"""The public counts of a reply's tokens, fields of ``Usage``."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request head as it came: raw target (path and query), fields in order and case, latin-1 bytes."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    _fields: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)
    """First values by lower-case name, filled at the first look: many parts look fields up."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def get(self, name: bytes) -> bytes | None:
        """First value of a field by its lower-case name."""
        return self._index().get(name)

    def among(self, names: frozenset[bytes]) -> dict[bytes, bytes]:
        """First values of those of some fields, named in lower case, that are there."""
        fields = self._index()
        return {name: fields[name] for name in fields.keys() & names}

    def _index(self) -> dict[bytes, bytes]:
        fields = self._fields
        if not fields:
            for key, value in self.headers:
                fields.setdefault(key.lower(), value)
        return fields


@struct(frozen=True, slots=True)
class ResponseHead:
    """A response head as it came from the upstream (or as we made it for a refusal)."""

    status: int
    reason: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def get(self, name: bytes) -> bytes | None:
        """First value of a field by its lower-case name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


@struct(frozen=True, slots=True)
class Upstream:
    """A provider as configured. ``url`` is the real base URL; ``api`` decides the dialect by path."""

    name: str
    url: str
    api: Api
    provider: str = ""
    """genai-prices' provider id, empty: guess from the URL."""


@struct(frozen=True, slots=True)
class Identity:
    """Who pays: the key's name and what hangs on it. Threads never cross a ``scope``."""

    key: str = "unnamed"
    team: str = "default"
    org: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The wall between tenants: the thread index is cut by it."""
        return f"{self.team}/{self.key}"


@struct(frozen=True, slots=True)
class Exchange:
    """One HTTP request and its response through the proxy, as known when its head has arrived."""

    id: str
    """``exc_`` plus 20 characters; names this exchange in the record."""
    number: int
    """Zero-based order of arrival in this process (replay: the line number)."""
    head: Head
    """What the client sent, with labels and our own fields already stripped."""
    upstream: Upstream | None
    path: str
    """Path below the upstream (no query): what a dialect is chosen by."""
    arrived_ns: int
    identity: Identity = field(default_factory=Identity)


@struct(frozen=True, slots=True)
class Item:
    """One atomic typed input or output.

    ``digest`` is the item's identity: what stays the same when a client sends it back (wire form,
    key order, call ids, defaulted fields do not count). It is ``b""`` for items outside identity:
    thinking (its absence is to be noticed, not to hide the thread) and empty text.
    """

    kind: ItemKind
    role: Role
    text: str = ""
    """Visible text, thinking text, or the tool result as the model reads it."""
    tool: str | None = None
    """Tool name of a call; of a result where the wire says it."""
    call_id: str | None = None
    """Pairs a call with its result; None where the provider gives none."""
    arguments: str | None = None
    """Arguments of a call: canonical JSON (RFC 8785) or, when it is no JSON, the text itself."""
    is_error: bool = False
    """The result is flagged as an error."""
    form: str = ""
    """The wire's own type: ``tool_use``, ``redacted_thinking``, ``function_call`` …"""
    item_id: str | None = None
    """The provider's id of this very item (``rs_…``, ``fc_…``, ``msg_…``)."""
    signature: str | None = None
    """Thinking's proof: signature, redacted data, ``encrypted_content``, ``thoughtSignature``."""
    variants: tuple[str, ...] = ()
    """Other spellings of ``signature`` seen for this item, each as good (Responses streams)."""
    summary: tuple[str, ...] = ()
    """Of reasoning (Responses): the parts of its summary."""
    pieces: tuple[Any, ...] = ()
    """Of a reply's reasoning in typed pieces (Chat Completions): these, whole."""
    phase: str = ""
    """Of a message (Responses): said on the way, or the answer; empty where the wire says neither."""
    server: bool = False
    """Executed by the provider: the client owes nothing for it."""
    at: tuple[str | int, ...] = ()
    """Place below its message or reply, e.g. ``("content", 2)``."""
    digest: bytes = b""


@struct(frozen=True, slots=True)
class Message:
    """One element of the request's message list, read into items.

    ``raw_hash`` names the bytes as sent, so that an unchanged message is not read again.
    """

    role: Role
    items: tuple[Item, ...]
    raw_hash: bytes = b""


@struct(frozen=True, slots=True)
class Tool:
    """A tool that the request offers. ``digest`` covers its whole definition less cache marks."""

    name: str
    digest: bytes
    server: bool = False


@struct(frozen=True, slots=True)
class Hints:
    """What known clients say about themselves in headers and body (wire-facts 11, clients 2).

    Hints narrow a search; they never override content that contradicts them.
    """

    client: str = ""
    """Short name from the user agent: ``claude-code``, ``codex``, ``anthropic-python`` …"""
    session: str | None = None
    agent: str | None = None
    """The client's id of the agent or thread inside the session; None for the main one."""
    parent_agent: str | None = None
    turn: str | None = None
    """The client's own turn id, where it has one (Codex)."""
    kind: Literal["", "main", "subagent", "side", "compaction", "prewarm"] = ""
    retry: int | None = None
    """The client's retry count: > 0 says that this request repeats the previous one."""


@struct(frozen=True, slots=True)
class ModelRequest:
    """A model call, read. ``messages`` may share elements with the previous request's."""

    dialect: DialectName
    operation: Operation
    model: str
    stream: bool
    messages: tuple[Message, ...]
    chain: tuple[bytes, ...] = ()
    """Chained digest of the items after each message: ``chain[i]`` names the history
    ``messages[: i + 1]``. Made by ``reading``, same length as ``messages``."""
    list_key: str = "messages"
    """The body's key of the message list, for JSON paths: messages, input, contents."""
    system: tuple[Item, ...] = ()
    """System text outside the message list."""
    tools: tuple[Tool, ...] = ()
    max_output_tokens: int | None = None
    hints: Hints = field(default_factory=Hints)
    held: str | None = None
    """Provider-held history that this request continues: previous response, conversation, thread id."""
    output_schema: bool = False
    """The reply is bound to a JSON schema (typical of titles, routers and other side calls)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The other top-level fields that policies and prices need, parsed, by their wire names."""
    exchange: str = ""
    """The exchange that it was read from."""
    base: str = ""
    """The exchange whose reading this one was built from; empty: read by itself."""
    shared: int = 0
    """How many leading messages are the same objects as in the base's reading, which has no more of them."""


@struct(frozen=True, slots=True)
class Usage:
    """Tokens of one reply, inclusive: input counts cached reads and writes, output counts thinking."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    """The part of ``cache_write_tokens`` written for an hour (or longer)."""
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    extra: Mapping[str, int] = field(default_factory=dict)
    """Further counts under genai-prices' names: ``web_searches``, ``input_audio_tokens`` …"""

    def public(self) -> dict[str, int]:
        """``TOKENS``; what was not reported is absent."""
        return {name: value for name in TOKENS if (value := getattr(self, name)) is not None}


@struct(frozen=True, slots=True)
class BillingLine:
    """One entry of the bill where a reply has several (Anthropic ``iterations``)."""

    model: str
    usage: Usage


@struct(frozen=True, slots=True)
class ProviderError:
    """An error as the provider words it, in an error answer, a 200 body, or mid-stream."""

    type: str
    message: str
    code: str | None = None


@struct(frozen=True, slots=True)
class Event:
    """What the tap saw beside a chunk: an item finished, the first output, usage, an error."""

    kind: Literal["first_output", "item", "usage", "error"]
    item: Item | None = None


@struct(frozen=True, slots=True)
class Outcome:
    """A reply, read: the same value whether it was streamed or whole, however it was split."""

    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    billing: tuple[BillingLine, ...] = ()
    """Empty: bill ``usage`` at ``model``. Otherwise only these lines add up to the bill."""
    stop_reason: str | None = None
    """As the provider gave it (Responses: ``status``)."""
    model: str | None = None
    """The model that served, where the reply says so."""
    response_id: str | None = None
    error: ProviderError | None = None
    whole: bool = False
    """The reply came to its own end (terminal event, or a whole body)."""
    deferred: bool = False
    """The provider still works on it in the background; the client fetches it later by its id."""
    streamed_chars: int = 0
    """Characters of output seen, for the estimate of a reply whose usage never came."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Wire facts for policies and prices: service_tier, speed, inference_geo, input_transformations,
    reported cost (``cost_usd`` as text) …"""

    @property
    def tool_calls(self) -> tuple[Item, ...]:
        """The calls that the client has to answer."""
        return tuple(i for i in self.items if i.kind == "tool_call" and not i.server)


@struct(frozen=True, slots=True)
class Cost:
    """Exact money and how well it is known. ``usd`` is None exactly when ``unpriced``."""

    usd: Decimal | None
    quality: CostQuality


@struct(frozen=True, slots=True)
class Attempt:
    """How one attempt of a step ended: everything that ``step/attempt`` reports of it."""

    outcome: AttemptOutcome
    end: EndKind
    reply: Outcome
    usage: Usage | None
    """As reported, or as estimated (``cost.quality`` says which); None where nothing was billed."""
    cost: Cost
    status: int | None
    arrived_ns: int
    ended_ns: int
    sent_ns: int | None = None
    """When the request went upstream: after reading, judging and the ledger."""
    first_output_ns: int | None = None
    item_ns: tuple[int, ...] = ()
    """When each of ``reply.items`` was complete; empty: all at ``ended_ns``."""
    streaming: bool = False
    request_bytes: int = 0
    response_bytes: int = 0
    failure: str = ""
    """Why no whole answer came from the upstream, where that is known; without any credential."""
    refused: Mapping[str, Any] | None = None
    """Why we refused or cut it: ``action``, ``policy``, ``code`` and what the client was told besides."""
    waited_ns: int = 0
    """How long it waited for an operator before it went out, or was refused."""


def rfc3339(time_ns: int) -> str:
    """A time as every output writes it: RFC 3339 in UTC with microseconds, no float on the way."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"


@struct(frozen=True, slots=True)
class Record:
    """One event of the append-only log (design: Record). ``data`` holds JSON values only."""

    time_ns: int
    type: str
    session: str | None = None
    thread: str | None = None
    turn: str | None = None
    step: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    """For exporters that were asked for content, never in the log itself: the beginning of an item's text;
    with a ``step/start`` what stands newly around its messages."""


@struct(frozen=True, slots=True)
class Splice:
    """How a body follows from an earlier one: ``base[:prefix] + middle + base[len(base)-suffix:]``.

    Found for free while reading (the unchanged history); the record stores only the middle.
    """

    base: str
    """Id of the exchange whose request body is the base."""
    prefix: int
    suffix: int


Insertion = tuple[int, bytes]
"""Bytes of ours and the offset in the client's body before which they stand."""


Change = tuple[int, bytes, bytes]
"""An offset in the client's body, bytes of the client's that stand there, and ours that take their place."""


@struct(frozen=True, slots=True)
class Carrier:
    """What we put in, in the form in which one API takes it. Made once; these bytes stay."""

    raw: bytes
    """JSON of one element, or of a member's value."""
    inside: str = ""
    """Of a nudge, key of the list in a message at whose end it stands (empty: behind the message, as one of
    its own); of reasoning, key of the member that it is (empty: an element by itself)."""


@struct(frozen=True, slots=True)
class Nudge:
    """A carrier that stands in a thread's history: the client's requests lack it, the model has read it."""

    policy: str
    """Who asked for it."""
    after: bytes
    """Name of the history (``ModelRequest.chain``) that it follows."""
    beyond: int
    """Messages outside identity (system text) that stand between that history's end and it."""
    carrier: Carrier
    withdrawn: bool = False
    """It was taken back before a model read it, and stands nowhere."""


@struct(frozen=True, slots=True)
class Thought:
    """A piece of reasoning of a reply, as it goes back."""

    place: int
    """Its number among the items of the reply."""
    carrier: Carrier
    names: tuple[bytes, ...]
    """Of its content; what bears one of them is the same."""


@struct(frozen=True, slots=True)
class Kept:
    """A reply's reasoning in the bytes in which it goes back, should a client lose it."""

    step: str
    after: bytes
    """Name of the history (``ModelRequest.chain``) that ends with the reply."""
    source: str
    """Dialect and upstream."""
    model: str
    around: bytes
    """Name of the system text and the tools that it was made under."""
    shape: str
    """A letter for each item of the reply, see ``tracking.repairs``."""
    thoughts: tuple[Thought, ...]
    back: bool = False
    """It was put back once: it stands there in every later request."""
    bound: bool = False
    """And is bound to what stood around: where that is another, it does not."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(len(one.carrier.raw) for one in self.thoughts)


@struct(frozen=True, slots=True)
class CaptureStart:
    """An exchange's request for the record, put in when it goes out. Credentials are already dots."""

    exchange: str
    number: int
    time_ns: int
    provider: str
    upstream: str
    host: str
    """The upstream's base URL, scheme and all; the record's column is called so."""
    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    """None: not held (streamed past, or ``record: digest``)."""
    splice: Splice | None = None
    inserted: tuple[tuple[int, int] | tuple[int, int, str], ...] = ()
    """Offsets and lengths of what is ours in the (decoded) body, with what of the client's it stands in
    place of; the rest is what the client sent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    session: str | None = None
    thread: str | None = None
    turn: str | None = None
    step: str | None = None
    verdict_ns: int | None = None
    """When it was known what becomes of a request that waited for an operator; 0: its client left before."""


class Body(Protocol):
    """Bytes, or what can be made into as many when they are needed."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...


@struct(frozen=True, slots=True)
class CaptureEnd:
    """The same exchange's answer, put in after the client has its last byte."""

    exchange: str
    time_ns: int
    end: EndKind
    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: Body | None
    streaming: bool = False
    request_bytes: int = 0
    response_bytes: int = 0
