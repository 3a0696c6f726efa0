"""The counters behind /metrics: what they add up, and that their label sets stay bounded."""

from typing import Any

from exporters.prometheus import MAX_MODELS, PrometheusExporter
from proxy.model import Record
from proxy.ports import Reading, Spread


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
    before: list[str] = []
    for number in range(10_000):
        ids = (f"ses_{number}", f"thr_{number}", f"trn_{number}", f"stp_{number}")
        exporter.count(Record(1, "session/start", ids[0], data={"key": f"key-{number}"}))
        exporter.count(Record(1, "thread/start", *ids[:2], data={"kind": "main", "agent": f"a{number}"}))
        exporter.count(Record(1, "step/start", *ids, {"model": "m"}))
        exporter.count(attempt(exchange=f"exc_{number}", response_id=f"msg_{number}", status=200))
        told = {
            "policy": "tools",
            "kind": "denied",
            "severity": "warning",
            "evidence": {"tool": f"t{number}"},
        }
        exporter.count(Record(1, "finding", *ids, told))
        exporter.count(
            Record(1, "intervention", *ids, {"policy": "budgets", "kind": "deny", "subject": ids[2]})
        )
        exporter.count(Record(1, "budget/alert", *ids, {"budget": "turn", "subject": ids[2]}))
        exporter.count(Record(1, "turn/end", *ids, {"cause": "completed"}))
        if number == 0:
            before = sorted(lines(exporter))
    assert sorted(lines(exporter)) == before


def test_models_beyond_the_bound_count_as_other() -> None:
    exporter = PrometheusExporter()
    for number in range(MAX_MODELS + 50):
        exporter.count(Record(1, "step/start", data={"model": f"model-{number}"}))
    seen = lines(exporter)
    assert len([name for name in seen if name.startswith("looptap_steps_total")]) == MAX_MODELS + 1
    assert seen['looptap_steps_total{model="other"}'] == 50


def test_the_wait_for_an_operator_is_no_time_of_the_model() -> None:
    exporter = PrometheusExporter()
    times = {"arrived_ns": 0, "first_output_ns": 10_500_000_000, "ended_ns": 12_000_000_000}
    exporter.count(attempt(**times, waited_ns=9_000_000_000))
    seen = lines(exporter)
    assert seen['looptap_time_to_first_output_seconds_sum{model="m"}'] == 1.5
    assert seen['looptap_attempt_duration_seconds_sum{model="m"}'] == 3


def test_first_output_is_measured_from_the_requests_arrival() -> None:
    exporter = PrometheusExporter()
    exporter.count(attempt(arrived_ns=0, first_output_ns=1_500_000_000, ended_ns=3_000_000_000))
    seen = lines(exporter)
    assert seen['looptap_time_to_first_output_seconds_sum{model="m"}'] == 1.5
    assert seen['looptap_attempt_duration_seconds_bucket{le="4.0",model="m"}'] == 1


def test_predictions_are_counted_by_what_the_provider_did() -> None:
    exporter = PrometheusExporter()
    said = {"policy": "thinking", "kind": "dropped", "severity": "violation", "consequence": "hard"}
    for number in range(3):
        exporter.count(Record(1, "finding", "s", "h", "t", "p", {**said, "exchange": f"e{number}"}))
        exporter.count(attempt(exchange=f"e{number}", outcome="failed" if number else "complete"))
    reported = {"policy": "thinking", "kind": "reported", "severity": "info", "exchange": "e1"}
    exporter.count(Record(1, "finding", data={**reported, "evidence": {"verdict": "agreed"}}))
    seen = lines(exporter)
    assert seen['looptap_predictions_total{policy="thinking",verdict="unconfirmed"}'] == 1
    assert seen['looptap_predictions_total{policy="thinking",verdict="agreed"}'] == 1


def test_live_readings_are_read_at_scrape_time() -> None:
    now: list[Reading | Spread] = [Reading("open_streams", "Open.", [((), 1.0)])]
    exporter = PrometheusExporter(lambda: now)
    now[:] = [
        Reading("open_streams", "Open.", [((), 7.0)]),
        Reading("export_dropped_total", "Lost.", [(("otlp",), 2.0)], ("exporter",)),
        Spread("added_seconds", "Added.", (0.1, 1.0), [(("chunk",), (2, 1, 1), 3.5)], ("phase",)),
    ]
    seen = lines(exporter)
    assert seen["looptap_open_streams"] == 7
    assert seen['looptap_export_dropped_total{exporter="otlp"}'] == 2
    assert seen['looptap_added_seconds_bucket{le="1.0",phase="chunk"}'] == 3
    assert seen['looptap_added_seconds_bucket{le="+Inf",phase="chunk"}'] == 4
    assert seen['looptap_added_seconds_sum{phase="chunk"}'] == 3.5


def test_what_upstreams_answered_is_told_by_class_and_too_many_requests_apart() -> None:
    exporter = PrometheusExporter()
    for status in (200, 201, 400, 429, 529, None):
        exporter.count(attempt(status=status))
    told = {
        name: count for name, count in lines(exporter).items() if name.startswith("looptap_answers_total")
    }
    assert {name.split('status="')[1][:3]: count for name, count in told.items()} == {
        "2xx": 2, "4xx": 1, "429": 1, "5xx": 1, "non": 1,
    }  # fmt: skip


def test_the_steps_of_a_turn_are_spread_by_its_cause() -> None:
    exporter = PrometheusExporter()
    exporter.count(Record(1, "turn/end", data={"cause": "completed", "steps": 3}))
    exporter.count(Record(1, "turn/end", data={"cause": "steps", "steps": 60}))
    seen = lines(exporter)
    assert seen['looptap_turn_steps_bucket{cause="completed",le="4.0"}'] == 1
    assert seen['looptap_turn_steps_sum{cause="steps"}'] == 60
