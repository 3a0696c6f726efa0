"""Caps hold: in parallel, whatever way exchanges end, through a crash, and whatever is not known."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import kit

FLAT = [{"model": "acme-*", "input": 0, "output": 1000}]
"""Only output costs, so that a hold is exactly max_tokens × 0.001 USD."""


def test_BUD_01_of_parallel_requests_only_those_that_fit_go_out(tmp_path: Path) -> None:
    turn = {"name": "turn", "scope": "turn", "limits": {"spend_usd": 1}}
    with kit.model() as model, kit.serve(tmp_path, model, prices=FLAT, budgets=[turn]) as proxy:
        body = kit.request("begin", max_tokens=500)
        answer = proxy.post("/v1/messages", body, x_calls="1").json
        used = proxy.idle()[0]["used"]
        assert used == "0.01"  # ten tokens of output
        topup = proxy.told("topup", "turn", "--add", "0.00000001")
        assert topup["limit"] == "1.00000001"
        next_body = {**kit.grown(body, answer), "max_tokens": 490}
        model.gate.clear()
        before = len(model.asked)
        barrier = threading.Barrier(8)

        def ask(number: int) -> kit.Said:
            barrier.wait(kit.WAIT_S)
            return proxy.post("/v1/messages", {**next_body, "metadata": {"user_id": str(number)}})

        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(ask, number) for number in range(8)]
            kit.eventually(lambda: sum(one.done() for one in running) == 6, "six were to be refused at once")
            (counter,) = proxy.budgets(name="turn")
            assert (counter["used"], counter["reserved"]) == ("0.01", "0.98")
            assert len(model.asked) - before == 2
            model.gate.set()
            said = [one.result() for one in running]
        assert sorted(one.status for one in said) == [200, 200, *[402] * 6]
        (counter,) = proxy.idle()
        assert (counter["used"], counter["reserved"]) == ("0.03", "0")


ENDINGS = (
    "plain", "stream", "cut", "reset", "400", "429", "500", "nobody", "refused", "gone", "gone-streaming",
)  # fmt: skip


def test_BUD_02_nothing_stays_held_however_exchanges_end(tmp_path: Path) -> None:
    budgets = [
        {
            "name": "key",
            "scope": "key",
            "window": "day",
            "limits": {"spend_usd": 1000, "total_tokens": 10**9},
        },
        {"name": "turn", "scope": "turn", "limits": {"steps": 5, "spend_usd": 5}},
        {"name": "dear", "scope": "step", "limits": {"output_tokens": 5_000}},
    ]
    chosen = random.Random(2).choices(ENDINGS, k=500)
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets) as proxy:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda pair: _end(proxy, *pair), enumerate(chosen)))
        counters = [one for one in proxy.idle() if one["name"] == "key"]
        (spend,) = [one for one in counters if one["dimension"] == "spend_usd"]
        booked = _booked(proxy)
        assert float(spend["used"]) == pytest.approx(sum(booked), abs=1e-9)
        assert len(booked) == 500


def _end(proxy: kit.Served, number: int, ending: str) -> None:
    streams = ending in ("stream", "cut", "gone-streaming")
    body = kit.request(f"question {number}", stream=streams, max_tokens=9_000 if ending == "refused" else 100)
    if not ending.startswith("gone"):
        path = "/nobody/v1/messages" if ending == "nobody" else "/v1/messages"
        try:
            said = proxy.post(path, body, x_ending="plain" if ending in ("nobody", "refused") else ending)
            assert said.status == {"nobody": 502, "refused": 402}.get(ending, said.status)
        except (OSError, kit.http.client.HTTPException):
            assert ending in ("cut", "reset")
        return
    kit.leave(proxy.port, body, "slow" if ending == "gone-streaming" else "plain")


def _booked(proxy: kit.Served) -> list[float]:
    events = kit.recorded(proxy.data, "step/attempt", 500)
    return [float(event["cost_usd"]) for event in events]


@pytest.mark.real
def test_BUD_02_a_killed_proxys_holds_end_with_their_lease_and_count_as_assumed(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 10}}]
    settings: dict[str, Any] = {"prices": FLAT, "budgets": budgets, "ledger": {"ttl": "5s"}}
    with kit.model() as model:
        config = kit.write_config(tmp_path, model.url, settings)
        proxy = kit.start(tmp_path, config)
        try:
            model.gate.clear()
            with ThreadPoolExecutor(20) as pool:
                running = [
                    pool.submit(proxy.post, "/v1/messages", kit.request(f"q {number}", max_tokens=10))
                    for number in range(20)
                ]
                kit.eventually(lambda: len(model.asked) == 20, "all were to be on their way")
                (counter,) = proxy.budgets(name="key")
                assert (counter["used"], counter["reserved"]) == ("0", "0.2")
                proxy.process.kill()
                assert all(one.exception(kit.WAIT_S) is not None for one in running)
        finally:
            kit.stop(proxy)
        again = kit.start(tmp_path, config)
        try:
            (counter,) = [one for one in again.idle() if one["name"] == "key"]
            assert (counter["used"], counter["reserved"]) == ("0.2", "0")
        finally:
            kit.stop(again)


def test_COST_10_an_unknown_price_is_refused_under_a_cap(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 5}}]
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets) as proxy:
        said = proxy.post("/v1/messages", kit.request(model="nobody-knows-1"))
        assert (said.status, said.fields["code"], said.fields["budget"]) == (402, "looptap_unpriced", "key")
        assert "nobody-knows-1" in said.json["error"]["message"]
        assert not model.asked
        assert proxy.ask().status == 200


def test_COST_10_an_unknown_price_is_held_at_a_ceiling_where_one_is_set(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": "2.5"}}]
    unmodelled = {"hold_usd": 1}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets, unmodelled=unmodelled) as proxy:
        said = [proxy.post("/v1/messages", kit.request(f"q {n}", model="nobody-knows-1")) for n in range(3)]
        assert [one.status for one in said] == [200, 200, 402]
        (counter,) = proxy.idle()
        assert counter["used"] == "2"  # what was held stays charged: never 0


def test_COST_10_an_unknown_price_may_pass_where_that_is_said(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 1}}]
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets, unmodelled="pass") as proxy:
        assert proxy.post("/v1/messages", kit.request(model="nobody-knows-1")).status == 200
        assert proxy.post("/v1/embeddings", {"input": "x"}).status == 200


def test_BUD_11_counting_is_free_and_unread_paths_are_no_way_round(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": "0.002"}}]
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets) as proxy:
        said = [proxy.ask(f"q {number}") for number in range(10)]
        assert said[0].status == 200
        assert said[-1].status == 402  # the key is over its limit
        asked = len(model.asked)
        billable = {
            "/v1/messages": 402, "/v1/chat/completions": 400, "/v1/messages/batches": 402,
            "/openai/v1/embeddings": 400, "/openai/v1/images/generations": 400,
            "/anthropic/v1/something/new": 402,
        }  # fmt: skip
        for path, status in billable.items():
            refused = proxy.post(path, kit.request("more"))
            assert (path, refused.status) == (path, status)
            assert "x-looptap-refused" in refused.headers
        assert len(model.asked) == asked
        for path in ("/v1/messages/count_tokens", "/openai/v1/files", "/openai/v1/moderations"):
            assert (path, proxy.post(path, kit.request("more")).status) == (path, 200)


def test_ERR_07_a_request_without_a_limit_holds_the_models_own(tmp_path: Path) -> None:
    budgets = [{"name": "key", "scope": "key", "window": "day", "limits": {"spend_usd": 1}}]
    with kit.model() as model, kit.serve(tmp_path, model, prices=FLAT, budgets=budgets) as proxy:
        body = {"model": "acme-1", "messages": [{"role": "user", "content": "hi"}]}
        said = proxy.post("/openai/v1/chat/completions", body)
        assert (said.status, said.fields["needed"]) == (400, "128")
        assert not model.asked


def test_a_clamp_lowers_the_output_to_what_is_left(tmp_path: Path) -> None:
    budgets = [
        {"name": "key", "scope": "key", "window": "day", "limits": {"output_tokens": 2000}, "clamp": True}
    ]
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets) as proxy:
        said = proxy.post("/v1/messages", kit.request("long", max_tokens=9000))
        assert said.status == 200
        assert kit.json.loads(model.asked[-1]["body"])["max_tokens"] == 2000
        model_saw = kit.json.loads(proxy.recorded_request())
        assert model_saw["max_tokens"] == 2000
        for _ in range(98):
            assert proxy.ask().status == 200
        assert proxy.post("/v1/messages", kit.request("long", max_tokens=9000)).status == 402
