"""What providers demand of reasoning that comes back: decision tables, one row a model generation.

Data only. ``thinking`` finds out what is the case (a *situation*); the generation's table says what
that is called and what the provider does about it. A new model is a row of ``GENERATIONS``; a new
behaviour is a changed entry of its table. What a table does not name is lawful.

=====================  ====================================================================
situation              the case
=====================  ====================================================================
``text``               same proof, other text
``proof``              same text, id or part, other proof
``bare``               same text or id, the proof is gone
``other``              something else stands in its place
``order``              its place among the other blocks, texts and calls of the reply is another
``moved``              it stands in another message, or on another part
``twice``              it stands in the history more than once
``as_text``            its text comes back as plain text
``again``              it is back, after a request without it was answered
``present``            it came back at all
``follower``           it came back, and the item that it led to did not
``missing…``           it did not come back, see ``thinking_faults``
``phase…``             a message came back without its phase (``gone``) or with an ``other``
``fallback…``          a fallback block did not come back (``gone``) or stands elsewhere (``moved``),
                       and thinking from both sides of it did
=====================  ====================================================================
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from proxy.model import DialectName
from proxy.verdict import Consequence

Kind = Literal[
    "ok", "legally_omitted", "not_applicable", "not_replayed", "synthetic",
    "dropped", "modified", "reordered", "duplicated", "converted", "incomplete", "resurrected", "forbidden",
]  # fmt: skip
Verdict = tuple[Kind, Consequence | None]
Table = Mapping[str, Verdict]

OK: Verdict = ("ok", None)
OMITTED: Verdict = ("legally_omitted", None)

_DROPPED_HARD: Verdict = ("dropped", "hard")
_DROPPED_SOFT: Verdict = ("dropped", "soft")
_MODIFIED_HARD: Verdict = ("modified", "hard")
_MODIFIED_SOFT: Verdict = ("modified", "soft")
_REORDERED_HARD: Verdict = ("reordered", "hard")
_REORDERED_SOFT: Verdict = ("reordered", "soft")
_DUPLICATED_HARD: Verdict = ("duplicated", "hard")
_CONVERTED_SOFT: Verdict = ("converted", "soft")

# -- Anthropic Messages: blocks with a signature, or redacted

_ANTHROPIC: Table = {
    "text": _MODIFIED_HARD,
    "proof": _MODIFIED_HARD,
    "bare": _MODIFIED_HARD,
    "other": _MODIFIED_HARD,
    "order": _REORDERED_HARD,
    "moved": _REORDERED_HARD,
    "twice": _DUPLICATED_HARD,
    "as_text": ("converted", "hard"),
    "again": ("resurrected", "hard"),
    # The latest assistant message, whose calls are being answered:
    "missing.some": _DROPPED_HARD,
    "missing.all_manual": _DROPPED_HARD,
    "missing.all": _DROPPED_SOFT,
    # Earlier in the same tool loop; in older turns:
    "missing.in_loop": _DROPPED_SOFT,
    "missing.older": OMITTED,
    "fallback.gone": _MODIFIED_HARD,
    "fallback.moved": _MODIFIED_HARD,
}
_ANTHROPIC_BOUND: Table = {
    # Each block is bound to what precedes it and to its predecessor: runs may go, holes may not be.
    **_ANTHROPIC,
    "missing.all": _DROPPED_HARD,
    "missing.middle": _DROPPED_HARD,
    "missing.in_loop": OMITTED,
}

# -- OpenAI Responses: reasoning items, by encrypted content, else by id

_RESPONSES: Table = {
    "proof": _MODIFIED_HARD,
    "other": _MODIFIED_HARD,
    "bare": ("incomplete", "hard"),
    "order": _REORDERED_HARD,
    "moved": _REORDERED_HARD,
    "twice": _DUPLICATED_HARD,
    "as_text": _CONVERTED_SOFT,
    "follower": _DROPPED_HARD,
    "missing.stored": _DROPPED_HARD,
    "missing.in_turn": _DROPPED_SOFT,
    "missing.older": OMITTED,
}

_RESPONSES_PHASED: Table = {
    # Without its phase what was said on the way reads as the answer, and long work ends early.
    **_RESPONSES,
    "phase.gone": _MODIFIED_SOFT,
    "phase.other": _MODIFIED_SOFT,
}

# -- Gemini: signatures on parts; only the first call of each step of the running turn is checked

_GEMINI: Table = {
    "proof": _MODIFIED_HARD,
    "moved": _REORDERED_HARD,
    "moved.text": _REORDERED_SOFT,
    "twice": _DUPLICATED_HARD,
    "missing.first_call": _DROPPED_HARD,
    "missing.elsewhere": OMITTED,
    "missing.older": OMITTED,
}
_GEMINI_LENIENT: Table = {**_GEMINI, "missing.first_call": _DROPPED_SOFT}

# -- Chat Completions: reasoning beside the content

_CHAT: Table = {
    "text": _MODIFIED_SOFT,
    "proof": _MODIFIED_SOFT,
    "other": _MODIFIED_SOFT,
    "order": _REORDERED_SOFT,
    "moved": _REORDERED_SOFT,
    "as_text": _CONVERTED_SOFT,
    "missing.with_call": OMITTED,
    "missing.without_call": OMITTED,
    "missing.no_tools": OMITTED,
}
_CHAT_CALLS: Table = {**_CHAT, "missing.with_call": _DROPPED_HARD, "as_text": ("converted", "hard")}
_CHAT_ALL: Table = {**_CHAT_CALLS, "missing.without_call": _DROPPED_HARD}
_CHAT_FORBIDDEN: Table = {"present": ("forbidden", "hard")}
_CHAT_WANTED: Table = {**_CHAT, "missing.with_call": _DROPPED_SOFT}
_OPENROUTER: Table = {**_CHAT_WANTED, "bare": _MODIFIED_SOFT, "missing.older": OMITTED}
_OPENROUTER_STRICT: Table = {**_OPENROUTER, "missing.with_call": _DROPPED_HARD}


@dataclass(frozen=True, slots=True)
class Generation:
    """Models that are alike in what they demand."""

    name: str
    dialect: DialectName
    model: re.Pattern[str]
    table: Table | None
    """None: nothing is demanded, nothing is checked."""
    upstream: re.Pattern[str] | None = None
    """Narrows by the upstream's name, provider or URL."""
    bound: bool = False
    """Each block is bound to all that precedes it (``history`` watches that)."""
    refuses: bool = False
    """A broken bond is refused on every account; else it depends on the account's age."""


