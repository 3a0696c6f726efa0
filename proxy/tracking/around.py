"""What stands around a request's messages, its instructions and tools: told where it is new in the thread.

For exporters that were asked for content, and only for them. Text goes along as the beginning of each
piece; of a tool its name, since definitions are large and the same at every step.
"""

import json
from hashlib import blake2b

from proxy.model import ModelRequest

_MOST = 512
"""Pieces of each kind."""
_NAME = 256


def names(request: ModelRequest) -> frozenset[bytes]:
    """What names each piece of instructions, and the tools as a whole."""
    return frozenset({_tools(request), *(item.digest for item in request.system if item.digest)})


def told(request: ModelRequest, known: frozenset[bytes], chars: int) -> str | None:
    """As JSON what ``known`` does not name; None where it names everything.

    ``chars``: of each piece of instructions at most this many; how many it has is told, too.
    """
    system = [
        {"text": item.text[:chars], "chars": len(item.text)}
        for item in request.system
        if item.digest and item.digest not in known
    ]
    tools = [
        {"name": tool.name[:_NAME], **({"server": True} if tool.server else {})}
        for tool in (request.tools if _tools(request) not in known else ())
    ]
    return json.dumps({"system": system[:_MOST], "tools": tools[:_MOST]}) if system or tools else None


def _tools(request: ModelRequest) -> bytes:
    return blake2b(b"".join(tool.digest for tool in request.tools), digest_size=16).digest()
