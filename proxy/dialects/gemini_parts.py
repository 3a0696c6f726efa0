"""Gemini parts as items: one reading for requests, whole replies and streams.

A stream brings one text in many parts, and a client sends it back in one part or in many; so
neighbouring parts of one kind are read as one item. A signature belongs to the item whose part
bears it: often that is a last part with empty text. Field names come in camelCase and snake_case.

The one invariant: the same parts give the same items however they were cut into texts and chunks.
A part that we do not know is ``other``, never an error.
"""

import re
from collections.abc import Mapping
from typing import Any

from proxy.model import Item, ItemKind, Message, Role
from proxy.reading.identity import (
    KEPT,
    RunningText,
    call_digest,
    canonical,
    clip,
    item_digest,
    media_digest,
    result_digest,
    without_marks,
)

At = tuple[str | int, ...]

_MARKS = frozenset({"id", "thoughtSignature", "thought_signature"})
_ROLES: Mapping[str, Role] = {"model": "assistant", "user": "user", "system": "system", "function": "user"}
_TEXT_KINDS: Mapping[Role, ItemKind] = {
    "user": "user",
    "assistant": "text",
    "system": "system",
    "tool": "user",
}
_ALPHABET = str.maketrans("-_", "+/")
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,4})\]|\['([^']*)'\]")


def get(raw: Mapping[str, Any], name: str) -> Any:
    """A member in either spelling; ``name`` is the camelCase one."""
    value = raw.get(name)
    return raw.get(_SNAKE.get(name) or _snake(name)) if value is None else value


_SNAKE: dict[str, str] = {}


def _snake(name: str) -> str:
    spelled = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)
    _SNAKE[name] = spelled
    return spelled


def read_message(raw: Any) -> Message:
    """Read one element of ``contents``."""
    if isinstance(raw, str):
        raw = {"parts": [{"text": raw}]}
    if not isinstance(raw, dict):
        return Message("user", (_other("user", raw, ()),))
    named = raw.get("role")
    role = _ROLES.get(named, "user") if isinstance(named, str) else "user"
    return Message(role, read_parts(raw.get("parts"), role, "parts"))


def read_parts(raw: Any, role: Role, place: str) -> tuple[Item, ...]:
    """Read a list of parts (or the one part that some clients send bare)."""
    if raw is None:
        return ()
    parts = raw if isinstance(raw, list) else [raw]
    reader = PartReader(role)
    items: list[Item] = []
    for index, part in enumerate(parts):
        items.extend(reader.add(part, (place, index)))
    return (*items, *reader.finish())


class _Run:
    """Neighbouring text parts of one kind, and the signature that one of them bears."""

    __slots__ = ("at", "kind", "signature", "text")

    def __init__(self, kind: ItemKind, role: Role, at: At) -> None:
        self.kind = kind
        self.text = RunningText(kind, role)
        self.signature: str | None = None
        self.at = at


class PartReader:
    """Reads the parts of one content in order, whether they are at hand or still arriving."""

    __slots__ = ("_call", "_role", "_run")

    def __init__(self, role: Role) -> None:
        self._role = role
        self._run: _Run | None = None
        self._call: _PartialCall | None = None
        """A call whose arguments are still arriving."""

    def add(self, part: Any, at: At) -> list[Item]:
        """Take the next part; the items that are complete by it."""
        if isinstance(part, str):
            part = {"text": part}
        if not isinstance(part, dict):
            return [*self.finish(), _other(self._role, part, at)]
        text = part.get("text")
        if isinstance(text, str):
            return self._add_text(part, text, at)
        call = get(part, "functionCall")
        if isinstance(call, dict):
            return self._add_call(part, call, at)
        if not (part.keys() - {"thought", "thoughtSignature", "thought_signature"}):
            return self._add_text(part, "", at)  # a signature alone
        return [*self.finish(), _single(self._role, part, at)]

    def finish(self, *, cut: bool = False) -> list[Item]:
        """What was still open. ``cut``: the reply broke off, so a half call is none."""
        done: list[Item] = []
        run, self._run = self._run, None
        if run is not None:
            done.append(self._text_item(run))
        call, self._call = self._call, None
        if call is not None and not cut:
            done.append(call.item())
        return done

    def _add_text(self, part: Mapping[str, Any], text: str, at: At) -> list[Item]:
        signature = get(part, "thoughtSignature")
        signature = signature if isinstance(signature, str) and signature else None
        if not text and signature is None:
            return []
        kind: ItemKind = "thinking" if part.get("thought") is True else _TEXT_KINDS[self._role]
        run = self._run
        done: list[Item] = []
        if self._call is not None or run is None or run.kind != kind or run.signature is not None:
            done = self.finish()
            run = self._run = _Run(kind, self._role, at)
        if text:
            run.text.add(text)
        run.signature = signature
        return done

    def _text_item(self, run: _Run) -> Item:
        return Item(
            run.kind,
            self._role,
            run.text.text(),
            form="thought" if run.kind == "thinking" else "text",
            signature=run.signature,
            at=run.at,
            digest=b"" if run.kind == "thinking" else run.text.digest(),
        )

    def _add_call(self, part: Mapping[str, Any], call: Mapping[str, Any], at: At) -> list[Item]:
        signature = get(part, "thoughtSignature")
        signature = signature if isinstance(signature, str) and signature else None
        more = get(call, "willContinue") is True
        if self._call is not None and not call.get("name"):
            self._call.add(call)
            self._call.signature = self._call.signature or signature
            return [] if more else self.finish()
        done = self.finish()
        partial = _PartialCall(call, signature, at)
        if more:
            self._call = partial
            return done
        return [*done, partial.item()]