def _row(
    name: str,
    dialect: DialectName,
    model: str,
    table: Table | None,
    *,
    upstream: str | None = None,
    bound: bool = False,
    refuses: bool = False,
) -> Generation:
    at = re.compile(upstream, re.IGNORECASE) if upstream is not None else None
    return Generation(name, dialect, re.compile(model, re.IGNORECASE), table, at, bound, refuses)


GENERATIONS: tuple[Generation, ...] = (
    _row(
        "Claude Fable and Mythos from 5.2, Mythos 5.1", "anthropic",
        r"(?:fable|mythos)-(?:5[.-](?:[2-9]|\d{2})(?!\d)|[6-9])|mythos-5[.-]1(?!\d)",
        _ANTHROPIC_BOUND, bound=True, refuses=True,
    ),
    _row(
        "Claude from Fable 5.1, Opus, Sonnet and Haiku 5.5", "anthropic",
        r"fable-5[.-]1(?!\d)|(?:opus|sonnet|haiku)-(?:5[.-](?:[5-9]|[1-9]\d)(?!\d)|[6-9](?!\d))",
        _ANTHROPIC_BOUND, bound=True,
    ),
    _row("Claude before", "anthropic", r"", _ANTHROPIC),
    _row(
        "GPT from 6.2", "openai_responses",
        r"gpt-(?:6[.-](?:[2-9]|[1-9]\d)(?!\d)|(?:[7-9]|1\d)(?!\d))", _RESPONSES_PHASED, bound=True,
    ),
    _row(
        "GPT from 5.4, GPT-5.3-Codex", "openai_responses",
        r"gpt-(?:5[.-](?:3-codex|(?:[4-9]|[1-9]\d)(?!\d))|6(?!\d))", _RESPONSES_PHASED,
    ),
    _row("Responses", "openai_responses", r"", _RESPONSES),
    _row("Gemini up to 2.5, image models", "gemini", r"gemini-[12](?!\d)|image", _GEMINI_LENIENT),
    _row("Gemini from 3", "gemini", r"", _GEMINI),
    _row(
        "OpenRouter, strict models", "openai_chat", r"gemini-[3-9]|deepseek|kimi|mimo", _OPENROUTER_STRICT,
        upstream=r"openrouter",
    ),
    _row("OpenRouter", "openai_chat", r"", _OPENROUTER, upstream=r"openrouter"),
    _row("DeepSeek R1", "openai_chat", r"deepseek-r1|deepseek-reasoner$", _CHAT_FORBIDDEN),
    _row(
        "DeepSeek V3.2 and early V4", "openai_chat",
        r"deepseek-(?:chat$|v3[.-]2|v4-(?:preview|exp|0))", _CHAT_CALLS,
    ),
    _row("DeepSeek V4", "openai_chat", r"deepseek-(?:v(?:[4-9]|[1-9]\d)|flash|pro)", _CHAT_ALL),
    _row("MiMo", "openai_chat", r"mimo-", _CHAT_CALLS),
    _row("Kimi", "openai_chat", r"kimi-(?:k2[.-]7-code|k[3-9])", _CHAT_CALLS),
    _row("MiniMax", "openai_chat", r"minimax-m", _CHAT_WANTED),
    _row("OpenAI's own chat models", "openai_chat", r"(?:^|/)(?:gpt-(?!oss)|chatgpt-|o\d)", _CHAT),
    _row("Chat Completions", "openai_chat", r"", _CHAT),
)  # fmt: skip
"""First match wins."""

