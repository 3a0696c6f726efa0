"""Container, compose, Kubernetes and systemd files, read by what reads them in earnest."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kit import ARTIFACTS, DEPLOY

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
PROOF = ARTIFACTS / "proof"


def proof(what: str, where: Path) -> subprocess.CompletedProcess[str]:
    assert PROOF.exists(), f"{PROOF} is missing: build it in tests/deploy/proof (.ci/run does)"
    return subprocess.run(
        [PROOF, what, where], capture_output=True, encoding="utf-8", timeout=120, check=False
    )


def built(folder: str) -> dict[str, dict[str, Any]]:
    """What a folder builds, by kind and name."""
    done = proof("kustomize", DEPLOY / "kubernetes" / folder)
    assert done.returncode == 0, done.stderr
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(done.stdout)}


def test_the_compose_file_follows_the_specification() -> None:
    done = proof("compose", DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert set(services) == {"looptap", "agents", "redis", "jaeger", "prometheus", "grafana"}
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    mounted = [
        volume["source"]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume["type"] == "bind"
    ]
    assert mounted
    assert [source for source in mounted if not Path(source).exists()] == []


def test_a_wrong_word_in_a_compose_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {a: {image: 'a:1', reed_only: true}}\n")
    assert "reed_only" in proof("compose", tmp_path / "compose.yaml").stderr


def test_the_engines_own_parser_reads_the_dockerfile(tmp_path: Path) -> None:
    done = proof("dockerfile", DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[::3] == ["FROM"] * 2
    (tmp_path / "Dockerfile").write_text((DEPLOY / "Dockerfile").read_text().replace("EXPOSE", "EXPOZE"))
    assert "EXPOZE" in proof("dockerfile", tmp_path / "Dockerfile").stderr


@pytest.mark.parametrize("folder", ["sidecar", "gateway"])
def test_kubernetes_objects_are_built_and_hold_no_unknown_field(folder: str) -> None:
    objects = built(folder)
    pods = [one["spec"]["template"]["spec"] for one in objects.values() if "template" in one.get("spec", {})]
    ours = [
        c
        for pod in pods
        for c in (*pod["containers"], *pod.get("initContainers", ()))
        if c["name"] == "looptap"
    ]
    (container,) = ours
    assert re.fullmatch(r"looptap:\d+\.\d+\.\d+", container["image"])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (configuration,) = [name for name in objects if name.startswith("ConfigMap/looptap-")]
    assert {
        volume["configMap"]["name"]
        for pod in pods
        for volume in pod.get("volumes", ())
        if "configMap" in volume
    } == {configuration.partition("/")[2]}


def test_services_policies_and_budgets_select_what_is_there() -> None:
    objects = built("gateway")
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in objects.values()
        if "template" in one.get("spec", {})
    ]
    selectors = [objects[name]["spec"]["selector"] for name in ("Service/looptap", "Service/looptap-redis")]
    selectors.append(objects["PodDisruptionBudget/looptap"]["spec"]["selector"]["matchLabels"])
    selectors.append(objects["NetworkPolicy/looptap-redis"]["spec"]["podSelector"]["matchLabels"])
    for selector in selectors:
        assert any(selector.items() <= given.items() for given in labels), selector


def test_a_wrong_field_in_a_cluster_is_found(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes" / "gateway", tmp_path / "gateway")
    file = tmp_path / "gateway" / "deployment.yaml"
    file.write_text(file.read_text().replace("readOnlyRootFilesystem", "readOnlyRootFs"))
    done = proof("kustomize", tmp_path / "gateway")
    assert done.returncode == 1
    assert "readOnlyRootFs" in done.stderr


def unit(place: Path) -> Path:
    """The unit with a program that is there."""
    text = (DEPLOY / "looptap.service").read_text()
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    file = place / "looptap.service"
    file.write_text(text)
    return file


def test_systemd_takes_the_unit_without_a_remark(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit(tmp_path)],
        capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_the_unit_well_confined(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager", unit(tmp_path)],
        capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
