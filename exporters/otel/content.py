"""What of the traffic itself may be shown, where the settings ask for content at all.

Only what is new in a step, as the GenAI conventions write messages: JSON text of roles and parts. Each
part comes already cut short with its record; here credentials and what the settings name become dots,
thinking is left out unless asked for, and a span takes only so much. Signatures are never in it: a
record's content is text and arguments.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporters.otel.draft import clean
from exporters.otel.wanted import PART_CHARS
from proxy.model import Record

SPAN_CHARS = 128_000
"""Of all parts of one attribute."""
DOTS = "•••"
_SECRETS = (
    r"sk-[\w-]{16,}", r"lt_\w{16,}", r"gh[opsur]_\w{20,}", r"github_pat_\w{20,}", r"glpat-[\w-]{16,}",
    r"AKIA[0-9A-Z]{16}", r"xox[abeoprs]-[\w-]{10,}", r"AIza[\w-]{30,}",
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    r"(?i:bearer|basic)\s+[\w.~+/=-]{16,}",
)  # fmt: skip
"""Well-known shapes of credentials; a credential without a shape is not found by any list."""


@dataclass(frozen=True, slots=True)
class Part:
    """One item, as far as it may be shown."""

    role: str
    shape: Mapping[str, Any]
    chars: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Lens:
    """What is let through."""

    on: bool = False
    thinking: bool = False
    redact: tuple[str, ...] = ()
    _secrets: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        patterns = "|".join(f"(?:{one})" for one in (*_SECRETS, *self.redact))
        object.__setattr__(self, "_secrets", re.compile(patterns))

    def part(self, record: Record) -> Part | None:
        """An item's record as a part; None where it is not shown."""
        data = record.data
        kind = data.get("kind")
        if not self.on or (kind == "thinking" and not self.thinking):
            return None
        text = self.safe(record.content or "")
        whole = int(data.get("chars") or 0) <= PART_CHARS
        return Part(str(data.get("role") or "user"), _shape(data, str(kind), text), len(text), whole)

    def around(self, record: Record) -> tuple[list[Part], list[Part]]:
        """What stands newly around a step's messages, as far as it is shown: instructions and tools."""
        if not self.on or record.content is None:
            return [], []
        told = json.loads(record.content)
        texts = [(self.safe(one["text"]), one["chars"]) for one in told["system"]]
        tools = [(self.safe(one["name"]), "server" in one) for one in told["tools"]]
        return (
            [
                Part("system", {"type": "text", "content": text}, len(text), chars <= PART_CHARS)
                for text, chars in texts
            ],
            [
                Part("tool", {"type": "extension" if server else "function", "name": name}, len(name), True)
                for name, server in tools
            ],
        )

    def safe(self, text: str) -> str:
        """A text without what looks like a credential."""
        return str(clean(self._secrets.sub(DOTS, text)))


def _shape(data: Mapping[str, Any], kind: str, text: str) -> dict[str, Any]:
    match kind:
        case "user" | "text" | "system":
            return {"type": "text", "content": text}
        case "thinking":
            return {"type": "reasoning", "content": text}
        case "tool_call":
            return _less({"type": "tool_call", "id": data.get("call_id"), "name": data.get("tool"),
                          "arguments": _json(text)})  # fmt: skip
        case "tool_result":
            return _less({"type": "tool_call_response", "id": data.get("call_id"), "response": text})
        case "compaction":
            return {"type": "compaction", "content": text}
        case _:
            return _less(
                {"type": "generic", "generic_type": data.get("form") or kind, "content": text or None}
            )


def messages(parts: Sequence[Part], finish: str | None = None) -> tuple[str | None, bool]:
    """Parts as the conventions' messages, and whether anything was left out."""
    found: list[dict[str, Any]] = []
    fitting, cut = _fitting(parts)
    for part in fitting:
        if not found or found[-1]["role"] != part.role:
            found.append({"role": part.role, "parts": []})
        found[-1]["parts"].append(part.shape)
    if not found:
        return None, cut
    if finish is not None:
        found[-1]["finish_reason"] = finish
    return json.dumps(found, ensure_ascii=False), cut


def listed(parts: Sequence[Part]) -> tuple[str | None, bool]:
    """Parts as they are, without roles, and whether anything was left out."""
    fitting, cut = _fitting(parts)
    if not fitting:
        return None, cut
    return json.dumps([part.shape for part in fitting], ensure_ascii=False), cut


def _fitting(parts: Sequence[Part]) -> tuple[list[Part], bool]:
    """Those for which a span has room, and whether anything of all is missing."""
    found: list[Part] = []
    left = SPAN_CHARS
    for part in parts:
        if part.chars <= left:
            left -= part.chars
            found.append(part)
    return found, len(found) < len(parts) or not all(part.whole for part in parts)


def _less(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if value is not None}


def _json(text: str) -> Any:
    """Arguments as an object, where they are one and came whole."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def text_of(arguments: Any) -> str | None:
    """Arguments as one text."""
    return arguments if isinstance(arguments, str | None) else json.dumps(arguments, ensure_ascii=False)
