"""The shared ledger's connection: made again whenever it breaks, and trusted only after joining.

Life of a connection: connect, ask which start of the server this is, load the scripts, join
(publish this instance's totals; see join.lua), and only then serve calls. Whatever is unexpected
ends it, and the next one joins anew, so no call is ever repeated. Between calls a sign of life
each second tells who belongs to the ledger.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from os import urandom
from typing import Any

import orjson

from proxy.ports import LedgerAway
from proxy.stores.ledger_totals import Totals
from proxy.stores.resp import Place, Resp, RespGone

BEAT_S = 1.0
RECOVERING_S = 0.1
"""Between two signs of life while the ledger waits for its instances."""
AGAIN_S = (0.05, 1.0)
"""Pause before the next try to connect, doubling from the first to the second."""
GRACE_S = 10.0
"""How long a recovery waits for instances that do not come."""
PATIENCE_S = 2.0
"""How long it waits at least, for instances that nobody who came knows of."""
_SCRIPTS = (
    "reserve", "settle", "release", "renew", "topup", "balances", "sweep", "join", "beat", "desk",
)  # fmt: skip

Answer = Mapping[str, Any]


class Link:
    """Calls scripts of one ledger."""

    def __init__(
        self,
        url: str,
        totals: Totals,
        *,
        name: str,
        silence_s: float,
        grace_s: float,
        patience_s: float,
        heard: Callable[[Answer], None],
    ) -> None:
        self.place = Place.parse(url)
        self.who = urandom(8).hex()
        self.why = "not connected yet"
        """Why nothing can be held, while that is so."""
        self.now_us: int | None = None
        """What the clock of tests says; None: the server's time counts."""
        self._totals = totals
        self._prefix = f"looptap:{{{name}}}:".encode()
        self._silence_s = silence_s
        self._common: dict[str, Any] = {
            "who": self.who,
            "grace": int(grace_s * 1_000_000),
            "patience": int(patience_s * 1_000_000),
        }
        self._heard = heard
        """Told of every answer to a join, whose alerts nobody asked for."""
        self._roster: list[str] = []
        self._resp: Resp | None = None
        self._sessions = 0
        self._tried = asyncio.Event()
        self._open = asyncio.Event()
        """Joined, and the ledger not recovering."""
        self._task: asyncio.Task[None] | None = None
        self._digests: dict[str, str] = {}
        self._time = (0, 0)
        """The server's nanoseconds, and our monotonic ones at that moment."""

    def server_ns(self) -> int:
        """About what the server's clock says; 0 before it was asked. Windows are guessed by it."""
        server_ns, then_ns = self._time
        return server_ns + time.monotonic_ns() - then_ns if server_ns else 0

    async def call(self, script: str, fields: Mapping[str, Any]) -> Answer:
        """One operation. Raises LedgerAway; then nobody knows whether it was done, and joining settles it."""
        await self.tried()
        resp = self._resp
        if resp is None:
            raise LedgerAway(f"the ledger at {self.place} is away: {self.why}")
        try:
            answer = await self._ask(resp, script, fields)
        except RespGone as error:
            self._open.clear()
            raise LedgerAway(f"the ledger at {self.place} is away: {error}") from None
        if answer["state"] == "recovering":
            self._open.clear()
            raise LedgerAway(f"the ledger at {self.place} waits for its instances after a restart")
        return answer

    def send(self, script: str, fields: Mapping[str, Any]) -> None:
        """The same, where nobody waits for the answer; lost with the connection."""
        if self._resp is not None:
            self._write(self._resp, script, fields)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be held, or None."""
        if self._open.is_set():
            return None
        return (
            self.why
            if self._resp is None or self._resp.gone.done()
            else "it waits for its instances after a restart"
        )

    async def tried(self) -> None:
        """Begin to connect, and wait until the first try has ended."""
        if self._task is None:
            self.start()
        if not self._tried.is_set():
            await self._tried.wait()

    def start(self) -> None:
        """Begin to connect; the first call does it too."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="looptap-ledger")

    async def ready(self, timeout_s: float) -> bool:
        """Wait until something can be held."""
        if self._task is None:
            self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
        return self._open.is_set()

    async def close(self) -> None:
        """Leave, and let go."""
        resp = self._resp
        if resp is not None:
            with suppress(RespGone):
                await self._ask(resp, "beat", {"drop": [], "leave": True})
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if resp is not None:
            resp.end("closed")

    # -- the life of a connection

    async def _run(self) -> None:
        pause = AGAIN_S[0]
        while True:
            resp = None
            try:
                resp = await Resp.connect(self.place, self._silence_s)
                await self._join(resp)
                pause = AGAIN_S[0]
                await self._beat(resp)
            except RespGone as error:
                self.why = str(error)
            except asyncio.CancelledError:
                if resp is not None:
                    resp.end("closed")
                raise
            self._resp = None
            self._open.clear()
            self._tried.set()
            if resp is not None:
                resp.end(self.why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, AGAIN_S[1])

    async def _join(self, resp: Resp) -> None:
        server = _info(await resp.call("INFO", "server"))
        for name in _SCRIPTS:
            self._digests[name] = (await resp.call("SCRIPT", "LOAD", _source(name))).decode()
        self._sessions += 1
        self._common.update(run=server.get("run_id", ""), session=str(self._sessions))
        while True:
            answer = await self._ask(resp, "join", {"roster": self._roster, **self._totals.publish()})
            self._heard(answer)
            if not self._totals.changed:
                break  # else what was settled meanwhile goes into another one
        self._set_open(answer["ledger"] == "open")
        self._resp = resp
        self._tried.set()

    async def _beat(self, resp: Resp) -> None:
        """Serve until the connection is over."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S if self._open.is_set() else RECOVERING_S):
                    raise RespGone(await asyncio.shield(resp.gone))
            over = self._totals.forget(self.server_ns())
            answer = await self._ask(resp, "beat", {"drop": over, "leave": False})
            self._roster = [str(who) for who in answer["roster"] or ()]
            self._set_open(answer["ledger"] == "open")

    def _set_open(self, is_open: bool) -> None:
        if is_open:
            self._open.set()
        else:
            self._open.clear()

    def _write(self, resp: Resp, script: str, fields: Mapping[str, Any]) -> asyncio.Future[bytes]:
        request = {**self._common, **fields}
        if self.now_us is not None:
            request["now"] = self.now_us
        return resp.call("EVALSHA", self._digests[script], "1", self._prefix, orjson.dumps(request))

    async def _ask(self, resp: Resp, script: str, fields: Mapping[str, Any]) -> Answer:
        raw = await self._write(resp, script, fields)
        if resp.gone.done():
            raise RespGone(resp.gone.result())
        answer: Answer = orjson.loads(raw)
        if answer["state"] == "strange":
            resp.end("the server knows this connection no more")
            raise RespGone("the server knows this connection no more")
        self._time = (int(answer["now"]) * 1000, time.monotonic_ns())
        return answer


def _source(name: str) -> str:
    """A script with what all of them begin with."""
    folder = files("proxy.stores") / "lua"
    return "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("common", name))


def _info(raw: bytes) -> dict[str, str]:
    """The fields of an INFO answer."""
    pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}
