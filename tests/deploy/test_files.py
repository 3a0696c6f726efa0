"""What lies in deploy/ hangs together: every figure that it names is told, every alert has its paragraph."""

import json
import re
from pathlib import Path

import pytest
import yaml

from proxy.config import load
from tests.deploy.kit import (
    ALERTS,
    DASHBOARD,
    DEPLOY,
    ROOT,
    alerts,
    dockerfile,
    families,
    named_in,
    panels,
    queries,
)
from tests.live.kit import Message, Peer, stage

BUDGETS = [{"name": "org", "scope": "org", "window": "month", "limits": {"spend_usd": 5}}]


async def never(message: Message, peer: Peer) -> None:
    raise AssertionError("nothing is asked of an upstream here")


async def test_every_figure_that_is_drawn_or_watched_is_told_and_every_one_told_is_drawn(
    tmp_path: Path,
) -> None:
    exports = {"otlp": {"endpoint": "http://127.0.0.1:9"}, "jsonl": {"path": str(tmp_path / "lines")}}
    async with stage(tmp_path, never, budgets=BUDGETS, exporters=exports) as here:
        told = families(here.running.parts.metrics.render())
    drawn = set().union(*map(named_in, queries()))
    watched = set().union(*(named_in(rule["expr"]) for rule in alerts()))
    shared = re.findall(r'Reading\(\s*"(\w+)"', (ROOT / "proxy/commons.py").read_text())
    told |= {f"looptap_{name}" for name in shared}  # told where instances share a ledger
    known = {name.removesuffix("_total") for name in told}
    assert {name for name in drawn | watched if name.removesuffix("_total") not in known} == set()
    ours = {name for name in told if name.startswith("looptap_")}
    assert {name.removesuffix("_total") for name in ours} <= {name.removesuffix("_total") for name in drawn}


def paragraphs() -> dict[str, str]:
    """The README's third-level headings as anchors, and what stands under them."""
    parts = re.split(r"^### (.+)$", (DEPLOY / "README.md").read_text(), flags=re.MULTILINE)[1:]
    return {name.lower(): text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_alert_has_its_paragraph_and_every_paragraph_its_alert() -> None:
    known = paragraphs()
    assert {rule["annotations"]["runbook"].partition("#")[2] for rule in alerts()} == set(known)
    assert [name for name, text in known.items() if len(text) < 100] == []
    for rule in alerts():
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (file, anchor) == ("deploy/README.md", rule["alert"].lower())
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    text = (DEPLOY / "README.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_every_alert_is_tried_by_a_rule_test() -> None:
    tried = yaml.safe_load((ALERTS.parent / "alerts_test.yaml").read_text())
    assert [one["name"] for one in tried["tests"]] == [rule["alert"] for rule in alerts()]


@pytest.mark.parametrize(
    "file", sorted(DEPLOY.rglob("*.yaml")), ids=lambda file: str(file.relative_to(DEPLOY))
)
def test_every_file_parses(file: Path) -> None:
    assert all(document is not None for document in yaml.safe_load_all(file.read_text()))


def test_the_dashboards_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert json.loads(DASHBOARD.read_text())["uid"] == "looptap"


CONFIGURATIONS = [DEPLOY / "compose/looptap.yaml", *sorted((DEPLOY / "kubernetes").rglob("looptap.yaml"))]


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_every_shipped_configuration_is_valid(file: Path) -> None:
    load(file, environ={})


def images() -> set[str]:
    """Every image that is started, by compose or in a cluster."""
    told = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    found = {service["image"] for service in told}
    for file in (DEPLOY / "kubernetes").rglob("*.yaml"):
        found |= set(re.findall(r"^\s+image: (\S+)$", file.read_text(), re.MULTILINE))
    return found


def test_images_have_their_versions() -> None:
    assert {image for image in images() if not re.search(r":[\w.]*\d|:local$", image)} == {"looptap"}
    for stage_of in dockerfile().values():
        assert re.search(r":[\d.]+", stage_of.base), stage_of.base


def test_whoever_stops_it_waits_long_enough() -> None:
    unit = (DEPLOY / "looptap.service").read_text()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["looptap"]
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) >= 75
    assert int(compose["stop_grace_period"].removesuffix("s")) >= 75
    for file in (DEPLOY / "kubernetes/sidecar/agent.yaml", DEPLOY / "kubernetes/gateway/deployment.yaml"):
        assert int(re.findall(r"terminationGracePeriodSeconds: (\d+)", file.read_text())[0]) >= 75
