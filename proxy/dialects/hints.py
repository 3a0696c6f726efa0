"""What known clients say about themselves: names, sessions, agents, turns, retries, side calls.

Common to all dialects and kept as data: one row per header, agent or kind of call. Nothing here
decides whose a request is (the tracker does, and content outranks every hint).

The one invariant: whatever a client sends, the answer is a ``Hints`` of short printable ids.
An id that is empty, longer than ``MAX_ID`` or not plain text is ignored, never cut.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import orjson

from proxy.model import Head, Hints, Message

MAX_ID = 256
"""Characters of an id; longer ones are no ids."""
_MAX_TEXT = 16_384
"""Characters of a field that is parsed as JSON."""
_LOOKED_AT = 4_000
"""Characters of system text and of the last user text in which a side call shows."""

Kind = Literal["", "main", "subagent", "side", "compaction", "prewarm"]

CLIENTS: tuple[tuple[str, str], ...] = (
    ("claude-cli/", "claude-code"),
    ("claude-code/", "claude-code"),
    ("codex", "codex"),
    ("geminicli", "gemini-cli"),
    ("opencode/", "opencode"),
    ("kilo/", "kilo"),
    ("qwencode/", "qwen-code"),
    ("crush/", "crush"),
    ("aider", "aider"),
    ("cline", "cline"),
    ("agents/python", "openai-agents"),
    ("agents/javascript", "openai-agents"),
    ("pydantic-ai/", "pydantic-ai"),
    ("langchain", "langchain"),
    ("litellm/", "litellm"),
    ("ai-sdk/", "ai-sdk"),
    ("ai/", "ai-sdk"),
    ("anthropic/python", "anthropic-python"),
    ("asyncanthropic/python", "anthropic-python"),
    ("anthropic/js", "anthropic-js"),
    ("anthropic/", "anthropic"),
    ("openai/python", "openai-python"),
    ("asyncopenai/python", "openai-python"),
    ("openai/js", "openai-js"),
    ("openai/", "openai"),
    ("google-genai-sdk/", "google-genai"),
)
"""How user agents begin, and the short name; the first that fits. Elsewhere the first word is taken."""

_SESSION_FIELDS = (
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"conversation_id",
    b"x-opencode-session",
    b"x-session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
    b"x-deepseek-harness-session-id",
)
"""Header fields that name a session, strongest first."""

_PARENT_SESSION = b"x-parent-session-id"


class _Side(NamedTuple):
    """One way in which a known call shows itself: a phrase in the system or the last user text."""

    kind: Kind
    place: Literal["system", "ask"]
    phrase: str


_SIDE_CALLS = (
    _Side("side", "system", "You are naming a coding session"),
    _Side("side", "system", "Task Routing AI"),
    _Side("side", "system", "You are a title generator"),
    _Side("side", "system", "Generate a concise, sentence-case title"),
    _Side("side", "system", "Analyze if this message indicates a new conversation topic"),
    _Side("side", "system", "generates concise, one-line Git commit messages"),
    _Side("side", "system", "generate concise, one-line Git commit messages"),
    _Side("side", "ask", "Please write a 5-10 word title for the following conversation"),
    _Side("side", "ask", "Generate a title for this conversation"),
    _Side("compaction", "ask", "CRITICAL: Respond with TEXT ONLY"),
    _Side("compaction", "ask", "You are performing a CONTEXT CHECKPOINT COMPACTION"),
    _Side("compaction", "ask", "Your task is to create a detailed summary of the conversation so far"),
    _Side("compaction", "ask", "Provide a detailed prompt for continuing our conversation above"),
    _Side("compaction", "ask", "First, reason in your scratchpad. Then, generate the <state_snapshot>"),
)
"""Calls beside the loop, by what known clients write in them (titles, routers, commit messages,
compactions). A new client is a row."""

_CODEX_KINDS: Mapping[str, Kind] = {"turn": "", "compaction": "compaction", "compact": "compaction",
                                    "prewarm": "prewarm"}  # fmt: skip
_CODEX_SUBAGENTS: Mapping[str, Kind] = {
    "compact": "compaction",
    "memory_consolidation": "side",
    "review": "subagent",
    "collab_spawn": "subagent",
}

_USER_SESSION = re.compile(r"_session_([0-9A-Za-z-]{1,64})$")
_FIRST_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_RANDOM = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}|[0-9A-Za-z_-]{20,}|\d{10,}")
"""A cache key that may well name one session; short words are shared by all runs of a program."""


def read_hints(head: Head, fields: Mapping[str, Any], *, system: str = "", ask: str = "") -> Hints:
    """Read the hints of a request: its header fields, its body's fields, its system text and the
    last user text (``ask``)."""
    values = {name: raw.decode("latin-1").strip() for name, raw in head.among(_WANTED).items()}
    client = client_name(values.get(b"user-agent", ""))
    kind = _side_kind(system, ask)
    if b"thread-id" in values or b"x-codex-turn-metadata" in values:
        return _codex(values, fields, client or "codex", kind)
    session = _first([values[name] for name in _SESSION_FIELDS if name in values])
    if b"x-claude-code-session-id" in values:
        agent = _id(values.get(b"x-claude-code-agent-id"))
        return Hints(
            client=client or "claude-code",
            session=session or _user_session(fields),
            agent=agent,
            parent_agent=_id(values.get(b"x-claude-code-parent-agent-id")),
            kind=kind or ("subagent" if agent else "main"),
            retry=_count(values.get(b"x-stainless-retry-count")),
        )
    parent = _id(values.get(_PARENT_SESSION))
    if session is not None and parent is not None and parent != session:  # a sub-agent has one of its own
        count = _count(values.get(b"x-stainless-retry-count"))
        return Hints(client=client, session=parent, agent=session, kind=kind or "subagent", retry=count)
    return Hints(
        client=client,
        session=session or _body_session(fields),
        kind=kind,
        retry=_count(values.get(b"x-stainless-retry-count")),
    )


def last_ask(messages: Sequence[Message]) -> str:
    """What the last user message says in words; system messages may stand behind it."""
    for message in reversed(messages[-3:]):
        if message.role != "system":
            return "\n".join(item.text[:_LOOKED_AT] for item in message.items if item.kind == "user")
    return ""


@lru_cache(256)
def client_name(user_agent: str) -> str:
    """Short name of a client from its user agent; empty where it sends none."""
    lower = user_agent.lower()
    for start, name in CLIENTS:
        if lower.startswith(start):
            return name
    word = _FIRST_WORD.match(user_agent)
    return word.group().lower() if word else ""


def _codex(values: Mapping[bytes, str], fields: Mapping[str, Any], client: str, kind: Kind) -> Hints:
    """Codex: a sub-agent has a thread of its own in the session of its root thread."""
    client_metadata = fields.get("client_metadata")
    sent: Mapping[str, Any] = client_metadata if isinstance(client_metadata, dict) else {}
    told = _object(values.get(b"x-codex-turn-metadata") or sent.get("x-codex-turn-metadata"))
    session = _first((values.get(b"session-id"), told.get("session_id"), sent.get("session_id")))
    thread = _first((values.get(b"thread-id"), told.get("thread_id"), sent.get("thread_id")))
    session = session or thread
    agent = thread if thread != session else None
    parent = _first((values.get(b"x-codex-parent-thread-id"), told.get("parent_thread_id")))
    role = values.get(b"x-openai-subagent") or told.get("subagent_kind")
    of_role: Kind = _CODEX_SUBAGENTS.get(role, "subagent") if isinstance(role, str) and role else ""
    request_kind = told.get("request_kind")
    of_kind: Kind = _CODEX_KINDS.get(request_kind, "") if isinstance(request_kind, str) else ""
    return Hints(
        client=client,
        session=session,
        agent=agent,
        parent_agent=parent if parent != session else None,
        turn=_first((told.get("turn_id"), sent.get("turn_id"))),
        kind=of_kind or of_role or kind or ("subagent" if agent else "main"),
        retry=_count(values.get(b"x-stainless-retry-count")),
    )


def _side_kind(system: str, ask: str) -> Kind:
    for place, text in (("system", system[:_LOOKED_AT]), ("ask", ask[:_LOOKED_AT])):
        for side in _SIDE_CALLS if text else ():
            if side.place == place and side.phrase in text:
                return side.kind
    return ""


def _body_session(fields: Mapping[str, Any]) -> str | None:
    """A session named in the body, in the order of how surely it means one run."""
    found = _user_session(fields) or _first((fields.get("session_id"),))
    if found:
        return found
    conversation = fields.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    found = _first((conversation,))
    if found:
        return found
    for holder in ("metadata", "client_metadata", "labels"):
        members = fields.get(holder)
        if isinstance(members, dict):
            for name, value in list(members.items())[:64]:
                if "session" in name.lower() and _id(value):
                    return _id(value)
    key = _id(fields.get("prompt_cache_key"))
    return key if key is not None and _RANDOM.search(key) else None


def _user_session(fields: Mapping[str, Any]) -> str | None:
    """The session in Anthropic's ``metadata.user_id``: JSON text, or the older underscored form."""
    metadata = fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str) or len(user) > _MAX_TEXT:
        return None
    if user[:1] == "{":
        return _id(_object(user).get("session_id"))
    match = _USER_SESSION.search(user)
    return match[1] if match and len(user) <= 2 * MAX_ID else None


def _object(text: Any) -> Mapping[str, Any]:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        return {}
    try:
        value = orjson.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first(values: Any) -> str | None:
    for value in values:
        found = _id(value)
        if found is not None:
            return found
    return None


def _id(value: Any) -> str | None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID:
        return None
    return value if value.isprintable() and value.strip() == value else None


def _count(value: str | None) -> int | None:
    return (
        int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 6 else None
    )


_WANTED = frozenset(
    {
        *_SESSION_FIELDS,
        _PARENT_SESSION,
        b"user-agent",
        b"thread-id",
        b"x-claude-code-agent-id",
        b"x-claude-code-parent-agent-id",
        b"x-codex-turn-metadata",
        b"x-codex-parent-thread-id",
        b"x-openai-subagent",
        b"x-stainless-retry-count",
    }
)
