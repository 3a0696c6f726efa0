"""Every recording that passes reasoning back, broken in every way we know: each is called by its name.

What is expected of a mutant is worked out from the recording and the providers' rules (``mutants``).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from policies.history import History
from policies.thinking import Thinking
from proxy.chain import Chain, Link
from proxy.replay import run
from tests.policies.mutants import MOST_LINES, RECORDINGS, Mutant, mutants, rows_of
from tests.policies.mutants_more import SAME, more_mutants
from tests.policies.streams import streamed

FILES = sorted(RECORDINGS.glob("*/*.jsonl"), key=lambda path: path.name)
SIGNED = [
    path
    for path in FILES
    if re.search(r"thought_?[sS]ignature|signature|encrypted_content", path.read_text())
][::3]
"""Every third of those in which reasoning may come back: the others are more of the same."""
LARGE = 200_000
SHARED = Path(os.environ.get("LOOPTAP_SHARED") or Path(__file__).parents[3] / "shared")


def findings(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree, problems = run([path], chain=Chain([Link(Thinking()), Link(History())]))  # type: ignore[arg-type]
    assert problems == []
    return [found for found in tree["findings"] if found["severity"] != "info" or found["kind"] == "changed"]


def complaints(mutant: Mutant, found: list[dict[str, Any]], unchanged: list[Any]) -> list[str]:
    """What is wrong with the findings at the changed request; ``unchanged``: what it gets as it was."""
    last = len(mutant.rows) - 1
    if mutant.kind == SAME:
        now = plain(found, last)
        return [] if now == unchanged else [f"{mutant.name}: told {now}, without the change {unchanged}"]
    here = [f for f in found if f["exchange"] == last and f["policy"] == mutant.policy]
    told = [(f["kind"], f.get("consequence"), f["path"], f["evidence"].get("situation")) for f in here]
    if mutant.kind is None:
        return [f"{mutant.name}: false alarm {told}"] if here else []
    wanted = (mutant.kind, mutant.consequence)
    if not any((kind, consequence) == wanted for kind, consequence, *_ in told):
        return [f"{mutant.name}: wanted {wanted}, told {told}"]
    if not mutant.among and any((kind, consequence) != wanted for kind, consequence, *_ in told):
        return [f"{mutant.name}: wanted {wanted} alone, told {told}"]
    if mutant.path is not None and not any(path == mutant.path for _, _, path, _ in told):
        return [f"{mutant.name}: wanted {mutant.path}, told {told}"]
    return []


def plain(found: list[dict[str, Any]], line: int) -> list[Any]:
    return [
        (f["policy"], f["kind"], f.get("consequence"), f["path"])
        for f in found
        if f["exchange"] == line and f["kind"] != "cache_lost"
    ]


def lines(path: Path) -> int:
    """Requests of a recording that are changed here; all of them where the recordings outside are tried."""
    return 1 if path.stat().st_size > LARGE else MOST_LINES


def wrong(name: str, rows: list[Any], made: Iterable[Mutant], place: Path) -> list[str]:
    """Everything that is wrong with what is said of some mutants of a recording."""
    as_it_was: dict[int, list[Any]] = {}
    said: list[str] = []
    for mutant in made:
        line = len(mutant.rows) - 1
        if mutant.kind == SAME and line not in as_it_was:
            as_it_was[line] = plain(findings(rows[: line + 1], place), line)
        for one in complaints(mutant, findings(mutant.rows, place), as_it_was.get(line, [])):
            said.append(f"{name[:80]}:{line + 1}: {one}")
    return said


def whole_and_streamed(path: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """A recording as it is, and with its whole replies told as streams, where it has some."""
    rows = rows_of(path)
    other = [streamed(row) for row in rows]
    return [(path.name, rows), *([(f"{path.name}, streamed", other)] if other != rows else [])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem[:60])
def test_each_mutant_is_told_and_each_lawful_change_is_not(path: Path, tmp_path: Path) -> None:
    rows = rows_of(path)
    assert wrong(path.name, rows, mutants(rows, lines(path)), tmp_path / "mutant.jsonl") == []


@pytest.mark.parametrize("path", SIGNED, ids=lambda path: path.stem[:60])
def test_so_are_mutants_of_other_blocks_and_in_another_dress(path: Path, tmp_path: Path) -> None:
    rows = rows_of(path)
    assert wrong(path.name, rows, more_mutants(rows, lines(path)), tmp_path / "mutant.jsonl") == []


@pytest.mark.parametrize("path", SIGNED, ids=lambda path: path.stem[:60])
def test_so_are_mutants_of_replies_that_came_as_streams(path: Path, tmp_path: Path) -> None:
    for name, rows in whole_and_streamed(path)[1:]:
        assert wrong(name, rows, mutants(rows, 1), tmp_path / "mutant.jsonl") == []


@pytest.mark.real
@pytest.mark.timeout(1_400)
def test_every_mutant_of_the_recordings_outside_the_tree(tmp_path: Path) -> None:
    files = [
        path
        for path in sorted(
            [*SHARED.glob("corpus/recordings/*.jsonl"), *SHARED.glob("client-traffic/*.jsonl")]
        )
        if path.name != "labels.jsonl"
    ]
    assert len(files) > 400, "set LOOPTAP_SHARED to the folder that holds corpus and client-traffic"
    said, place = [], tmp_path / "mutant.jsonl"
    for path in files:
        for name, rows in whole_and_streamed(path):
            said += wrong(name, rows, mutants(rows, most=1_000), place)
            said += wrong(name, rows, more_mutants(rows), place)
    assert said == []


def test_the_suite_is_not_empty() -> None:
    made = Counter(
        mutant.kind or "lawful" for path in FILES for mutant in mutants(rows_of(path), lines(path))
    )
    assert made.keys() >= {
        "dropped", "modified", "reordered", "duplicated", "converted", "incomplete", "resurrected",
        "prefix_changed", "lawful",
    }  # fmt: skip
    assert sum(made.values()) > 300
