"""Where the collector is: settings before variables, the signal's own variable before the general one."""

import pytest

import exporters
from exporters.otel.link import read_link, resource
from exporters.otel.wanted import Unusable, Wanted


def test_without_a_word_it_is_the_usual_place() -> None:
    doors = read_link(environ={}).doors
    assert {signal: door.endpoint for signal, door in doors.items()} == {
        signal: f"http://localhost:4318/v1/{signal}" for signal in ("traces", "logs", "metrics")
    }
    assert read_link(protocol="grpc", environ={}).doors["traces"].endpoint == "http://localhost:4317"


def test_variables_are_honoured_the_signals_own_first() -> None:
    doors = read_link(
        environ={
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example:1/base/",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs.example/as/it/is",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-a=1,x-b=two%20words",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-a=3",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "7",
            "OTEL_METRICS_EXPORTER": "none",
        }
    ).doors
    assert set(doors) == {"traces", "logs"}
    assert doors["traces"].endpoint == "https://c.example:1/base/v1/traces"
    assert doors["logs"].endpoint == "http://logs.example/as/it/is"
    assert (doors["traces"].headers, doors["logs"].headers) == (
        {"x-a": "3"},
        {"x-a": "1", "x-b": "two words"},
    )
    assert doors["traces"].timeout_s == 7.0


def test_the_settings_win_over_variables() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other.example",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://third.example/v1/traces",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-a=1,x-b=2",
    }
    link = read_link("http://mine.example:4318", "http/protobuf", {"X-A": "9"}, environ=environ)
    door = link.doors["traces"]
    assert (door.endpoint, door.protocol) == ("http://mine.example:4318/v1/traces", "http/protobuf")
    assert door.headers == {"x-a": "9", "x-b": "2"}
    assert "9" not in repr(door)


def test_people_read_where_to_without_credentials() -> None:
    doors = read_link(
        "http://me:secret@c.example:4318/otlp?key=secret",
        environ={"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs.example/in?key=secret"},
    ).doors
    assert {door.address for door in doors.values()} == {"http://c.example:4318"}
    own = read_link(environ={"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs.example/in?key=secret"}).doors
    assert own["logs"].address == "http://logs.example"


def test_the_sdk_can_be_switched_off() -> None:
    assert read_link("http://c.example", environ={"OTEL_SDK_DISABLED": "true"}).doors == {}
    assert read_link("http://c.example", environ={"OTEL_SDK_DISABLED": ""}).doors


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"),
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG"),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], name: str) -> None:
    with pytest.raises(Unusable, match=name):
        read_link(environ=environ)


WRONG = {
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c.example:port/s3cret",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a,authorization: s3cret",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "authorization=s3cret%0Ax-evil:1",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "s3cret",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/s3cret.pem",
    "OTEL_BSP_MAX_QUEUE_SIZE": "many",
    "OTEL_TRACES_SAMPLER": "s3cret",
    "OTEL_RESOURCE_ATTRIBUTES": "a=b,s3cret",
    "OTEL_METRIC_EXPORT_INTERVAL": "1m",
}


def test_all_that_is_wrong_is_told_at_once_and_none_of_what_it_holds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = exporters.otlp_problems(Wanted(), WRONG)
    assert sorted(one.name for one in told) == sorted(WRONG)
    assert "s3cret" not in "".join(map(str, told)) + "".join(capfd.readouterr())
    assert str(next(one for one in told if one.name == "OTEL_EXPORTER_OTLP_HEADERS")) == (
        "OTEL_EXPORTER_OTLP_HEADERS: entry 2 cannot be used "
        "(name=value,name=value; write what else stands in a value as %XX)"
    )
    assert exporters.otlp_problems(Wanted(), {"OTEL_SDK_DISABLED": "true", **WRONG}) == []


def test_the_queue_may_be_sized() -> None:
    sized = read_link(environ={"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "512"})
    assert (sized.most, sized.batch) == (100, 100)
    usual = read_link(environ={})
    assert (usual.most, usual.batch) == (8_192, 128)


def test_samplers() -> None:
    def ratio(name: str, arg: str = "") -> float:
        return read_link(environ={"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": arg}).ratio

    assert [ratio("parentbased_always_on"), ratio("always_off"), ratio("traceidratio", "0.25")] == [
        1,
        0,
        0.25,
    ]


def test_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = resource(read_link(environ={})).attributes
    assert ours["service.name"] == "looptap"
    assert {"service.version", "service.instance.id", "host.name", "telemetry.sdk.version"} <= set(ours)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,host.name=there")
    told = resource(read_link(environ={})).attributes
    assert (told["service.name"], told["deployment.environment.name"], told["host.name"]) == (
        "theirs", "test", "there",
    )  # fmt: skip
    assert resource(read_link(service_name="mine", environ={})).attributes["service.name"] == "mine"
