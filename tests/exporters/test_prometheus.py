"""The counters behind /metrics: what they add up, and that their label sets stay bounded."""

from typing import Any

from exporters.prometheus import MAX_MODELS, PrometheusExporter
from proxy.model import Record


def attempt(**data: Any) -> Record:
    base = {"upstream": "anthropic", "model": "m", "outcome": "complete", "usage": {}, "cost_usd": None}
    return Record(1, "step/attempt", "ses_1", "thr_1", "trn_1", "stp_1", {**base, **data})


def lines(exporter: PrometheusExporter) -> dict[str, float]:
    rows = (line.rsplit(" ", 1) for line in exporter.render().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def test_attempts_tokens_and_money_add_up() -> None:
    exporter = PrometheusExporter()
    for _ in range(2):
        exporter.count(
            attempt(usage={"input_tokens": 10, "output_tokens": 3}, cost_usd="0.25", cost_quality="measured")
        )
    exporter.count(attempt(outcome="failed", cost_quality="unpriced"))
    seen = lines(exporter)
    assert seen['looptap_attempts_total{model="m",outcome="complete",upstream="anthropic"}'] == 2
    assert seen['looptap_tokens_total{kind="input",model="m"}'] == 20
    assert seen['looptap_cost_usd_total{model="m",quality="measured"}'] == 0.5
    assert seen['looptap_unpriced_attempts_total{model="m"}'] == 1


def test_OBS_07_ten_thousand_sessions_add_no_series() -> None:
    exporter = PrometheusExporter()
    for number in range(10_000):
        ids = (f"ses_{number}", f"thr_{number}", f"trn_{number}", f"stp_{number}")
        exporter.count(Record(1, "turn/end", *ids, {"cause": "completed"}))
        exporter.count(Record(1, "step/start", *ids, {"model": "m"}))
    turns = [name for name in lines(exporter) if name.startswith("looptap_turns_total")]
    assert turns == ['looptap_turns_total{cause="completed"}']


def test_models_beyond_the_bound_count_as_other() -> None:
    exporter = PrometheusExporter()
    for number in range(MAX_MODELS + 50):
        exporter.count(Record(1, "step/start", data={"model": f"model-{number}"}))
    seen = lines(exporter)
    assert len([name for name in seen if name.startswith("looptap_steps_total")]) == MAX_MODELS + 1
    assert seen['looptap_steps_total{model="other"}'] == 50


def test_first_output_is_measured_from_the_requests_arrival() -> None:
    exporter = PrometheusExporter()
    exporter.count(attempt(arrived_ns=0, first_output_ns=1_500_000_000, ended_ns=3_000_000_000))
    seen = lines(exporter)
    assert seen['looptap_time_to_first_output_seconds_sum{model="m"}'] == 1.5
    assert seen['looptap_attempt_duration_seconds_bucket{le="4.0",model="m"}'] == 1


def test_live_readings_are_read_at_scrape_time() -> None:
    now = {"open_streams": 1.0, "record_dropped_bodies_total": 0.0}
    exporter = PrometheusExporter(lambda: now)
    now["open_streams"] = 7
    seen = lines(exporter)
    assert seen["looptap_open_streams"] == 7
    assert seen["looptap_record_dropped_bodies_total"] == 0
