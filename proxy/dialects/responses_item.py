"""One item of Responses' ``input`` or ``output``, read; requests and replies come through here alike.

Lives here: the item types, who executes which call, and what identity they have. The same
projection as everywhere: text, (tool name, parsed arguments), results. Ids, status, phase,
annotations and logprobs do not enter it, nor does what the provider did by itself (its own tool
calls and their results), since many clients leave that out when they send a reply back.

The one invariant: reading never raises; a type that we do not know is read by the shape of its
name and by its call id, else it becomes an ``other`` item.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from proxy.model import Item, ItemKind, Message, Role
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

MARKS = frozenset({"id", "status", "annotations", "logprobs", "phase", "detail", "cache_control"})
"""Members that clients add, drop or change without meaning anything else."""

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "user": "user",
    "tool": "tool",
}
_TEXTS = ("input_text", "output_text", "text")
_MEDIA = ("input_image", "input_file", "input_audio", "computer_screenshot")

_CLIENT_CALLS: Mapping[str, tuple[str, str]] = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "computer_call": ("computer", "action"),
}
"""Calls of built-in tools that the client executes: the tool, and the member that holds the arguments."""

_SERVER_CALLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "web_search_call": ("web_search", ("action",)),
    "file_search_call": ("file_search", ("queries",)),
    "code_interpreter_call": ("code_interpreter", ("code",)),
    "image_generation_call": ("image_generation", ("revised_prompt",)),
    "mcp_call": ("", ("arguments",)),
    "tool_search_call": ("tool_search", ("arguments",)),
    "program": ("program", ("code",)),
}
"""Calls that the provider executes: the tool (empty: its own name says it), and what it was asked."""

_AS_SYSTEM = frozenset({"additional_tools", "configuration_update"})
_NAMED_ONLY = frozenset({"item_reference", "mcp_list_tools"})
_COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})


def read_message(raw: Any) -> Message:
    """Read one element of ``input``; a plain string is the user's text."""
    if isinstance(raw, str):
        return Message("user", (_text_item("user", raw, ()),)) if raw else Message("user", ())
    if not isinstance(raw, dict):
        return Message("user", (_other("user", raw, ()),) if raw is not None else ())
    items = items_of(raw, ())
    if items:
        return Message(items[0].role, items)
    return Message(_role(raw), ())


def items_of(raw: Mapping[str, Any], at: tuple[str | int, ...]) -> tuple[Item, ...]:
    """The items of one element; only messages hold more than one."""
    kind = raw.get("type")
    if kind == "message" or (kind is None and "role" in raw):
        role = _role(raw)
        reader = _spoken if role == "assistant" else _given
        return tuple(reader(role, raw, at))
    if not isinstance(kind, str):
        return (_other("user", raw, at),)
    if kind == "reasoning":
        return (_reasoning(raw, at),)
    if kind in ("function_call", "custom_tool_call"):
        return (_function_call(raw, kind, at),)
    if kind in _CLIENT_CALLS and not _by_provider(raw):
        return (_builtin_call(raw, kind, at),)
    if kind in _COMPACTIONS:
        return (_compaction(raw, kind, at),)
    if kind == "mcp_approval_request":
        return (_approval(raw, at),)
    if kind == "mcp_approval_response":
        return (_approved(raw, at),)
    if kind in _AS_SYSTEM:
        digest = item_digest("system", "system", canonical(without_marks(raw, MARKS)))
        return (Item("system", "system", form=kind, item_id=_word(raw.get("id")), at=at, digest=digest),)
    if kind in _NAMED_ONLY:
        server = kind != "item_reference"
        return (Item("other", "assistant", form=kind, item_id=_word(raw.get("id")), server=server, at=at),)
    if kind.endswith("_output"):
        return (_result(raw, kind, at),)
    if kind in _SERVER_CALLS or kind.endswith("_call"):
        return (_unowed_call(raw, kind, at),)
    return (_other("system" if raw.get("role") in ("developer", "system") else "assistant", raw, at),)


# -- parts shared with the stream


def call(
    name: str, arguments: str, form: str, call_id: str | None, item_id: str | None, at: tuple[str | int, ...]
) -> Item:
    """A call that the client has to execute. Custom tools take any text, which nobody re-spaces."""
    arguments = arguments[: 4 * KEPT]
    if form != "custom_tool_call":
        arguments = canonical_arguments(arguments) if arguments.strip() else "{}"
    return Item(
        "tool_call", "assistant", tool=name, call_id=call_id, arguments=clip(arguments), form=form,
        item_id=item_id, at=at, digest=call_digest(name, arguments),
    )  # fmt: skip


