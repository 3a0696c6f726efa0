"""What the admin port is made of, and the token that opens it.

The ports are few on purpose: a ``Catalog`` answers the public JSON of the record, ``Orders`` carry
out what an operator wants. Neither knows HTTP.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TOKEN_FILE = "admin-token"

Json = dict[str, Any]


class Catalog(Protocol):
    """What the admin port reads: the public JSON of the record, by id. Called in worker threads."""

    def sessions(self, limit: int, before: str | None, filters: Mapping[str, str]) -> list[Json]: ...
    def turns(self, limit: int, before: str | None, filters: Mapping[str, str]) -> list[Json]: ...
    def turn(self, turn_id: str) -> Json | None: ...
    def turn_events(self, turn_id: str, after_seq: int, limit: int) -> list[Json] | None: ...
    def step(self, step_id: str) -> Json | None: ...
    def seen(self, step_id: str) -> Json | None: ...
    def changes(self, step_id: str) -> Json | None: ...
    def body(self, step_id: str, which: str, attempt: int | None) -> bytes | None: ...
    def newest(self, types: Sequence[str], limit: int) -> list[Json]: ...
    def events(self, after_seq: int, limit: int) -> list[Json]: ...
    def last_seq(self) -> int: ...
    def report(self, since_ns: int) -> Json: ...
    def spenders(self, by: str, since_ns: int, limit: int) -> list[Json]: ...
    def close(self) -> None: ...


class Orders(Protocol):
    """What may be ordered here. Raises LookupError or ValueError in words for a person."""

    async def budgets(self) -> list[Json]: ...
    async def forecast(self, turn: Mapping[str, Any]) -> list[Json]: ...
    async def stop(self, name: str, *, lift: bool = False) -> str: ...
    async def allow(self, name: str) -> Json: ...
    async def topup(
        self, name: str, add: str, *, subject: str | None = None, dimension: str | None = None
    ) -> Json: ...


def _unwritten(kind: str, data: Mapping[str, Any]) -> None:
    """Where nobody keeps the orders."""


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin port is made of. ``ready`` answers the JSON of ``/readyz`` and its verdict."""

    catalog: Catalog
    token: str
    hosts: frozenset[str]
    """Names under which this port may be asked, lower case, without port."""
    ready: Callable[[], tuple[bool, Json]]
    metrics: Callable[[], str]
    orders: Callable[[], Orders] | None = None
    """Asked for at each order, since the settings behind it may have changed."""
    audit: Callable[[str, Mapping[str, Any]], None] = _unwritten
    """Writes down an order that was carried out: its kind and its facts."""
    trace_url: Callable[[str], str | None] | None = None
    """Where a turn's trace can be looked at; None where it cannot."""
    held: Callable[[], list[Json]] = list
    """What waits for an operator here."""


def read_or_make_token(data_dir: Path, warn: Callable[[str], None]) -> str:
    """The admin token of this data directory; made at first start, readable by the owner only.

    Where the directory cannot be written the token holds for this process alone.
    """
    path = data_dir / TOKEN_FILE
    with suppress(OSError, UnicodeDecodeError):
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    token = secrets.token_urlsafe(24)
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        warn(f"{path}: {error.strerror}; the admin token will change with the next start")
    return token
