"""The offline shell: recorded traffic of real clients and libraries, and logs of every odd form."""

import base64
import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.replay import Replay, run
from tests.client_trees import TREES

RECORDINGS = Path(__file__).parent / "recordings"
CLIENTS = sorted(path.name for path in (RECORDINGS / "clients").glob("*.jsonl"))
LIBRARIES = sorted(path.name for path in (RECORDINGS / "libraries").glob("*.jsonl"))
GROUPS: dict[str, list[list[Any]]] = orjson.loads((RECORDINGS / "libraries.json").read_bytes())

REPLY = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


def drawn(tree: dict[str, Any]) -> list[list[str]]:
    """A tree in the notation of ``client_trees``."""
    sessions = []
    for session in tree["sessions"]:
        places = {thread["id"]: place for place, thread in enumerate(session["threads"])}
        threads = []
        for thread in session["threads"]:
            turns = []
            for turn in thread["turns"]:
                steps = ["+".join(map(str, step["exchanges"])) for step in turn["steps"]]
                turns.append(" ".join(steps) + (" …" if turn["open"] else ""))
            parent = f"<{places[thread['parent']]}" if "parent" in thread else ""
            threads.append(f"{thread['kind']}{parent}: {' | '.join(turns)}")
        sessions.append(threads)
    return sessions


def line(**more: Any) -> dict[str, Any]:
    """One exchange of a log, as short as it may be."""
    body = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    return {
        "method": "POST",
        "path": "/v1/messages",
        "request_headers": {"content-type": "application/json"},
        "request_body": orjson.dumps(body).decode(),
        "status": 200,
        "response_headers": [["content-type", "application/json"]],
        "response_body": orjson.dumps(REPLY).decode(),
        **more,
    }


def log(path: Path, *lines: Any) -> Path:
    file = path / "log.jsonl"
    file.write_bytes(b"\n".join(each if isinstance(each, bytes) else orjson.dumps(each) for each in lines))
    return file


def only_step(tree: dict[str, Any]) -> dict[str, Any]:
    (session,) = tree["sessions"]
    (thread,) = session["threads"]
    (turn,) = thread["turns"]
    (step,) = turn["steps"]
    found: dict[str, Any] = step
    return found


def test_every_recording_of_a_client_has_its_tree() -> None:
    assert sorted(TREES) == CLIENTS
    assert sorted(GROUPS) == LIBRARIES


@pytest.mark.parametrize("name", CLIENTS)
def test_real_clients(name: str) -> None:
    tree, errors = run([RECORDINGS / "clients" / name])
    assert errors == []
    assert drawn(tree) == TREES[name]


@pytest.mark.parametrize("name", LIBRARIES)
def test_recordings_of_libraries(name: str) -> None:
    tree, errors = run([RECORDINGS / "libraries" / name])
    assert errors == []
    found: dict[int, tuple[str, str, str]] = {}
    for session in tree["sessions"]:
        for thread in session["threads"]:
            for turn in thread["turns"]:
                for step in turn["steps"]:
                    for number in step["exchanges"]:
                        found[number] = (thread["id"], turn["id"], step["id"])
    for depth in (1, 2, 3):
        wanted = _partition({number: tuple(group[:depth]) for number, *group in GROUPS[name]})
        numbers = {number for number, *_ in GROUPS[name]}
        got = _partition({number: ids[:depth] for number, ids in found.items() if number in numbers})
        assert got == wanted


def _partition(groups: dict[int, tuple[Any, ...]]) -> set[frozenset[int]]:
    members: dict[tuple[Any, ...], set[int]] = {}
    for number, group in groups.items():
        members.setdefault(group, set()).add(number)
    return {frozenset(group) for group in members.values()}


def test_the_same_input_gives_the_same_tree() -> None:
    path = RECORDINGS / "clients" / "claude-code-subagents.jsonl"
    assert run([path]) == run([path])


def test_ids_are_unique_and_of_the_contracts_form() -> None:
    tree, _ = run([RECORDINGS / "clients" / "claude-code-subagents.jsonl"])
    ids = [session["id"] for session in tree["sessions"]]
    for session in tree["sessions"]:
        for thread in session["threads"]:
            ids.append(thread["id"])
            for turn in thread["turns"]:
                ids.append(turn["id"])
                ids += [step["id"] for step in turn["steps"]]
    assert len(set(ids)) == len(ids)
    assert {(id[:4], len(id)) for id in ids} == {("ses_", 24), ("thr_", 24), ("trn_", 24), ("stp_", 24)}


