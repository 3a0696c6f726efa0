"""Replies made in the background: the order holds what they may cost, the fetch settles it."""

from pathlib import Path
from typing import Any

import pytest

from tests.budgets import kit

FLAT = [{"model": "acme-*", "input": 0, "output": 1000}]
"""Only output costs, so that a hold is exactly max_output_tokens × 0.001 USD."""
CAP = {"name": "day", "scope": "key", "window": "day", "limits": {"spend_usd": 1}}


def order(text: str) -> dict[str, Any]:
    return {"model": "acme-1", "input": text, "background": True, "max_output_tokens": 500}


def test_what_is_made_in_the_background_stays_held_until_it_is_fetched(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, prices=FLAT, budgets=[CAP]) as proxy:
        first = proxy.post("/v1/responses", order("one")).json
        second = proxy.post("/v1/responses", order("two")).json
        assert proxy.post("/v1/responses", order("three")).status == 400
        (counter,) = proxy.budgets(name="day")
        assert (counter["used"], counter["reserved"]) == ("0", "1")

        path = f"/v1/responses/{first['id']}?stream=false"
        assert proxy.get(path).json["status"] == "in_progress"
        model.background = "503"
        assert proxy.get(path).status == 503
        assert proxy.budgets(name="day")[0]["reserved"] == "1"

        model.background = "completed"
        assert proxy.get(path).json["output"]
        assert proxy.get(f"/v1/responses/{second['id']}").json["output"]
        (counter,) = proxy.idle()
        assert (counter["used"], counter["reserved"]) == ("0.02", "0")  # ten tokens of output each
        proxy.get(path)  # once more: a stored reply, and nothing is charged
        assert proxy.budgets(name="day")[0]["used"] == "0.02"
        turn = proxy.told("turns")[-1]
        assert len(turn["steps"][0]["exchanges"]) == 4
        assert (turn["cause"], turn["cost_usd"]) == ("completed", "0.010")
        assert turn["usage"]["output_tokens"] == 10


@pytest.mark.real
def test_what_was_ordered_before_a_restart_is_booked_where_it_was_ordered(tmp_path: Path) -> None:
    """Its hold is found again with its thread, and settled: the cap counts what the turn counts."""
    with kit.model() as model:
        with kit.serve(tmp_path, model, prices=FLAT, budgets=[CAP]) as proxy:
            first = proxy.post("/v1/responses", order("one")).json
        model.background = "completed"
        with kit.serve(tmp_path, model, prices=FLAT, budgets=[CAP]) as proxy:
            assert proxy.get(f"/v1/responses/{first['id']}").json["output"]
            kit.eventually(lambda: proxy.told("turns")[0]["cause"] == "completed", "it was to be booked")
            (turn,) = proxy.told("turns")
            assert (len(turn["steps"]), turn["cost_usd"]) == (1, "0.010")
            (counter,) = proxy.idle()
            assert (counter["used"], counter["reserved"]) == ("0.01", "0")
