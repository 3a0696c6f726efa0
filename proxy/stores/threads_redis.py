"""Thread heads that several instances share: in Redis, one script and one round trip per operation.

A head is stored packed and opaque, under its thread; each of its look-up names holds the few newest
threads that go by it. Heads leave by age and number. A head stands only where it was made from the
revision that stood there (compare-and-set); whoever is refused gets the newer one.

No operation is waited for longer than a bound, and none is repeated: while the server is away, or
slow, ThreadsAway is raised at once and the connection is made again beside the traffic. Whether an
instance whose exchanges are under way still lives is told by its own connection, which dies with it.
"""

import asyncio
import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib.resources import files
from typing import Any

import msgspec
import zstandard

from proxy.ports import ThreadsAway
from proxy.stores.resp import Place, Resp, RespGone

MAX_HEADS = 200_000
NEWEST = 2_000
MOST_FOUND = 24
"""Heads that one look-up brings, at most."""
WAIT_S = 0.25
"""How long a request may wait for the index, before it is placed by what is known here."""
SILENCE_S = 2.0
AGAIN_S = (0.05, 1.0)
"""Pause before the next try to connect, doubling from the first to the second."""
_WIDTH = 16
_LARGEST = 64 << 20
_PACKER = zstandard.ZstdCompressor(level=1, write_checksum=False)
_UNPACKER = zstandard.ZstdDecompressor()
_NUMBERS = struct.Struct(">IIII")
_ANSWER = struct.Struct(">II")


class RedisThreads:
    """A thread store of several instances."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "threads",
        ttl_s: int = 30 * 86_400,
        max_heads: int = MAX_HEADS,
        wait_s: float = WAIT_S,
    ) -> None:
        self.place = Place.parse(url)
        self.why = "not connected yet"
        """Why nothing can be asked, while that is so."""
        self._prefix = f"looptap:{{{name}}}:"
        self._ttl_ms = str(ttl_s * 1_000)
        self._max_heads = str(max_heads)
        self._wait_s = wait_s
        self._resp: Resp | None = None
        self._me = ""
        """The server's number of this connection."""
        self._digests: dict[str, str] = {}
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- the port

    async def pull(
        self, keys: Sequence[bytes], known: Mapping[str, int] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Heads that any key names, newest first; the newest ones without keys."""
        had = dict(known or {})
        found = _found(await self._find(keys, had))
        living = await self._living({busy for _, _, busy, _ in found if busy})
        lost = [id for id, _, busy, raw in found if busy and busy not in living and not raw]
        if lost:  # unchanged since, but the instance that was at work on it is gone: the asker must learn it
            for id in lost:
                del had[id]
            found = _found(await self._find(keys, had))
        heads = [{**_unpack(raw), "rev": rev, "alive": busy in living} for _, rev, busy, raw in found if raw]
        return sorted(heads, key=lambda head: int(head.get("last_ns") or 0), reverse=True)

    async def push(self, heads: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Store heads that were made from what stands there; answers the newer ones that do."""
        await self._begun()  # from then on we have a number
        newer = []
        for head in heads:
            names = b"".join(dict.fromkeys(_name(key) for key in head.get("keys", ())))
            busy = self._me if head.get("under_way") else ""
            answer = await self._call(
                "push", str(head["id"]), str(head.get("rev", 0)), busy, self._ttl_ms, self._max_heads, names,
                _pack(head),
            )  # fmt: skip
            stored, rev = _ANSWER.unpack_from(answer)
            if not stored:
                newer.append({**_unpack(answer[_ANSWER.size :]), "rev": rev, "alive": True})
        return newer

    async def close(self) -> None:
        """Let go of the server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # -- calls

    async def _find(self, keys: Sequence[bytes], known: Mapping[str, int]) -> bytes:
        names = b"".join(dict.fromkeys(_name(key) for key in keys))
        most = MOST_FOUND if names else NEWEST
        pairs = [word for id, rev in known.items() for word in (id, str(rev))]
        return await self._call("pull", names, str(most), *pairs)

    async def _living(self, busy: set[str]) -> set[str]:
        """Those of the connections that are still there."""
        living = {self._me} & busy
        for number in busy - living:
            if await self._wait(self._connected().call("CLIENT", "LIST", "ID", number)):
                living.add(number)
        return living

    async def _call(self, script: str, *words: str | bytes) -> bytes:
        """Run a script. Raises ThreadsAway."""
        await self._begun()
        resp = self._connected()
        return await self._wait(resp.call("EVALSHA", self._digests[script], "1", self._prefix, *words))

    async def _begun(self) -> None:
        """Begin to connect, and wait until the first try has ended."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="looptap-threads")
        if not self._tried.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    await self._tried.wait()

    def _connected(self) -> Resp:
        if self._resp is None:
            raise ThreadsAway(f"the shared thread index at {self.place} is away: {self.why}")
        return self._resp

    async def _wait(self, answer: "asyncio.Future[bytes]") -> bytes:
        try:
            async with asyncio.timeout(self._wait_s):
                return await answer
        except TimeoutError:
            raise ThreadsAway(f"the shared thread index at {self.place} is slow") from None
        except RespGone as error:
            raise ThreadsAway(f"the shared thread index at {self.place} is away: {error}") from None

    # -- the life of the connection

    async def _run(self) -> None:
        pause = AGAIN_S[0]
        while True:
            resp = None
            try:
                resp = await Resp.connect(self.place, SILENCE_S)
                self._me = (await resp.call("CLIENT", "ID")).decode()
                for name in ("pull", "push"):
                    self._digests[name] = (await resp.call("SCRIPT", "LOAD", _source(name))).decode()
                self._resp = resp
                self._tried.set()
                pause = AGAIN_S[0]
                raise RespGone(await asyncio.shield(resp.gone))
            except RespGone as error:
                self.why = str(error)
            finally:
                self._resp = None
                if resp is not None:
                    resp.end("closed")
            self._tried.set()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, AGAIN_S[1])


def _found(answer: bytes) -> list[tuple[str, int, str, bytes]]:
    """Thread, revision, connection at work on it, packed head."""
    found = []
    at = 0
    while at < len(answer):
        rev, *lengths = _NUMBERS.unpack_from(answer, at)
        at += _NUMBERS.size
        parts = []
        for length in lengths:
            parts.append(answer[at : at + length])
            at += length
        found.append((parts[0].decode(), rev, parts[1].decode(), parts[2]))
    return found


def _pack(head: Mapping[str, Any]) -> bytes:
    return _PACKER.compress(msgspec.msgpack.encode(head))


def _unpack(raw: bytes) -> dict[str, Any]:
    head: dict[str, Any] = msgspec.msgpack.decode(_UNPACKER.decompress(raw, max_output_size=_LARGEST))
    return head


def _name(key: bytes | str) -> bytes:
    raw = bytes.fromhex(key) if isinstance(key, str) else key
    return raw if len(raw) == _WIDTH else blake2b(raw, digest_size=_WIDTH).digest()


def _source(name: str) -> str:
    return (files("proxy.stores") / "lua" / f"threads_{name}.lua").read_text(encoding="utf-8")
