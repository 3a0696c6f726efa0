"""One Chat Completions message, read into items; requests and replies come through here alike.

Lives here: roles, content strings and parts, reasoning fields, calls in their three forms, results.
Identity is the projection that comes back from clients: text, (tool name, parsed arguments),
results. Refusals, annotations, audio, reasoning, ids and marks do not enter it.

The one invariant: reading never raises; content that we do not know becomes an ``other`` item.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.dialects.compat import listed_reasoning, plain_reasoning, proof, spoken, whole_pieces
from proxy.model import Item, Message, Role
from proxy.reading.identity import (
    KEPT,
    call_digest,
    canonical,
    canonical_arguments,
    clip,
    item_digest,
    media_digest,
    result_digest,
    text_digest,
    without_marks,
)

MARKS = frozenset({"cache_control", "annotations", "index", "detail"})
"""Members that clients add, drop or change without meaning anything else."""

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXTS = ("text", "input_text", "output_text")
_MEDIA = ("image_url", "input_audio", "file", "video_url", "image", "document_url", "audio_url")


def read_message(raw: Any) -> Message:
    """Read one element of ``messages``."""
    if not isinstance(raw, dict):
        return Message("user", (other("user", raw, ()),) if raw is not None else ())
    name = raw.get("role")
    role: Role = _ROLES.get(name, "user") if isinstance(name, str) else "user"
    if role == "assistant":
        return Message(role, assistant_items(raw))
    if role == "tool":
        return Message(role, (_result(raw),))
    return Message(role, tuple(_given(role, raw.get("content"))))


def assistant_items(message: Mapping[str, Any], *, replied: bool = False) -> tuple[Item, ...]:
    """The items of an assistant message or of a whole reply."""
    content = message.get("content")
    items: list[Item] = []
    field, plain = plain_reasoning(message)
    listed, details = listed_reasoning(message)
    parts = thoughts(content)
    if plain or details or parts:
        items.append(thinking(field, plain, listed, details, parts, replied=replied))
    text = text_of(content)
    if text:
        items.append(said(text, text_digest("text", "assistant", text)))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        items.append(refused(refusal))
    audio = message.get("audio")
    if isinstance(audio, dict) and audio.get("id"):
        items.append(spoken_audio(audio))
    if isinstance(content, list):
        items.extend(_unread_parts(content))
    items.extend(_calls(message))
    return tuple(items)


# -- parts of a reply, shared with the stream


def thinking(
    field: str, plain: str, listed: str, details: Iterable[Any], parts: str, *, replied: bool = False
) -> Item:
    """All reasoning of a message. Given twice (as text and as pieces), the pieces are its proof.

    ``replied``: it is of a reply, so that the pieces themselves are kept.
    """
    pieces = whole_pieces(details)
    form = listed or field or "thinking"
    text = plain or spoken(pieces) or parts
    signature = clip(proof(pieces)) if pieces else None
    at: tuple[str | int, ...] = (listed or field,) if listed or field else ("content",)
    kept = pieces if replied else ()
    return Item("thinking", "assistant", clip(text), form=form, signature=signature, pieces=kept, at=at)


def said(text: str, digest: bytes) -> Item:
    """What the assistant said; parts of one message are one text, since clients join them."""
    return Item("text", "assistant", clip(text), form="content", at=("content",), digest=digest)


def refused(text: str) -> Item:
    """A refusal in words of its own field; clients drop it, so it has no identity."""
    return Item("text", "assistant", clip(text), form="refusal", at=("refusal",))


def spoken_audio(audio: Mapping[str, Any]) -> Item:
    """Audio of a reply; it goes back by its id or not at all."""
    return Item("media", "assistant", form="audio", item_id=_text(audio.get("id")), at=("audio",))


def call(name: str, call_id: str | None, arguments: str, form: str, at: tuple[str | int, ...]) -> Item:
    """A tool call from its raw arguments. Custom tools take any text, which nobody re-spaces."""
    arguments = arguments[: 4 * KEPT]
    if form != "custom":
        arguments = canonical_arguments(arguments) if arguments.strip() else "{}"
    return Item(
        "tool_call", "assistant", tool=name, call_id=call_id, arguments=clip(arguments), form=form, at=at,
        digest=call_digest(name, arguments),
    )  # fmt: skip


def call_body(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Form and body of a call or of a piece of one. Snowflake fills in the other form, empty."""
    custom, function = raw.get("custom"), raw.get("function")
    if isinstance(custom, dict) and (any(custom.values()) or not isinstance(function, dict)):
        return "custom", custom
    return "function", function if isinstance(function, dict) else raw


