"""Policy ``history``: what of system, tools and earlier messages changed between answered requests.

A changed prefix costs twice: the prompt cache is written again from there, and newer models have
bound their reasoning to it (``prefix_changed``, told here and nowhere else; which models, and whether
they refuse, stands in ``thinking_rules``). Everything is compared in normal form, so that cache
marks, key order, white space and string against one-block content are no change.

Lawful and silent: what is appended; what the provider held until now; a new epoch (a summary in place
of the history); another model; Claude Code's attribution block; ``instructions`` where they are for
one request only; tools that a tool search loads; reminders in results, where nothing is bound to them.

The baseline is the last request that got a whole reply: what a refused or broken attempt said was
never anybody's prefix. What it cost is known when the reply has come (``cache_lost``).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from typing import Any

from policies.base import NOTHING, Policy
from policies.thinking_rules import Generation, generation
from policies.transcript import assistant, common, path, place_of
from policies.verdicts import reported
from proxy.model import Item, ModelRequest, Outcome, Upstream
from proxy.ports import View
from proxy.verdict import Consequence, Decision, Finding, Severity, Terminal

_ATTRIBUTION = "x-anthropic-billing-header"
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_REMINDED = "</system-reminder>"
_KEPT_SHARE = 0.5
"""A new list that keeps less than this of the old one is a new history, not a changed one."""
_LEAST_TOKENS = 1_000
_CACHE_NS = 300_000_000_000
"""How long a prompt cache lasts at least; after a longer rest its loss says nothing."""
_AROUND = 60
_SECRET = re.compile(r"[A-Za-z0-9_\-+/=.]{20,}")


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """``policies.history`` in the configuration."""

    excerpts: bool = False
    """Put some words from before and after a change into the evidence."""
    new_account: bool = False
    """The provider's account is so new that every model with bound reasoning refuses a broken bond."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that was sent before, and is not what it was."""

    part: str
    path: str
    how: str
    message: int = -1
    before: str = ""
    after: str = ""


