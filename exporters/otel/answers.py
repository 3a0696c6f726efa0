"""What a collector may answer over HTTP: little, and in time.

An OTLP answer is a few bytes. The libraries below read whatever comes, for as long as each read brings a
byte in time: a body or a head without end would take all memory, or this thread for ever. So each answer
gets a bound and a deadline where its bytes enter. The invariant: whatever stands at the endpoint, one
request costs at most ``MOST_BYTES`` and twice its timeout, one for the way there and one for the answer.
"""

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MOST_BYTES = 65_536
"""Of one answer, its head with it."""


class Endless(Exception):
    """No collector answers that much. Not an error of the connection: another try would bring no less."""


class ShortAnswers(HTTPAdapter):
    """Mounted on a session of ``requests``: its answers are short, or they raise."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Called by the library, once."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Called by the library where the environment names a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager


class _Metered(io.RawIOBase):
    """The bytes of one answer as they come from its socket, whose timeout counts for all of them."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock
        self._patience_s = sock.gettimeout()
        self._since_s = time.monotonic()
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left <= 0:
            raise Endless(f"an answer of more than {MOST_BYTES} bytes")
        if self._patience_s is not None:
            left_s = self._since_s + self._patience_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("an answer without an end")
            self._sock.settimeout(left_s)
        try:
            count: int | None = self._raw.readinto(memoryview(buffer)[: self._left])
        finally:
            self._sock.settimeout(self._patience_s)  # the next request on it sends with this one
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Metered(self.fp.detach(), sock))


class _Plain(HTTPConnection):
    response_class = _Answer


class _Secure(HTTPSConnection):
    response_class = _Answer


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


_POOLS = {"http": _PlainPool, "https": _SecurePool}
