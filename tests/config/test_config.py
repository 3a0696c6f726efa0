"""The configuration: design's example means what it says, and every mistake is told with its place."""

import json
from decimal import Decimal
from pathlib import Path
from textwrap import dedent

import pytest
from pydantic import BaseModel, ConfigDict

from proxy import rulebook
from proxy.config import (
    BUILT_IN,
    Address,
    ConfigError,
    Duration,
    HoldUsd,
    OtlpSettings,
    Overrides,
    Problem,
    Settings,
    explain,
    exporter_options,
    load,
    policy_options,
    reload,
    schema,
    upstreams,
)

MINUTE = 60 * 10**9

DEFAULTS = """
mode: enforce
upstreams: {}
default_upstream: null
on_abort: cancel
on_internal_error: open
unmodelled: refuse
response_headers: false
store: {path: ~/.local/share/looptap, record: full, keep: 30d, max_size: 5GB}
ledger: {url: null, away: closed, ttl: 15m}
idle_after: 30m
budgets: []
policies: {}
prices: []
teams: {}
keys: []
exporters: {}
limits: {max_buffered: 512MB, body_cache: 256MB, decoded: 128MB}
"""

BUDGETS = """
budgets:
  - {name: turn, scope: turn, limits: {steps: 60, spend_usd: 5, wall_clock: 30m}}
  - {name: thread-day, scope: thread, window: day, limits: {steps: 500}}
  - {name: org-month, scope: org, window: month, limits: {spend_usd: 5000}, alert_at: [0.8, 1.0]}
  - name: customer
    scope: "label:customer"
    window: day
    limits: {spend_usd: 20}
    alert_at: [1.0]
    hard_at: 2.0
prices:
  - {model: "acme-*", input: 3, output: 15, cache_read: 0.3, cache_write: 3.75, cache_write_1h: 6}
"""


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str | bytes) -> Path:
        path = tmp_path / "looptap.yaml"
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return path

    return _write


NO_OPTIONS = Overrides()


def problems(
    path: Path, overrides: Overrides = NO_OPTIONS, environ: dict[str, str] | None = None
) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environ or {})
    return caught.value.problems


def one(path: Path, environ: dict[str, str] | None = None) -> Problem:
    found = problems(path, environ=environ)
    assert len(found) == 1, [str(p) for p in found]
    return found[0]


# -- what is right


def test_the_written_defaults_are_the_built_in_ones(write) -> None:
    assert load(write(DEFAULTS), environ={}).model_dump() == load(environ={}).model_dump()


def test_the_contracts_budgets_and_prices(write) -> None:
    settings = load(write(BUDGETS), environ={})
    turn, thread_day, _, customer = settings.budgets
    assert (turn.limits.steps, turn.limits.spend_usd, turn.limits.wall_clock) == (
        60,
        5,
        Duration(30 * MINUTE),
    )
    assert (turn.window, turn.hard_at, turn.on_exhausted, turn.clamp) == (None, 1, "deny", False)
    assert thread_day.window == "day"
    assert customer.scope == "label:customer"
    assert customer.hard_at == 2
    price = settings.prices[0]
    assert (price.cache_read, price.cache_write, price.cache_write_1h) == (Decimal("0.3"), Decimal("3.75"), 6)


def test_money_is_exact_whether_number_or_text(write) -> None:
    text = """
    budgets:
      - {name: a, scope: turn, limits: {spend_usd: 0.123456789}}
      - {name: b, scope: turn, limits: {spend_usd: "0.1"}}
      - {name: c, scope: turn, limits: {spend_usd: 1e-3}}
    """
    found = [budget.limits.spend_usd for budget in load(write(text), environ={}).budgets]
    assert found == [Decimal("0.123456789"), Decimal("0.1"), Decimal("0.001")]
    assert all(isinstance(amount, Decimal) for amount in found)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("30s", 30 * 10**9),
        ("5m", 5 * MINUTE),
        ("2h", 120 * MINUTE),
        ("1d", 1440 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1.5h", 90 * MINUTE),
    ],
)  # fmt: skip
def test_durations(write, text: str, ns: int) -> None:
    assert load(write(f"idle_after: {text}"), environ={}).idle_after.ns == ns


