"""From an upstream's URL to an open connection: DNS, addresses in parallel, proxies, TLS.

Knows nothing of HTTP beyond ``CONNECT``. The environment's ``HTTP_PROXY``, ``HTTPS_PROXY``,
``NO_PROXY`` and CA settings are read once, when an origin is made.

The one invariant: the host dialled, the name TLS verifies and the ``Host`` field all come from the
same configured URL; nothing that a client sends gets here.
"""

import asyncio
import base64
import ipaddress
import os
import re
import socket
import ssl
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import unquote, urlsplit

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]
P = TypeVar("P", bound=asyncio.Protocol)

HEAD_START_S = 0.25
"""How long one address may try before the next one joins in (RFC 8305)."""
DNS_LIFE_S = 30.0
MAX_CONNECT_REPLY = 64 * 1024
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Unreachable(Exception):
    """No connection to the upstream could be made. The words carry no credential."""


class ConnectTimeout(Unreachable):
    """The limit for connecting passed."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How an upstream's certificate is checked."""

    ca_file: str | None = None
    """PEM file of trusted authorities instead of the system's."""


@dataclass(frozen=True, slots=True)
class ProxyHop:
    """An HTTP proxy on the way, from the environment."""

    host: str
    port: int
    authorization: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections go, and what tells two connections' targets apart: the pool's key."""

    scheme: str
    host: str
    port: int
    tls: TlsSettings = TlsSettings()
    proxy: ProxyHop | None = None

    @property
    def authority(self) -> bytes:
        """The ``Host`` field: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return (host if self.port == default else f"{host}:{self.port}").encode("ascii")


