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

from proxy.model import ModelRequest, Splice, Usage
from proxy.pricing import RateCard

LARGEST_WINDOW = 2_000_000
"""No model reads more; the bound where the price list does not know the model's own window."""
PREAMBLE = 1_000
"""What providers put before a prompt with tools."""
PICTURE = 16_000
"""More than any provider counts for one picture."""
_MOST_KNOWN = 20_000
_LONG = 32_000
"""Fewer new bytes are not searched for pictures."""
_PICTURES = re.compile(rb"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/=\\]{%d,}" % (2 * PICTURE))
_NAMED_DOCUMENTS = frozenset({"document", "input_file", "file", "fileData", "file_data", "container_upload"})


class Bounds:
    """Remembers what recent exchanges counted. One per process; used from one thread."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, int] = OrderedDict()
        """Tokens of a prompt by exchange: as reported, or what was the bound."""
        self._held: OrderedDict[str, int] = OrderedDict()
        """Tokens of a history that a provider holds, by the name of its last reply."""

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

    def learn(self, exchange: str, response_id: str | None, usage: Usage) -> None:
        """What the provider counted in the end."""
        if usage.input_tokens is not None:
            _keep(self._prompts, exchange, usage.input_tokens)
            if response_id is not None:
                _keep(self._held, response_id, usage.input_tokens + (usage.output_tokens or 0))


def _weighed(body: bytes | None, start: int, end: int) -> int:
    """Bytes of a stretch, pictures at what they count at the most."""
    length = end - start
    if body is None or length < _LONG:
        return length
    pictures = [found.end() - found.start() for found in _PICTURES.finditer(body, start, end)]
    return length - sum(pictures) + PICTURE * len(pictures)


def _keep(table: OrderedDict[str, int], name: str, value: int) -> None:
    table[name] = value
    table.move_to_end(name)
    if len(table) > _MOST_KNOWN:
        table.popitem(last=False)
