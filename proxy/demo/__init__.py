"""`looptap demo`: a scripted model and five agents through a real proxy, then the trees, then an incident.

No key and no network: the model (``model``) stands on loopback, and so does the proxy, on ports of their
own. Nothing is special about the proxy; it is the one that `serve` starts. ``agents`` and ``incident`` are
what is played.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from proxy import app
from proxy.config import BUILT_IN, Settings, switched_on
from proxy.demo import incident
from proxy.demo.agents import AGENTS, Agent, play
from proxy.demo.model import Stage
from proxy.record import Reader
from proxy.terminal.screen import Screen
from proxy.terminal.showing import Album

LABEL = "demo"


@dataclass(frozen=True, slots=True)
class Scene:
    """One agent's run, as it stands in the record."""

    agent: Agent
    sessions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What the incident left behind outside the record."""

    refused: Mapping[str, str | None]
    """What each customer's agent was refused with."""
    log: Sequence[str]
    """What the proxy wrote to its log."""


async def perform(data_dir: Path) -> Aftermath:
    """Let every agent work once, then the incident happen, through a proxy that records into ``data_dir``."""
    stage = Stage([agent.script for agent in (*AGENTS, *incident.CUSTOMERS)])
    log: list[str] = []
    model_url = await stage.start()
    try:
        running = await app.start(settings(model_url, data_dir), log.append)
        try:
            for agent in AGENTS:
                await play(agent, f"{running.data_url}/@{LABEL}={agent.name}")
            return Aftermath(await incident.happen(running.data_url), log)
        finally:
            await running.stop(grace_s=1)
    finally:
        await stage.stop()


def settings(model_url: str, data_dir: Path) -> Settings:
    """The defaults, but for free ports, the scripted model, the place of the record and the caps.

    Traces go out where the environment names a collector, as from ``serve``.
    """
    upstreams = {
        name: BUILT_IN[name].model_copy(update={"url": model_url}) for name in ("anthropic", "openai")
    }
    store = {"path": str(data_dir), "record": "full"}
    return Settings.model_validate(
        {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "upstreams": upstreams,
            "store": store,
            "budgets": incident.BUDGETS,
            "exporters": {"otlp": {}} if switched_on(os.environ) else {},
        }
    )


def scenes(reader: Reader, after: Aftermath) -> tuple[Album, list[Scene], list[incident.Story]]:
    """What the record holds of each agent, and of the incident."""
    records = [record for _, record in reader.events()]
    album = Album(records)
    sessions = album.sessions()
    told = [
        Scene(agent, tuple(s for s in sessions if s.get("labels", {}).get(LABEL) == agent.name))
        for agent in AGENTS
    ]
    return album, told, incident.stories(records, sessions, after.refused)


def draw(album: Album, scenes: list[Scene], screen: Screen) -> Iterator[Text]:
    """Each agent's tree under the sentence that says what to look for."""
    for scene in scenes:
        yield Text(scene.agent.lesson, "bold")
        for session in scene.sessions:
            yield from album.draw(dict(session), screen)
        yield Text()


@contextmanager
def data_dir(keep: Path | None) -> Iterator[Path]:
    """Where the demo records: a directory to keep, or one that goes away."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="looptap-demo-") as place:
        yield Path(place)
