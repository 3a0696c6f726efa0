"""Real agents and frameworks through a live proxy: each does its task as it does without.

They are installed by the CI script, at the versions of ``requirements.txt`` and ``package.json`` beside
this file, into ``.artifacts/clients``; where they are missing these tests fail rather than pass unseen.
"""

import json
from pathlib import Path

import pytest

from tests.clients.checks import check_client
from tests.clients.house import AGENTS, Client

pytestmark = pytest.mark.real

INSTALLED = Path(__file__).parents[2] / ".artifacts" / "clients"
PROMPT = "Describe the project in this folder."
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


def framework(name: str) -> Client:
    return Client(
        name,
        command=lambda _home, _url: [installed("venv", "bin", "python"), str(AGENTS / f"{name}.py")],
        environment=lambda url: CLAUDE | {"ANTHROPIC_BASE_URL": url},
        text=lambda printed: str(json.loads(printed)["text"]),
    )


def claude_code(_home: Path, _url: str) -> list[str]:
    return [installed("node_modules", ".bin", "claude"), "-p", PROMPT, "--dangerously-skip-permissions"]


def codex(home: Path, url: str) -> list[str]:
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
    program = installed("node_modules", ".bin", "codex")
    return [
        program,
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        PROMPT,
    ]


def gemini_cli(home: Path, _url: str) -> list[str]:
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    choices = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    settings.write_text(json.dumps(choices))
    return [installed("node_modules", ".bin", "gemini"), "--yolo", "-p", PROMPT]


def last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


CLIENTS = (
    framework("openai_agents_loop"),
    framework("langgraph_loop"),
    framework("claude_agent_loop"),
    Client("claude_code", claude_code, lambda url: CLAUDE | {"ANTHROPIC_BASE_URL": url}, str.strip),
    Client("codex", codex, lambda _url: {"LOCAL_KEY": "test-key"}, last_line),
    Client(
        "gemini_cli",
        gemini_cli,
        lambda url: {
            "GEMINI_API_KEY": "test-key",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        last_line,
    ),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_agent_through_the_proxy_is_the_direct_one(client: Client, tmp_path: Path) -> None:
    check_client(client, tmp_path)