class _PartialCall:
    """A function call whose arguments may come member by member."""

    __slots__ = ("_args", "_at", "_id", "_name", "_size", "signature")

    def __init__(self, call: Mapping[str, Any], signature: str | None, at: At) -> None:
        name, call_id = call.get("name"), call.get("id")
        self._name = name if isinstance(name, str) else ""
        self._id = call_id if isinstance(call_id, str) and call_id else None
        args = call.get("args")
        self._args: Any = {} if args is None else args
        self._at = at
        self._size = 0
        self.signature = signature
        self.add(call)

    def add(self, call: Mapping[str, Any]) -> None:
        """Take further members: texts go on where they stopped, other values are set."""
        pieces = get(call, "partialArgs")
        for piece in pieces if isinstance(pieces, list) else []:
            if not isinstance(piece, dict):
                continue
            steps = _PATH_STEP.findall(str(get(piece, "jsonPath") or ""))
            path: list[str | int] = [int(index) if index else name or quoted for name, index, quoted in steps]
            values = [value for name, value in piece.items() if name[-5:] in ("Value", "value")]
            value = values[0] if values else None
            self._size += len(value) if isinstance(value, str) else 1
            if path and self._size < 16 * KEPT and isinstance(self._args, dict):
                _put(self._args, path, value)

    def item(self) -> Item:
        """The call as far as it came."""
        arguments = canonical(_listed(self._args) if self._size else self._args)
        return Item(
            "tool_call",
            "assistant",
            tool=self._name,
            call_id=self._id,
            arguments=arguments,
            form="functionCall",
            signature=self.signature,
            at=self._at,
            digest=call_digest(self._name, arguments),
        )


def _put(holder: dict[Any, Any], path: list[str | int], value: Any) -> None:
    """Set a member at a path, or go on with the text that stands there. Elements of lists are kept
    under their numbers until the call is whole; a path that leads through a value ends there."""
    for name in path[:-1]:
        inner = holder.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        holder = inner
    known = holder.get(path[-1])
    holder[path[-1]] = known + value if isinstance(known, str) and isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """The same with numbered members as lists."""
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(name, int) for name in value):
        return [_listed(value[name]) for name in sorted(value)]
    return {str(name): _listed(member) for name, member in value.items()}


# -- parts that stand alone


def _single(role: Role, part: Mapping[str, Any], at: At) -> Item:
    result = get(part, "functionResponse")
    if isinstance(result, dict):
        return _result(result, at)
    signature = get(part, "thoughtSignature")
    signature = signature if isinstance(signature, str) and signature else None
    for name, tool in _SERVER_CALLS.items():
        called = get(part, name)
        if isinstance(called, dict):
            return _server_call(called, name, tool, signature, at)
    for name in _SERVER_RESULTS:
        answered = get(part, name)
        if isinstance(answered, dict):
            text = answered.get("output")
            shown = text if isinstance(text, str) else canonical(without_marks(answered, _MARKS))
            return Item(
                "tool_result", "tool", clip(shown), form=name, signature=signature, server=True, at=at,
                call_id=_word(answered.get("id")),
            )  # fmt: skip
    for name, member in (("inlineData", "data"), ("fileData", "fileUri")):
        held = get(part, name)
        if isinstance(held, dict):
            data = get(held, member)
            named = data.translate(_ALPHABET).rstrip("=") if isinstance(data, str) else canonical(held)
            digest = media_digest(role, named)
            return Item("media", role, form=name, signature=signature, at=at, digest=digest)
    return _other(role, part, at)


_SERVER_CALLS = {"executableCode": "code_execution", "toolCall": ""}
_SERVER_RESULTS = ("codeExecutionResult", "toolResponse")


def _server_call(called: Mapping[str, Any], form: str, tool: str, signature: str | None, at: At) -> Item:
    """A call that the provider runs itself; the client owes nothing for it."""
    if not tool:
        named = get(called, "toolType") or called.get("name")
        tool = named if isinstance(named, str) else ""
        arguments = canonical(called.get("args", {}))
    else:
        arguments = canonical(without_marks(called, _MARKS))
    return Item(
        "tool_call",
        "assistant",
        tool=tool,
        call_id=_word(called.get("id")),
        arguments=arguments,
        form=form,
        signature=signature,
        server=True,
        at=at,
        digest=call_digest(tool, arguments),
    )


def _result(raw: Mapping[str, Any], at: At) -> Item:
    """A function's answer. Errors have no flag here: by custom they stand under ``error``."""
    response = raw.get("response")
    held = response if isinstance(response, dict) else {}
    is_error = bool(held.get("error")) and not any(held.get(name) for name in ("output", "result"))
    parts = raw.get("parts")
    media = (
        [_single("user", part, ()).digest for part in parts if isinstance(part, dict)]
        if (isinstance(parts, list))
        else []
    )
    return Item(
        "tool_result",
        "tool",
        clip(_shown(response)),
        tool=_word(raw.get("name")),
        call_id=_word(raw.get("id")),
        is_error=is_error,
        form="functionResponse",
        at=at,
        digest=result_digest(canonical(response), media, is_error=is_error),
    )


def _shown(response: Any) -> str:
    """A result's text: the one text that it holds, or all of it as JSON."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict) and len(response) == 1:
        (value,) = response.values()
        if isinstance(value, str):
            return value
    return "" if response is None else canonical(response)


def _other(role: Role, value: Any, at: At) -> Item:
    plain = canonical(without_marks(value, _MARKS))
    form = next(iter(value), "") if isinstance(value, dict) else ""
    return Item("other", role, form=str(form), at=at, digest=item_digest("other", role, plain))


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
