"""Keys that Looptap hands out: whose they are, and the provider's own key in their place.

A virtual key (``lt_…``) stands in the provider's usual credential field, where the real key of the
upstream replaces it on the way out, or in ``x-looptap-key`` beside the client's own credential,
which then passes untouched. Only hashes of virtual keys are known here.

The one invariant: a virtual key never reaches a provider, and a real one is read in ``stand_in`` only.
"""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from urllib.parse import parse_qsl, urlencode

from proxy.config import Secret, Settings
from proxy.model import Api, Head, Identity
from proxy.money.payers import Payers, presented
from proxy.verdict import VirtualKey
from proxy.wire.heads import Fields
from proxy.wire.routes import Unroutable

PREFIX = "lt_"
_PREFIX = PREFIX.encode()
_FIELDS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"})


def new_key() -> tuple[str, str]:
    """A fresh key and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, sha256(key.encode()).hexdigest()


class Keyring:
    """Who presents a credential. Replaces ``Payers`` where keys were handed out."""

    def __init__(self, settings: Settings) -> None:
        self._virtual: dict[str, Identity | None] = {}
        """By hash; None for a key that was revoked."""
        self.reload(settings)

    def reload(self, settings: Settings) -> None:
        """Take over the configured credentials, teams and upstream keys."""
        self._settings = settings
        self.payers = Payers(
            {
                key.sha256: Identity(key.name, key.team, self._org(key.team), dict(key.labels))
                for key in settings.keys
            }
        )
        self._real: Mapping[str, tuple[Api, Secret]] = {
            name: (one.api, one.api_key)
            for name, one in settings.upstreams.items()
            if one.api_key is not None
        }

    def take(self, keys: Sequence[VirtualKey]) -> None:
        """The keys that there are now."""
        self._virtual = {
            key.sha256: None
            if key.revoked_ns is not None
            else Identity(key.name, key.team, self._org(key.team), dict(key.labels))
            for key in keys
        }

    def _org(self, team: str) -> str:
        return self._settings.teams[team].org if team in self._settings.teams else "default"

    @property
    def has_virtual(self) -> bool:
        """Whether any key was ever handed out."""
        return bool(self._virtual)

    def __call__(self, head: Head) -> Identity:
        """The identity behind a request. Raises Unroutable for a virtual key that does not hold."""
        if not self._virtual:
            return self.payers(head)
        for credential in presented(head):
            if not credential.startswith(_PREFIX):
                continue
            identity = self._virtual.get(sha256(credential).hexdigest())
            if identity is None:
                raise Unroutable(401, "this key does not hold here: it is not known, or was revoked")
            return identity
        return self.payers(head)

    def stand_in(self, head: Head, target: str, upstream: str) -> tuple[Fields, str]:
        """Fields and target for the upstream: its real key where a virtual one stood. Raises Unroutable."""
        if not any(one.startswith(_PREFIX) for one in presented(head)):
            return head.headers, target
        real = self._real.get(upstream)
        if real is None:
            raise Unroutable(401, f"no api_key is set for upstream {upstream!r}, and a virtual key was sent")
        api, secret = real[0], real[1].reveal()
        fields = [_replaced(name, value, api, secret.encode()) for name, value in head.headers]
        return fields, _target(target, secret)


def _replaced(name: bytes, value: bytes, api: Api, secret: bytes) -> tuple[bytes, bytes]:
    if name.lower() not in _FIELDS:
        return name, value
    scheme, space, credential = value.rpartition(b" ")
    if not credential.startswith(_PREFIX):
        return name, value
    if space and api == "anthropic":  # takes only OAuth tokens as a bearer
        return b"x-api-key", secret
    return name, scheme + space + secret


def _target(target: str, secret: str) -> str:
    path, mark, query = target.partition("?")
    if PREFIX not in query:
        return target
    pairs = [
        (name, secret if name == "key" and value.startswith(PREFIX) else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return path + mark + urlencode(pairs)
