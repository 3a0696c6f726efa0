"""Policies of one's own, laid down as an installer would: modules, metadata, entry points."""

import shutil
import tomllib
from pathlib import Path


def installed(example: Path, place: Path) -> Path:
    """An example's project at a place that may then stand in the path."""
    told = tomllib.loads((example / "pyproject.toml").read_text())
    project = told["project"]
    about = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items())
        for group, points in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    for module in told["tool"]["setuptools"]["py-modules"]:
        shutil.copy(example / f"{module}.py", place)
    return place
