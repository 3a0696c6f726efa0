"""What `looptap serve` says when it is up: where it listens, how to point clients at it, what it
enforces and what it only observes, where it records. Plain lines, nothing that needs a terminal.
"""

from collections.abc import Iterable

from proxy.config import Settings, explain

_CLIENTS = (
    ("ANTHROPIC_BASE_URL", "", "Claude Code, Anthropic SDKs"),
    ("OPENAI_BASE_URL", "/v1", "OpenAI SDKs, agent frameworks"),
    ("GOOGLE_GEMINI_BASE_URL", "", "Gemini CLI, Google GenAI SDKs"),
)
CODEX = '-c openai_base_url="{url}/v1"'
"""Codex reads no variable for its built-in provider."""


def welcome(
    settings: Settings, data_url: str, admin_url: str, away: str | None = None, place: str = ""
) -> Iterable[str]:
    """The lines, in the order in which one needs them.

    ``away``: why nothing is recorded, if so; ``place``: the options by which other commands find this one.
    """
    yield f"looptap listens on {data_url}. Point a client at it:"
    width = max(len(f"{name}={data_url}{tail}") for name, tail, _ in _CLIENTS)
    for name, tail, who in _CLIENTS:
        setting = f"{name}={data_url}{tail}"
        yield f"  {setting:<{width}}  {who}"
    codex = f"codex {CODEX.format(url=data_url)}"
    yield f"  {codex:<{width}}  Codex"
    other = f"{data_url}/NAME/..."
    yield f"  {other:<{width}}  any upstream by its name"
    if settings.listen.is_everywhere:
        kind = "IPv6" if ":" in settings.listen.host else "IPv4"
        yield f"  (from this machine; it listens on all its {kind} addresses: elsewhere, put its name there)"
    for line in explain(settings):
        if not line.startswith("data port"):
            yield line
    kept = "bodies and events" if settings.store.record == "full" else "structure and digests, no content"
    if away is None:
        names = "show, turns, tail, budgets, topup" if settings.budgets else "show, turns, tail"
        yield f"records {kept} in {settings.store.path} (looptap{place} {names})"
    else:
        yield f"does NOT record, and tries again: {away}"
    yield f"admin: {admin_url}"
