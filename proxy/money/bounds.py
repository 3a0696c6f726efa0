"""The most that a prompt can count before its provider has counted it.

The first bound of a body is its length: a token takes at least one byte, and what JSON escapes takes
more. From then on it is what the provider reported for the body that this one grew from, plus the
bytes that are new. Pictures stand in a body as base64 far longer than they count; what lies
elsewhere (a URL, a file id, a history held by the provider) is shorter than it counts.

The one invariant: never below what is billed for the prompt. What no request tells (pages that a
provider's own search reads) is not in it.
"""

import re
from collections import OrderedDict
from typing import TypeVar

from proxy.model import ModelRequest, Splice, Usage
from proxy.pricing import RateCard, Writes

LARGEST_WINDOW = 2_000_000
"""No model reads more; the bound where the price list does not know the model's own window."""
PREAMBLE = 1_000
"""What providers put before a prompt with tools."""
PICTURE = 16_000
"""More than any provider counts for one picture."""
_MOST_KNOWN = 20_000
_LONG = 32_000
"""Fewer new bytes are not searched for pictures."""
_PICTURES = re.compile(
    rb"(?<![A-Za-z0-9+/=\\])(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/=\\]{%d,}" % (2 * PICTURE)
)
"""Each begins where no base64 stands before: else one too short would be read anew from all its places."""
_NAMED_DOCUMENTS = frozenset({"document", "input_file", "file", "fileData", "file_data", "container_upload"})


_LONG_MARK = re.compile(rb'"ttl"(?!\s{0,4}:\s{0,4}"5m")')
"""A time to live other than five minutes, or one that is written strangely."""
_ESCAPED = re.compile(rb"\\u00(?:3[0-9]|5[fF]|[67])")
"""A letter, a digit or ``_`` as an escape. (Some encoders write < and > so.)"""
_REACH = 32
"""Longer than any mark: one that stands across the edge of a stretch is seen whole."""

V = TypeVar("V")


class Bounds:
    """Remembers what recent exchanges counted. One per process; used from one thread."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, int] = OrderedDict()
        """Tokens of a prompt by exchange: as reported, or what was the bound."""
        self._held: OrderedDict[str, int] = OrderedDict()
        """Tokens of a history that a provider holds, by the name of its last reply."""
        self._writes: OrderedDict[str, Writes] = OrderedDict()
        """What a prompt may have written to the cache, by exchange."""

    def prompt(
        self,
        exchange: str,
        request: ModelRequest,
        body: bytes | None,
        plain_bytes: int,
        splice: Splice | None,
        card: RateCard | None,
    ) -> int:
        """The most tokens of a prompt, remembered. ``body`` is None where its content is encoded."""
        bound = self.glance(request, body, plain_bytes, splice, card)
        _keep(self._prompts, exchange, bound)
        return bound

    def glance(
        self,
        request: ModelRequest,
        body: bytes | None,
        plain_bytes: int,
        splice: Splice | None,
        card: RateCard | None,
    ) -> int:
        """The same without keeping anything of it."""
        window = (card.context_window if card is not None else None) or LARGEST_WINDOW
        known = self._prompts.get(splice.base) if splice is not None else None
        if known is None or splice is None or body is None:
            bound = _weighed(body, 0, plain_bytes) + (PREAMBLE if request.tools else 0)
            new = request.messages
        else:
            bound = known + _weighed(body, splice.prefix, len(body) - splice.suffix)
            new = request.messages[request.shared :]
        for message in new:
            for item in message.items:
                if item.kind == "media":
                    bound += window if item.form in _NAMED_DOCUMENTS else PICTURE
        if request.held is not None:
            bound += self._held.get(request.held, window)
        return min(bound, window)

    def writes(
        self, exchange: str | None, request: ModelRequest, body: bytes | None, splice: Splice | None
    ) -> Writes:
        """What may be written to the cache of a provider that writes only what is marked.

        A mark that was taken out still counts, so that only new bytes are looked at. ``exchange``: under this
        name it is remembered.
        """
        if body is None or request.held is not None:
            return Writes.LONG
        known = self._writes.get(splice.base) if splice is not None else None
        if known is None or splice is None:
            found = _marked(body, 0, len(body))
        else:
            found = max(
                known, _marked(body, max(0, splice.prefix - _REACH), len(body) - splice.suffix + _REACH)
            )
        if exchange is not None:
            _keep(self._writes, exchange, found)
        return found

    def learn(self, exchange: str, response_id: str | None, usage: Usage) -> None:
        """What the provider counted in the end."""
        if usage.input_tokens is not None:
            _keep(self._prompts, exchange, usage.input_tokens)
            if response_id is not None:
                _keep(self._held, response_id, usage.input_tokens + (usage.output_tokens or 0))


def _marked(body: bytes, start: int, end: int) -> Writes:
    """The dearest mark in a stretch of a body, or what might be one: letters may be written as escapes."""
    if _ESCAPED.search(body, start, end) or _LONG_MARK.search(body, start, end):
        return Writes.LONG
    return Writes.SHORT if body.find(b"cache_control", start, end) >= 0 else Writes.NONE


def _weighed(body: bytes | None, start: int, end: int) -> int:
    """Bytes of a stretch, pictures at what they count at the most."""
    length = end - start
    if body is None or length < _LONG:
        return length
    pictures = [found.end() - found.start() for found in _PICTURES.finditer(body, start, end)]
    return length - sum(pictures) + PICTURE * len(pictures)


def _keep(table: OrderedDict[str, V], name: str, value: V) -> None:
    table[name] = value
    table.move_to_end(name)
    if len(table) > _MOST_KNOWN:
        table.popitem(last=False)
