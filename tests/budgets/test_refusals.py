"""What a client meets at a limit, and how it goes on: every dimension through a real proxy."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import kit


def loop(proxy: kit.Served, body: dict[str, Any], most: int, *, calls: str = "1", error: bool = False) -> Any:
    """An agent loop until it is refused; what it was refused with, and the request that was."""
    for _ in range(most):
        said = proxy.post("/v1/messages", body, x_calls=calls)
        if said.status != 200:
            return said, body
        body = kit.grown(body, said.json, error=error)
    raise AssertionError(f"not refused in {most} steps")


CASES: list[tuple[dict[str, Any], str, str, Any, Any]] = [
    ({"scope": "turn", "limits": {"steps": 2}}, "steps", "steps", 2, 2),
    (
        {"scope": "key", "window": "day", "limits": {"spend_usd": "0.003"}},
        "spend_usd",
        "spend",
        "0.003",
        None,
    ),
    (
        {"scope": "team", "window": "week", "limits": {"input_tokens": 900}},
        "input_tokens",
        "tokens",
        900,
        None,
    ),
    (
        {"scope": "org", "window": "month", "limits": {"output_tokens": 120}},
        "output_tokens",
        "tokens",
        120,
        30,
    ),
    ({"scope": "session", "limits": {"total_tokens": 1000}}, "total_tokens", "tokens", 1000, None),
    ({"scope": "thread", "limits": {"calls": {"Bash": 2}}}, "calls", "calls", 2, 2),
    ({"scope": "turn", "limits": {"tool_retries": 1}}, "tool_retries", "tool_retries", 1, 2),
    ({"scope": "model", "window": "total", "limits": {"steps": 2}}, "steps", "steps", 2, 2),
    ({"scope": "upstream", "window": "hour", "limits": {"steps": 2}}, "steps", "steps", 2, 2),
    ({"scope": "label:env", "window": "minute", "limits": {"steps": 2}}, "steps", "steps", 2, 2),
]


@pytest.mark.real
@pytest.mark.parametrize(("budget", "dimension", "cause", "limit", "used"), CASES, ids=lambda v: str(v)[:40])
def test_BUD_19_each_limit_is_named_with_whose_it_is(
    tmp_path: Path, budget: dict[str, Any], dimension: str, cause: str, limit: Any, used: Any
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[{"name": "cap", **budget}]) as proxy:
        said, _ = loop(proxy, kit.request("go"), 12, error=dimension == "tool_retries")
        assert said.status == 402
        assert said.headers["x-should-retry"] == "false"
        fields = said.fields
        assert (fields["budget"], fields["dimension"], fields["limit"]) == ("cap", dimension, limit)
        assert used is None or fields["used"] == used
        assert fields["scope"] == budget["scope"]
        assert fields["subject"] == {
            "key": "unnamed", "team": "default", "org": "default", "model": "acme-1",
            "upstream": "anthropic", "label:env": "(none)",
        }.get(budget["scope"], fields["subject"])  # fmt: skip
        windowed = budget.get("window") not in (None, "total")
        assert (fields["resets_at"] is not None) is windowed
        assert ("retry-after" in said.headers) is windowed
        error = said.json["error"]
        assert error["type"] == "billing_error"
        for word in ("cap", fields["scope"], fields["subject"], "looptap topup cap"):
            assert word in error["message"]
        (turn,) = proxy.told("turns")
        assert (turn["cause"], turn["open"]) == (cause, False)
        assert len(turn["steps"]) == len(model.asked)
        assert kit.recorded(proxy.data, "budget/exhausted")[0]["budget"] == "cap"
        refused = [e for e in kit.events(proxy.data, "step/attempt") if e["outcome"] == "refused"]
        assert len(refused) == 1


def test_ERR_03_a_days_refusal_says_in_whole_seconds_when_the_day_ends_and_is_not_to_be_repeated(
    tmp_path: Path,
) -> None:
    budget = {"name": "day", "scope": "key", "window": "day", "limits": {"steps": 1}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        assert proxy.ask("first").status == 200
        for path in ("/v1/messages", "/v1/chat/completions"):
            said = proxy.post(path, kit.request("second"))
            resets = datetime.fromisoformat(said.fields["resets_at"])
            left_s = (resets - datetime.now(UTC)).total_seconds()
            assert left_s <= int(said.headers["retry-after"]) <= left_s + kit.WAIT_S
            assert said.headers["x-should-retry"] == "false"


def test_BUD_19_wall_clock_is_seconds_since_the_first_request(tmp_path: Path) -> None:
    budget = {"name": "cap", "scope": "turn", "limits": {"wall_clock": "1s"}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        began = time.monotonic()
        body = kit.request("go")
        said = proxy.post("/v1/messages", body, x_calls="1")
        while said.status == 200:
            assert time.monotonic() - began < kit.WAIT_S
            body = kit.grown(body, said.json)
            said = proxy.post("/v1/messages", body, x_calls="1")
        assert time.monotonic() - began >= 1.0
        assert (said.fields["dimension"], said.fields["limit"]) == ("wall_clock", 1)
        assert 1 < said.fields["used"] < kit.WAIT_S
        assert proxy.told("topup", "cap", "--add", "1h")["limit"] == 3601
        assert proxy.post("/v1/messages", body).status == 200
        assert proxy.told("turns")[0]["cause"] == "completed"


def test_BUD_18_after_a_top_up_the_same_request_goes_on(tmp_path: Path) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 3, "spend_usd": 5}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        said, body = loop(proxy, kit.request("go"), 5)
        turn = said.fields["subject"]
        assert proxy.post("/v1/messages", body).status == 402  # still
        grown = proxy.told("topup", "turn", "--subject", turn, "--add", "1", "--dimension", "steps")
        assert (grown["limit"], grown["used"]) == (4, 3)
        assert proxy.post("/v1/messages", body).status == 200
        (told,) = proxy.told("turns")
        assert (told["id"], told["cause"], len(told["steps"])) == (turn, "completed", 4)
        (steps,) = [one for one in proxy.idle() if one["dimension"] == "steps"]
        assert (steps["used"], steps["limit"]) == (4, 4)


def test_equal_runs_with_other_call_ids_are_each_refused_in_their_own_turn(tmp_path: Path) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 3}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        runs = []
        for run in ("one", "two"):
            model.asked.clear()  # its words are counted anew
            body = kit.request("go")
            said = proxy.post("/v1/messages", body, x_calls="1", x_run=run)
            for _ in range(3):
                body = kit.grown(body, said.json)
                body["messages"][-1]["content"][0]["content"] = "done"
                said = proxy.post("/v1/messages", body, x_calls="1", x_run=run)
            assert said.status == 402
            runs.append((said.fields["subject"], body))
        (one, _), (two, body) = runs
        assert one != two
        grown = proxy.told("topup", "turn", "--subject", two, "--add", "1", "--dimension", "steps")
        assert (grown["limit"], grown["used"]) == (4, 3)
        assert proxy.post("/v1/messages", body).status == 200
        told = {turn["id"]: (turn["cause"], len(turn["steps"])) for turn in proxy.told("turns")}
        assert told == {one: ("steps", 3), two: ("completed", 4)}


def test_BUD_16_a_sub_agents_steps_are_its_root_turns(tmp_path: Path) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 3}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        session = {"x_claude_code_session_id": "s-1", "user_agent": "claude-cli/2.1.0 (external, cli)"}
        main = kit.request("go")
        first = proxy.post("/v1/messages", main, x_calls="1", **session)
        assert first.status == 200
        child = kit.request("sub-task", tools=[{"name": "Bash", "input_schema": {"type": "object"}}])
        agent = {**session, "x_claude_code_agent_id": "agent-7"}
        for _ in range(2):
            said = proxy.post("/v1/messages", child, x_calls="1", **agent)
            assert said.status == 200
            child = kit.grown(child, said.json)
        refused = proxy.post("/v1/messages", child, **agent)
        assert (refused.status, refused.fields["used"]) == (402, 3)
        again = proxy.post("/v1/messages", kit.grown(main, first.json), **session)
        assert (again.status, again.fields["subject"]) == (402, refused.fields["subject"])


def test_a_pace_waits_for_the_next_minute_or_says_when_it_comes(tmp_path: Path) -> None:
    budget = {"name": "pace", "scope": "key", "limits": {"requests_per_minute": 2}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        pause = 60 - time.time() % 60
        if pause < 15:  # so near to the next minute it would wait, and rightly
            kit.wait_s(pause)
        assert [proxy.ask(f"q {n}").status for n in range(2)] == [200, 200]
        said = proxy.ask("q 3")
        assert said.status == 429
        assert 1 <= int(said.headers["retry-after"]) <= 61
        assert "x-should-retry" not in said.headers
        assert said.json["error"]["type"] == "rate_limit_error"
        assert proxy.told("turns")[0]["open"]


def test_a_message_is_a_whole_reply_in_the_clients_format(tmp_path: Path) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 1}, "on_exhausted": "message"}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        body = kit.request("go")
        body = kit.grown(body, proxy.post("/v1/messages", body, x_calls="1").json)
        said = proxy.post("/v1/messages", body)
        assert said.status == 200
        assert said.json["stop_reason"] == "end_turn"
        assert "budget 'turn'" in said.json["content"][0]["text"]
        assert len(model.asked) == 1
        assert proxy.told("turns")[0]["cause"] == "steps"


@pytest.mark.parametrize("settings", [{"mode": "observe"}, {}])
def test_who_only_observes_is_told_what_would_have_been_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    reached = {} if settings else {"on_exhausted": "warn"}
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 1}, "alert_at": [1.0], **reached}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget], **settings) as proxy:
        assert [line for line in proxy.says if line.startswith("observed: budget turn")]
        body = kit.request("go")
        for _ in range(3):
            said = proxy.post("/v1/messages", body, x_calls="1")
            assert said.status == 200
            body = kit.grown(body, said.json)
        (counter,) = proxy.idle()
        assert (counter["used"], counter["limit"]) == (3, 1)
        assert kit.recorded(proxy.data, "intervention")[0]["kind"] == "would_deny"
        assert kit.recorded(proxy.data, "budget/alert")[0]["share"] == 1.0
        assert len(proxy.log_lines("would refuse")) == 1
        assert len(proxy.log_lines("has reached 100 %")) == 1


def test_alerts_come_once_per_share_and_hard_at_moves_the_stop(tmp_path: Path) -> None:
    budget = {
        "name": "customer", "scope": "label:customer", "window": "day", "limits": {"steps": 10},
        "alert_at": [0.5, 1.0, 1.5], "hard_at": 2.0,
    }  # fmt: skip
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        said = [proxy.ask(f"q {n}", x_looptap_label_customer="c7").status for n in range(21)]
        assert said == [*[200] * 20, 402]
        assert proxy.ask("other", x_looptap_label_customer="c8").status == 200
        proxy.idle()
        shares = [event["share"] for event in kit.recorded(proxy.data, "budget/alert", 3)]
        assert shares == [0.5, 1.0, 1.5]


def test_ERR_01_a_storm_of_refusals_is_one_line_of_log(tmp_path: Path) -> None:
    budget = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        assert proxy.ask("first").status == 200
        assert {proxy.ask(f"q {number}").status for number in range(200)} == {402}
        assert len(model.asked) == 1
        assert len(proxy.log_lines("refused: ")) == 1
        assert len(kit.recorded(proxy.data, "budget/exhausted")) == 1
