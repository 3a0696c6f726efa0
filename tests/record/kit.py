"""Arrivals for the record's tests: exchanges, events, threads of growing bodies."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.model import CaptureEnd, CaptureStart, Record, Splice
from proxy.record import Entry

T = 1_700_000_000_123_456_789
SECOND = 1_000_000_000
DAY = 86_400 * SECOND


def event(kind: str, n: int = 0, *, session: str | None = "ses_a", thread: str | None = "thr_a",
          turn: str | None = "trn_a", step: str | None = None, **data: Any) -> Record:  # fmt: skip
    """One event, ``n`` nanoseconds after the beginning."""
    return Record(T + n, kind, session, thread, turn, step, data)


def start(n: int, body: bytes | None, splice: Splice | None = None, **more: Any) -> CaptureStart:
    """The request of exchange ``n``."""
    facts: dict[str, Any] = {
        "provider": "anthropic", "upstream": "anthropic", "host": "api.anthropic.com", "method": "POST",
        "target": "/v1/messages?beta=true", "headers": ((b"Accept", b"*/*"), (b"accept", b"caf\xe9")),
        "labels": {}, "session": "ses_a", "thread": "thr_a", "turn": "trn_a", "step": f"stp_{n}",
        "time_ns": T + n,
    }  # fmt: skip
    facts |= more
    return CaptureStart(exchange=f"exc_{n:020d}", number=n, body=body, splice=splice, **facts)


def end(n: int, body: bytes | None = b"ok", **more: Any) -> CaptureEnd:
    """The answer of exchange ``n``."""
    facts: dict[str, Any] = {
        "end": "complete", "status": 200, "headers": ((b"X-A", b"1"),), "streaming": True,
        "time_ns": T + n + 500,
    }  # fmt: skip
    facts |= more
    return CaptureEnd(exchange=f"exc_{n:020d}", body=body, request_bytes=1, response_bytes=2, **facts)


def xid(n: int) -> str:
    """The id of exchange ``n``."""
    return f"exc_{n:020d}"


def whole_turn(number: int, *, steps: int = 2, at: int | None = None, session: str | None = None,
               body: bytes = b'{"m":1}', model: str = "m-1", cause: str | None = "completed",
               client: str = "cli", labels: dict[str, str] | None = None) -> list[Entry]:  # fmt: skip
    """A session (or one more turn of one) with its events and exchanges; numbers are its own."""
    began = at if at is not None else T + number * SECOND
    own = session if session is not None else f"ses_{number}"
    ids = {"session": own, "thread": f"thr_{own}", "turn": f"trn_{number}"}
    entries: list[Entry] = []
    if session is None:
        about = {
            "client": client,
            "key": "unnamed",
            "team": "default",
            "org": "default",
            "labels": labels or {},
        }
        entries += [Record(began, "session/start", own, data=about)]
        entries += [Record(began, "thread/start", own, ids["thread"], data={"kind": "main"})]
    entries += [Record(began, "turn/start", **ids, data={"index": 0})]
    for n in range(steps):
        k = number * 1_000 + n
        own_step = {**ids, "step": f"stp_{k}"}
        attempt = {
            "attempt": 0, "exchange": xid(k), "usage": {"input_tokens": 10, "output_tokens": 1},
            "cost_usd": "0.000000125", "cost_quality": "measured",
        }  # fmt: skip
        entries += [
            Record(began + n, "step/start", **own_step, data={"model": model, "index": n}),
            start(k, body + b"%d" % k, time_ns=began + n, labels=labels or {}, **own_step),
            Record(began + n, "step/attempt", **own_step, data=attempt),
            end(k, b"answer %d" % k, time_ns=began + n),
        ]
    if cause is not None:
        entries += [Record(began + steps, "turn/end", **ids, data={"cause": cause})]
    return entries


def disk_bytes(place: Path) -> int:
    """Everything in a data directory."""
    return sum(path.stat().st_size for path in place.iterdir())


@dataclass(slots=True)
class Growth:
    """A thread whose body grows as real clients grow it: a moving cache mark, tools after the messages."""

    seed: int
    block: int
    alphabet: bytes
    marks: bool = True
    messages: list[bytes] = field(default_factory=list)

    def step(self) -> bytes:
        """The next body."""
        random_ = random.Random(f"{self.seed}/{len(self.messages)}")
        self.messages.append(bytes(random_.choices(self.alphabet, k=self.block)))
        last = len(self.messages) - 1
        texts = []
        for place, text in enumerate(self.messages):
            mark = b',"cache_control":{"type":"ephemeral"}' if self.marks and last - place < 2 else b""
            texts.append(b'{"role":"user","content":[{"type":"text","text":"' + text + b'"' + mark + b"}]}")
        tools = b'{"name":"t","input_schema":{}},' * 100 + b"{}"
        return b'{"model":"m","messages":[' + b",".join(texts) + b'],"tools":[' + tools + b"]}"