def test_durations_print_as_written() -> None:
    assert [str(Duration.parse(text)) for text in ("30s", "5m", "2h", "1d", "1500ms")] == [
        "30s",
        "5m",
        "2h",
        "1d",
        "1500ms",
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("512MB", 512 * 10**6), ("10kB", 10_000), ("1GiB", 2**30), ("7B", 7)],
)
def test_sizes_are_decimal(write, text: str, size: int) -> None:
    assert load(write(f"store: {{max_size: {text}}}"), environ={}).store.max_size == size


def test_empty_sections_are_the_defaults(write) -> None:
    text = "budgets:\npolicies:\nstore:\nlimits:\nexporters: {prometheus: }\nmode: observe\n"
    settings = load(write(text), environ={})
    assert settings.budgets == ()
    assert settings.limits == Settings().limits
    assert settings.exporters == {"prometheus": {}}


@pytest.mark.parametrize("shape", ["pass", "refuse"])
def test_unmodelled_words(write, shape: str) -> None:
    assert load(write(f"unmodelled: {shape}"), environ={}).unmodelled == shape


def test_unmodelled_hold(write) -> None:
    assert load(write("unmodelled: {hold_usd: 0.5}"), environ={}).unmodelled == HoldUsd(
        hold_usd=Decimal("0.5")
    )


# -- upstreams


def test_built_in_upstreams_have_their_real_urls() -> None:
    found = {one.name: (one.url, one.api, one.provider) for one in upstreams(Settings())}
    assert set(found) == {
        "anthropic",
        "openai",
        "gemini",
        "deepseek",
        "openrouter",
        "mistral",
        "groq",
        "xai",
        "ollama",
    }
    assert found["anthropic"] == ("https://api.anthropic.com", "anthropic", "anthropic")
    assert found["groq"] == ("https://api.groq.com/openai/v1", "openai", "groq")


def test_a_built_in_upstream_takes_another_url_and_stays_what_it_is(write) -> None:
    settings = load(write("upstreams: {anthropic: {url: 'http://127.0.0.1:9/'}}"), environ={})
    entry = next(one for one in upstreams(settings) if one.name == "anthropic")
    assert (entry.url, entry.api, entry.provider) == ("http://127.0.0.1:9", "anthropic", "anthropic")
    assert len(upstreams(settings)) == len(BUILT_IN)


def test_the_host_of_a_built_in_tells_the_api(write) -> None:
    settings = load(write("upstreams: {team-b: {url: 'https://api.anthropic.com'}}"), environ={})
    assert settings.upstreams["team-b"].api == "anthropic"


def test_upstream_options(write) -> None:
    path = write("upstreams: {acme: {url: 'https://a.example', api: gemini}}")
    given = Overrides(
        upstreams=("acme=http://127.0.0.1:1", "openai=http://127.0.0.1:2/v1", "new=http://127.0.0.1:3")
    )
    found = {one.name: one for one in upstreams(load(path, given, {}))}
    assert (found["acme"].url, found["acme"].api) == ("http://127.0.0.1:1", "gemini")
    assert (found["openai"].url, found["openai"].provider) == ("http://127.0.0.1:2/v1", "openai")
    assert (found["new"].url, found["new"].api, found["new"].provider) == ("http://127.0.0.1:3", "openai", "")


@pytest.mark.parametrize("name", ["v1", "v1beta", "healthz", "'@x'", "a/b", "-x", "ä", "'a b'"])
def test_upstream_names_that_cannot_stand_in_a_path(write, name: str) -> None:
    problem = one(write(f"upstreams:\n  {name}: {{url: 'https://a.example', api: openai}}\n"))
    assert (problem.line, problem.column) == (2, 3)


@pytest.mark.parametrize(
    "url",
    [
        "a.example",
        "ftp://a.example",
        "https://",
        "https://u:hunter2@a.example",
        "https://a.example/?k=hunter2",
        "https://a.example/#x",
        "https://[::1",
        "https://a.example:port",
        "5",
    ],
)  # fmt: skip
def test_upstream_urls_that_are_refused(write, url: str) -> None:
    problem = one(write(f"upstreams:\n  acme:\n    url: {url!r}\n    api: openai\n"))
    assert (problem.line, problem.key) == (3, "upstreams.acme.url")
    assert "hunter2" not in str(problem)