GLM = re.compile(r"glm-", re.IGNORECASE)
GLM_KEEPS = _row("GLM with clear_thinking off", "openai_chat", r"glm-", _CHAT_CALLS)
"""GLM demands its reasoning only where the request says ``clear_thinking: false``."""

SENTINELS = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""Values that Gemini takes for a signature which the client never had."""

REFUSALS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(words, re.IGNORECASE))
    for name, words in (
        ("prefix", r"bound to a different conversation"),
        ("modified", r"blocks in the latest assistant message cannot be modified"),
        ("modified", r"invalid `?signature`? in `?thinking`? block"),
        ("dropped", r"expected `?thinking`? or `?redacted_thinking`?"),
        ("dropped", r"provided without its required (?:following|'reasoning') item"),
        ("incomplete", r"item with id 'rs_[^']*' not found"),
        ("modified", r"invalid_encrypted_content|encrypted content .*could not be verified"),
        ("dropped", r"missing a thought_?signature"),
        ("modified", r"(?:invalid|corrupted) thought signature"),
        ("dropped", r"reasoning_content.*(?:must be passed back|is missing)"),
    )
)
"""What providers say when they refuse: their kind of fault, and the words that tell it."""


def generation(dialect: DialectName, model: str, upstream: str) -> Generation | None:
    """The row of a model; ``upstream`` is the upstream's name, provider and URL in one text."""
    for row in GENERATIONS:
        if row.dialect != dialect or row.model.search(model) is None:
            continue
        if row.upstream is None or row.upstream.search(upstream) is not None:
            return row
    return None