class History(Policy):
    """See the module."""

    name = "history"
    Options = HistoryOptions

    options: HistoryOptions

    def step_start(self, view: View) -> Decision:
        request, memory = view.request, view.memory
        if request is None or request.operation != "chat" or request.held is not None:
            return NOTHING
        if view.relation not in ("attempt", "continue", "epoch") or not memory:
            return NOTHING
        if memory.get("held") or (view.answered is not None and view.answered.held is not None):
            return NOTHING  # the provider held what stood before the last one
        if memory.get("model") != request.model or memory.get("thread") != view.thread:
            return NOTHING  # another model caches and binds anew; a fork begins a history of its own
        rules = _rules(request, view.upstream)
        bound = rules is not None and rules.bound
        if view.answered is not None:
            changes = list(_changes(view.answered, request, rules))
        elif view.relation != "epoch":
            changes = list(_by_name(memory, request, rules))
        else:
            changes = []
        told = "|".join(f"{change.part} {change.path}" for change in changes)
        if told == memory.get("told", ""):
            return NOTHING
        findings = tuple(self._finding(change, request, rules, bound=bound) for change in changes)
        hard = next((f for f in findings if f.consequence == "hard"), None)
        return Decision(
            findings=findings,
            terminal=_terminal(hard) if hard is not None else None,
            memory={
                **memory,
                "told": told,
                "changed": [change.part for change in changes],
                "predicted": any(finding.consequence is not None for finding in findings),
            },
        )

    def _finding(
        self, change: _Change, request: ModelRequest, rules: Generation | None, *, bound: bool
    ) -> Finding:
        evidence: dict[str, Any] = {"part": change.part, "how": change.how}
        if change.message >= 0:
            evidence["message"] = change.message
        if self.options.excerpts and (change.before or change.after):
            words = _excerpts(change.before, change.after)
            evidence["quotes"] = {"before": words[0], "after": words[1]}
        if rules is None or not bound or not _reasons_after(request, change.message):
            return Finding(self.name, "changed", "info", evidence, None, change.path)
        evidence["rule"] = rules.name
        consequence = self._consequence(request, rules)
        severity: Severity = "violation" if consequence == "hard" else "warning"
        return Finding(self.name, "prefix_changed", severity, evidence, consequence, change.path)

    def _consequence(self, request: ModelRequest, rules: Generation) -> Consequence:
        """Whether the provider refuses. The request may say so itself; else model and account decide."""
        thinking = request.options.get("thinking")
        binding = thinking.get("block_binding") if isinstance(thinking, dict) else None
        wanted = binding.get("prefix_mismatch_behavior") if isinstance(binding, dict) else None
        if rules.dialect != "anthropic" or wanted == "drop_block":
            return "soft"
        return "hard" if wanted == "error" or rules.refuses or self.options.new_account else "soft"

    def step_end(self, view: View) -> Decision:
        request, attempt = view.request, view.attempt
        if request is None or attempt is None or request.operation != "chat":
            return NOTHING
        said = _provider_says(view, attempt.reply)
        if attempt.outcome != "complete":
            return Decision(said)
        usage = attempt.usage
        memory = {
            "thread": view.thread,
            "model": request.model,
            "held": request.held is not None,
            "messages": len(request.messages),
            "chain": request.chain[-1].hex() if request.chain else "",
            "system": _system_name(request, _rules(request, view.upstream)),
            "tools": _tools_name(request),
            "ended_ns": attempt.ended_ns,
            "cached": (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0) if usage else 0,
        }
        lost = self._lost(view)
        return Decision(findings=said if lost is None else (*said, lost), memory=memory)

    def _lost(self, view: View) -> Finding | None:
        """Tokens that stood in the cache, and are paid again because the prefix changed."""
        attempt, memory = view.attempt, view.memory
        parts = memory.get("changed")
        if attempt is None or attempt.usage is None or not parts or view.price is None:
            return None
        usage = attempt.usage
        tokens = int(memory.get("cached", 0)) - (usage.cache_read_tokens or 0)
        if usage.input_tokens is not None:
            tokens = min(tokens, usage.input_tokens - (usage.cache_read_tokens or 0))
        rested = attempt.arrived_ns - int(memory.get("ended_ns", 0))
        if tokens < _LEAST_TOKENS or rested > _CACHE_NS:
            return None
        evidence: dict[str, Any] = {"tokens": tokens, "parts": parts}
        cost = _cost_of(view, tokens)
        if cost is not None:
            evidence["cost_usd"] = format(cost, "f")
        return Finding(self.name, "cache_lost", "warning", evidence, "soft")


# -- what changed


def _rules(request: ModelRequest, upstream: Upstream | None) -> Generation | None:
    return generation(request.dialect, request.model, upstream.name if upstream is not None else "")


def _changes(before: ModelRequest, after: ModelRequest, rules: Generation | None) -> Iterator[_Change]:
    bound = rules is not None and rules.bound
    if not _for_once(after, rules):
        yield from _system_change(before, after)
    yield from _tools_change(before, after)
    if bound and after.dialect == "openai_responses":
        yield from _options_change(before, after)
    change = _message_change(before, after, strict=bound)
    if change is not None:
        yield change


def _for_once(request: ModelRequest, rules: Generation | None) -> bool:
    """GPT from 6.2: ``instructions`` are for one request, outside the prefix."""
    return request.dialect == "openai_responses" and rules is not None and rules.bound


def _system_items(request: ModelRequest) -> list[Item]:
    return [item for item in request.system if item.digest and not item.text.startswith(_ATTRIBUTION)]


def _system_change(before: ModelRequest, after: ModelRequest) -> Iterator[_Change]:
    old, new = _system_items(before), _system_items(after)
    for one, other in zip(old, new, strict=False):
        if one.digest != other.digest:
            yield _Change("system", _system_path(other), "changed", before=one.text, after=other.text)
            return
    if len(old) != len(new):
        more = new if len(new) > len(old) else old
        item = more[min(len(old), len(new))]
        how = "added" if len(new) > len(old) else "removed"
        yield _Change("system", _system_path(item), how)


def _system_path(item: Item) -> str:
    """Gemini's instruction is a content with parts."""
    name, *rest = item.at or ("system",)
    return path(name, *(["parts"] if name == "systemInstruction" else []), *rest)