def test_a_ca_file_is_meant_from_the_configs_folder(write, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    path = write("upstreams: {acme: {url: 'https://a.example', api: openai, ca_file: ca.pem}}")
    assert load(path, environ={}).upstreams["acme"].ca_file == tmp_path / "ca.pem"
    problem = one(write("upstreams: {acme: {url: 'https://a.example', api: openai, ca_file: no.pem}}"))
    assert problem.key == "upstreams.acme.ca_file"


# -- where the settings come from


def test_the_config_variable_names_the_file(write) -> None:
    assert load(environ={"LOOPTAP_CONFIG": str(write("mode: observe"))}).mode == "observe"


def test_the_data_directory_by_rank(write, tmp_path: Path) -> None:
    path = write("store: {path: here}")
    both = {"LOOPTAP_DATA_DIR": "/var/env", "XDG_DATA_HOME": "/xdg"}
    assert load(path, Overrides(data_dir="/var/option"), both).store.path == Path("/var/option")
    assert load(path, environ=both).store.path == Path("/var/env")
    assert load(path, environ={"XDG_DATA_HOME": "/xdg"}).store.path == tmp_path / "here"
    assert load(environ={"XDG_DATA_HOME": "/xdg"}).store.path == Path("/xdg/looptap")
    assert (
        load(environ={"XDG_DATA_HOME": "relative"}).store.path == Path("~/.local/share/looptap").expanduser()
    )


def test_options_win_and_are_named_in_errors(write) -> None:
    path = write("listen: 127.0.0.1:1\n")
    assert load(path, Overrides(listen="127.0.0.1:2"), {}).listen == Address("127.0.0.1", 2)
    found = problems(
        path,
        Overrides(listen="nowhere", admin="127.0.0.1:99999", upstreams=("x", "a=ftp://b", "v1=http://b")),
    )
    assert sorted(p.file for p in found) == [
        "--admin",
        "--listen",
        "--upstream",
        "--upstream a",
        "--upstream v1",
    ]
    assert all(p.line is None for p in found)


@pytest.mark.parametrize(
    ("listen", "record"),
    [
        ("127.0.0.1:1", "full"),
        ("[::1]:1", "full"),
        ("localhost:1", "full"),
        ("0.0.0.0:1", "digest"),
        ("[::]:1", "digest"),
        ("10.0.0.5:1", "digest"),
    ],
)  # fmt: skip
def test_the_record_keeps_no_content_where_others_reach_the_port(write, listen: str, record: str) -> None:
    assert load(write("mode: observe"), Overrides(listen=listen), {}).store.record == record
    assert load(write("store: {record: full}"), Overrides(listen=listen), {}).store.record == "full"


@pytest.mark.parametrize(
    "text",
    ["4040", "127.0.0.1", ":4040", "a b:1", "127.0.0.1:70000", "::1:4040", "[::1]", "999.1.1.1:1", "x:-1"],
)
def test_addresses_that_are_refused(write, text: str) -> None:
    assert one(write(f"listen: {text!r}")).key == "listen"


# -- variables


def test_variables_fill_in_and_are_typed_like_the_text(write) -> None:
    path = write(
        "budgets: [{name: a, scope: turn, limits: {steps: ${STEPS:-60}, spend_usd: ${USD}}}]\nmode: $${x}\n"
    )
    environ = {"USD": "0.30"}
    assert one(path, environ).message.startswith("'${x}'")
    path = write("budgets: [{name: a, scope: turn, limits: {steps: ${STEPS:-60}, spend_usd: ${USD}}}]\n")
    limits = load(path, environ=environ).budgets[0].limits
    assert (limits.steps, limits.spend_usd) == (60, Decimal("0.30"))


def test_variables_stand_anywhere_in_yaml(write) -> None:
    text = """
    budgets: [{name: "${A}", scope: ${B:-label:x y}, window: day, limits: {steps: ${C}}}]
    listen: ${HOST:-127.0.0.1:1}  # ${NOT_SET} in a comment is nothing
    default_upstream: 'open${D}'
    """
    settings = load(write(text), environ={"A": "a", "C": "3", "D": "ai"})
    budget = settings.budgets[0]
    assert (budget.name, budget.scope, budget.limits.steps) == ("a", "label:x y", 3)
    assert (settings.listen.port, settings.default_upstream) == (1, "openai")


def test_a_variable_cannot_add_structure(write) -> None:
    path = write("default_upstream: ${NAME}\n")
    problem = one(path, {"NAME": "openai\nmode: observe"})
    assert problem.key == "default_upstream"


def test_missing_variables_are_all_named_with_their_places(write) -> None:
    found = problems(write("ledger:\n  url: redis://${HOST}:${PORT}/0\nmode: ${\n"))
    assert [(p.line, p.key) for p in found] == [(2, "ledger.url"), (2, "ledger.url"), (3, "mode")]
    assert "HOST" in found[0].message
    assert "PORT" in found[1].message


def test_a_variables_value_never_shows(write) -> None:
    path = write(
        "mode: ${SECRET}\nledger: {url: 'http://x:${SECRET}@h'}\nkeys: [{name: a, sha256: '${SECRET}'}]\n"
    )
    found = problems(path, environ={"SECRET": "hunter2"})
    assert len(found) == 3
    assert "hunter2" not in "\n".join(map(str, found))
    assert "${SECRET}" in found[0].message


def test_secrets_print_as_dots(write) -> None:
    text = """
    ledger: {url: "rediss://user:hunter2@redis.example:6379/0"}
    webhooks: [{url: "https://hooks.example/hunter2", headers: {Authorization: "Bearer hunter2"}}]
    upstreams: {acme: {url: "https://a.example", api: openai, api_key: hunter2}}
    exporters: {jsonl: {path: /var/log/hunter2.jsonl}}
    """
    settings = load(write(text), environ={})
    shown = (
        repr(settings)
        + str(settings)
        + "\n".join(explain(settings))
        + settings.model_dump_json(exclude={"exporters"})
    )
    assert "hunter2" not in shown
    assert "redis.example:6379" in shown
    assert settings.webhooks[0].headers["Authorization"].reveal() == "Bearer hunter2"
    assert settings.ledger.url is not None
    assert settings.ledger.url.reveal() == "rediss://user:hunter2@redis.example:6379/0"


# -- the file itself


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", None, "no settings"),
        (b"# nothing\n", None, "no settings"),
        (b"null\n", None, "top level"),
        (b"- a\n", None, "top level"),
        (b"just words\n", None, "top level"),
        (b"mode: observe\nstore:\n\tpath: x\n", 3, "tab"),
        (b"mode: [observe\n", 2, "YAML"),
        (b"mode: observe\nmode: enforce\n", 2, "twice"),
        (b"store: {keep: 1d, keep: 2d}\n", 1, "twice"),
        (b"teams: &x {a: {org: b}}\n", 1, "anchors"),
        (b"mode: *x\n", 1, "aliases"),
        (b"<<: {mode: observe}\n", 1, "merge"),
        (b"mode: !!python/object/apply:os.system ['true']\n", 1, "tags"),
        (b"mode: observe\n---\nmode: enforce\n", 2, "second document"),
        (b"mode: observe\nx: \xff\n", 2, "UTF-8"),
        ("mode: observe\n".encode("utf-16"), 1, "UTF-8"),
        (b"mode: observe\nx: \x01\n", 2, "control character"),
        (b"x: " + b"[" * 5000, 1, "nested"),
        (b"? [a]\n: b\n", 1, "a key must be a word"),
        (b"#" * 1_000_001, None, "larger"),
    ],
)
def test_files_that_cannot_be_read_take_one_line(write, data: bytes, line: int | None, words: str) -> None:
    problem = one(write(data))
    assert words in problem.message
    assert problem.line == line
    assert "\n" not in str(problem)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no such file" in one(tmp_path / "missing.yaml").message
    assert "directory" in one(tmp_path).message
    assert "cannot be read" in one(tmp_path / "x\0y").message
    with pytest.raises(ConfigError, match="no such file"):
        load(environ={"LOOPTAP_CONFIG": str(tmp_path / "missing.yaml")})


