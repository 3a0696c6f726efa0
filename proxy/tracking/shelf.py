"""What the tracker may hold: scopes and threads, least recently used, bounded by count and bytes.

Three bounds: threads, bytes of what is remembered of them, bytes of their newest requests (which
share their messages with the library of readings). What is let go of stays in the record.
"""

from collections import OrderedDict
from collections.abc import Callable

from proxy.model import Exchange, ModelRequest
from proxy.tracking.threads import Scope, Thread

LIVELY = 300
"""Threads last used that keep all steps a thread may keep; those behind them keep a few."""
RESTING_STEPS = 2
KEPT_TEXTS = 4
"""Newest replies of a thread whose text is kept, to know them when they come back rewritten."""
THREAD_BYTES = 6_000
STEP_BYTES = 2_000
CALL_BYTES = 200
MESSAGE_BYTES = 900
"""What the objects of a message take beside its text."""


class Shelf:
    """All scopes and threads at hand. ``on_forget`` is told of a thread before it goes."""

    def __init__(
        self,
        on_forget: Callable[[Thread], None],
        *,
        max_bytes: int,
        max_threads: int,
        max_request_bytes: int,
    ) -> None:
        self.scopes: dict[str, Scope] = {}
        self.threads: OrderedDict[str, Thread] = OrderedDict()
        self.held_bytes = 0
        self._on_forget = on_forget
        self._max_bytes = max_bytes
        self._max_threads = max_threads
        self._max_request_bytes = max_request_bytes
        self._requests: OrderedDict[str, int] = OrderedDict()
        self._request_bytes = 0
        self._lively: OrderedDict[str, Thread] = OrderedDict()

    def scope(self, name: str) -> Scope:
        """The scope of one key, opened if need be."""
        scope = self.scopes.get(name)
        if scope is None:
            scope = self.scopes[name] = Scope(name)
        return scope

    def add(self, thread: Thread) -> None:
        """Take in a new thread."""
        thread.scope.add_thread(thread)
        self.threads[thread.id] = thread
        self.weigh(thread)

    def keep_request(self, thread: Thread, exchange: Exchange, request: ModelRequest) -> None:
        """Hold a thread's newest request while there is room; policies compare with it."""
        self._request_bytes -= self._requests.pop(thread.id, 0)
        thread.request = request
        length = exchange.head.get(b"content-length") or b""
        known = length.isdigit() and len(length) < 12
        text = int(length) if known else 2_000 * (1 + len(request.messages))
        size = text + MESSAGE_BYTES * len(request.messages)
        self._requests[thread.id] = size
        self._request_bytes += size
        while self._request_bytes > self._max_request_bytes and len(self._requests) > 1:
            name, size = self._requests.popitem(last=False)
            self._request_bytes -= size
            if name in self.threads:
                self.threads[name].request = self.threads[name].answered = None

    def slim(self, thread: Thread) -> None:
        """Let go of texts that are no longer compared."""
        if len(thread.steps) > KEPT_TEXTS:
            old = thread.steps[-1 - KEPT_TEXTS]
            old.text = ""
            for call in old.calls:
                if call.answered:
                    call.arguments = ""
        self.weigh(thread)

    def weigh(self, thread: Thread) -> None:
        """Count a thread's bytes anew."""
        if thread.id not in self.threads:
            return  # its last exchange ends after it was forgotten
        weight = THREAD_BYTES + STEP_BYTES * len(thread.steps)
        for nudge in thread.nudges:
            weight += len(nudge.carrier.raw)
        for reply in thread.kept:
            weight += reply.size
        for step in thread.steps[-1 - KEPT_TEXTS :]:
            weight += len(step.words)
            for call in step.calls:
                weight += CALL_BYTES + len(call.arguments)
        self.held_bytes += weight - thread.weight
        thread.weight = weight

    def touch(self, thread: Thread) -> None:
        """Note that a thread is in use, and make room."""
        self.threads.move_to_end(thread.id)
        thread.scope.touch(thread)
        self._lively[thread.id] = thread
        self._lively.move_to_end(thread.id)
        if len(self._lively) > LIVELY:
            _, resting = self._lively.popitem(last=False)
            resting.scope.thin(resting, RESTING_STEPS)
            resting.rest()
            self.weigh(resting)
        while len(self.threads) > self._max_threads or self.held_bytes > self._max_bytes:
            oldest = next(iter(self.threads.values()))
            if oldest is thread:
                break
            self.forget(oldest)

    def forget(self, thread: Thread) -> None:
        """Drop a thread."""
        self._on_forget(thread)
        thread.scope.forget_thread(thread)
        del self.threads[thread.id]
        self._lively.pop(thread.id, None)
        self.held_bytes -= thread.weight
        thread.weight = 0
        self._request_bytes -= self._requests.pop(thread.id, 0)
        if not thread.scope.threads:
            self.scopes.pop(thread.scope.name, None)
