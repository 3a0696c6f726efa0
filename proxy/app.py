"""The composition root: settings in, a running proxy out. The one file that names the parts.

``start`` builds core, record, data port and admin port and answers with ``Running``; ``serve``
keeps that up until a signal, reloading the settings when their file changes. What cannot be had
(a record directory that is not writable, say) degrades to relaying with a warning; only a port
that is taken or settings that are wrong keep the proxy from starting.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from exporters.prometheus import PrometheusExporter
from proxy import admin, dialects, outlets, rulebook, vitals
from proxy.catalog import RecordCatalog
from proxy.circles import Circles
from proxy.commons import Commons
from proxy.config import Address, ConfigError, Settings, explain, upstreams
from proxy.core import Core, CoreSettings
from proxy.core import Opened as CoreOpened
from proxy.exchange import Opened
from proxy.model import Record
from proxy.money.orders import Operator
from proxy.money.treasury import Treasury, standing_of
from proxy.outbox import Limits, Outbox
from proxy.ports import Exporter, Reading, Spread
from proxy.pricing import Pricing, warm
from proxy.reading.library import Library
from proxy.record import Keep, RecordAway, RecordWriter
from proxy.server import Server
from proxy.slack import Slack
from proxy.stores import shared_threads
from proxy.stores.sqlite import SqliteThreads
from proxy.tracker import Tracker
from proxy.wire.away import Away
from proxy.wire.dial import TlsSettings
from proxy.wire.heads import WireLimits
from proxy.wire.routes import RouteTable
from proxy.wire.upstream import UpstreamPool

GRACE_S = 30.0
"""How long a stream may go on after the proxy was asked to stop."""
_PULSE_S = 0.25
_HEADS = (4, 8)
"""Thread heads put away in one pulse, the newest first: this many groups of this many. Between two groups
chunks pass."""
_SWITCH_S = 0.0001
"""How long the traffic may keep the record's thread waiting for the interpreter. That thread gives it
back at every statement and every compression: at Python's own 5 ms, and still at 0.5 ms, it falls
behind a saturated core until its queue is full and bodies and events are lost."""
_KEEP_S = 2.0
"""How long a request may wait for its thread to be stored with what is new in it."""
_TRY_S = 2.0
"""How long a start waits to know whether it can record."""
_WATCH_S = 1.0
_CIRCLES_S = 1.0
_ONE_PRESS_S = 0.5
"""Signals so close together are one: a shell and a program around us may both pass the same Ctrl-C on."""
_FLUSH_S = 5.0
"""How long exporters may take to send what they have, at the end."""

_ENDING = (signal.SIGTERM, signal.SIGINT)

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that is up."""

    data_url: str
    admin_url: str
    """With the token in it, as it is printed."""
    parts: "_Parts"

    @property
    def record_away(self) -> str | None:
        """Why nothing is recorded at the moment; None: it is."""
        return self.parts.outbox.readings().away

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop accepting, let streams end, write what is queued."""
        await self.parts.stop(grace_s)

    @property
    def under_way(self) -> int:
        """Exchanges that have not ended."""
        return self.parts.server.shell.open_exchanges

    def hurry(self) -> None:
        """A ``stop`` that waits for streams waits no longer."""
        self.parts.server.hurry()

    def reload(self, settings: Settings) -> None:
        """Take over what may change while running: upstreams, keys, prices, switches."""
        self.parts.reload(settings)

    async def flush(self) -> None:
        """Everything observed so far is on disk afterwards."""
        await self.parts.put_heads()
        await asyncio.wrap_future(self.parts.outbox.barrier())


async def start(settings: Settings, warn: Warn = lambda text: None) -> Running:
    """Build everything and listen. Raises OSError where a port cannot be had."""
    parts = _Parts(settings, warn)
    try:
        return await parts.start()
    except BaseException:
        await parts.stop(0)
        raise


def new_id() -> Callable[[str, str], str]:
    """Random ids: a prefix and 20 characters. Randomness is fetched for many at once."""
    pool = bytearray()

    def make(prefix: str, seed: str) -> str:
        nonlocal pool
        if len(pool) < 10:
            pool = bytearray(os.urandom(10 * 256))
        taken = pool[-10:].hex()
        del pool[-10:]
        return prefix + taken

    return make


class _Parts:
    """All parts of one running proxy, and their life."""

    def __init__(self, settings: Settings, warn: Warn) -> None:
        self.settings = settings
        self.warn = warn
        self._started_ns = time.time_ns()
        self._runner: web.AppRunner | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told_unread: set[str] = set()
        self._order = asyncio.Event()
        """An operator has ordered something here."""
        self.metrics = PrometheusExporter(self._figures)
        self.otlp = outlets.otlp(settings, warn, live=self.metrics.figures)
        store = settings.store
        keep = Keep(age_ns=store.keep.ns, max_bytes=int(store.max_size))
        self.data_dir = Path(store.path)
        self.writer = RecordWriter(self.data_dir, keep=keep, warn=warn)
        self.outbox = Outbox(self.writer, self._exporters(), limits=Limits(), warn=warn)
        self.writer.rest = self.outbox.rest
        self.threads = SqliteThreads(self.data_dir, self.outbox, warn)
        self.core = self._core()
        self.shared = shared_threads(_shared_at(settings), int(store.keep.seconds))
        self.commons = Commons(self.shared, self.core, warn) if self.shared is not None else None
        self.treasury = Treasury(settings, self.core, warn)
        self.server = Server(
            self._routes(settings),
            self.core,
            UpstreamPool(tls=_tls(settings)),
            WireLimits(max_buffered=int(settings.limits.max_buffered)),
            self.treasury.identify,
            self._fault,
            on_internal_error=settings.on_internal_error,
            on_abort=settings.on_abort,
            refuse_websocket=_enforces(settings),
        )
        self.core.keeps = True
        self.server.shell.keep = self._keep
        self.server.shell.away = Away(warn)
        self.server.shell.unread = self._unread

    def _core(self) -> Core:
        settings = self.settings
        record_bodies = settings.store.record == "full"
        tracker = Tracker(
            self.outbox.put,
            new_id(),
            idle_after_ns=settings.idle_after.ns,
            previews=record_bodies,
            texts=record_bodies,
            content_chars=outlets.content_chars(settings),
        )
        return Core(
            dialects=dialects.match,
            library=Library(int(settings.limits.body_cache)),
            tracker=tracker,
            chain=rulebook.chain(settings, self._caught),
            prices=Pricing(settings.prices),
            sink=self.outbox,
            settings=CoreSettings(
                record_bodies=record_bodies,
                quotes=record_bodies,
                response_headers=settings.response_headers,
                max_decoded=int(settings.limits.decoded),
            ),
            on_fault=self._caught,
            standing=standing_of(settings),
        )

    def _exporters(self) -> Sequence[Exporter]:
        chosen: list[Exporter] = [self.metrics, *outlets.files_and_hooks(self.settings)]
        if self.otlp is not None:
            chosen.append(self.otlp)
        return chosen

    @staticmethod
    def _routes(settings: Settings) -> RouteTable:
        return RouteTable(upstreams(settings), settings.default_upstream)

    # -- life

    async def start(self) -> Running:
        self.core.tracker.load(await self.threads.pull(()))
        if self.commons is not None:
            self.server.shell.look, self.server.shell.share = self.commons.look, self.commons.share
            self.core.on_closed = self.commons.closed
        warm(upstreams(self.settings), self._started_ns)
        await self.treasury.start(self.server.shell)
        listen, admin_address = self.settings.listen, self.settings.admin
        host, port = await self.server.start(listen.host, listen.port)
        tried = asyncio.wrap_future(self.outbox.start())
        self._spawn("exporters", self.outbox.export())
        self._spawn("pulse", self._beat())
        await asyncio.wait({tried}, timeout=_TRY_S)
        admin_host, admin_port, token = await self._start_admin(admin_address.host, admin_address.port)
        admin_url = f"{Address(admin_host, admin_port).url}/?token={token}"
        return Running(Address(host, port).url, admin_url, self)

    async def _start_admin(self, host: str, port: int) -> tuple[str, int, str]:
        token = admin.read_or_make_token(self.data_dir, self.warn)
        hosts = frozenset({"127.0.0.1", "localhost", "[::1]", host.lower()})
        application = admin.build(
            admin.AdminParts(
                RecordCatalog(self.data_dir), token, hosts, self.ready, self.metrics.render, self._operator,
                self._ordered, lambda turn: outlets.trace_url(self.settings, turn), self.treasury.held,
            )
        )  # fmt: skip
        log = admin.ServerLog(self._caught).logger()
        self._runner = web.AppRunner(application, access_log=None, logger=log, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        address = self._runner.addresses[0]
        return address[0], address[1], token

    async def stop(self, grace_s: float) -> None:
        self.treasury.leave()
        await self.server.stop(grace_s)
        if (pulse := self._tasks.pop("pulse", None)) is not None:
            pulse.cancel()
            await asyncio.wait({pulse})
        await self.treasury.close()
        if self.commons is not None and self.shared is not None:
            await self.commons.close()
            await self.shared.close()
        await self.put_heads()
        self.outbox.stop_exporting()
        if (exporting := self._tasks.pop("exporters", None)) is not None:
            await asyncio.wait({exporting}, timeout=_FLUSH_S)
            exporting.cancel()
        await asyncio.to_thread(self.outbox.close)
        if self._runner is not None:
            await self._runner.cleanup()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Work that goes on beside the traffic; what ends it before its time is told."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[name] = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._caught(task.get_name(), error)

    def reload(self, settings: Settings) -> None:
        """Put new settings in place; what an exchange began with stays its own."""
        shell = self.server.shell
        chain, shell.routes = rulebook.chain(settings, self._caught), self._routes(settings)
        shell.on_internal_error = settings.on_internal_error
        shell.on_abort = settings.on_abort
        shell.refuse_websocket = _enforces(settings)
        self.core.prices = prices = Pricing(settings.prices)
        self.core.chain = chain
        self.treasury.reload(settings, prices, shell)
        shell.identify = self.treasury.identify
        self.core.standing = standing_of(settings, self.core.standing)
        self.core.tracker.idle_after_ns = settings.idle_after.ns
        self.settings = settings

    async def _beat(self) -> None:
        """What is done now and then: idle turns are closed, thread heads are put away."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._order.wait(), _PULSE_S)
            ordered = self._order.is_set()
            self._order.clear()
            try:
                if self.commons is not None:
                    await self.commons.beat()
                self.core.tick(time.time_ns())
                await self.put_heads()
                await self.treasury.look(self.server.shell, at_once=ordered)
                if self.otlp is not None:
                    self.otlp.tick(time.monotonic())
            except Exception as error:  # noqa: BLE001 - ours: the next beat tries again
                self.server.shell.faults.caught("pulse", error)

    async def put_heads(self) -> None:
        """Hand the heads of threads that changed to their store, so that a restart goes on with them."""
        slices, size = _HEADS
        for _ in range(slices):
            heads = self.core.tracker.changed_heads(size)
            if not heads:
                break
            await self.threads.push(heads)
            await asyncio.sleep(0)

    async def _keep(self, opened: Opened) -> None:
        """Store a thread with its new nudge before a model reads that; what cannot be stored is not said."""
        assert isinstance(opened, CoreOpened)
        assert opened.placement is not None
        lost = self.outbox.readings().dropped_events
        safe = self.commons is None or await self.commons.keep(opened.placement)
        try:
            async with asyncio.timeout(_KEEP_S):
                await self.threads.push([self.core.tracker.head(opened.placement)])
                await asyncio.wrap_future(self.outbox.barrier())
            safe = safe and self.outbox.readings().dropped_events == lost
        except (TimeoutError, RecordAway):
            safe = False
        opened.keep(time.time_ns(), safe=safe)

    def _operator(self) -> Operator:
        return Operator(self.settings, self.treasury.opened(), waiting=self.treasury.held)

    def _ordered(self, kind: str, data: Mapping[str, Any]) -> None:
        """An operator's order by the admin port, written down, and noticed at once."""
        self._order.set()
        self.outbox.put(
            Record(time.time_ns(), "intervention", data={"policy": "operator", "kind": kind, **data})
        )

    # -- what is told

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """``/readyz``: whether traffic is taken, whether it is recorded, and what is enforced."""
        readings = self.outbox.readings()
        stopping = self.server.shell.pulse.stopping
        return not stopping, {
            "ready": not stopping,
            "record": readings.away or "ok",
            "ledger": self.treasury.trouble or "ok",
            "says": list(explain(self.settings)),
        }

    def _figures(self) -> Iterator[Reading | Spread]:
        """The process as it stands, for ``/metrics``."""
        yield from vitals.of_the_wire(self.server.counters, self.core.unmodelled)
        yield from self.server.shell.timings.spreads()
        yield from vitals.of_the_outbox(self.outbox.readings())
        yield from vitals.of_the_record(self.writer.lost_answers)
        yield from self.treasury.readings()
        if self.otlp is not None:
            yield from self.otlp.readings()
        if self.commons is not None:
            yield from self.commons.readings()
        yield from vitals.of_the_process((time.time_ns() - self._started_ns) / 1e9)

    def _caught(self, where: str, error: BaseException) -> None:
        """A fault of ours anywhere: counted, and told once per kind."""
        self.server.shell.faults.caught(where, error)

    def _unread(self, upstream: str) -> None:
        """Model calls that nothing was seen of: told once, since an empty tree does not say why."""
        if upstream not in self._told_unread:
            self._told_unread.add(upstream)
            self.warn(
                f"a WebSocket to {upstream!r} passed unread: model calls in it are not seen; "
                "let the client speak HTTP (Codex: a provider with supports_websockets = false)"
            )

    def _fault(self, where: str, error: BaseException) -> None:
        """The first internal fault of a kind: warn of it, without its words, which may hold content."""
        kind = type(error).__name__
        self.warn(f"internal fault in {where} ({kind}): the traffic goes on, what it showed is lost")
        self.outbox.put(
            Record(time.time_ns(), "internal/error", data={"where": where, "kind": kind, "count": 1})
        )


