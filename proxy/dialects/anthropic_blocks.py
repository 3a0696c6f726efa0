"""Anthropic content blocks as items: one reading for requests, whole replies and streams.

Lives here: what each block type is, its identity and its proof. Lives elsewhere: the frames that
bring blocks piece by piece (``anthropic_stream``), requests and edits (``anthropic``).

The one invariant: a block read from a reply and the same block sent back by a client give the same
digest, whatever the client did to ids, cache marks, citations, callers and key order. A block
that we do not know is ``other``, never an error.
"""

from collections.abc import Mapping
from typing import Any

from proxy.model import Item, ItemKind, Message, Role
from proxy.reading.identity import (
    call_digest,
    canonical,
    clip,
    item_digest,
    media_digest,
    result_digest,
    text_digest,
    without_marks,
)

At = tuple[str | int, ...]

MARKS = frozenset({"cache_control", "citations", "caller", "id", "tool_use_id"})
"""Members that clients add, drop or invent without meaning anything by it."""

_TEXT_KINDS: Mapping[Role, ItemKind] = {
    "user": "user",
    "assistant": "text",
    "system": "system",
    "tool": "user",
}
_MEDIA = frozenset({"image", "document", "audio", "video", "file"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})


def read_message(raw: Any) -> Message:
    """Read one element of ``messages``."""
    if not isinstance(raw, dict):
        return Message("user", (_other("user", raw, "", ()),))
    named = raw.get("role")
    role: Role = named if named in ("user", "assistant", "system") else "user"
    return Message(role, read_content(raw.get("content"), role))


def read_content(content: Any, role: Role) -> tuple[Item, ...]:
    """Read a message's content: a string is one text block."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (text_item(role, content, ("content",)),)
    if not isinstance(content, list):
        return (_other(role, content, "", ("content",)),)
    return tuple(read_block(block, role, ("content", index)) for index, block in enumerate(content))


def text_item(role: Role, text: str, at: At, *, digest: bytes | None = None) -> Item:
    """A piece of text, in the kind that its speaker makes it."""
    kind = _TEXT_KINDS[role]
    if digest is None:
        digest = text_digest(kind, role, text)
    return Item(kind, role, clip(text), form="text", at=at, digest=digest)


def call_item(block: Mapping[str, Any], arguments: str, at: At) -> Item:
    """A tool call; ``arguments`` is canonical JSON, or the text that is none."""
    name, form = _word(block.get("name")), _word(block.get("type"))
    return Item(
        "tool_call",
        "assistant",
        tool=name,
        call_id=_word(block.get("id")) or None,
        arguments=arguments,
        form=form,
        server=form in _SERVER_CALLS,
        at=at,
        digest=call_digest(name, arguments),
    )


def read_block(block: Any, role: Role, at: At) -> Item:
    """Read one content block."""
    if isinstance(block, str):
        return text_item(role, block, at)
    if not isinstance(block, dict):
        return _other(role, block, "", at)
    form = _word(block.get("type"))
    if form == "text" and isinstance(block.get("text"), str):
        return text_item(role, block["text"], at)
    if form == "tool_use" or form in _SERVER_CALLS:
        return call_item(block, canonical(block.get("input", {})), at)
    if form == "thinking":
        text = block.get("thinking")
        signature = block.get("signature")
        return Item(
            "thinking",
            "assistant",
            clip(text) if isinstance(text, str) else "",
            form=form,
            signature=signature if isinstance(signature, str) and signature else None,
            at=at,
        )
    if form == "redacted_thinking":
        data = block.get("data")
        return Item(
            "thinking", "assistant", form=form, signature=data if isinstance(data, str) else None, at=at
        )
    if form == "tool_result" or form.endswith("_tool_result"):
        return _result(block, form, at)
    if form == "compaction":
        return _compaction(block, role, at)
    if form in _MEDIA:
        return _media(block, form, role, at)
    return _other(role, block, form, at)


def _result(block: Mapping[str, Any], form: str, at: At) -> Item:
    """A tool's answer: the client's, or the provider's own. The latter has no identity beside its
    call's: clients drop members of it, or all of it."""
    content = block.get("content")
    server = form != "tool_result"
    text, media = _result_content(content, server=server)
    is_error = block.get("is_error") is True
    if server and isinstance(content, dict) and _word(content.get("type")).endswith("_error"):
        is_error = True
    return Item(
        "tool_result",
        "tool",
        clip(text),
        call_id=_word(block.get("tool_use_id")) or None,
        is_error=is_error,
        form=form,
        server=server,
        at=at,
        digest=b"" if server else result_digest(text, media, is_error=is_error),
    )


def _result_content(content: Any, *, server: bool) -> tuple[str, list[bytes]]:
    """What the model reads of a result: its texts joined, and the digests of everything else."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if server or not isinstance(content, list):
        return canonical(without_marks(content, MARKS)), []
    texts: list[str] = []
    media: list[bytes] = []
    for block in content:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            texts.append(block["text"])
        else:
            media.append(read_block(block, "user", ()).digest)
    return "\n".join(texts), media


def _compaction(block: Mapping[str, Any], role: Role, at: At) -> Item:
    text = block.get("content")
    proof = block.get("encrypted_content") or block.get("signature")
    shown = text if isinstance(text, str) else ""
    signature = proof if isinstance(proof, str) else None
    return Item(
        "compaction",
        role,
        clip(shown),
        form="compaction",
        signature=signature,
        at=at,
        digest=text_digest("compaction", role, shown) or item_digest("compaction", role, signature or ""),
    )


def _media(block: Mapping[str, Any], form: str, role: Role, at: At) -> Item:
    source = block.get("source")
    data = source.get("data") if isinstance(source, dict) else None
    named = data if isinstance(data, str) else canonical(without_marks(source, MARKS))
    return Item("media", role, form=form, at=at, digest=media_digest(role, named))


def _other(role: Role, value: Any, form: str, at: At) -> Item:
    """Anything that we carry and do not read."""
    plain = canonical(without_marks(value, MARKS))
    return Item("other", role, form=form, at=at, digest=item_digest("other", role, form, plain))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
