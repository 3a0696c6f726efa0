"""Every recording that passes reasoning back, broken in every way we know: each is called by its name.

What is expected of a mutant is worked out from the recording and the providers' rules (``mutants``).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policies.history import History
from policies.thinking import Thinking
from proxy.chain import Chain, Link
from proxy.replay import run
from tests.policies.mutants import RECORDINGS, Mutant, mutants

FILES = sorted(RECORDINGS.glob("*/*.jsonl"), key=lambda path: path.name)


def findings(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree, problems = run([path], chain=Chain([Link(Thinking()), Link(History())]))  # type: ignore[arg-type]
    assert problems == []
    return [found for found in tree["findings"] if found["severity"] != "info" or found["kind"] == "changed"]


def complaints(mutant: Mutant, found: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the findings at the changed request."""
    last = len(mutant.rows) - 1
    here = [f for f in found if f["exchange"] == last and f["policy"] == mutant.policy]
    told = [(f["kind"], f.get("consequence"), f["path"], f["evidence"].get("situation")) for f in here]
    if mutant.kind is None:
        return [f"{mutant.name}: false alarm {told}"] if here else []
    wanted = (mutant.kind, mutant.consequence)
    if not any((kind, consequence) == wanted for kind, consequence, *_ in told):
        return [f"{mutant.name}: wanted {wanted}, told {told}"]
    if any((kind, consequence) != wanted for kind, consequence, *_ in told):
        return [f"{mutant.name}: wanted {wanted} alone, told {told}"]
    if mutant.path is not None and not any(path == mutant.path for _, _, path, _ in told):
        return [f"{mutant.name}: wanted {mutant.path}, told {told}"]
    return []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[:60])
def test_each_mutant_is_told_and_each_lawful_change_is_not(path: Path, tmp_path: Path) -> None:
    wrong: list[str] = []
    for mutant in mutants(path):
        wrong.extend(complaints(mutant, findings(mutant.rows, tmp_path / "mutant.jsonl")))
    assert wrong == []


def test_the_suite_is_not_empty() -> None:
    made = Counter(mutant.kind or "lawful" for path in FILES for mutant in mutants(path))
    assert made.keys() >= {
        "dropped", "modified", "reordered", "duplicated", "converted", "incomplete", "resurrected",
        "prefix_changed", "lawful",
    }  # fmt: skip
    assert sum(made.values()) > 300
