"""A client that asks the same again and again after a refusal: one line, few records, the ledger's word."""

from pathlib import Path

import pytest

from proxy.record import Reader, RecordMissing
from tests.budgets import kit

pytestmark = pytest.mark.real  # many processes: too long for every run

ONE = {"name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}}
TURN = {"name": "turn", "scope": "turn", "limits": {"steps": 1}}
MANY = 60


def refused_attempts(data: Path) -> int:
    return sum(told["outcome"] == "refused" for told in kit.events(data, "step/attempt"))


def refused_exchanges(data: Path) -> int:
    """How many the record knows; none where it has not been begun."""
    try:
        with Reader(data) as reader:
            return sum(one.end == "refused" for one in reader.exchanges())
    except RecordMissing:
        return 0


def test_a_storm_of_one_request_is_one_line_and_few_records_until_a_topup_lets_it_through(
    tmp_path: Path,
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[ONE]) as proxy:
        assert proxy.ask("first").status == 200
        said = [proxy.ask("again", x_stainless_retry_count=str(n)) for n in range(MANY)]
        assert {one.status for one in said} == {402}
        assert {str(one.fields) for one in said} == {str(said[0].fields)}
        assert {one.json["error"]["message"] for one in said} == {said[0].json["error"]["message"]}
        assert len({one.headers["request-id"] for one in said}) == MANY
        assert len(proxy.log_lines("refused: budget 'key'")) == 1
        assert len(model.asked) == 1
        done = proxy.looptap("topup", "key", "--subject", "unnamed", "--add", "1", "--dimension", "steps")
        assert done.returncode == 0, done.stderr
        assert proxy.ask("again").status == 200
        late = proxy.ask("again")
        assert (late.status, late.fields["used"], late.fields["limit"]) == (402, 2, 2)
        assert proxy.looptap("stop", "unnamed").returncode == 0
        kit.eventually(
            lambda: proxy.ask("again").fields["code"] == "looptap_stopped",
            "a stop is told at the next request",
        )
        (counter,) = proxy.budgets(name="key")
        assert (counter["used"], counter["reserved"]) == (2, 0)
        kit.eventually(lambda: refused_attempts(proxy.data) >= 5, "the first of them are recorded")
        assert refused_attempts(proxy.data) < 20
        assert refused_exchanges(proxy.data) < 20


def test_the_next_step_of_a_refused_turn_is_no_repetition(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[TURN]) as proxy:
        first = kit.request("first")
        answer = proxy.post("/v1/messages", first, x_calls="1")
        second = kit.grown(first, answer.json)
        said = [proxy.post("/v1/messages", second) for _ in range(20)]
        assert {one.status for one in said} == {402}
        turn = said[0].fields["subject"]
        assert (
            proxy.looptap("topup", "turn", "--subject", turn, "--add", "1", "--dimension", "steps").returncode
            == 0
        )
        assert proxy.post("/v1/messages", second).status == 200
        (told,) = proxy.told("turns")
        assert (told["id"], len(told["steps"])) == (turn, 2)


def test_new_conversations_under_a_cap_that_refuses_all_are_counted_until_it_is_raised(
    tmp_path: Path,
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[ONE]) as proxy:
        assert proxy.ask("first").status == 200
        said = [proxy.ask(f"question {n}") for n in range(MANY)]
        assert {(one.status, str(one.fields)) for one in said} == {(402, str(said[0].fields))}
        assert len(proxy.log_lines("refused: budget 'key'")) == 1
        kit.eventually(lambda: refused_exchanges(proxy.data) >= 20, "the first of them are recorded")
        assert refused_exchanges(proxy.data) <= 25
        done = proxy.looptap("topup", "key", "--subject", "unnamed", "--add", "1", "--dimension", "steps")
        assert done.returncode == 0, done.stderr
        assert [proxy.ask(f"more {n}").status for n in range(2)] == [200, 402]
        (counter,) = proxy.budgets(name="key")
        assert (counter["used"], counter["reserved"]) == (2, 0)
