"""The agent programs that the tests drive: how each is started, continued and read.

They are installed by the CI script, at the versions of ``requirements.txt`` and ``package.json`` beside
this file, into ``.artifacts/clients``; where they are missing their tests fail rather than pass unseen.
"""

import json
from pathlib import Path

from tests.clients.house import AGENTS, Client

INSTALLED = Path(__file__).parents[2] / ".artifacts" / "clients"
PROMPT = "Describe the project in this folder."
GO_ON = "Please go on."
_FREE_HAND = "--dangerously-bypass-approvals-and-sandbox"
OPENCODE = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
CLAUDE = {
    "ANTHROPIC_API_KEY": "test-key",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # it refuses to skip permissions as root otherwise
}


def installed(*path: str) -> str:
    program = INSTALLED.joinpath(*path)
    assert program.exists(), f"{program} is missing: .ci/run installs it"
    return str(program)


def _program(name: str) -> str:
    return installed("node_modules", ".bin", name)


def framework(name: str) -> Client:
    return Client(
        name,
        command=lambda _home, _url: [installed("venv", "bin", "python"), str(AGENTS / f"{name}.py")],
        environment=lambda url: CLAUDE | {"ANTHROPIC_BASE_URL": url},
        text=lambda printed: str(json.loads(printed)["text"]),
    )


def claude_code(*more: str) -> list[str]:
    return [_program("claude"), *more, "--dangerously-skip-permissions"]


def codex(*more: str) -> list[str]:
    return [_program("codex"), "exec", *more, "--skip-git-repo-check", _FREE_HAND]


def gemini_cli(*more: str) -> list[str]:
    return [_program("gemini"), "--yolo", *more]


def opencode(*more: str) -> list[str]:
    return [_program("opencode"), "run", *more]


def _with_codex_settings(home: Path, url: str) -> list[str]:
    settings = home / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(
        f"""
model = "gpt-5.1"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{url}/v1"
env_key = "LOCAL_KEY"
wire_api = "responses"
[analytics]
enabled = false
"""
    )
    return codex(PROMPT)


def _with_gemini_settings(home: Path, _url: str) -> list[str]:
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    choices = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    settings.write_text(json.dumps(choices))
    return gemini_cli("-p", PROMPT)


def _with_opencode_settings(home: Path, url: str) -> list[str]:
    settings = home / ".config" / "opencode" / "opencode.json"
    settings.parent.mkdir(parents=True)
    choices = {
        "provider": {"anthropic": {"options": {"baseURL": f"{url}/v1", "apiKey": "test-key"}}},
        "model": "anthropic/claude-sonnet-4-5",
        "small_model": "anthropic/claude-haiku-4-5",
        "autoupdate": False,
        "share": "disabled",
    }
    settings.write_text(json.dumps(choices))
    return opencode(PROMPT)


def last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


def _of_claude(url: str) -> dict[str, str]:
    return CLAUDE | {"ANTHROPIC_BASE_URL": url}


def _of_gemini(url: str) -> dict[str, str]:
    return {
        "GEMINI_API_KEY": "test-key", "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }  # fmt: skip


FRAMEWORKS = tuple(map(framework, ("openai_agents_loop", "langgraph_loop", "claude_agent_loop")))
PROGRAMS = (
    Client(
        "claude_code", lambda _home, _url: claude_code("-p", PROMPT), _of_claude, str.strip,
        again=lambda: claude_code("-p", GO_ON, "--continue"),
    ),
    Client(
        "codex", _with_codex_settings, lambda _url: {"LOCAL_KEY": "test-key"}, last_line,
        again=lambda: codex("resume", "--last", GO_ON),
    ),
    Client(
        "gemini_cli", _with_gemini_settings, _of_gemini, last_line,
        again=lambda: gemini_cli("--resume", "latest", "-p", GO_ON),
    ),
    Client(
        "opencode", _with_opencode_settings, lambda _url: OPENCODE, last_line,
        again=lambda: opencode("--continue", GO_ON),
    ),
)  # fmt: skip
