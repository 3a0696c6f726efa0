"""Reaching the upstream: TLS and its authorities, proxies from the environment, addresses, limits."""

import asyncio
import base64
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.wire.dial import Dialer, Origin, ProxyHop, TlsSettings, Unreachable, origin_of
from tests.wire.certificates import Authority
from tests.wire.raw_upstream import (
    END,
    OK,
    PATIENCE_S,
    STREAM,
    Message,
    RawUpstream,
    Wire,
    dead_end,
    eventually,
    frame,
    proxy_to,
    request,
)

FREE = "/openai/v1/files"
LOOPS = pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secure(authority: Authority) -> Iterator[RawUpstream]:
    with RawUpstream(authority.server_context()) as raw:
        yield raw


# -- TLS


@LOOPS
def test_tls_with_an_own_authority(secure: RawUpstream, authority: Authority, uvloop: bool) -> None:
    negotiated: list[str | None] = []

    def script(wire: Wire, message: Message) -> bool:
        negotiated.append(wire.sock.selected_alpn_protocol())  # type: ignore[attr-defined]
        wire.send(STREAM + frame(b"abc") + END)
        return True

    secure.script = script
    tls = {"openai": TlsSettings(ca_file=str(authority.file))}
    with proxy_to({"openai": secure.url}, tls=tls, uvloop=uvloop) as proxy:
        for _ in range(2):
            answer = proxy.ask(request(FREE, b"x"))
            assert answer is not None
            assert (answer.status, answer.body) == (200, b"abc")
    assert secure.connections == 1
    assert negotiated == ["http/1.1", "http/1.1"]


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_environments_authorities_are_honoured(
    secure: RawUpstream, authority: Authority, name: str
) -> None:
    with proxy_to({"openai": secure.url}, environ={name: str(authority.file)}) as proxy:
        answer = proxy.ask(request(FREE, b"x"))
        assert answer is not None
        assert answer.status == 200


@LOOPS
def test_a_certificate_that_is_not_trusted_is_a_502_in_plain_words(secure: RawUpstream, uvloop: bool) -> None:
    with proxy_to({"openai": secure.url}, uvloop=uvloop) as proxy:
        answer = proxy.ask(request(FREE, b"x"))
        assert answer is not None
        assert answer.status == 502
        assert b"certificate is not trusted" in answer.body
    assert not secure.heads


def test_a_certificate_for_another_host_is_not_trusted(authority: Authority) -> None:
    with RawUpstream(authority.server_context("127.0.0.2")) as raw:
        tls = {"openai": TlsSettings(ca_file=str(authority.file))}
        with proxy_to({"openai": raw.url}, tls=tls) as proxy:
            answer = proxy.ask(request(FREE, b"x"))
            assert answer is not None
            assert answer.status == 502
        assert not raw.heads


def test_a_missing_ca_file_says_so(secure: RawUpstream, tmp_path: Path) -> None:
    tls = {"openai": TlsSettings(ca_file=str(tmp_path / "nowhere.pem"))}
    with proxy_to({"openai": secure.url}, tls=tls) as proxy:
        answer = proxy.ask(request(FREE, b"x"))
        assert answer is not None
        assert answer.status == 502
        assert b"CA file" in answer.body


@LOOPS
@pytest.mark.parametrize("goodbye", [True, False], ids=["close_notify", "cut"])
def test_tls_without_goodbye_is_a_break_where_only_the_close_ends_a_body(
    secure: RawUpstream, authority: Authority, uvloop: bool, goodbye: bool
) -> None:
    def script(wire: Wire, message: Message) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        time.sleep(0.05)
        if goodbye:
            with contextlib.suppress(OSError):
                wire.sock.unwrap()  # type: ignore[attr-defined]
        else:
            wire.sock.shutdown(socket.SHUT_RDWR)

    secure.script = script
    tls = {"openai": TlsSettings(ca_file=str(authority.file))}
    with proxy_to({"openai": secure.url}, tls=tls, uvloop=uvloop) as proxy:
        client = proxy.connect()
        with contextlib.closing(client.sock):
            client.send(request(FREE, b"x"))
            assert client.head() is not None
            assert client.exactly(3) == b"abc"
            if goodbye:
                assert client.sock.recv(1) == b""
            else:
                with pytest.raises(ConnectionResetError):
                    client.sock.recv(1)
        wanted = ["complete"] if goodbye else ["upstream_reset"]
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == wanted)


@LOOPS
def test_a_large_upload_and_answer_over_tls(secure: RawUpstream, authority: Authority, uvloop: bool) -> None:
    big = bytes(range(256)) * 16_384  # 4 MB

    def script(wire: Wire, message: Message) -> bool:
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(message.body) + message.body)
        return True

    secure.script = script
    tls = {"openai": TlsSettings(ca_file=str(authority.file))}
    with proxy_to({"openai": secure.url}, tls=tls, uvloop=uvloop) as proxy:
        answer = proxy.ask(request(FREE, big))
        assert answer is not None
        assert answer.body == big


