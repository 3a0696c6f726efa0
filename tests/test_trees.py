"""The public tree, built from records alone."""

import json
from dataclasses import replace
from typing import Any

from proxy.model import Identity, Record, rfc3339
from proxy.trees import Forest
from tests.play import Play, assistant, call, claude, grown, request, result, results, said, user

ID = "toolu_013ab7c9d2e4"


def told() -> Play:
    """A turn with a retried step and a result, a side call, and a finding."""
    play = Play()
    first = request(user("Look."), hints=claude())
    play.step(first, outcome="failed")
    play.step(first, call(ID))
    last = play.step(grown(first, assistant(call(ID)), results(result(ID, is_error=True))), said("Done."))
    play.step(request(user("Title?"), hints=replace(claude(), kind="side"), tools=()), said("Looking"))
    evidence = {"block": 1}
    data = {
        "policy": "thinking", "kind": "dropped", "severity": "violation", "consequence": "hard",
        "path": "$['messages'][1]", "evidence": evidence, "exchange": "exc_2", "number": 2,
    }  # fmt: skip
    play.records.append(Record(play.now_ns, "finding", last.session, last.thread, last.turn, last.step, data))
    return play


def test_the_tree_has_exactly_the_contracts_keys() -> None:
    tree = Forest(told().records).tree([9, 4])
    assert json.loads(json.dumps(tree)) == tree
    (session,) = tree["sessions"]
    main, side = session["threads"]
    assert main["kind"] == "main"
    assert side["kind"] == "side"
    assert set(main) == {"id", "kind", "partial", "matched_by", "turns"}
    (turn,) = main["turns"]
    usage = {"input_tokens": 20, "output_tokens": 10}
    assert {key: value for key, value in turn.items() if key not in ("id", "steps")} == {
        "cause": "completed",
        "open": False,
        "usage": usage,
        "cost_usd": "0.002",
        "cost_quality": "measured",
    }
    one, two = turn["steps"]
    assert {key: value for key, value in one.items() if key != "id"} == {
        "exchanges": [0, 1],
        "model": "m-1",
        "stop_reason": "tool_use",
        "tool_calls": [{"id": ID, "name": "bash"}],
        "tool_results": [{"id": ID, "is_error": True}],
        "usage": {"input_tokens": 10, "output_tokens": 5},
        "cost_usd": "0.001",
        "cost_quality": "measured",
        "findings": [],
    }
    assert two["findings"] == [0]
    assert tree["findings"] == [
        {
            "policy": "thinking",
            "kind": "dropped",
            "severity": "violation",
            "consequence": "hard",
            "exchange": 2,
            "step": two["id"],
            "path": "$['messages'][1]",
            "evidence": {"block": 1},
        }
    ]
    assert tree["unmodelled"] == [4, 9]


def test_a_tree_grows_with_its_records() -> None:
    records = told().records
    forest = Forest()
    for record in records:
        forest.add(record)
        forest.tree()
    assert forest.tree() == Forest(records).tree()


def test_reading_commands_see_where_and_when() -> None:
    play = Play()
    identity = Identity(labels={"team": "search"})
    play.step(request(user("one"), hints=claude()), said("1"), identity=identity)
    play.step(request(user("two")), call(ID), identity=identity)
    newest, older = Forest(play.records).turns()
    assert newest["open"]
    assert "ended_at" not in newest
    assert older["agent"] == "claude-code"
    assert older["labels"] == {"team": "search"}
    assert older["started_at"] < older["ended_at"] < newest["started_at"]
    assert Forest(play.records).turn(older["id"]) == older
    assert Forest(play.records).turn("trn_none") is None
    session: Any = Forest(play.records).session(older["session"], more=True)
    assert session["started_at"] == older["started_at"]
    assert session["threads"][0]["id"] == older["thread"]


def test_an_unknown_cost_makes_the_sum_unknown() -> None:
    records = told().records
    attempt = next(record for record in records if record.type == "step/attempt")
    unpriced = replace(attempt, data={**attempt.data, "cost_usd": None, "cost_quality": "unpriced"})
    tree = Forest([unpriced if record is attempt else record for record in records]).tree()
    turn = tree["sessions"][0]["threads"][0]["turns"][0]
    assert turn["cost_usd"] is None
    assert turn["cost_quality"] == "unpriced"
    assert turn["steps"][1]["cost_usd"] == "0.001"


def test_moment() -> None:
    assert rfc3339(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
