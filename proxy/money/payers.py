"""Who pays: the key, team, org and labels behind the credential that a request presents.

A credential is looked at only to be hashed and compared with the configured keys; nothing of it is
kept. Without configured keys nobody's credential is read at all, and everything belongs to key
``unnamed`` of team ``default``. Unregistered credentials share that key too: OAuth tokens rotate,
so a name per token would forget its owner every hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qsl

from proxy.model import Head, Identity

UNNAMED = Identity()
_FIELDS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key", b"x-looptap-key")


@dataclass(frozen=True, slots=True)
class Payers:
    """The registered credentials of this process, by their SHA-256."""

    by_hash: Mapping[str, Identity]

    def __call__(self, head: Head) -> Identity:
        """The identity behind a request."""
        if not self.by_hash:
            return UNNAMED
        for credential in presented(head):
            found = self.by_hash.get(sha256(credential).hexdigest())
            if found is not None:
                return found
        return UNNAMED


def presented(head: Head) -> list[bytes]:
    """Every credential of a request, without its scheme, our own field first."""
    found: list[bytes] = []
    for name, value in head.headers:
        name = name.lower()
        if name in _FIELDS:
            _, _, rest = value.partition(b" ")
            credential = rest.strip() if name == b"authorization" and rest else value
            found.insert(0 if name == b"x-looptap-key" else len(found), credential)
    query = head.target.partition("?")[2]
    if "key=" in query:
        found += [value.encode("latin-1", "replace") for name, value in parse_qsl(query) if name == "key"]
    return found