# -- proxies


class ForwardProxy(threading.Thread):
    """A forward proxy that always connects to one port; remembers what it was asked."""

    def __init__(
        self, target_port: int, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    ) -> None:
        super().__init__(daemon=True)
        self.asked: list[Message] = []
        self._answer = answer
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            sock = stack.enter_context(self._listener.accept()[0])
            wire = Wire(sock)
            head = wire.head()
            assert head is not None
            self.asked.append(head)
            wire.send(self._answer)
            if head.start.startswith(b"CONNECT") and b" 200 " in self._answer:
                behind = stack.enter_context(socket.create_connection(("127.0.0.1", self._target_port)))
                sock.settimeout(None)
                up = threading.Thread(target=pump, args=(sock, behind), daemon=True)
                up.start()
                pump(behind, sock)
                up.join(PATIENCE_S)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(PATIENCE_S)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def test_https_goes_through_a_proxy_by_connect(authority: Authority) -> None:
    context = authority.server_context("192.0.2.7")  # an address that only the proxy can reach
    with RawUpstream(context) as raw, contextlib.closing(ForwardProxy(raw.port)) as forward:
        environ = {"HTTPS_PROXY": f"http://user:p%40ss@{forward.url}", "SSL_CERT_FILE": str(authority.file)}
        with proxy_to({"openai": "https://192.0.2.7"}, environ=environ) as proxy:
            answer = proxy.ask(request(FREE, b"x"))
            assert answer is not None
            assert answer.status == 200
        [asked] = forward.asked
        assert asked.start == b"CONNECT 192.0.2.7:443 HTTP/1.1"
        assert asked.get(b"proxy-authorization") == b"Basic " + base64.b64encode(b"user:p@ss")
        assert raw.seen[0].get(b"proxy-authorization") is None
        assert raw.seen[0].get(b"host") == b"192.0.2.7"


def test_a_proxy_that_refuses_is_a_502_without_its_password() -> None:
    with contextlib.closing(
        ForwardProxy(0, b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    ) as forward:
        environ = {"https_proxy": f"http://user:secret@{forward.url}"}
        with proxy_to({"openai": "https://192.0.2.7"}, environ=environ) as proxy:
            answer = proxy.ask(request(FREE, b"x"))
            assert answer is not None
            assert answer.status == 502
            assert b"407" in answer.body
            assert b"secret" not in answer.body


def test_plain_http_goes_through_a_proxy_in_absolute_form() -> None:
    with contextlib.closing(ForwardProxy(0, OK)) as forward:
        environ = {"http_proxy": f"http://user:pass@{forward.url}"}
        with proxy_to({"openai": "http://192.0.2.7:8080/api"}, environ=environ) as proxy:
            answer = proxy.ask(request(FREE + "?x", b"x"))
            assert answer is not None
            assert answer.body == b"ok"
        [asked] = forward.asked
        assert asked.start == b"POST http://192.0.2.7:8080/api/v1/files?x HTTP/1.1"
        assert asked.get(b"host") == b"192.0.2.7:8080"
        assert asked.get(b"proxy-authorization") == b"Basic " + base64.b64encode(b"user:pass")


def test_the_proxys_password_is_nowhere_in_print() -> None:
    origin = origin_of("https://api.test", environ={"https_proxy": "http://user:secret@proxy.test:3128"})
    assert origin.proxy is not None
    assert (origin.proxy.host, origin.proxy.port) == ("proxy.test", 3128)
    assert "secret" not in repr(origin)
    assert "c2VjcmV0" not in repr(origin)


@pytest.mark.parametrize(
    ("url", "environ", "proxied"),
    [
        ("https://api.test", {"HTTPS_PROXY": "http://p:1"}, True),
        ("https://api.test", {"https_proxy": "p:1"}, True),
        ("https://api.test", {"HTTP_PROXY": "http://p:1"}, False),
        ("http://api.test", {"HTTP_PROXY": "http://p:1"}, True),
        ("http://api.test", {"ALL_PROXY": "http://p:1"}, True),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other,.test"}, False),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "no_proxy": "api.test"}, False),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, False),
        ("http://127.0.0.1:11434", {"HTTP_PROXY": "http://p:1"}, False),
        ("http://localhost:11434", {"HTTP_PROXY": "http://p:1"}, False),
        ("http://[::1]:11434", {"HTTP_PROXY": "http://p:1"}, False),
    ],
)
def test_the_environment_says_which_hosts_are_proxied(
    url: str, environ: dict[str, str], proxied: bool
) -> None:
    assert (origin_of(url, environ=environ).proxy is not None) is proxied


# -- origins and addresses


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://api.test", b"api.test"),
        ("https://api.test:443/x", b"api.test"),
        ("https://api.test:8443", b"api.test:8443"),
        ("http://api.test:443", b"api.test:443"),
        ("http://[::1]:80", b"[::1]"),
        ("http://[::1]:81", b"[::1]:81"),
        ("https://b\xfccher.test", b"xn--bcher-kva.test"),
    ],
)
def test_host_names_the_configured_url(url: str, authority: bytes) -> None:
    assert origin_of(url, environ={}).authority == authority