def test_numbers_go_on_over_several_files(tmp_path: Path) -> None:
    one = log(tmp_path, line(), b"{broken", line(method="GET", path="/v1/models"))
    two = tmp_path / "two.jsonl"
    two.write_bytes(orjson.dumps(line()) + b"\n")
    tree, errors = run([one, two])
    assert len(errors) == 1
    assert errors[0].startswith(f"{one}:2: no JSON: ")
    assert drawn(tree) == [["main: 0"], ["main: 3"]]
    assert tree["unmodelled"] == [2]


@pytest.mark.parametrize(
    "more",
    [
        {"request_headers": [["Content-Type", "application/json"], ["X-A", "1"], ["X-A", "2"]]},
        {"request_headers": None, "response_headers": None},
        {"upstream": "anthropic"},
        {"host": "api.anthropic.com", "provider": "anthropic"},
        {"path": "/v1/messages?beta=true"},
        {"t": 1_700_000_000.25, "t_end": 1_700_000_001},
        {"labels": {"team": "search"}, "streaming": False, "end": "complete"},
        {"response_body": None, "response_body_b64": base64.b64encode(orjson.dumps(REPLY)).decode()},
        {
            "response_body": None,
            "response_body_b64": base64.b64encode(gzip.compress(orjson.dumps(REPLY))).decode(),
            "response_headers": {"content-encoding": "gzip"},
        },
        {"decoded": True, "response_headers": {"content-encoding": "gzip"}},
        {"reserialised": True, "unknown": [1]},
    ],
    ids=lambda more: ",".join(more),
)
def test_every_form_of_a_line_is_read(tmp_path: Path, more: dict[str, Any]) -> None:
    tree, errors = run([log(tmp_path, line(**more))])
    assert errors == []
    step = only_step(tree)
    assert step["exchanges"] == [0]
    assert step["stop_reason"] == "end_turn"
    assert step["usage"] == {"input_tokens": 3, "output_tokens": 2}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"[1]", "an exchange is a JSON object"),
        (b'"text"', "an exchange is a JSON object"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (line(method=7), "method must be a text"),
        (line(path=None), "path must be a text"),
        (line(path="v1/messages"), "path must begin with /"),
        (line(status="200"), "status must be a number"),
        (line(status=7), "status must be a number"),
        (line(t="now"), "t must be seconds"),
        (line(t=1, t_end=-1), "t_end must be seconds"),
        (line(end="gone"), "end must be one of"),
        (line(end=["complete"]), "end must be one of"),
        (line(host="api.example:x"), "'api.example:x' is no host"),
        (line(upstream="["), "'[' is no host"),
        (line(request_headers=[["a"]]), "request_headers must be"),
        (line(request_headers=7), "request_headers must be"),
        (line(request_body={"a": 1}), "request_body must be a text"),
        (line(response_body_b64="***"), "response_body_b64 is no base64"),
    ],
)
def test_a_malformed_line_is_named_and_the_rest_is_done(tmp_path: Path, bad: Any, says: str) -> None:
    file = log(tmp_path, line(), bad, line(path="/v1/models", method="GET"))
    tree, errors = run([file])
    (error,) = errors
    assert error.startswith(f"{file}:2: {says}")
    assert drawn(tree) == [["main: 0"]]
    assert tree["unmodelled"] == [2]


def test_a_body_that_is_no_request_is_unmodelled(tmp_path: Path) -> None:
    tree, errors = run([log(tmp_path, line(request_body="not json"), line(request_body=None), line())])
    assert errors == []
    assert tree["unmodelled"] == [0, 1]
    assert drawn(tree) == [["main: 2"]]


