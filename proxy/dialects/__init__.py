"""Which dialect speaks on a route: a table of path tails.

The tail decides and never the host or the upstream's name, since most providers serve several
formats side by side. Only calls of a model are in the table; everything else that an API offers
(stored replies, files, embeddings, batches, lists of models) has no dialect and is relayed unread.
Upgrades to WebSocket have none either. The one ``GET`` in the table fetches a reply that the
provider made in the background; whether it belongs to a step the tracker knows.

What is where: ``anthropic``, ``openai_chat``, ``openai_responses`` and ``gemini`` read requests, edit them
and word refusals. One message, item or part is read by ``anthropic_blocks``, ``chat_message``,
``responses_item`` and ``gemini_parts``; a reply by ``anthropic_stream`` (its counts: ``anthropic_usage``),
``chat_stream``, ``responses_stream`` and ``gemini_stream``, with ``framing``, ``elements`` and ``refrain`` to
take it apart. Shared: ``splice`` edits bytes, ``nudges`` puts text of ours in, ``repairs`` reasoning
back, ``refusals`` and ``openai_errors`` word errors, ``compat`` knows where speakers of OpenAI's formats
differ, ``hints`` what clients say of themselves, ``memo`` what was read before.
"""

import re
from functools import lru_cache

from proxy.dialects.anthropic import Anthropic
from proxy.dialects.gemini import Gemini
from proxy.dialects.openai_chat import OpenAIChat
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.model import Api, Head, Upstream
from proxy.ports import Dialect

ANTHROPIC = Anthropic()
GEMINI = Gemini()
OPENAI_CHAT = OpenAIChat()
OPENAI_RESPONSES = OpenAIResponses()

_TAILS: tuple[tuple[re.Pattern[str], Dialect], ...] = (
    (re.compile(r"/chat/completions/?$"), OPENAI_CHAT),
    (re.compile(r"/responses(?:/compact|/input_tokens)?/?$"), OPENAI_RESPONSES),
    (re.compile(r"^(?!.*/threads/).*/messages(?:/count_tokens)?/?$"), ANTHROPIC),
    (re.compile(r"/[^/:]+:(?:generateContent|streamGenerateContent|countTokens)$"), GEMINI),
    (re.compile(r"/publishers/anthropic/models/[^/]+:(?:rawPredict|streamRawPredict)$"), ANTHROPIC),
    (re.compile(r"/serving-endpoints/[^/]+/invocations/?$"), OPENAI_CHAT),
)
"""First match wins. Assistants' ``/threads/ID/messages`` stores a message and calls no model;
Databricks names the model in the path."""
_FETCH = re.compile(r"/responses/[\w-]+/?$")


_SPEAKERS: dict[Api, Dialect] = {"anthropic": ANTHROPIC, "openai": OPENAI_CHAT, "gemini": GEMINI}


def speaker(upstream: Upstream) -> Dialect:
    """Who words an answer of ours to a request that no dialect reads."""
    return _SPEAKERS[upstream.api]


def match(method: str, path: str, upstream: Upstream, head: Head) -> Dialect | None:
    """The dialect of a model call, None for everything else. ``path`` has no query."""
    if method == "GET" and _FETCH.search(path) is not None:
        return OPENAI_RESPONSES
    return _spoken_at(path) if method == "POST" else None


@lru_cache(128)
def _spoken_at(path: str) -> Dialect | None:
    for tail, dialect in _TAILS:
        if tail.search(path) is not None:
            return dialect
    return None