@pytest.mark.parametrize(
    "url", ["ftp://x", "api.test", "https://", "https://u:p@api.test", "https://x/?a", "https://x/#f"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="an upstream's url"):
        origin_of(url, environ={})


def test_a_socks_proxy_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="https_proxy must be http://"):
        origin_of("https://x", environ={"HTTPS_PROXY": "socks5://p:1"})
    with proxy_to({"openai": "https://x"}, environ={"HTTPS_PROXY": "socks5://u:secret@p:1"}) as proxy:
        answer = proxy.ask(request(FREE, b"x"))
        assert answer is not None
        assert answer.status == 502
        assert b"secret" not in answer.body


def test_nobody_listening_is_a_502_shaped_for_the_dialect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with proxy_to({"anthropic": url, "openai": url, "gemini": url}) as proxy:
        for path, status, word in [
            ("/anthropic/v1/messages", 502, b'"api_error"'),
            ("/openai/v1/responses", 502, b'"looptap_upstream_unreachable"'),
            ("/gemini/v1/messages", 503, b'"UNAVAILABLE"'),
            (FREE, 502, b"looptap: upstream 'openai' failed: connection refused"),
        ]:
            answer = proxy.ask(request(path, b"{}"))
            assert answer is not None
            assert answer.status == status
            assert word in answer.body


@LOOPS
def test_connecting_has_a_limit(uvloop: bool) -> None:
    with dead_end() as nowhere, proxy_to({"anthropic": nowhere}, connect_s=0.3, uvloop=uvloop) as proxy:
        answer = proxy.ask(request("/anthropic/v1/messages", b"{}"))
        assert answer is not None
        assert answer.status == 504
        assert eventually(lambda: proxy.thinker.exchanges[0].ends == ["timeout"])


class Names(Dialer):
    """A dialer whose resolver is a table; counts the questions."""

    def __init__(self, addresses: list[tuple[socket.AddressFamily, str, int]]) -> None:
        super().__init__(environ={})
        self.asked = 0
        self._table = addresses

    async def connect_port(self, origin: Origin) -> int:
        loop = asyncio.get_running_loop()
        original = loop.getaddrinfo

        async def table(host: str, port: int, **_: object) -> list[object]:
            self.asked += 1
            return [(family, 1, 6, "", (address, at)) for family, address, at in self._table]

        loop.getaddrinfo = table  # type: ignore[method-assign,assignment]
        try:
            protocol = await self.connect(origin, Remember)
        finally:
            loop.getaddrinfo = original  # type: ignore[method-assign]
        port: int = protocol.transport.get_extra_info("peername")[1]
        protocol.transport.abort()
        await asyncio.sleep(0)
        return port


class Remember(asyncio.Protocol):
    transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


async def test_the_first_address_that_answers_wins_and_names_are_cached(upstream: RawUpstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = taken.getsockname()[1]
    origin = origin_of("http://api.test", environ={})
    with dead_end() as nowhere:
        hanging = int(nowhere.rpartition(":")[2])
        inet = socket.AF_INET
        names = Names(
            [(inet, "127.0.0.1", hanging), (inet, "127.0.0.1", refused), (inet, "127.0.0.1", upstream.port)]
        )
        assert await names.connect_port(origin) == upstream.port  # or it would fail for the one that hangs
        assert await names.connect_port(origin) == upstream.port
        assert names.asked == 1


async def test_all_addresses_failing_is_unreachable_and_forgotten() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = taken.getsockname()[1]
    inet = socket.AF_INET
    names = Names([(inet, "127.0.0.1", refused), (inet, "127.0.0.1", refused)])
    for asked in (1, 2):
        with pytest.raises(Unreachable, match="refused"):
            await names.connect_port(origin_of("http://api.test", environ={}))
        assert names.asked == asked


def test_a_proxy_hop_is_part_of_the_pools_key() -> None:
    plain = origin_of("https://x", environ={})
    assert plain == origin_of("https://x/other", environ={})
    assert plain != origin_of("https://x", TlsSettings(ca_file="a"), environ={})
    assert plain != Origin("https", "x", 443, proxy=ProxyHop("p", 1))