def said(text: str, digest: bytes, item_id: str | None, at: tuple[str | int, ...], phase: str = "") -> Item:
    """What the assistant said; the parts of one message are one text, since clients join them."""
    return Item(
        "text", "assistant", clip(text), form="output_text", item_id=item_id, phase=phase, at=at,
        digest=digest,
    )  # fmt: skip


# -- messages


def _role(raw: Mapping[str, Any]) -> Role:
    name = raw.get("role")
    return _ROLES.get(name, "user") if isinstance(name, str) else "user"


def _spoken(role: Role, raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Iterable[Item]:
    content = raw.get("content")
    item_id, phase = _word(raw.get("id")), _word(raw.get("phase")) or ""
    text = _text_of(content)
    if text:
        yield said(text, text_digest("text", role, text), item_id, (*at, "content"), phase)
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or part.get("type") in _TEXTS:
            continue
        place = (*at, "content", index)
        refusal = part.get("refusal")
        if part.get("type") == "refusal" and isinstance(refusal, str):
            digest = text_digest("text", role, refusal)
            yield Item("text", role, clip(refusal), form="refusal", item_id=item_id, at=place, digest=digest)
        elif part.get("type") in _MEDIA:
            yield _media(role, part, place)
        else:
            yield _other(role, part, place)


def _given(role: Role, raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Iterable[Item]:
    """What a user or the instructions say: a string, or one item a part."""
    content = raw.get("content")
    if isinstance(content, str):
        yield _text_item(role, content, (*at, "content"))
        return
    for index, part in enumerate(content if isinstance(content, list) else ()):
        place = (*at, "content", index)
        if isinstance(part, str):
            yield _text_item(role, part, place)
        elif isinstance(part, dict) and part.get("type") in _TEXTS:
            text = part.get("text")
            yield _text_item(role, text if isinstance(text, str) else "", place)
        elif isinstance(part, dict) and part.get("type") in _MEDIA:
            yield _media(role, part, place)
        else:
            yield _other(role, part, place)


def _text_item(role: Role, text: str, at: tuple[str | int, ...]) -> Item:
    kind: ItemKind = "system" if role == "system" else "user"
    return Item(kind, role, clip(text), form="input_text", at=at, digest=text_digest(kind, role, text))


def _media(role: Role, part: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    form = str(part["type"])
    for name in ("file_id", "image_url", "file_url", "file_data"):
        data = part.get(name)
        if isinstance(data, str) and data:
            break
    else:
        data = canonical(without_marks(part, MARKS))
    return Item("media", role, form=form, at=at, digest=media_digest(role, data))


def _other(role: Role, value: Any, at: tuple[str | int, ...]) -> Item:
    form = value.get("type") if isinstance(value, dict) else None
    digest = item_digest("other", role, canonical(without_marks(value, MARKS)))
    item_id = _word(value.get("id")) if isinstance(value, dict) else None
    return Item(
        "other", role, form=form if isinstance(form, str) else "", item_id=item_id, at=at, digest=digest
    )


# -- reasoning and compaction


def _reasoning(raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    parts = _dicts(raw.get("summary"))
    summary = tuple(part["text"] for part in parts if isinstance(part.get("text"), str))
    text = _text_of(raw.get("content"), ("reasoning_text", "text")) or "\n".join(summary)
    return Item(
        "thinking", "assistant", clip(text), form="reasoning", item_id=_word(raw.get("id")),
        signature=_word(raw.get("encrypted_content")), summary=summary, at=at,
    )  # fmt: skip


def _compaction(raw: Mapping[str, Any], kind: str, at: tuple[str | int, ...]) -> Item:
    sealed = _word(raw.get("encrypted_content"))
    identity = sealed or _word(raw.get("id")) or ""
    return Item(
        "compaction", "assistant", form=kind, item_id=_word(raw.get("id")), signature=sealed, at=at,
        digest=item_digest("compaction", "assistant", identity) if identity else b"",
    )  # fmt: skip


# -- calls


def _by_provider(raw: Mapping[str, Any]) -> bool:
    """A shell may run in the provider's container: its environment says so."""
    environment = raw.get("environment")
    return isinstance(environment, dict) and str(environment.get("type", "")).startswith("container")


def _function_call(raw: Mapping[str, Any], kind: str, at: tuple[str | int, ...]) -> Item:
    arguments = raw.get("input") if kind == "custom_tool_call" else raw.get("arguments")
    text = arguments if isinstance(arguments, str) else "" if arguments is None else canonical(arguments)
    return call(
        _word(raw.get("name")) or "", text, kind, _word(raw.get("call_id")) or _word(raw.get("id")),
        _word(raw.get("id")), at,
    )  # fmt: skip


def _builtin_call(raw: Mapping[str, Any], kind: str, at: tuple[str | int, ...]) -> Item:
    tool, member = _CLIENT_CALLS[kind]
    asked = raw.get(member)
    if asked is None and kind == "computer_call":
        asked = raw.get("actions")
    arguments = canonical(without_marks(asked, frozenset())) if asked is not None else "{}"
    return call(
        tool, arguments, kind, _word(raw.get("call_id")) or _word(raw.get("id")), _word(raw.get("id")), at
    )


def _unowed_call(raw: Mapping[str, Any], kind: str, at: tuple[str | int, ...]) -> Item:
    """A call of the provider's own; one of an unknown type with a call id is the client's."""
    tool, members = _SERVER_CALLS.get(kind, (kind.removesuffix("_call"), ("action", "arguments")))
    name = tool or _word(raw.get("name")) or kind
    asked = next((raw[member] for member in members if raw.get(member) is not None), None)
    if isinstance(asked, str) and members != ("code",):
        arguments = canonical_arguments(asked)
    else:
        arguments = canonical(without_marks(asked, frozenset())) if asked is not None else "{}"
    call_id = _word(raw.get("call_id"))
    by_client = raw.get("execution") == "client" or (
        kind not in _SERVER_CALLS and call_id is not None and not _by_provider(raw)
    )
    if by_client:
        return call(name, arguments, kind, call_id or _word(raw.get("id")), _word(raw.get("id")), at)
    return Item(
        "tool_call", "assistant", tool=name, call_id=call_id or _word(raw.get("id")),
        arguments=clip(arguments), form=kind, item_id=_word(raw.get("id")), server=True, at=at,
        is_error=raw.get("status") == "failed" or bool(raw.get("error")),
    )  # fmt: skip


def _approval(raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    """The provider asks before it calls: the client owes an answer, as for a call."""
    arguments = raw.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return call(
        _word(raw.get("name")) or "", text, str(raw["type"]), _word(raw.get("id")), _word(raw.get("id")), at
    )


def _approved(raw: Mapping[str, Any], at: tuple[str | int, ...]) -> Item:
    verdict = canonical({"approve": raw.get("approve"), "reason": raw.get("reason")})
    return Item(
        "tool_result", "tool", verdict, call_id=_word(raw.get("approval_request_id")), form=str(raw["type"]),
        at=at, digest=result_digest(verdict),
    )  # fmt: skip


def _result(raw: Mapping[str, Any], kind: str, at: tuple[str | int, ...]) -> Item:
    output = raw.get("output")
    call_id = _word(raw.get("call_id")) or (
        _word(raw.get("id")) if kind == "local_shell_call_output" else None
    )
    media: list[bytes] = []
    if isinstance(output, str):
        text = output
    elif isinstance(output, list) and any(part.get("type") in (*_TEXTS, *_MEDIA) for part in _dicts(output)):
        text = _text_of(output)
        media = [
            _media("tool", part, ()).digest if part.get("type") in _MEDIA else _other("tool", part, ()).digest
            for part in _dicts(output)
            if part.get("type") not in _TEXTS
        ]
    elif isinstance(output, dict) and output.get("type") in _MEDIA:
        text, media = "", [_media("tool", output, ()).digest]
    else:
        text = "" if output is None else canonical(without_marks(output, MARKS))
    of_provider = kind in ("tool_search_output", "program_output") and raw.get("execution") != "client"
    is_error = raw.get("status") == "failed"
    return Item(
        "tool_result", "assistant" if of_provider else "tool", clip(text), tool=_word(raw.get("name")),
        call_id=call_id, is_error=is_error, form=kind, item_id=_word(raw.get("id")), server=of_provider,
        at=at, digest=b"" if of_provider else result_digest(text, media, is_error=is_error),
    )  # fmt: skip


# -- inside


def _text_of(content: Any, kinds: Collection[str] = _TEXTS) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (
        part if isinstance(part, str) else part.get("text")
        for part in content
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type") in kinds)
    )
    return "".join(text for text in texts if isinstance(text, str))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
