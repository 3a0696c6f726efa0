"""One ledger under several proxies: caps hold over all of them, and while it is away nothing passes."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import kit
from tests.stores.ledger.kit import RedisServer

pytestmark = pytest.mark.real

FLAT = [{"model": "acme-*", "input": 0, "output": 1000}]


def settings(redis: RedisServer, **ledger: Any) -> dict[str, Any]:
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 3}}
    return {"prices": FLAT, "budgets": [budget], "ledger": {"url": redis.url, **ledger}}


@pytest.mark.parametrize("lease", [None, "0.1"])
def test_BUD_10_three_instances_admit_together_what_one_would(
    tmp_path: Path, redis: RedisServer, lease: str | None
) -> None:
    given = settings(redis, **({"lease": lease} if lease else {}))
    with kit.model() as model, ExitStack() as stack:
        proxies = [stack.enter_context(kit.serve(tmp_path / name, model, **given)) for name in "abc"]
        model.gate.clear()
        with ThreadPoolExecutor(60) as pool:
            running = [
                pool.submit(proxies[n % 3].post, "/v1/messages", kit.request(f"q {n}", max_tokens=300))
                for n in range(60)
            ]
            kit.eventually(lambda: sum(one.done() for one in running) >= 50, "fifty were to be refused")
            assert len(model.asked) <= 10
            assert lease or len(model.asked) == 10
            model.gate.set()
            admitted = sum(one.result().status == 200 for one in running)
        assert admitted == len(model.asked)
        assert proxies[0].looptap("stop", "unnamed").returncode == 0
        kit.eventually(lambda: proxies[2].ask("x").status == 402, "a stop reaches every instance")


def test_BUD_05_while_the_ledger_is_away_requests_are_refused_for_that(
    tmp_path: Path, redis: RedisServer
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, **settings(redis)) as proxy:
        assert proxy.ask("one").status == 200
        redis.kill()
        said = proxy.ask("two")
        assert (said.status, said.fields["code"]) == (402, "looptap_ledger_away")
        assert "ledger" in said.json["error"]["message"]
        redis.start()
        kit.eventually(lambda: proxy.ask("three").status == 200, "it goes on once the ledger is back")


def test_BUD_05_open_lets_them_through_and_charges_them_later(tmp_path: Path, redis: RedisServer) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, **settings(redis, away="open")) as proxy:
        assert proxy.ask("one").status == 200
        redis.kill()
        assert [proxy.ask(f"q {n}").status for n in range(5)] == [200] * 5
        redis.start()

        def all_charged() -> bool:
            return any(one["used"] == "0.06" for one in proxy.told("budgets"))

        kit.eventually(all_charged, "six requests of a cent each were to be charged")


def test_BUD_04_settlements_that_the_ledger_missed_all_land_and_the_limit_bites_at_the_right_request(
    tmp_path: Path, redis: RedisServer
) -> None:
    budget = {"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": "0.6"}}
    given = {**settings(redis), "budgets": [budget]}
    with kit.model() as model, kit.serve(tmp_path, model, **given) as proxy:
        model.gate.clear()
        with ThreadPoolExecutor(50) as pool:
            running = [
                pool.submit(proxy.post, "/v1/messages", kit.request(f"q {n}", max_tokens=10))
                for n in range(50)
            ]
            kit.eventually(lambda: len(model.asked) == 50, "all fifty were to be on their way")
            redis.kill()
            model.gate.set()
            assert [one.result().status for one in running] == [200] * 50
        redis.start()
        kit.eventually(
            lambda: [one["used"] for one in proxy.budgets(name="key")] == ["0.5"],
            "all fifty were to be charged",
        )
        (counter,) = proxy.idle()
        assert (counter["used"], counter["reserved"]) == ("0.5", "0")
        said = [proxy.post("/v1/messages", kit.request(f"r {n}", max_tokens=10)).status for n in range(12)]
        assert said == [*[200] * 10, 402, 402]


def test_a_turn_gets_one_last_step_whichever_instance_its_requests_come_to(
    tmp_path: Path, redis: RedisServer
) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 3}, "on_exhausted": "land"}
    given = {**settings(redis), "budgets": [budget]}
    with kit.model() as model, ExitStack() as stack:
        one, other = (stack.enter_context(kit.serve(tmp_path / name, model, **given)) for name in "ab")
        body = kit.request("go", tools=[{"name": "Bash"}])
        for proxy in (one, other):
            said = proxy.post("/v1/messages", body, x_calls="1")
            body = kit.grown(body, said.json)
        assert one.post("/v1/messages", body, x_ending="529").status == 529
        assert b"This is the last step" in model.asked[-1]["body"]
        said = other.post("/v1/messages", body, x_calls="1")
        assert said.status == 200
        assert model.asked[-1]["body"] == model.asked[-2]["body"]
        for proxy in (one, other):
            refused = proxy.post("/v1/messages", kit.grown(body, said.json))
            assert refused.status == 402
            assert "this turn was given its last step" in refused.json["error"]["message"]
        (counter,) = one.idle()
        assert (counter["dimension"], counter["used"], counter["limit"]) == ("steps", 3, 3)