def _tls(settings: Settings) -> dict[str, TlsSettings]:
    return {
        name: TlsSettings(ca_file=str(one.ca_file))
        for name, one in settings.upstreams.items()
        if one.ca_file is not None
    }


def _shared_at(settings: Settings) -> str | None:
    """Where the instances meet; None where this is the only one."""
    return settings.ledger.url.reveal() if settings.ledger.url is not None else None


def _enforces(settings: Settings) -> bool:
    """Whether anything may be refused, so that no traffic may pass by unread."""
    if settings.mode != "enforce":
        return False
    return bool(settings.budgets) or any(policy.acts for policy in settings.policies.values())


# -- a process of its own


async def serve(
    settings: Settings,
    *,
    announce: Callable[[Running], None],
    warn: Warn,
    load_again: Callable[[Settings], Settings] | None = None,
    watch: Path | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; a second one cuts what is still under way.

    SIGHUP or a changed file (``watch``) loads the settings again.
    """
    loop = asyncio.get_running_loop()
    done, again = asyncio.Event(), asyncio.Event()
    for number in _ENDING:
        loop.add_signal_handler(number, done.set)
    if load_again is not None:
        loop.add_signal_handler(signal.SIGHUP, again.set)
    running = await start(settings, warn)
    sys.setswitchinterval(_SWITCH_S)
    announce(running)
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(_tidy_memory(running))]
        if load_again is not None:
            beside.append(group.create_task(_follow(running, again, watch, load_again, warn)))
        await done.wait()
        for task in beside:
            task.cancel()
    await _stop(running, warn)


async def _stop(running: Running, warn: Warn) -> None:
    """Let streams end, unless whoever stops us asks a second time."""
    loop = asyncio.get_running_loop()
    since = loop.time()

    def again() -> None:
        if loop.time() - since >= _ONE_PRESS_S:
            running.hurry()

    for number in _ENDING:
        loop.add_signal_handler(number, again)
    if under_way := running.under_way:
        warn(f"stopping: {under_way} under way, for {GRACE_S:g} seconds more; Ctrl-C again cuts at once")
    await running.stop()


async def _tidy_memory(running: Running) -> None:
    circles, slack, shell = Circles(), Slack(), running.parts.server.shell
    circles.start()
    try:
        while True:
            await asyncio.sleep(_CIRCLES_S)
            quiet = not shell.open_exchanges
            circles.beat(quiet=quiet)
            slack.beat(time.monotonic(), carried=shell.opened, quiet=quiet)
    finally:
        circles.stop()


async def _follow(
    running: Running,
    again: asyncio.Event,
    watch: Path | None,
    load_again: Callable[[Settings], Settings],
    warn: Warn,
) -> None:
    """Load the settings again when asked to or when their file changed: once, also where both say so."""
    seen = _stamp(watch)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(again.wait(), _WATCH_S if watch is not None else None)
        now = _stamp(watch)
        if again.is_set() or now != seen:
            again.clear()
            seen = now
            _reload(running, load_again, warn)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reload(running: Running, load_again: Callable[[Settings], Settings], warn: Warn) -> None:
    try:
        settings = load_again(running.parts.settings)
        running.reload(settings)
    except ConfigError as error:
        for problem in error.problems:
            warn(f"{problem}; the settings in force stay as they were")
        return
    except OSError as error:
        warn(f"the settings cannot be read ({error.strerror}); those in force stay as they were")
        return
    except Exception as error:  # noqa: BLE001 - ours, or a policy's: traffic goes on with what there is
        running.parts.server.shell.faults.caught("reload", error)
        return
    for name in settings.pinned:
        warn(f"{name} changed, which only a restart can apply")
    warn("settings loaded again")


def stderr_warning(text: str) -> None:
    """A warning for the operator: one line on stderr, in which nothing that a client chose can act."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    sys.stderr.write(f"looptap: {line}\n")
    sys.stderr.flush()
