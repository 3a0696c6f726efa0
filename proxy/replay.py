"""The offline shell: exchange logs through the very core that runs live.

Reads the exchange log line by line (a file may be larger than memory), picks the upstream of each
line, and drives ``Core`` in the order of the recorded times: an exchange opens when it arrived and
closes when its last byte came, so that what overlapped live overlaps here. Lines without times run
one after the other. Ids derive from the input: the same file gives the same ids.

A malformed line is reported as ``file:line: problem`` and the rest is done.
"""

import base64
import binascii
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import orjson

from proxy import dialects
from proxy.chain import Chain
from proxy.core import Core, CoreSettings, Opened, Prices, Standing
from proxy.dialects.refusals import read_refused_field
from proxy.model import (
    Api,
    CaptureEnd,
    CaptureStart,
    Cost,
    EndKind,
    Exchange,
    Head,
    Identity,
    ModelRequest,
    Outcome,
    Record,
    ResponseHead,
    Upstream,
    Usage,
)
from proxy.reading.library import Library
from proxy.tracker import Tracker
from proxy.tracking import landing
from proxy.tracking.course import IDLE_NS
from proxy.tracking.placement import Placement
from proxy.trees import Forest
from proxy.verdict import STOPPED, Terminal

_APIS: tuple[tuple[re.Pattern[str], Api], ...] = (
    (re.compile(r"/messages(/|$)"), "anthropic"),
    (re.compile(r"/(chat/completions|responses|completions|embeddings)(/|$)"), "openai"),
    (re.compile(r":[A-Za-z]+$"), "gemini"),
)
_ENDS: tuple[EndKind, ...] = tuple(end for end in get_args(EndKind) if end != "shutdown")
_CAUSES = {
    "steps": "steps",
    "input_tokens": "tokens",
    "output_tokens": "tokens",
    "total_tokens": "tokens",
    "spend_usd": "spend",
    "wall_clock": "wall_clock",
    "calls": "calls",
    "tool_retries": "tool_retries",
}
"""The cause of a turn that a budget of this dimension refused."""
_DIMENSION = re.compile(rb'"dimension"\s*:\s*"([a-z_]+)"')
_STEP_NS = 1_000_000
"""Between two lines without times: enough to tell their order, too little to mean anything."""
_START_NS = 1_700_000_000_000_000_000
"""When a file without times begins: any fixed moment, so that its events are the same every time."""
_SET_BACK_NS = 1_000_000_000
"""An exchange that ends so long before it began has seen the clock set back; less is a clock that is kept
right."""
_WAITING = 1_024
"""Exchanges that may be under way at once; the file of a busy proxy stays readable in one pass."""


