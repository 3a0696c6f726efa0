"""The deployment files as data: which figures they name, which alerts there are, what the Dockerfile does."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "looptap.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
ARTIFACTS = ROOT / ".artifacts" / "deploy"
OF_EACH_SERIES = re.compile(r"_(?:bucket|sum|count)$")


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    told = yaml.safe_load(ALERTS.read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels, rows too."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[str]:
    """What the dashboard asks, as it asks it with all instances chosen."""
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return [expr.replace("$__rate_interval", "1m").replace("$instance", ".*") for expr in asked]


def named_in(expr: str) -> set[str]:
    """The families that an expression names."""
    return {OF_EACH_SERIES.sub("", name) for name in re.findall(r"\b(?:looptap|process)_[a-z_]+", expr)}


def families(exposition: str) -> set[str]:
    """The families that a scrape tells of, also those without a series yet."""
    return {line.split(" ")[2] for line in exposition.splitlines() if line.startswith("# HELP ")}


@dataclass
class Stage:
    """One stage of a Dockerfile: its instructions in order, and what they set."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, word: str) -> str:
        """The argument of the last such instruction."""
        return [argument for step, argument in self.steps if step == word][-1]

    def environment(self) -> dict[str, str]:
        return dict(
            pair.split("=", 1) for step, told in self.steps if step == "ENV" for pair in shlex.split(told)
        )


def dockerfile() -> dict[str, Stage]:
    """The Dockerfile's stages by name (the last one's is ``final``)."""
    stages: list[Stage] = []
    for word, argument in _instructions((DEPLOY / "Dockerfile").read_text()):
        if word == "FROM":
            base, _, name = argument.partition(" AS ")
            stages.append(Stage(name or "final", base))
        else:
            stages[-1].steps.append((word, argument))
    return {stage.name: stage for stage in stages}


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, argument = line.strip().partition(" ")
            yield word, argument.strip()