def _tools_change(before: ModelRequest, after: ModelRequest) -> Iterator[_Change]:
    if before.tools is after.tools:
        return
    old = [(tool.name, tool.digest) for tool in before.tools]
    new = [(tool.name, tool.digest) for tool in after.tools]
    if old == new or _loaded(before, old, new):
        return
    at = next(
        (i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
        min(len(old), len(new)),
    )
    gone, come = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    names = {name for name, _ in gone} & {name for name, _ in come}
    how = (
        "reordered" if not gone and not come
        else "changed: " + ", ".join(sorted(names)[:5]) if names
        else "removed: " + ", ".join(name for name, _ in gone[:5]) if gone
        else "added: " + ", ".join(name for name, _ in come[:5])
    )  # fmt: skip
    yield _Change("tools", path("tools", at) if at < len(new) else path("tools"), how)


def _loaded(before: ModelRequest, old: Sequence[tuple[str, bytes]], new: Sequence[tuple[str, bytes]]) -> bool:
    """Whether tools only came behind the known ones, and something is there that loads tools."""
    if len(new) <= len(old) or list(new[: len(old)]) != list(old):
        return False
    return any(name.lower().replace("_", "").startswith(("toolsearch", "searchtools")) for name, _ in old)


def _options_change(before: ModelRequest, after: ModelRequest) -> Iterator[_Change]:
    for name in ("safety_identifier", "user"):
        if before.options.get(name) != after.options.get(name):
            yield _Change(name, path(name), "changed")
    if _format(before) != _format(after):
        yield _Change("text.format", path("text", "format"), "changed")


def _format(request: ModelRequest) -> Any:
    text = request.options.get("text")
    return text.get("format") if isinstance(text, dict) else None


def _message_change(before: ModelRequest, after: ModelRequest, *, strict: bool) -> _Change | None:
    """The first place where the old list is no prefix of the new one."""
    start = common(before, after)
    if start >= len(before.messages) or not any(assistant(message) for message in after.messages):
        return None  # a prompt in which no model has spoken yet is written anew
    old = list(_compared(before, start, strict=strict))
    new = list(_compared(after, start, strict=strict))
    for (at, one), (index, other) in zip(old, new, strict=False):
        if _same(one, other, strict=strict):
            continue
        if assistant(before.messages[at]) and at == len(before.messages) - 1:
            return None  # a prefill, with the reply behind it
        if _replaced(before, after) or _summed_up(other, old, new):
            return None
        where = place_of(after, index, other.at)
        return _Change("message", where, _how(one, old, other, new), index, one.text, other.text)
    if len(new) < len(old) and not _replaced(before, after):
        at, _ = old[len(new)]
        return _Change("message", place_of(after, at), "removed", at)
    return None


def _compared(request: ModelRequest, start: int, *, strict: bool) -> Iterator[tuple[int, Item]]:
    """The items that have an identity; reminders by themselves only where something is bound to them."""
    for index in range(start, len(request.messages)):
        for item in request.messages[index].items:
            if item.digest and (strict or item.kind != "user" or without_reminders(item.text)):
                yield index, item


def _same(one: Item, other: Item, *, strict: bool) -> bool:
    if one.digest == other.digest:
        return True
    if strict or one.kind != other.kind or one.kind not in ("user", "tool_result"):
        return False
    if _REMINDED not in one.text and _REMINDED not in other.text:
        return False
    return without_reminders(one.text) == without_reminders(other.text)


def without_reminders(text: str) -> str:
    """A text less its reminders and the space around them."""
    if _REMINDED not in text:
        return text.strip()
    end = text.rfind(_REMINDED) + len(_REMINDED)  # behind it one that is opened has no end to look for
    return "".join(piece.strip() for piece in (*_REMINDER.split(text[:end]), text[end:]))


def _replaced(before: ModelRequest, after: ModelRequest) -> bool:
    """Whether the new list is another history: a summary, a compaction, a fresh start."""
    old = {item.digest for message in before.messages for item in message.items if item.digest}
    new = {item.digest for message in after.messages for item in message.items if item.digest}
    kinds = [{i.kind for m in request.messages for i in m.items} for request in (before, after)]
    if "compaction" in kinds[1] and "compaction" not in kinds[0]:
        return True
    if len(old - new) <= 1 and len(after.messages) > len(before.messages):
        return False  # a short list that grew, with one thing changed in it
    return len(old & new) < _KEPT_SHARE * len(old)


def _summed_up(other: Item, old: Sequence[tuple[int, Item]], new: Sequence[tuple[int, Item]]) -> bool:
    """Whether new words of the user stand in the place of what a model said before, however much is kept."""
    kept = {item.digest for _, item in new}
    lost = any(item.role == "assistant" and item.digest not in kept for _, item in old)
    return lost and other.kind == "user" and all(item.digest != other.digest for _, item in old)


def _how(one: Item, old: Sequence[tuple[int, Item]], other: Item, new: Sequence[tuple[int, Item]]) -> str:
    """In a word: what stood here is elsewhere now, is gone, or reads differently."""
    still = any(item.digest == one.digest for _, item in new)
    known = any(item.digest == other.digest for _, item in old)
    if still and known:
        return "reordered"
    if still:
        return "inserted"
    if known:
        return "removed"
    if one.kind == other.kind and one.text and other.text and one.text.startswith(other.text.rstrip()):
        return "shortened"
    return "changed"


def _by_name(memory: Any, request: ModelRequest, rules: Generation | None) -> Iterator[_Change]:
    """The same by the names alone, where the earlier request is no longer at hand."""
    if memory.get("system") != _system_name(request, rules):
        yield _Change(
            "system", path(*(request.system[0].at[:1] if request.system else ("system",))), "changed"
        )
    if memory.get("tools") != _tools_name(request):
        yield _Change("tools", path("tools"), "changed")


def _system_name(request: ModelRequest, rules: Generation | None) -> str:
    if _for_once(request, rules):
        return ""
    return _name(item.digest for item in _system_items(request))


def _tools_name(request: ModelRequest) -> str:
    return _name(tool.digest for tool in request.tools)


def _name(parts: Iterator[bytes]) -> str:
    return blake2b(b"".join(parts), digest_size=8).hexdigest()


# -- what it leads to


def _provider_says(view: View, reply: Outcome) -> tuple[Finding, ...]:
    kinds = ["prefix_changed"] if view.memory.get("predicted") else []
    found = reported(History.name, reply, kinds, of_prefix=True)
    return () if found is None else (found,)


def _reasons_after(request: ModelRequest, message: int) -> bool:
    """Whether reasoning is sent that is bound to what changed."""
    return any(
        item.kind == "thinking"
        for index in range(max(message, 0), len(request.messages))
        for item in request.messages[index].items
    )


def _cost_of(view: View, tokens: int) -> Decimal | None:
    """What the lost tokens cost more than from the cache."""
    attempt = view.attempt
    assert attempt is not None
    assert attempt.usage is not None
    assert view.price is not None
    usage = attempt.usage
    written = usage.cache_write_tokens
    had: dict[str, Any] = {
        "cache_read_tokens": (usage.cache_read_tokens or 0) + tokens,
        "cache_write_tokens": max(0, written - tokens) if written is not None else None,
    }
    if usage.cache_write_1h_tokens is not None:
        had["cache_write_1h_tokens"] = min(usage.cache_write_1h_tokens, had["cache_write_tokens"] or 0)
    with_cache = view.price(replace(usage, **had)).usd
    paid = attempt.cost.usd
    return paid - with_cache if paid is not None and with_cache is not None and paid >= with_cache else None


def _terminal(finding: Finding) -> Terminal:
    return Terminal(
        "deny",
        History.name,
        "looptap_policy_denied",
        f"An earlier part of this conversation changed ({finding.path}), and the provider would refuse what "
        "is bound to it. Send it as it was, or begin a new conversation.",
        fields={"kind": finding.kind, "path": finding.path},
        any_form=True,
    )


def _excerpts(before: str, after: str) -> tuple[str, str]:
    """Some words around the first difference, with what may be a secret masked."""
    at = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    start = max(0, at - _AROUND // 3)
    return _masked(before[start : start + _AROUND]), _masked(after[start : start + _AROUND])


def _masked(text: str) -> str:
    return _SECRET.sub("…", text)
