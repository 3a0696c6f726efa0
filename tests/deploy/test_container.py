"""The Dockerfile without an engine: its steps in a fresh directory, its result as its user on a tree
that it may not write to, its own health check, and its stop signal.

Absolute paths of the image stand for directories of a fresh place, its two ports for free ones.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.deploy.kit import DEPLOY, ROOT, Stage, dockerfile
from tests.processes import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
PLACES = ("/opt/looptap", "/var/lib/looptap", "/usr/local/bin", "/src")
HEALTHY_S = 60.0


def interpreter(uid: int) -> str:
    """A Python that the image's user may run, too."""
    for one in ("/usr/local/bin/python3", "/usr/bin/python3", os.path.realpath(sys.executable)):
        test = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"
        if Path(one).exists():
            try:
                subprocess.run([one, "-c", test], check=True, capture_output=True, **_as(uid))
            except (OSError, subprocess.CalledProcessError):
                continue
            return one
    pytest.fail("no Python that an unprivileged user may run")


def _as(uid: int) -> dict[str, Any]:
    """How a process becomes the image's user, where we may make it so."""
    return {"user": uid, "group": uid, "extra_groups": ()} if os.geteuid() == 0 else {}


@dataclass
class Image:
    """What the Dockerfile's steps left behind."""

    root: Path
    uid: int
    ports: dict[str, int]
    stage: Stage

    def inside(self, text: str) -> str:
        """Text of the Dockerfile as it holds in here."""
        for place in PLACES:
            text = re.sub(rf"(?<![\w.]){re.escape(place)}(?=$|[\s:/'\"])", f"{self.root}{place}", text)
        for port, ours in self.ports.items():
            text = re.sub(rf"(?<=:){port}\b", str(ours), text)
        return text

    def environment(self, stage: Stage) -> dict[str, str]:
        told = {name: self.inside(value) for name, value in stage.environment().items()}
        base = f"{self.root}/usr/local/bin:/usr/bin:/bin"
        return {"PATH": base, "HOME": "/nonexistent", "TMPDIR": "/nonexistent", **told}

    def arguments(self, word: str) -> list[str]:
        """The words of the last ENTRYPOINT, CMD or HEALTHCHECK."""
        told: list[str] = json.loads("[" + self.stage.last(word).partition("[")[2])
        return [self.inside(argument).replace("0.0.0.0", "127.0.0.1") for argument in told]

    def copy(self, argument: str, workdir: str, others: Path | None) -> None:
        """COPY: from the tree (what the ignore file lets through), or from the stage before."""
        *sources, target = re.sub(r"--from=\S+ ", "", argument).split()
        aim = Path(self.inside(target)) if target.startswith("/") else Path(self.inside(workdir)) / target
        for source in sources:
            if others is not None:
                continue  # both stages share this place: it lies there already
            assert source in allowed(), f"{source} is not let through by the ignore file"
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, aim, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                aim.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, aim)

    def play(self, stage: Stage) -> None:
        """Do what a stage says, in order."""
        workdir = "/"
        for word, argument in stage.steps:
            if word == "WORKDIR":
                workdir = argument
                Path(self.inside(argument)).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self.copy(argument, workdir, self.root if "--from=" in argument else None)
            elif word == "RUN":
                environment = {
                    **self.environment(stage),
                    "TMPDIR": str(self.root / "tmp"),
                    "HOME": str(self.root),
                }
                command = argument
                if os.geteuid() != 0:
                    command = re.sub(r"-[og] \d+", "", command)
                where = self.inside(workdir) if workdir != "/" else str(self.root)
                done = subprocess.run(
                    ["/bin/sh", "-ec", self.inside(command)],
                    cwd=where, env=environment, capture_output=True, encoding="utf-8", timeout=800,
                    check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"RUN {argument}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def how(self) -> dict[str, Any]:
        """How a process of the container is started."""
        where = self.inside(self.stage.last("WORKDIR"))
        return {
            "cwd": where,
            "env": self.environment(self.stage),
            "stderr": subprocess.STDOUT,
            **_as(self.uid),
        }

    def is_healthy(self) -> bool:
        check = self.arguments("HEALTHCHECK")
        return (
            subprocess.run(check, stdout=subprocess.DEVNULL, timeout=30, check=False, **self.how()).returncode
            == 0
        )

    def files(self) -> dict[str, tuple[int, int]]:
        """Everything but the data directory: sizes and times."""
        data = f"{self.root}/var/lib/looptap"
        found = [path for path in self.root.rglob("*") if not str(path).startswith(data)]
        return {str(p): (p.lstat().st_size, p.lstat().st_mtime_ns) for p in found}


def allowed() -> set[str]:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The Dockerfile played through once."""
    stages = dockerfile()
    final = stages["final"]
    uid = int(final.last("USER").partition(":")[0])
    assert uid > 0
    root = Path(tempfile.mkdtemp(prefix="looptap-image-"))
    root.chmod(0o755)
    try:
        for place in ("tmp", "usr/local/bin", "var/lib", "opt"):
            (root / place).mkdir(parents=True)
        python = interpreter(uid)
        for name in ("python", "python3"):
            (root / "usr/local/bin" / name).symlink_to(python)
        built = Image(root, uid, {"4040": free_port(), "4041": free_port()}, final)
        for stage in stages.values():
            built.play(stage)
        shutil.rmtree(root / "src")
        shutil.rmtree(root / "tmp")
        subprocess.run(["chmod", "-R", "a-w", root / "opt", root / "usr"], check=True)
        yield built
    finally:
        subprocess.run(["chmod", "-R", "u+w", root], check=False)
        shutil.rmtree(root)


def healthy(image: Image, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the health check says so; bounded."""
    until, pause = time.monotonic() + HEALTHY_S, Event()
    while time.monotonic() < until and process.poll() is None:
        if image.is_healthy():
            return True
        pause.wait(0.3)
    return False


def passes_on(image: Image) -> None:
    """A request that nobody answers: the port is open, and what came is recorded."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{image.ports['4040']}/nowhere/v1/x", b"{}", timeout=30)
    assert refused.value.code == 404
    refused.value.close()


def test_it_runs_as_its_user_on_a_tree_it_may_not_write_to(image: Image, tmp_path: Path) -> None:
    before = image.files()
    assert not image.is_healthy()
    log = tmp_path / "log"
    command = [*image.arguments("ENTRYPOINT"), *image.arguments("CMD")]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, **image.how()) as process:
        try:
            assert healthy(image, process), log.read_text()
            passes_on(image)
        finally:
            process.send_signal(getattr(signal, image.stage.last("STOPSIGNAL")))
        assert process.wait(timeout=60) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    kept = {path.name: path.stat() for path in (image.root / "var/lib/looptap").iterdir()}
    assert "admin-token" in kept
    assert [name for name, told in kept.items() if told.st_mode & 0o077] == []
    if os.geteuid() == 0:
        assert {told.st_uid for told in kept.values()} == {image.uid}
    assert image.files() == before


def test_nothing_that_only_building_needs_is_left_in_it(image: Image) -> None:
    there = {
        path.name.partition("-")[0] for path in (image.root / "opt/looptap/lib").glob("*/site-packages/*")
    }
    assert {"proxy", "policies", "exporters"} <= there
    assert not {"pip", "setuptools", "pytest", "mypy"} & there
