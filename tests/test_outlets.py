"""Where a turn's trace is looked at: the exporter's id of it, under the pages that the settings name."""

import pytest

from exporters.otel.ids import trace_of
from proxy import outlets
from proxy.config import ConfigError, Settings

TURN = "trn_00000000000000000001"


def settings(**otlp: object) -> Settings:
    return Settings.model_validate({"exporters": {"otlp": otlp} if otlp else {}})


def test_a_turn_leads_to_its_trace() -> None:
    url = outlets.trace_url(settings(ui="http://127.0.0.1:16686/"), TURN)
    assert url == f"http://127.0.0.1:16686/trace/{trace_of(TURN):032x}"


def test_without_pages_there_is_no_link() -> None:
    assert outlets.trace_url(settings(), TURN) is None
    assert outlets.trace_url(settings(endpoint="http://127.0.0.1:4318"), TURN) is None


@pytest.mark.parametrize("wrong", ["javascript:alert(1)", "16686", "http://", 7])
def test_only_a_web_address_is_taken(wrong: object) -> None:
    with pytest.raises(ConfigError, match="ui"):
        outlets.trace_url(settings(ui=wrong), TURN)