def origin_of(url: str, tls: TlsSettings = TlsSettings(), environ: Mapping[str, str] = os.environ) -> Origin:
    """The origin of a configured URL; ValueError says what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an upstream's url must be http://host... or https://host...")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("an upstream's url takes no credentials, query or fragment")
    host = parts.hostname.encode("idna").decode("ascii") if not parts.hostname.isascii() else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Origin(parts.scheme, host, port, tls, _proxy_for(parts.scheme, host, port, environ))


def _proxy_for(scheme: str, host: str, port: int, environ: Mapping[str, str]) -> ProxyHop | None:
    def setting(name: str) -> str | None:
        return environ.get(name) or environ.get(name.upper())

    url = setting(f"{scheme}_proxy") or setting("all_proxy")
    if not url or _is_loopback(host):
        return None
    bypass = {"no": setting("no_proxy") or ""}
    if urllib.request.proxy_bypass_environment(f"{host}:{port}", bypass):  # type: ignore[attr-defined]
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{scheme}_proxy must be http://host:port, not {parts.scheme}://")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + base64.b64encode(pair.encode())
    return ProxyHop(parts.hostname, parts.port or 80, authorization)


def _is_loopback(host: str) -> bool:
    """No proxy can reach our own loopback, whatever the environment says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def tls_context(tls: TlsSettings, environ: Mapping[str, str] = os.environ) -> ssl.SSLContext:
    """One context per origin: its settings, else the environment's CA file, else the system's."""
    ca_file = tls.ca_file or next((environ[name] for name in CA_VARIABLES if environ.get(name)), None)
    try:
        if ca_file is not None and Path(ca_file).is_dir():
            context = ssl.create_default_context(capath=ca_file)
        else:
            context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Unreachable(f"the CA file {ca_file} cannot be read") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dialer:
    """Opens connections for the pool. Holds the DNS cache and one TLS context per settings."""

    def __init__(self, *, connect_s: float = 30.0, environ: Mapping[str, str] = os.environ) -> None:
        self._connect_s = connect_s
        self.environ = environ
        self._contexts: dict[TlsSettings, ssl.SSLContext] = {}
        self._names: dict[tuple[str, int], tuple[float, list[Address]]] = {}

    async def connect(self, origin: Origin, factory: Callable[[], P]) -> P:
        """An open connection, TLS done. Raises Unreachable; cancelling it closes what was begun."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect(origin, factory)
        except TimeoutError:
            raise ConnectTimeout(f"no connection within {self._connect_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(f"its certificate is not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise Unreachable(f"TLS failed: {error.reason or 'handshake'}") from error
        except OSError as error:
            raise Unreachable(_words(error)) from error

    async def _connect(self, origin: Origin, factory: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        context = self._context(origin.tls) if origin.scheme == "https" else None
        if origin.proxy is None:
            sock = await self._open_socket(origin.host, origin.port)
        else:
            sock = await self._open_socket(origin.proxy.host, origin.proxy.port)
        try:
            if origin.proxy is not None and context is not None:
                await _ask_proxy(sock, origin, origin.proxy)
            if context is None:
                _, protocol = await loop.create_connection(factory, sock=sock)
            else:
                _, protocol = await loop.create_connection(
                    factory, sock=sock, ssl=context, server_hostname=origin.host
                )
        except BaseException:
            sock.close()
            raise
        return protocol

    def _context(self, tls: TlsSettings) -> ssl.SSLContext:
        context = self._contexts.get(tls)
        if context is None:
            context = self._contexts[tls] = tls_context(tls, self.environ)
        return context

    async def _open_socket(self, host: str, port: int) -> socket.socket:
        addresses = await self._resolve(host, port)
        if len(addresses) == 1:
            return await _open_one(addresses[0])
        try:
            return await _open_first(addresses)
        except OSError:
            self._names.pop((host, port), None)  # perhaps it moved: ask again next time
            raise

    async def _resolve(self, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        known = self._names.get((host, port))
        if known is not None and loop.time() < known[0]:
            return known[1]
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = _interleaved([cast(Address, (entry[0], entry[4])) for entry in found])
        self._names[host, port] = (loop.time() + DNS_LIFE_S, addresses)
        return addresses


def _words(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return os.strerror(error.errno).lower() if error.errno else "the connection failed"


def _interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Families in turn, the resolver's first choice first."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other = [address for address in addresses if address[0] != addresses[0][0]]
    mixed: list[Address] = []
    for index in range(max(len(first), len(other))):
        mixed += first[index : index + 1] + other[index : index + 1]
    return mixed


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel find out that a silent peer is gone: streams may be quiet for very long."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def _open_one(address: Address) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def _open_first(addresses: Sequence[Address]) -> socket.socket:
    """Happy eyeballs: a new attempt joins every quarter second or as soon as one fails."""
    loop = asyncio.get_running_loop()
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failure: OSError = OSError("no address to connect to")
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_open_one(waiting.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner: socket.socket | None = None
            for task in done:
                error = task.exception()
                if error is None and winner is None:
                    winner = task.result()
                elif error is None:
                    task.result().close()
                elif isinstance(error, OSError):
                    failure = error
                else:
                    raise error
            if winner is not None:
                return winner
        raise failure
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()


def _close_late(task: "asyncio.Task[socket.socket]") -> None:
    """A loser that connected before its cancellation reached it."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _ask_proxy(sock: socket.socket, origin: Origin, proxy: ProxyHop) -> None:
    """``CONNECT`` to the origin; read byte by byte to the blank line, as what follows is TLS."""
    loop = asyncio.get_running_loop()
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    authority = f"{host}:{origin.port}".encode("ascii")
    request = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (authority, authority)
    if proxy.authorization is not None:
        request += b"Proxy-Authorization: " + proxy.authorization + b"\r\n"
    await loop.sock_sendall(sock, request + b"\r\n")
    reply = b""
    while not reply.endswith((b"\r\n\r\n", b"\n\n")):
        byte = await loop.sock_recv(sock, 1)
        if not byte or len(reply) > MAX_CONNECT_REPLY:
            raise Unreachable(f"the proxy {proxy.host}:{proxy.port} broke off")
        reply += byte
    status = re.match(rb"HTTP/1\.[01] (\d{3})\b", reply)
    if status is None or status[1][:1] != b"2":
        said = status[1].decode() if status is not None else "no HTTP"
        raise Unreachable(f"the proxy {proxy.host}:{proxy.port} refused to connect ({said})")