def argument_text(value: Any) -> str:
    """Raw arguments as text: Ollama sends an object, others null."""
    if isinstance(value, str):
        return value
    return "" if value is None else canonical(value)


def text_of(content: Any) -> str:
    """The text of a content string or of all text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part_text(part) for part in content)


def thoughts(content: Any) -> str:
    """The text of Mistral's thinking parts inside a content list."""
    if not isinstance(content, list):
        return ""
    return "".join(_thought(part) for part in content)


def other(role: Role, value: Any, at: tuple[str | int, ...]) -> Item:
    """Something that we carry and do not read."""
    form = value.get("type") if isinstance(value, dict) else None
    digest = item_digest("other", role, canonical(without_marks(value, MARKS)))
    return Item("other", role, form=form if isinstance(form, str) else "", at=at, digest=digest)


# -- inside


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXTS:
        text = part.get("text")
        return text if isinstance(text, str) else ""
    return ""


def _thought(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "thinking":
        return ""
    inner = part.get("thinking")
    return text_of(inner) if isinstance(inner, list) else inner if isinstance(inner, str) else ""


def _unread_parts(content: list[Any]) -> Iterable[Item]:
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind in _TEXTS or kind in ("thinking", "reference"):
            continue  # references stand where other providers have annotations
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            yield refused(part["refusal"])
        elif kind in _MEDIA:
            yield _media("assistant", part, ("content", index))
        else:
            yield other("assistant", part, ("content", index))


def _calls(message: Mapping[str, Any]) -> Iterable[Item]:
    listed = message.get("tool_calls")
    for index, raw in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(raw, dict):
            yield _call(raw, ("tool_calls", index))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and any(legacy.values()) and not listed:
        name, arguments = _text(legacy.get("name")) or "", argument_text(legacy.get("arguments"))
        yield call(name, None, arguments, "function_call", ("function_call",))


def _call(raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    form, inner = call_body(raw)
    arguments = argument_text(inner.get("input" if form == "custom" else "arguments"))
    return call(_text(inner.get("name")) or "", _text(raw.get("id")) or None, arguments, form, at)


def _result(raw: Mapping[str, Any]) -> Item:
    content = raw.get("content")
    media: list[bytes] = []
    if isinstance(content, list):
        text = text_of(content)
        for part in content:
            if isinstance(part, dict) and part.get("type") not in _TEXTS:
                media.append(other("tool", part, ()).digest)
    else:
        text = content if isinstance(content, str) else "" if content is None else canonical(content)
    return Item(
        "tool_result", "tool", clip(text), tool=_text(raw.get("name")) or None,
        call_id=_text(raw.get("tool_call_id")) or None, form=_text(raw.get("role")) or "tool",
        at=("content",), digest=result_digest(text, media),
    )  # fmt: skip


def _given(role: Role, content: Any) -> Iterable[Item]:
    """What a user or the instructions say: a string, or one item a part."""
    kind = "system" if role == "system" else "user"
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
    for index, part in enumerate(parts):
        at: tuple[str | int, ...] = ("content",) if isinstance(content, str) else ("content", index)
        form = part.get("type") if isinstance(part, dict) else "text"
        if isinstance(part, str) or form in _TEXTS:
            text = _part_text(part)
            yield Item(
                "system" if kind == "system" else "user", role, clip(text), form="text", at=at,
                digest=text_digest(kind, role, text),
            )  # fmt: skip
        elif form in _MEDIA:
            yield _media(role, part, at)
        else:
            yield other(role, part, at)
    if isinstance(content, dict):
        yield other(role, content, ("content",))


def _media(role: Role, part: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    form = str(part["type"])
    value = part.get(form)
    data = value.get("url") if isinstance(value, dict) else value
    if not isinstance(data, str):
        data = canonical(without_marks(value if value is not None else part, MARKS))
    return Item("media", role, form=form, at=at, digest=media_digest(role, data))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