@dataclass(frozen=True, slots=True)
class Line:
    """One exchange of a log, read."""

    exchange: Exchange
    request_body: bytes
    response: ResponseHead | None
    response_body: bytes
    end: EndKind
    ended_ns: int | None
    landed: str | None = None
    """Why it was its turn's last step, where it was."""
    waits: bool = False
    """It waited for an operator."""
    verdict_ns: int | None = None
    """Until then; None: nobody answered before its client left."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be used."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


class _Malformed(Exception):
    """The line is no exchange; the message says why."""


class Unpriced:
    """Prices where none are configured: every cost is unknown, and says so."""

    def cost(
        self, request: ModelRequest, outcome: Outcome, usage: Usage, upstream: Upstream, at_ns: int
    ) -> Cost:
        """Nothing is known."""
        return Cost(None, "unpriced")

    def estimate(self, outcome: Outcome, request_bytes: int) -> Usage:
        """Four characters are about a token."""
        return Usage(input_tokens=request_bytes // 4, output_tokens=outcome.streamed_chars // 4)


class Replay:
    """One run of exchange logs through a core of its own."""

    def __init__(
        self,
        *,
        upstreams: Sequence[Upstream] = (),
        chain: Chain | None = None,
        prices: Prices | None = None,
        standing: Standing | None = None,
        on_record: Callable[[Record], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
        previews: bool = False,
        idle_after_ns: int = IDLE_NS,
        max_decoded: int = CoreSettings().max_decoded,
    ) -> None:
        self.forest = Forest()
        self.problems: list[Problem] = []
        self.faults: list[str] = []
        self.unmodelled: list[int] = []
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._on_record = on_record
        self._on_progress = on_progress
        self._ids: dict[tuple[str, str], int] = {}
        self._seed = b""
        self._number = 0
        self._closing: list[tuple[int, int, Opened, Line]] = []
        self._across: list[tuple[int, int, Opened, Line]] = []
        """Those that end after the clock will have been set back."""
        self._newest_ns = 0
        """The newest arrival since the clock was set back."""
        self._now_ns = 0
        if chain is not None:
            chain.on_fault = self._fault
        self.core = Core(
            dialects=dialects.match,
            library=Library(),
            tracker=Tracker(self.put, self._new_id, previews=previews, idle_after_ns=idle_after_ns),
            chain=chain if chain is not None else Chain(),
            prices=prices if prices is not None else Unpriced(),
            sink=self,
            settings=CoreSettings(record_bodies=False, max_decoded=max_decoded),
            on_fault=self._fault,
            standing=standing,
        )

    def run(self, paths: Iterable[str | Path]) -> None:
        """Replay files in order; their exchanges are numbered through."""
        for path in paths:
            for line in self._lines(Path(path)):
                self._open(line)
                if self._on_progress is not None:
                    self._on_progress(line.exchange.number + 1)
            self._set_back()
            self._close_until(None)
            self._newest_ns = 0

    def tree(self) -> dict[str, Any]:
        """The object of ``looptap replay --json``."""
        return self.forest.tree(self.unmodelled)

    # -- the sink of the core

    def put(self, record: Record) -> None:
        """Take a record into the tree."""
        self.forest.add(record)
        if self._on_record is not None:
            self._on_record(record)

    def capture(self, capture: CaptureStart | CaptureEnd) -> None:
        """Bodies stay in the log that they came from."""

    # -- driving

    def _open(self, line: Line) -> None:
        exchange, core = line.exchange, self.core
        self._notice_clock(line)
        self._close_until(exchange.arrived_ns)
        self._now_ns = max(self._now_ns, exchange.arrived_ns)
        assert exchange.upstream is not None
        core.tick(self._now_ns)
        if core.match(exchange.head, exchange.upstream, exchange.path):
            refused = _refusal(line.response) if line.end == "refused" and not _was_cut(line) else None
            if line.waits:
                self._hold(core.open(exchange, line.request_body, self._now_ns, waits=True), line)
                return
            opened = core.open(exchange, line.request_body, self._now_ns, refused=refused)
        else:
            opened = core.relay(exchange, self._now_ns)
        self._await_end(opened, line)

    def _hold(self, opened: Opened, line: Line) -> None:
        """It waits until its verdict has come."""
        if opened.placement is not None:
            known = opened.held or Terminal("hold", "budgets", "", "")
            opened.hold(known, {}, self._now_ns)
        if line.verdict_ns is not None and opened.placement is not None:
            heapq.heappush(self._closing, (line.verdict_ns, line.exchange.number, opened, line))
        else:
            self._await_end(opened, line)

    def _decide(self, opened: Opened, line: Line, now_ns: int) -> None:
        """Its verdict has come: it goes out, or is refused."""
        goes = line.end != "refused" or _was_cut(line)
        opened.let_go("yes" if goes else "no", now_ns, allowed=goes)
        if goes:
            opened.admit(now_ns)
        else:
            opened.refuse(_refusal(line.response), None, now_ns)
        self._await_end(opened, line)

    def _await_end(self, opened: Opened, line: Line) -> None:
        exchange = line.exchange
        if opened.placement is None:
            self.unmodelled.append(exchange.number)
        elif line.landed is not None:
            self._land(opened.placement, line.landed)
        if line.ended_ns is None:
            self._close(opened, line, self._now_ns)
            return
        entry = (line.ended_ns, exchange.number, opened, line)
        if line.ended_ns < exchange.arrived_ns - _SET_BACK_NS:
            self._across.append(entry)
        else:
            heapq.heappush(self._closing, entry)
        while len(self._closing) > _WAITING:
            self._close_next()

    def _land(self, placement: Placement, cause: str) -> None:
        """The recorded proxy gave this turn its last step here."""
        step = placement.step_state
        if landing.cause_of(step) is None:
            why = Terminal("deny", "", "", "", cause)
            self.core.tracker.remember(placement, landing.written(step, why, recorded=True))

    def _notice_clock(self, line: Line) -> None:
        """Lines stand as they were opened. Where one ends before another has come that stands above it, the
        clock was set back meanwhile: what had ended by the old one has ended."""
        arrived, ended = line.exchange.arrived_ns, line.ended_ns
        if ended is not None and arrived <= ended < self._newest_ns - _SET_BACK_NS:
            self._set_back()
            self._newest_ns = arrived
        self._newest_ns = max(self._newest_ns, arrived)

    def _set_back(self) -> None:
        self._close_until(None)
        for entry in self._across:
            heapq.heappush(self._closing, entry)
        self._across.clear()

    def _close_until(self, time_ns: int | None) -> None:
        while self._closing and (time_ns is None or self._closing[0][0] <= time_ns):
            self._close_next()

    def _close_next(self) -> None:
        ended, _, opened, line = heapq.heappop(self._closing)
        self._now_ns = max(self._now_ns, ended)
        if opened.held is not None and line.verdict_ns is not None:
            self._decide(opened, line, max(ended, line.exchange.arrived_ns))
        else:
            self._close(opened, line, max(ended, line.exchange.arrived_ns))

    @staticmethod
    def _close(opened: Opened, line: Line, now_ns: int) -> None:
        if line.response is not None and (line.end != "refused" or _was_cut(line)):
            opened.respond(line.response, now_ns)
            if line.response_body:
                opened.feed(line.response_body, now_ns)
        if line.end == "refused" and _was_cut(line):
            opened.ended_by = _cut_by(line)
        opened.close(line.end, now_ns)

    def _fault(self, where: str, error: BaseException) -> None:
        self.faults.append(f"{where}: {type(error).__name__}: {error}")

    def _new_id(self, prefix: str, seed: str) -> str:
        count = self._ids.get((prefix, seed), 0)
        self._ids[prefix, seed] = count + 1
        return prefix + blake2b(f"{prefix}{seed}/{count}".encode(), digest_size=10).hexdigest()

    # -- reading

    def _lines(self, path: Path) -> Iterator[Line]:
        """The exchanges of a file. A line that is none still takes its number."""
        clock = _START_NS
        with path.open("rb") as file:
            for place, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    line = self._line(orjson.loads(raw), raw, clock)
                except orjson.JSONDecodeError as error:
                    self.problems.append(Problem(str(path), place, f"no JSON: {error.msg}"))
                except _Malformed as error:
                    self.problems.append(Problem(str(path), place, str(error)))
                else:
                    clock = max(clock, line.exchange.arrived_ns) + _STEP_NS
                    yield line
                finally:
                    self._number += 1

    def _line(self, value: Any, raw: bytes, clock: int) -> Line:
        if not isinstance(value, dict):
            raise _Malformed("an exchange is a JSON object")
        self._seed = blake2b(self._seed + raw, digest_size=16).digest()
        id = "exc_" + self._seed.hex()[:20]
        target = _text(value, "path")
        if not target.startswith("/"):
            raise _Malformed("path must begin with /")
        upstream = self._upstream(value, target.partition("?")[0])
        labels = value.get("labels")
        named = labels if isinstance(labels, dict) else {}
        identity = Identity(labels={str(name): str(text) for name, text in named.items()})
        arrived = _time(value, "t")
        sent = _headers(value, "request_headers")
        if isinstance(value.get("request_body"), str):
            sent = _plain(sent, value)
        head = Head(_text(value, "method"), target, sent)
        status = value.get("status")
        if status is not None and not (isinstance(status, int) and 100 <= status <= 999):
            raise _Malformed("status must be a number from 100 to 999, or null")
        response = None
        if status is not None:
            response = ResponseHead(status, b"", _plain(_headers(value, "response_headers"), value))
        end = value.get("end", "upstream_reset" if value.get("fault") else "complete")
        if end not in _ENDS:
            raise _Malformed(f"end must be one of {', '.join(_ENDS)}")
        if end == "client_gone" and value.get("stopped") is True:
            end = "shutdown"
        exchange = Exchange(
            id, self._number, head, upstream, head.path, arrived if arrived is not None else clock, identity
        )
        return Line(
            exchange=exchange,
            request_body=_body(value, "request_body"),
            response=response,
            response_body=_body(value, "response_body"),
            end=end,
            ended_ns=_time(value, "t_end") if arrived is not None else None,
            landed=landed if isinstance(landed := value.get("landed"), str) else None,
            waits="t_verdict" in value and arrived is not None,
            verdict_ns=_time(value, "t_verdict"),
        )

    def _upstream(self, value: Mapping[str, Any], path: str) -> Upstream:
        """Named, or told by host, provider and the shape of the path."""
        name = value.get("upstream")
        if isinstance(name, str) and name in self._upstreams:
            return self._upstreams[name]
        host, provider = str(value.get("host") or ""), str(value.get("provider") or "")
        for upstream in self._upstreams.values():
            if host and urlsplit(upstream.url).netloc == host:
                return upstream
        api = next((api for shape, api in _APIS if shape.search(path)), None)
        if api is None:
            api = "gemini" if "gemini" in provider else "anthropic" if provider == "anthropic" else "openai"
        label = str(name or provider or api)
        url = f"https://{host or label}"
        try:
            _ = urlsplit(url).port
        except ValueError:
            raise _Malformed(f"{host or label!r} is no host") from None
        return Upstream(label, url, api, "" if host else label)


def run(
    paths: Iterable[str | Path],
    *,
    upstreams: Sequence[Upstream] = (),
    chain: Chain | None = None,
    prices: Prices | None = None,
    standing: Standing | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    previews: bool = False,
    idle_after_ns: int = IDLE_NS,
    max_decoded: int = CoreSettings().max_decoded,
) -> tuple[dict[str, Any], list[str]]:
    """Replay exchange logs: the public object, and what was wrong with the input (``file:line: …``).

    ``previews``: what ``on_record`` gets quotes the beginnings of inputs and outputs.
    ``idle_after_ns``, ``max_decoded``: as the proxy had them that wrote the log.
    """
    replay = Replay(
        upstreams=upstreams,
        chain=chain,
        prices=prices,
        standing=standing,
        on_record=on_record,
        on_progress=on_progress,
        previews=previews,
        idle_after_ns=idle_after_ns,
        max_decoded=max_decoded,
    )
    replay.run(paths)
    return replay.tree(), [
        *map(str, replay.problems),
        *(f"internal fault in {what}" for what in replay.faults),
    ]


def _refusal(response: ResponseHead | None) -> Terminal:
    """What the recorded proxy reached, from the field that it put on its own answers."""
    told = (response.get(b"x-looptap-refused") if response is not None else None) or b""
    code, fields = read_refused_field(told)
    cause = "interrupted" if code == STOPPED else _CAUSES.get(fields.get("dimension", ""), "policy")
    wait = 1 if response is not None and response.status == 429 else None
    return Terminal("deny", fields.pop("policy", ""), code, "", cause, fields, wait)


def _was_cut(line: Line) -> bool:
    """Whether the recorded proxy ended the reply under way: with events of its own behind the provider's, or
    (before any byte had gone out) with an answer that says so."""
    if line.response is None:
        return False
    told = line.response.get(b"x-looptap-refused")
    return line.response.status < 400 if told is None else "cut" in read_refused_field(told)[1]


def _cut_by(line: Line) -> Terminal:
    """Why it did: the facts stand in the last event."""
    if line.response is not None and line.response.get(b"x-looptap-refused") is not None:
        return _refusal(line.response)
    end = line.response_body[-8_000:]
    dimension = _DIMENSION.search(end)
    cause = _CAUSES.get(dimension[1].decode(), "policy") if dimension is not None else "policy"
    if STOPPED.encode() in end:
        cause = "interrupted"
    return Terminal("cut", "", "", "", cause)


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str) or not text:
        raise _Malformed(f"{key} must be a text")
    return text


def _time(value: Mapping[str, Any], key: str) -> int | None:
    number = value.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 1e11:
        raise _Malformed(f"{key} must be seconds since the epoch")
    return round(number * 1_000_000) * 1_000


def _headers(value: Mapping[str, Any], key: str) -> tuple[tuple[bytes, bytes], ...]:
    headers = value.get(key)
    if headers is None:
        return ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        return tuple((_latin(name), _latin(text)) for name, text in pairs)
    except (TypeError, ValueError):
        raise _Malformed(f"{key} must be an object or a list of [name, value]") from None


def _plain(
    headers: tuple[tuple[bytes, bytes], ...], value: Mapping[str, Any]
) -> tuple[tuple[bytes, bytes], ...]:
    """The fields, without the encoding that the recorder has undone (``decoded``)."""
    if not value.get("decoded"):
        return headers
    return tuple(pair for pair in headers if pair[0].lower() != b"content-encoding")


def _latin(text: Any) -> bytes:
    return str(text).encode("latin-1", "replace")


def _body(value: Mapping[str, Any], key: str) -> bytes:
    coded = value.get(key + "_b64")
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            raise _Malformed(f"{key}_b64 is no base64") from None
    text = value.get(key)
    if text is None:
        return b""
    if not isinstance(text, str):
        raise _Malformed(f"{key} must be a text")
    return text.encode("utf-8", "surrogatepass")
