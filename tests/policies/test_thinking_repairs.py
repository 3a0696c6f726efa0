"""Every recording that passes reasoning back, with that broken, and mended again: what goes out is what the
recorded client, which lost nothing, had sent.

What a mutant breaks, and what must be said of it, is told from the recording alone (``mutants``).
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.thinking import Thinking
from proxy.chain import Chain, Link
from proxy.core import CoreSettings
from proxy.dialects.compat import PLAIN_REASONING
from proxy.model import CaptureEnd, CaptureStart, Record
from proxy.reading.insertions import without
from proxy.replay import Replay
from tests.policies.mutants import Mutant, body_of, mutants, rows_of
from tests.policies.mutants_more import SAME, more_mutants
from tests.policies.test_thinking_mutants import FILES, SHARED, SIGNED, whole_and_streamed

MENDED = frozenset({"dropped", "modified", "incomplete"})
ALONE = {
    "two faults": "the other block is of an older turn, where it may be left out",
    "reorder details": "they stand in another order",
    "drop what it led to": "a call is gone, not only reasoning",
    "drop what it led to, and its result": "a call is gone, not only reasoning",
}
"""Faults of these kinds that are not mended, or not wholly, by their mutant's name."""
CHANGED = "came back changed"
"""In some recordings the client wrote its history anew: there nothing is put back."""
LISTS = ("messages", "input", "contents")
NOTHING = ({}, [], None, "")


class Mending(Replay):
    """A replay that repairs; keeps what goes out."""

    def __init__(self) -> None:
        self.told: list[Record] = []
        self.out: dict[int, CaptureStart] = {}
        super().__init__(chain=Chain([Link(Thinking(), "repair")]), on_record=self.told.append)  # type: ignore[arg-type]
        self.core.settings = CoreSettings()

    def capture(self, capture: CaptureStart | CaptureEnd) -> None:
        if isinstance(capture, CaptureStart):
            self.out[capture.number] = capture

    def did(self, line: int) -> list[str]:
        return [
            str(one.data["kind"])
            for one in self.told
            if one.type == "intervention" and one.data["number"] == line and "repair" in one.data["kind"]
        ]

    def why(self, line: int) -> str:
        found = [
            o.data.get("why") for o in self.told if o.type == "intervention" and o.data["number"] == line
        ]
        return ", ".join(str(why) for why in found if why)


def mended(rows: list[dict[str, Any]], place: Path) -> Mending:
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = Mending()
    replay.run([place])
    assert (replay.faults, replay.problems) == ([], [])
    return replay


def said(body: dict[str, Any]) -> Any:
    """The list of messages less members without content, and in one spelling."""
    listed = next(body[name] for name in LISTS if isinstance(body.get(name), list))
    return [_bare(message) for message in listed]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        if "reasoning_details" in value:  # the same once more as text: a client returns one of the two
            value = {key: member for key, member in value.items() if key not in PLAIN_REASONING}
        ours = value.get("type") in ("reasoning", "thinking", "redacted_thinking")
        return {
            SPELT.get(key, key): _decoded(member) if key in SIGNED_AS else _bare(member)
            for key, member in value.items()
            if (key in OURS if ours else member not in NOTHING)
        }
    return [_bare(one) for one in value] if isinstance(value, list) else value


def _decoded(signature: str) -> bytes:
    """Gemini's clients write it in another alphabet."""
    plain = signature.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4))


SIGNED_AS = ("thoughtSignature", "thought_signature")
SPELT = {"thought_signature": "thoughtSignature"}
OURS = frozenset({"type", "thinking", "signature", "data", "summary", "encrypted_content"})
"""What counts of a piece of reasoning; clients add members of their own, and leave out ids."""


def wrong(rows: list[dict[str, Any]], mutant: Mutant, place: Path) -> Iterator[str]:
    """What is wrong with how a mutant is mended."""
    line = len(mutant.rows) - 1
    replay = mended(mutant.rows, place)
    captured, broken = replay.out[line], mutant.rows[line].get("request_body") or ""
    did = replay.did(line)
    if captured.body is None:
        return
    if without(captured.body, captured.inserted) != broken.encode():
        yield f"{mutant.name}: the client's bytes are lost"
    if mutant.kind in MENDED and mutant.policy == "thinking" and mutant.name not in ALONE:
        if "repair" not in did:
            yield f"{mutant.name}: not repaired, {replay.why(line)}"
        elif said(json.loads(captured.body)) != said(body_of(rows[line])):
            yield f"{mutant.name}: not what was sent"
    elif mutant.kind not in MENDED and mutant.kind != SAME and captured.body != broken.encode():
        yield f"{mutant.name}: put something into a request without a loss"


def all_wrong(made: Iterable[tuple[str, list[dict[str, Any]], Mutant]], place: Path) -> list[str]:
    return [f"{name[:80]}: {one}" for name, rows, mutant in made for one in wrong(rows, mutant, place)]


THOUGHT = [path for path in FILES if re.search(r"reasoning_(?:details|content)", path.read_text())]


@pytest.mark.parametrize("path", [*SIGNED, *THOUGHT], ids=lambda path: path.stem[:60])
def test_what_a_client_lost_goes_out_as_it_was(path: Path, tmp_path: Path) -> None:
    for name, rows in whole_and_streamed(path):
        more = more_mutants(rows, 1) if path in THOUGHT else ()
        made = ((name, rows, one) for one in (*mutants(rows, 1), *more))
        assert all_wrong(made, tmp_path / "mutant.jsonl") == []


@pytest.mark.real
@pytest.mark.timeout(1_400)
def test_so_it_does_in_every_recording_outside_the_tree(tmp_path: Path) -> None:
    files = [
        path
        for path in sorted(
            [*SHARED.glob("corpus/recordings/*.jsonl"), *SHARED.glob("client-traffic/*.jsonl")]
        )
        if path.name != "labels.jsonl"
    ]
    assert len(files) > 400, "set LOOPTAP_SHARED to the folder that holds corpus and client-traffic"
    found, place, count = [], tmp_path / "mutant.jsonl", Counter[str]()
    for path in files:
        for name, rows in whole_and_streamed(path):
            made = [*mutants(rows, most=1_000), *more_mutants(rows)]
            count.update(mutant.kind or "lawful" for mutant in made)
            found += all_wrong(((name, rows, one) for one in made), place)
    assert count["dropped"] > 300
    assert [one for one in found if not one.endswith(CHANGED)] == []
    assert len(found) < 40


def test_recordings_go_out_as_they_came(tmp_path: Path) -> None:
    for path in SIGNED[::3]:
        rows = rows_of(path)
        replay = mended(rows, tmp_path / "as-it-was.jsonl")
        for line, captured in replay.out.items():
            if captured.body is not None and "repair" not in replay.did(line):
                assert captured.body == (rows[line].get("request_body") or "").encode()