def test_a_byte_order_mark_is_no_matter(write) -> None:
    assert load(write("\ufeffmode: observe".encode()), environ={}).mode == "observe"


def test_yes_and_no_are_words(write) -> None:
    assert "neither true nor false" in one(write("response_headers: no")).message


# -- what is wrong in it


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("upstreams: {xai: {url: 'https://a.example', key: k}}", "upstreams.xai.key", "mean api_key?"),
        ("listne: x", "listne", "did you mean listen?"),
        ("alert_at: [0.8]", "alert_at", "belongs under budgets[]"),
        ("limits: {spend_usd: 5}", "limits.spend_usd", "belongs under budgets[].limits"),
        ("max_buffered: 5MB", "max_buffered", "belongs under limits"),
        (
            "budgets: [{name: a, scope: turn, limits: {max_steps: 5, steps: 1}}]",
            "budgets[0].limits.max_steps",
            "did you mean steps?",
        ),
        (
            "budgets: [{name: a, scope: turn, steps: 5, limits: {steps: 1}}]",
            "budgets[0].steps",
            "belongs under budgets[].limits",
        ),
        (
            "upstreams: {acme: {base_url: x, url: 'https://a.example', api: openai}}",
            "upstreams.acme.base_url",
            "did you mean url?",
        ),
        ("store: {recrod: full}", "store.recrod", "did you mean record?"),
        ("policies: {repeat: {}}", "policies.repeat", "did you mean repeats?"),
        ("exporters: {otel: {}}", "exporters.otel", "did you mean otlp?"),
        ("exporters: {otlp: {endpont: x}}", "exporters.otlp.endpont", "did you mean endpoint?"),
        ("exporters: {otlp: {endpoint: 'localhost:4318'}}", "exporters.otlp.endpoint", "http://127.0.0.1:4318"),
        ("exporters: {otlp: {endpoint: 'http://c:1/v1/traces'}}", "exporters.otlp.endpoint", "before /v1"),
        ("exporters: {otlp: {endpoint: 'http://a:b@c'}}", "exporters.otlp.endpoint", "into headers"),
        ("exporters: {otlp: {protocol: http/json}}", "exporters.otlp.protocol", "http/protobuf, grpc"),
        ("exporters: {otlp: {thinking: true}}", "exporters.otlp.thinking", "add content: true"),
        ("exporters: {otlp: {content: true, redact: ['(']}}", "exporters.otlp.redact[0]", "cust-[0-9]+"),
        ("exporters: {otlp: {headers: {api key: x}}}", "exporters.otlp.headers.api key", "without spaces"),
        ("exporters: {otlp: {headers: {'x-a:': x}}}", "exporters.otlp.headers.x-a:", "{x-api-key: ${NAME}}"),
        ("exporters: {otlp: {headers: {x-a: ' x'}}}", "exporters.otlp.headers.x-a", "check its quotes"),
        ("webhooks: [{url: 'http://a', headers: {a b: x}}]", "webhooks[0].headers.a b", "without spaces"),
        ("traceparent: join", "traceparent", "exporters: {otlp:"),
        ("policies: {tools: {deny: [a], action: nudge}}", "policies.tools.action", "repeats nudges"),
        ("policies: {repeats: {action: nudge, nudge: false}}", "policies.repeats.nudge", "action: observe"),
        ("policies: {repeats: {action: repair}}", "policies.repeats.action", "thinking repairs"),
        (
            "{store: {record: digest}, policies: {thinking: {action: repair}}}",
            "policies.thinking.action",
            "record: full",
        ),
        ("policies: {history: {action: land}}", "policies.history.action", "repeats lands, and budgets by"),
        ("policies: {growth: {action: hold}}", "policies.growth.action", "observe or warn"),
        ("policies: {tool_errors: {action: deny}}", "policies.tool_errors.action", "observe or warn"),
        ("policies: {tools: {action: deny}}", "policies.tools.action", "deny: [names]"),
        (  # no hint leads to what is not built
            "policies: {repeats: {action: nuge}}",
            "policies.repeats.action",
            "one of observe, warn, nudge, repair, land, deny, message, cut, hold",
        ),
        ("mode: enforced", "mode", "did you mean enforce?"),
        ("default_upstream: antropic", "default_upstream", "did you mean anthropic?"),
        ("time_zone: Berlin", "time_zone", "Europe/Berlin"),
        ("idle_after: 30", "idle_after", "30s"),
        ("idle_after: 30min", "idle_after", "30s"),
        ("store: {max_size: 5}", "store.max_size", "5GB"),
        ("unmodelled: {hold_us: 1, hold_usd: 1}", "unmodelled.hold_us", "did you mean hold_usd?"),
        ("unmodelled: drop", "unmodelled", "refuse, pass"),
        ("prices: [{model: a, input: $3, output: 1}]", "prices[0].input", "without currency signs"),
        (
            "prices: [{model: a, upstream: opnai, input: 3, output: 1}]",
            "prices[0].upstream",
            "did you mean openai?",
        ),
        ("ledger: {lease: 5}", "ledger.lease", "ledger.url"),
        ("budgets: {name: a}", "budgets", ""),
        ("store: 5", "store", ""),
        ("admin: 127.0.0.1:4040", "admin", "4041"),
    ],
)  # fmt: skip
def test_BUD_12_misspelt_and_misplaced_keys_fail_with_file_line_and_hint(
    write, text: str, key: str, hint: str
) -> None:
    path = write(text)
    problem = one(path)
    assert (problem.file, problem.line, problem.key) == (str(path), 1, key)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("budget", "key"),
    [
        ("scope: trun, limits: {steps: 1}", "scope"),
        ("scope: 'label:', limits: {steps: 1}", "scope"),
        ("scope: org, limits: {steps: 1}", "window"),
        ("scope: org, window: fortnight, limits: {steps: 1}", "window"),
        ("scope: step, window: day, limits: {spend_usd: 1}", "window"),
        ("scope: turn, window: day, limits: {wall_clock: 5m}", "window"),
        ("scope: org, window: day, limits: {wall_clock: 5m}", "limits.wall_clock"),
        ("scope: key, window: day, limits: {tool_retries: 3}", "limits.tool_retries"),
        ("scope: step, limits: {steps: 3}", "limits.steps"),
        ("scope: turn, limits: {}", "limits"),
        ("scope: turn, limits: {calls: {}}", "limits"),
        ("scope: turn", "limits"),
        ("scope: turn, limits: {steps: 0}", "limits.steps"),
        ("scope: turn, limits: {steps: -1}", "limits.steps"),
        ("scope: turn, limits: {steps: 1.5}", "limits.steps"),
        ("scope: turn, limits: {steps: true}", "limits.steps"),
        ("scope: turn, limits: {spend_usd: 0}", "limits.spend_usd"),
        ("scope: turn, limits: {spend_usd: -3}", "limits.spend_usd"),
        ("scope: turn, limits: {spend_usd: .nan}", "limits.spend_usd"),
        ("scope: turn, limits: {spend_usd: 1e99}", "limits.spend_usd"),
        ("scope: turn, limits: {spend_usd: 0.0000000001}", "limits.spend_usd"),
        ("scope: turn, limits: {wall_clock: 0s}", "limits.wall_clock"),
        ("scope: turn, limits: {calls: {Bash: 0}}", "limits.calls.Bash"),
        ("scope: turn, limits: {input_tokens: 10, total_tokens: 5}", "limits.input_tokens"),
        ("scope: turn, limits: {steps: 1}, alert_at: [0.8, 0.8]", "alert_at[1]"),
        ("scope: turn, limits: {steps: 1}, alert_at: [1.0, 0.5]", "alert_at[1]"),
        ("scope: turn, limits: {steps: 1}, alert_at: [1.5]", "alert_at[0]"),
        ("scope: turn, limits: {steps: 1}, alert_at: [0]", "alert_at[0]"),
        ("scope: turn, limits: {steps: 1}, hard_at: 0", "hard_at"),
        ("scope: turn, limits: {steps: 1}, on_exhausted: explode", "on_exhausted"),
        ("scope: step, limits: {spend_usd: 1}, on_exhausted: land", "on_exhausted"),
        ("scope: turn, limits: {wall_clock: 5m}, on_exhausted: land", "on_exhausted"),
        ("scope: key, limits: {requests_per_minute: 5}, on_exhausted: land", "on_exhausted"),
        ("scope: turn, limits: {spend_usd: 1}, on_exhausted: land, clamp: true", "clamp"),
        ("scope: turn, limits: {steps: 1}, match: {upstream: opnai}", "match.upstream[0]"),
        ("scope: turn, limits: {steps: 1}, match: {key: [nobody]}", "match.key[0]"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_meant(write, budget: str, key: str) -> None:
    problem = one(write(f"budgets:\n  - {{name: a, {budget}}}\n"))
    assert (problem.line, problem.key) == (2, f"budgets[0].{key}")


def test_requests_per_minute_needs_no_window(write) -> None:
    load(write("budgets: [{name: a, scope: key, limits: {requests_per_minute: 60}}]"), environ={})


def test_two_budgets_of_one_name(write) -> None:
    entry = "  - {name: a, scope: turn, limits: {steps: 1}}\n"
    text = f"budgets:\n{entry}{entry}"
    problem = one(write(text))
    assert (problem.line, problem.key) == (3, "budgets[1].name")


def test_keys_are_checked_and_never_shown(write) -> None:
    good = "ab" * 32
    text = f"""
    teams: {{search: {{org: acme}}}}
    keys:
      - {{name: a, sha256: {good}, team: search, labels: {{customer: c7}}}}
      - {{name: a, sha256: 'sha256:{good.upper()}'}}
      - {{name: b, sha256: sk-ant-api03-hunter2}}
      - {{name: c, sha256: {"cd" * 32}, team: serach}}
      - {{name: unnamed, sha256: {"ef" * 32}}}
    """
    found = problems(write(text))
    assert [p.key for p in found] == [
        "keys[1].name",
        "keys[1].sha256",
        "keys[2].sha256",
        "keys[3].team",
        "keys[4].name",
    ]
    assert "hunter2" not in "\n".join(map(str, found))
    assert "did you mean search?" in found[3].hint


def test_everything_is_told_at_once_with_the_files_own_indexes(write) -> None:
    text = """
    listne: x
    budgets:
      - {name: a, scope: trun, limits: {steps: 1}}
      - {name: b}
      - {name: c, scope: org, limits: {steps: 1}}
    default_upstream: nowhere
    """
    found = problems(write(text))
    assert [(p.line, p.key) for p in found] == [
        (2, "listne"), (4, "budgets[0].scope"), (5, "budgets[1].scope"), (5, "budgets[1].limits"),
        (6, "budgets[2].window"), (7, "default_upstream"),
    ]  # fmt: skip


def test_a_variable_that_is_not_set_hides_no_other_mistake_and_makes_none(write) -> None:
    text = """
    listen: ${HOST}
    admin: 127.0.0.1:4040
    ledger: {url: "${REDIS}", lease: 5}
    upstreams: {acme: {url: "${URL}"}}
    default_upstream: nowhere
    budgets:
      - {name: a, scope: key, window: day, limits: {spend_usd: "${CAP}"}, clamp: true}
      - {name: b, scope: turn, limits: {steps: 0}, match: {key: ci}, alert_at: [1.5], hard_at: "${HARD}"}
      - {name: b, scope: trun, limits: {steps: 1}}
    keys: [{name: "${KEY}", sha256: "${HASH}"}]
    policies: {repeats: {nudgee: false}, none_such: {}}
    exporters: {otlp: {content: "${ALL}", thinking: true, protokol: grpc}, jsonl: {pth: x}}
    """
    with pytest.raises(ConfigError) as caught:
        load(write(text), environ={}, look=rulebook.problems)
    told = caught.value.problems
    assert [p.key for p in told if "is not set" in p.message] == [
        "listen", "ledger.url", "upstreams.acme.url", "budgets[0].limits.spend_usd", "budgets[1].hard_at",
        "keys[0].name", "keys[0].sha256", "exporters.otlp.content",
    ]  # fmt: skip
    assert [p.key for p in told if "is not set" not in p.message] == [
        "default_upstream", "budgets[1].limits.steps", "budgets[2].scope", "policies.repeats.nudgee",
        "policies.none_such", "exporters.otlp.protokol", "exporters.jsonl.path", "exporters.jsonl.pth",
    ]  # fmt: skip


def test_what_is_not_read_of_yaml_hides_no_other_mistake_and_makes_none(write) -> None:
    text = """
    mode: obey
    upstreams:
      <<: *hosts
      acme: {<<: *defaults, url: nope}
    default_upstream: perhaps
    teams: {search: *team}
    budgets:
      - &first {name: a, scope: trun, limits: {steps: 0}}
      - {<<: *first, name: b}
      - *first
      - {name: c, scope: key, <<: *window, limits: {steps: 1}, match: {upstream: hidden, key: nobody}}
    keys: [{<<: *key, name: ci, team: search}]
    idle_after: !!str soon
    """
    found = problems(write(text))
    refused = [p.line for p in found if "not supported" in p.message]
    assert refused == [4, 4, 5, 5, 7, 9, 10, 10, 11, 12, 12, 13, 13, 14]
    assert [(p.line, p.key) for p in found if "not supported" not in p.message] == [
        (2, "mode"), (5, "upstreams.acme.url"), (9, "budgets[0].scope"), (9, "budgets[0].limits.steps"),
    ]  # fmt: skip
    known = problems(write("default_upstream: nowhere\nupstreams: {acme: *host}\n"))
    assert sorted(p.key for p in known) == ["", "default_upstream"]


def test_a_faulty_upstream_is_still_known_by_name(write) -> None:
    text = "default_upstream: acme\nupstreams: {acme: {url: nope, api: openai}}\n"
    assert one(write(text)).key == "upstreams.acme.url"


# -- options of policies and exporters


class RepeatsOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    threshold: int = 3
    ignore: tuple[str, ...] = ()


def test_a_policys_own_options_keep_their_places(write) -> None:
    settings = load(write("policies:\n  repeats:\n    action: deny\n    threshold: 5\n"), environ={})
    options = policy_options(settings, "repeats")
    assert settings.policies["repeats"].action == "deny"
    assert options.read(RepeatsOptions) == RepeatsOptions(threshold=5)
    problem = options.problem("threshold", "too many")
    assert (problem.line, problem.key) == (4, "policies.repeats.threshold")


def test_a_policys_wrong_options_are_worded_like_ours(write) -> None:
    path = write("policies:\n  repeats:\n    treshold: 5\n    ignore: x\n")
    with pytest.raises(ConfigError) as caught:
        policy_options(load(path, environ={}), "repeats").read(RepeatsOptions)
    found = {p.key: p for p in caught.value.problems}
    assert (found["policies.repeats.treshold"].line, found["policies.repeats.treshold"].hint) == (
        3,
        "did you mean threshold?",
    )
    assert found["policies.repeats.ignore"].message == "must be a list"


def test_a_policy_that_is_not_named_has_no_options() -> None:
    assert policy_options(Settings(), "repeats").read(RepeatsOptions) == RepeatsOptions()
    assert exporter_options(Settings(), "otlp").values == {}


# -- reload, schema, explain


def test_reload_takes_the_new_and_keeps_what_runs(write) -> None:
    old = load(write("mode: observe\nlisten: 127.0.0.1:1\n"), environ={})
    new = reload(write("mode: enforce\nlisten: 127.0.0.1:2\nidle_after: 5m\n"), old, environ={})
    assert (new.mode, new.idle_after.ns, new.listen.port) == ("enforce", 5 * MINUTE, 1)
    assert new.pinned == ("listen",)
    with pytest.raises(ConfigError):
        reload(write("mode: nonsense\n"), new, environ={})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().mode = "observe"  # type: ignore[misc]


def test_the_schema_names_every_key_and_refuses_others() -> None:
    found = schema()
    json.dumps(found)
    assert set(found["properties"]) == set(Settings.model_fields)
    assert found["additionalProperties"] is False
    otlp = found["properties"]["exporters"]["properties"]["otlp"]
    assert set(otlp["properties"]) == set(OtlpSettings.model_fields)
    assert found["$defs"]["BudgetSettings"]["properties"]["scope"]["type"] == "string"


def test_explain_says_what_acts_and_what_only_looks(write) -> None:
    text = BUDGETS + "policies: {repeats: {action: deny}, history: {}, tools: {enabled: false}}\n"
    lines = explain(load(write(text), environ={}))
    assert "enforced: budget turn: 60 steps, 5 USD, 30m of wall clock per turn (deny)" in lines
    assert (
        "enforced: budget customer: 20 USD per customer a day, alerts at 1.0, stops at 2.0 of it (deny)"
        in lines
    )
    assert "enforced: policy repeats (action deny)" in lines
    assert "observed: policy history (action observe)" in lines
    assert not any("tools" in line for line in lines)
    observing = explain(load(write("mode: observe\n" + text), environ={}))
    assert "enforced: nothing" in observing
    assert "observed: policy repeats (action deny)" in observing


def test_explain_calls_nothing_enforced_that_only_warns(write) -> None:
    text = (
        "budgets: [{name: day, scope: team, window: day, limits: {spend_usd: 1}, on_exhausted: warn}]\n"
        "policies: {repeats: {action: warn}}\n"
    )
    lines = explain(load(write(text), environ={}))
    assert [line for line in lines if line.startswith("enforced: ")] == ["enforced: nothing"]
    assert "observed: policy repeats (action warn)" in lines


def test_a_port_that_others_reach_is_said_at_start() -> None:
    everywhere = Address("0.0.0.0", 4040)
    for key in ("listen", "admin"):
        lines = explain(load(None, environ={}).model_copy(update={key: everywhere}))
        (line,) = [line for line in lines if line.startswith("other machines can reach the ")]
        assert ("asks for its token" in line) is (key == "admin")
