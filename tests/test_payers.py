"""Who pays, by the credential presented; and that nothing is read where nobody is registered."""

from hashlib import sha256

import pytest

from proxy.model import Head, Identity
from proxy.money.payers import UNNAMED, Payers

ALICE = Identity("alice", "search", "acme", {"customer": "c7"})
PAYERS = Payers({sha256(b"sk-alice").hexdigest(): ALICE})


def head(*fields: tuple[bytes, bytes], target: str = "/v1/messages") -> Head:
    return Head("POST", target, fields)


@pytest.mark.parametrize(
    "request_head",
    [
        head((b"Authorization", b"Bearer sk-alice")),
        head((b"authorization", b"bearer  sk-alice")),
        head((b"X-Api-Key", b"sk-alice")),
        head((b"x-goog-api-key", b"sk-alice")),
        head((b"api-key", b"sk-alice")),
        head((b"x-api-key", b"sk-other"), (b"x-looptap-key", b"sk-alice")),
        head(target="/v1beta/models/m:generateContent?alt=sse&key=sk-alice"),
    ],
)
def test_a_registered_credential_names_its_owner_wherever_it_stands(request_head: Head) -> None:
    assert PAYERS(request_head) is ALICE


@pytest.mark.parametrize("request_head", [head(), head((b"authorization", b"Bearer sk-mallory"))])
def test_everybody_else_shares_the_unnamed_key(request_head: Head) -> None:
    assert PAYERS(request_head) is UNNAMED


def test_without_keys_no_credential_is_looked_at() -> None:
    assert Payers({})(head((b"authorization", b"Bearer sk-alice"))) is UNNAMED
