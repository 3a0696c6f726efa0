"""Lists by filter and page, steps as the model saw them, and a record that is begun anew."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.catalog import RecordCatalog
from proxy.record import RecordWriter
from proxy.record.schema import FILE
from tests import play
from tests.admin import kit


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> RecordCatalog:
    place = tmp_path_factory.mktemp("record")
    kit.two_turns(place)
    return RecordCatalog(place)


FIRST, SECOND = kit.ident("trn", 1), kit.ident("trn", 2)


@pytest.mark.parametrize(
    ("filters", "turns"),
    [
        ({}, [SECOND, FIRST]),
        ({"agent": "agent-1"}, [FIRST]),
        ({"key": "ci"}, [FIRST]),
        ({"label": "env"}, [SECOND, FIRST]),
        ({"label": "env=prod"}, [SECOND]),
        ({"cause": "open"}, [SECOND]),
        ({"cause": "completed"}, [FIRST]),
        ({"model": "claude-sonnet-4-5"}, [SECOND, FIRST]),
        ({"finding": "any"}, [FIRST]),
        ({"finding": "thinking"}, [FIRST]),
        ({"finding": "thinking/dropped"}, [FIRST]),
        ({"finding": "violation"}, [FIRST]),
        ({"finding": "history"}, []),
        ({"session": kit.ident("ses", 2)}, [SECOND]),
        ({"session": "ses_none"}, []),
        ({"key": "ci", "cause": "open"}, []),
    ],
)
def test_turns_are_found_by_filter(catalog: RecordCatalog, filters: dict[str, str], turns: list[str]) -> None:
    assert [turn["id"] for turn in catalog.turns(50, None, filters)] == turns


def test_pages_follow_each_other(catalog: RecordCatalog) -> None:
    assert [t["id"] for t in catalog.turns(1, None, {})] == [SECOND]
    assert [t["id"] for t in catalog.turns(1, SECOND, {})] == [FIRST]
    assert catalog.turns(1, FIRST, {}) == []
    assert catalog.turns(1, "trn_none", {}) == []
    assert [s["id"] for s in catalog.sessions(5, kit.ident("ses", 2), {})] == [kit.ident("ses", 1)]
    assert [s["key"] for s in catalog.sessions(5, None, {"key": "ci", "label": "env=ci"})] == ["ci"]


def test_a_turn_tells_how_it_grows(catalog: RecordCatalog) -> None:
    turn = catalog.turn(FIRST)
    assert turn is not None
    assert turn["growth"]["growth_per_step"] == 1000.0
    assert turn["growth"]["window"] == 200_000
    assert [f["kind"] for f in turn["findings"]] == ["dropped"]
    events = catalog.turn_events(FIRST, 0, 100)
    assert events is not None
    assert events[0]["type"] == "turn/start"


def test_what_the_model_saw_and_what_of_it_is_new(catalog: RecordCatalog) -> None:
    first = catalog.seen(kit.ident("stp", 10))
    assert first is not None
    assert first["previous"] is None
    assert all(part["new"] for part in first["parts"])
    second = catalog.seen(kit.ident("stp", 11))
    assert second is not None
    assert second["previous"] == kit.ident("stp", 10)
    assert [(p["part"], p["new"]) for p in second["parts"]] == [
        ("system", False), ("message", False), ("message", True), ("message", True),
    ]  # fmt: skip
    assert second["parts"][-1]["items"][0]["text"] == kit.HOSTILE


def test_what_came_back_changed(catalog: RecordCatalog) -> None:
    told = catalog.changes(kit.ident("stp", 11))
    assert told is not None
    assert told["changes"] == [
        {
            "path": "$['messages'][1]['content'][0]",
            "how": "dropped",
            "kind": "thinking",
            "before": "Look first.",
            "after": "",
        }
    ]
    assert catalog.changes(kit.ident("stp", 10)) == {
        "step": kit.ident("stp", 10), "previous": None, "changes": []
    }  # fmt: skip


def test_a_turn_holds_the_threads_that_it_started(tmp_path: Path) -> None:
    game = play.Play()
    task = play.request(play.user("go"), hints=play.claude())
    calls = (play.call("a1", "Agent", '{"prompt":"look at the docs"}'), play.call("b1"))
    game.step(task, *calls)
    helper = play.request(play.user("look at the docs"), hints=play.claude(agent="one", parent="main"))
    game.step(helper, play.said("done"))
    game.step(play.request(play.user("other work"), hints=play.claude("s2")), play.said("done"))
    writer = RecordWriter(tmp_path)
    writer.write(game.records)
    writer.close()
    catalog = RecordCatalog(tmp_path)
    first = next(t for t in catalog.turns(9, None, {}) if t["kind"] == "main" and t["open"])
    turn = catalog.turn(first["id"])
    assert turn is not None
    (below,) = turn["threads"]
    assert (below["kind"], below["agent"]) == ("subagent", "one")
    assert [len(t["steps"]) for t in below["turns"]] == [1]
    assert catalog.seen(turn["steps"][0]["id"]) is None  # no bodies were recorded


def test_spenders_come_most_first(catalog: RecordCatalog) -> None:
    assert [(s["name"], s["cost_usd"], s["steps"]) for s in catalog.spenders("key", 0, 5)] == [
        ("ci", "0.5", 2), ("unnamed", "0.01", 1),
    ]  # fmt: skip
    assert [s["name"] for s in catalog.spenders("label:env", 0, 5)] == ["ci", "prod"]
    assert catalog.spenders("session", 0, 1)[0]["name"] == kit.ident("ses", 1)
    assert catalog.spenders("key", kit.BEGAN * 2, 5) == []


def test_a_report_leaves_old_turns_out(catalog: RecordCatalog) -> None:
    assert catalog.report(0)["turns"] == 2
    assert catalog.report(kit.BEGAN * 2)["turns"] == 0


def test_a_record_that_is_begun_anew_is_seen(tmp_path: Path) -> None:
    catalog = RecordCatalog(tmp_path / "data")
    assert catalog.turns(5, None, {}) == []
    kit.two_turns(tmp_path / "data")
    assert len(catalog.turns(5, None, {})) == 2
    kit.two_turns(tmp_path / "other")
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (tmp_path / "data" / name).unlink(missing_ok=True)
        if (tmp_path / "other" / name).exists():
            shutil.copy(tmp_path / "other" / name, tmp_path / "data" / name)
    assert len(catalog.turns(5, None, {})) == 2
    catalog.close()
    assert len(catalog.turns(5, None, {})) == 2


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    long = {**kit.DROPPED, "evidence": {"quotes": {"text": " ".join(map(str, range(60_000)))}}}
    step = (kit.body(kit.ASKED), kit.answer({"type": "text", "text": "Done."}, stop="end_turn"))
    writer = RecordWriter(tmp_path)
    writer.write([event for number in range(1, 9) for event in kit.events(number, [step], finding=long)])
    writer.close()
    catalog = RecordCatalog(tmp_path)

    def read(number: int) -> int:
        events = catalog.turn_events(kit.ident("trn", 1 + number % 8), 0, 100)
        return len(events or ())

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(read, range(120)))) == 1
    catalog.close()
