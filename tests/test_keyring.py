"""Virtual keys: whose they are, and that the real one takes their place and nothing else changes."""

from hashlib import sha256

import pytest

from proxy.config import Secret, Settings, UpstreamSettings
from proxy.model import Head
from proxy.money.keyring import Keyring, new_key
from proxy.verdict import VirtualKey
from proxy.wire.routes import Unroutable

KEY = b"lt_abc"
SETTINGS = Settings(
    upstreams={
        "anthropic": UpstreamSettings(url="https://a.example", api="anthropic", api_key=Secret("real")),
        "openai": UpstreamSettings(url="https://o.example", api="openai", api_key=Secret("real")),
        "bare": UpstreamSettings(url="https://b.example", api="openai"),
    }
)


def keyring(*, revoked_ns: int | None = None) -> Keyring:
    found = Keyring(SETTINGS)
    digest = sha256(KEY).hexdigest()
    found.take([VirtualKey("ci", digest, "search", 1, {"env": "ci"}, revoked_ns)])
    return found


def head(*fields: tuple[bytes, bytes], target: str = "/v1/x") -> Head:
    return Head("POST", target, fields)


def test_a_key_is_long_random_and_known_by_its_hash() -> None:
    key, digest = new_key()
    assert key.startswith("lt_")
    assert len(key) > 40
    assert digest == sha256(key.encode()).hexdigest()
    assert new_key()[0] != key


def test_a_virtual_key_names_its_owner_wherever_it_stands() -> None:
    for request in (
        head((b"x-api-key", KEY)),
        head((b"Authorization", b"Bearer " + KEY)),
        head((b"x-api-key", b"own"), (b"x-looptap-key", KEY)),
        head(target="/v1beta/m:generateContent?key=lt_abc"),
    ):
        identity = keyring()(request)
        assert (identity.key, identity.team, dict(identity.labels)) == ("ci", "search", {"env": "ci"})
    assert keyring()(head((b"x-api-key", b"sk-own"))).key == "unnamed"


@pytest.mark.parametrize("ring", [keyring(revoked_ns=5), Keyring(SETTINGS)])
def test_what_does_not_hold_is_refused_where_keys_were_handed_out(ring: Keyring) -> None:
    if not ring.has_virtual:
        assert ring(head((b"x-api-key", KEY))).key == "unnamed"
        return
    for credential in (KEY, b"lt_other"):
        with pytest.raises(Unroutable) as caught:
            ring(head((b"x-api-key", credential)))
        assert caught.value.status == 401
        assert credential.decode() not in str(caught.value)


@pytest.mark.parametrize(
    ("upstream", "sent", "leaves"),
    [
        ("anthropic", (b"X-Api-Key", KEY), (b"X-Api-Key", b"real")),
        ("anthropic", (b"Authorization", b"Bearer " + KEY), (b"x-api-key", b"real")),
        ("openai", (b"Authorization", b"Bearer " + KEY), (b"Authorization", b"Bearer real")),
        ("openai", (b"x-goog-api-key", KEY), (b"x-goog-api-key", b"real")),
    ],
)
def test_the_real_key_stands_in_and_the_rest_stays(
    upstream: str, sent: tuple[bytes, bytes], leaves: tuple[bytes, bytes]
) -> None:
    other = (b"X-Other", b"lt_is no credential here")
    fields, target = keyring().stand_in(head(other, sent), "/v1/x?a=1", upstream)
    assert list(fields) == [other, leaves]
    assert target == "/v1/x?a=1"


def test_a_key_in_the_query_is_replaced_there() -> None:
    request = head(target="/v1beta/m:generateContent?alt=sse&key=lt_abc")
    _, target = keyring().stand_in(request, request.target, "openai")
    assert target == "/v1beta/m:generateContent?alt=sse&key=real"


def test_WIRE_11_own_credentials_pass_untouched() -> None:
    request = head((b"authorization", b"Bearer sk-own"))
    fields, target = keyring().stand_in(request, "/v1/x", "anthropic")
    assert fields is request.headers
    assert target == "/v1/x"


def test_without_a_real_key_a_virtual_one_goes_nowhere() -> None:
    with pytest.raises(Unroutable, match="api_key"):
        keyring().stand_in(head((b"x-api-key", KEY)), "/v1/x", "bare")