def test_ends_decide_the_outcome(tmp_path: Path) -> None:
    half = orjson.dumps(REPLY).decode()[:40]
    for more in (
        {"end": "client_gone", "response_body": half},
        {"end": "upstream_reset", "response_body": half},
        {"fault": "reset", "response_body": half},
        {"end": "timeout", "status": None, "response_body": None},
        {
            "status": 529,
            "response_body": '{"type":"error","error":{"type":"overloaded_error","message":"x"}}',
        },
    ):
        tree, _ = run([log(tmp_path, line(**more), line())])
        assert drawn(tree) == [["main: 0+1"]], more


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ("looptap_budget_exceeded; policy=budgets; budget=turn; dimension=spend_usd", "spend"),
        ("looptap_step_limit; policy=budgets; dimension=steps", "steps"),
        ("looptap_policy_denied; policy=tools", "policy"),
        (None, "policy"),
    ],
)
def test_a_refused_request_is_no_step(tmp_path: Path, told: str | None, cause: str) -> None:
    headers = [["x-looptap-refused", told]] if told is not None else []
    refused = line(end="refused", status=402, response_headers=headers, response_body="{}")
    tree, _ = run([log(tmp_path, refused)])
    assert drawn(tree) == [["main: "]]
    assert tree["sessions"][0]["threads"][0]["turns"][0]["cause"] == cause
    tree, _ = run([log(tmp_path, refused, line())])
    assert drawn(tree) == [["main: 0+1"]]


def test_overlapping_exchanges_overlap(tmp_path: Path) -> None:
    """The second request comes while the first is unanswered: a sibling, no attempt."""
    asked = orjson.dumps(
        {
            "model": "claude-x",
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "And?"},
            ],
        }
    ).decode()
    late = line(t=10, t_end=30)
    early = line(t=20, t_end=25)
    follows = line(t=26, t_end=27, request_body=asked)
    tree, _ = run([log(tmp_path, late, early, follows)])
    # At 26 only the reply of 1 had come, so 2 goes on from there.
    assert drawn(tree) == [["main: 0"], ["main: 1 | 2"]]


@pytest.mark.parametrize(
    "times",
    [
        [(1000, 1005), (1006, 1010), (1011, 1012)],
        [(1000, 1005), (500, 504), (505, 506)],  # set back between two
        [(1000, 502), (503, 507), (508, 509)],  # set back under the first
        [(1000, 1005), (1006, 9), (10, 11)],  # and under the second
        [(1000, 1005), (500, 504), (100, 101)],  # set back twice
    ],
    ids=["even", "between", "under", "later", "twice"],
)
def test_a_clock_set_back_changes_no_tree(tmp_path: Path, times: list[tuple[int, int]]) -> None:
    lines = [line(status=500, response_body="", t=t, t_end=t_end) for t, t_end in times]
    tree, problems = run([log(tmp_path, *lines)])
    assert (drawn(tree), problems) == ([["main: 0+1+2 …"]], [])


def test_what_the_proxy_had_set_decides_in_its_replay_too(tmp_path: Path) -> None:
    body = {"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    asked = gzip.compress(orjson.dumps({**body, "metadata": {"note": "x" * 5_000}}))
    coded = {
        "request_headers": {"content-encoding": "gzip"},
        "request_body_b64": base64.b64encode(asked).decode(),
    }
    cut = line(t=10, t_end=11, end="upstream_reset", response_body="")
    again = line(t=400, t_end=401, **coded)
    del again["request_body"]
    file = log(tmp_path, cut, again)

    def told(**more: int) -> list[list[str]]:
        return drawn(run([file], **more)[0])

    assert told() == [["main: 0+1"]]
    assert told(max_decoded=4_000) == [["main: 0 …"]]
    causes: list[Any] = []
    for idle_s in (300, 500):
        records: list[Any] = []
        run([file], on_record=records.append, idle_after_ns=idle_s * 1_000_000_000)
        causes.append([one.data.get("cause") for one in records if one.type == "turn/end"])
    assert causes == [["error", "completed"], ["completed"]]


def test_records_and_progress_are_told(tmp_path: Path) -> None:
    records: list[str] = []
    seen: list[int] = []
    run(
        [log(tmp_path, line(), line(path="/x"))],
        on_record=lambda record: records.append(record.type),
        on_progress=seen.append,
    )
    assert records == [
        "session/start", "thread/start", "turn/start", "item", "step/start", "item", "step/attempt",
        "step/end", "turn/end",
    ]  # fmt: skip
    assert seen == [1, 2]


def test_the_shell_keeps_no_bodies(tmp_path: Path) -> None:
    replay = Replay()
    replay.run([log(tmp_path, *(line() for _ in range(50)))])
    assert replay._closing == []
    assert len(replay.tree()["sessions"]) == 50
