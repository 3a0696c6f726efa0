"""One upstream per test, and a proxy in front of it on either event loop."""

from collections.abc import Iterator

import pytest

from tests.wire.raw_upstream import Proxy, RawUpstream, proxy_to


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream() as raw:
        yield raw


@pytest.fixture
def proxy(upstream: RawUpstream) -> Iterator[Proxy]:
    with proxy_to({"anthropic": upstream.url, "openai": upstream.url}) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def any_proxy(request: pytest.FixtureRequest, upstream: RawUpstream) -> Iterator[Proxy]:
    """The same proxy on each loop: what hangs on transports is tested on both."""
    with proxy_to({"anthropic": upstream.url, "openai": upstream.url}, uvloop=request.param) as running:
        yield running
