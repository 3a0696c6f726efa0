"""Jaeger takes what real agents do through the proxy, and its query API shows it as it was.

Jaeger is built by the CI script into ``.artifacts/jaeger``; where it is missing this fails rather than
passes unseen. It keeps everything in memory and listens on loopback ports of its own.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exporters.otel.ids import trace_of
from tests.clients import task
from tests.clients.house import Client, run_client, running_proxy
from tests.clients.programs import CLAUDE, PROMPT, claude_code
from tests.clients.scripted import ScriptedUpstream
from tests.clients.test_sdks import sdk
from tests.processes import free_ports

pytestmark = pytest.mark.real

BINARY = Path(__file__).parents[2] / ".artifacts" / "jaeger" / "jaeger"
PATIENCE_S = 60
PARENT = "0af7651916cd43dd8448eb211c80319c"
CONFIG = """
service:
  extensions: [jaeger_storage, jaeger_query]
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [jaeger_storage_exporter]}}}}
extensions:
  jaeger_storage: {{backends: {{mem: {{memory: {{max_traces: 1000}}}}}}}}
  jaeger_query:
    storage: {{traces: mem}}
    enable_tracing: false
    http: {{endpoint: "127.0.0.1:{query}"}}
    grpc: {{endpoint: "127.0.0.1:{query_grpc}"}}
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:{http}"}}
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
exporters: {{jaeger_storage_exporter: {{trace_storage: mem}}}}
"""


@dataclass(frozen=True)
class Jaeger:
    """A Jaeger that runs."""

    http: str
    grpc: str
    query: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.query}{path}", timeout=5) as answer:
            return json.load(answer)

    def trace(self, turn: str) -> Any:
        """A turn's trace, once its own span has come."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                (found,) = self.get(f"/api/traces/{trace_of(turn):032x}")["data"]
                if any(span["operationName"].startswith("invoke_agent") for span in found["spans"]):
                    return found
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            time.sleep(0.2)
        raise AssertionError(f"the trace of {turn} never came")


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    assert BINARY.exists(), f"{BINARY} is missing: .ci/run builds it"
    place = tmp_path_factory.mktemp("jaeger")
    ports = dict(zip(("http", "grpc", "query", "query_grpc"), free_ports(4), strict=True))
    (place / "config.yaml").write_text(CONFIG.format(**ports))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([BINARY, "--config", place / "config.yaml"], stdout=log, stderr=log)
    found = Jaeger(*(f"http://127.0.0.1:{ports[name]}" for name in ("http", "grpc", "query")))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found.get("/api/services")
                break
            except OSError:
                told = (place / "log").read_text(errors="replace")[-2000:]
                assert process.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.1)
        yield found
    finally:
        process.kill()
        process.wait(15)


def claude_with_a_trace() -> Client:
    header = f"traceparent: 00-{PARENT}-b7ad6b7169203331-01"
    return Client(
        "claude_code",
        lambda _home, _url: claude_code("-p", PROMPT),
        lambda url: CLAUDE | {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_CUSTOM_HEADERS": header},
        str.strip,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("client", "protocol"),
    [(sdk("anthropic_sdk"), "http/protobuf"), (sdk("openai_responses_sdk"), "grpc"),
     (claude_with_a_trace(), "http/protobuf")],
    ids=["anthropic_sdk", "openai_sdk_grpc", "claude_code"],
)  # fmt: skip
def test_jaeger_shows_a_real_agents_turns(
    client: Client, protocol: str, jaeger: Jaeger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.grpc if protocol == "grpc" else jaeger.http)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")  # Jaeger takes traces only
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", f"looptap-{client.name}")
    with ScriptedUpstream(task.SCRIPT) as upstream, running_proxy(tmp_path / "data", upstream) as proxy:
        run_client(client, tmp_path / "run", proxy.port, upstream)
        turns = proxy.closed_turns()
        traces = {turn["id"]: jaeger.trace(turn["id"]) for turn in turns}
        log = (tmp_path / "data" / "serve.log").read_text()
    assert "does not take" not in log
    for turn in turns:
        check_turn(turn, traces[turn["id"]])
    main = max(turns, key=lambda turn: len(turn["steps"]))
    tools = named(traces[main["id"]], "execute_tool")
    assert len(tools) == sum(task.CALLS_PER_STEP)
    assert any(overlap(one, other) for one in tools for other in tools if one is not other)
    assert f"looptap-{client.name}" in jaeger.get("/api/services")["data"]
    if client.name == "claude_code":
        links = [reference for chat in named(traces[main["id"]], "chat") for reference in chat["references"]]
        assert PARENT in {link["traceID"] for link in links if link["refType"] == "FOLLOWS_FROM"}


def check_turn(turn: dict[str, Any], trace: Any) -> None:
    """A turn in Jaeger is the turn in the record: one root, its steps, its tokens, nothing amiss."""
    spans = trace["spans"]
    assert not trace.get("warnings")
    assert not [span["warnings"] for span in spans if span.get("warnings")]
    assert len({span["spanID"] for span in spans}) == len(spans)
    (root,) = [span for span in spans if parent(span) is None]
    assert root["operationName"].startswith("invoke_agent")
    steps = named(trace, "agent_step")
    assert len(steps) == len(turn["steps"])
    assert {parent(step) for step in steps} == {root["spanID"]}
    chats = named(trace, "chat")
    assert len(chats) == sum(len(step["exchanges"]) for step in turn["steps"])
    for kind, name in (
        ("input_tokens", "gen_ai.usage.input_tokens"),
        ("output_tokens", "gen_ai.usage.output_tokens"),
    ):
        told = sum(tags(chat).get(name, 0) for chat in chats)
        assert told == turn["usage"].get(kind, 0) == tags(root).get(f"looptap.turn.usage.{kind}", 0)
    assert tags(root)["looptap.turn.cause"] == turn["cause"]
    assert len({tags(span)["gen_ai.conversation.id"] for span in spans}) == 1


def parent(span: Any) -> str | None:
    return next((str(r["spanID"]) for r in span["references"] if r["refType"] == "CHILD_OF"), None)


def tags(span: Any) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def named(trace: Any, name: str) -> list[Any]:
    return [span for span in trace["spans"] if span["operationName"].startswith(name)]


def overlap(one: Any, other: Any) -> bool:
    begin, end = (lambda span: span["startTime"]), (lambda span: span["startTime"] + span["duration"])
    return bool(begin(one) < end(other) and begin(other) < end(one))
