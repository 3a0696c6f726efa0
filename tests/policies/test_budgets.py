"""Budgets as a rule over values: which claims a request makes, and what a refusal says."""

import shlex
from dataclasses import replace

import pytest

from policies.budgets import NONE, Budget, Budgets
from proxy.dialects.refusals import read_refused_field, refused_field
from proxy.verdict import STOPPED, Balance, Claim, Demand, Refusal, Terminal

DEMAND = Demand(
    subjects={
        "step": "stp_1", "turn": "trn_1", "thread": "thr_1", "session": "ses_1", "key": "ci",
        "team": "search", "org": "acme", "model": "acme-1", "upstream": "anthropic",
    },
    labels={"customer": "c7"},
    steps=1, input_tokens=1000, output_tokens=200, least_output=50,
    spend_nano=6_000_000, input_nano=3_000_000,
    calls={"Bash": 2, "mcp__read": 1}, streaks={"Bash": 3}, ran_ms={"turn": 61_000},
)  # fmt: skip


def budget(scope: str = "turn", window: str = "life", **more: object) -> Budget:
    limits = more.pop("limits", {"steps": 60})
    return Budget("b", scope, window, limits, **more)  # type: ignore[arg-type]


def claims(one: Budget, demand: Demand = DEMAND) -> list[Claim]:
    return Budgets([one]).claims(demand)


@pytest.mark.parametrize(
    ("dimension", "amount"),
    [
        ("steps", 1), ("input_tokens", 1000), ("output_tokens", 200), ("total_tokens", 1200),
        ("spend_usd", 6_000_000), ("requests_per_minute", 1),
    ],
)  # fmt: skip
def test_each_dimension_holds_its_worst_case(dimension: str, amount: int) -> None:
    (claim,) = claims(budget(limits={dimension: 10**9}))
    assert (claim.dimension, claim.amount, claim.level) == (dimension, amount, None)
    assert claim.window == ("minute" if dimension == "requests_per_minute" else "life")


@pytest.mark.parametrize(
    ("scope", "subject"),
    [
        *((name, DEMAND.subjects[name]) for name in DEMAND.subjects),
        ("label:customer", "c7"),
        ("label:env", NONE),
    ],
)
def test_each_scope_names_its_subject(scope: str, subject: str) -> None:
    (claim,) = claims(budget(scope, "day"))
    assert (claim.scope, claim.subject) == (scope, subject)


def test_what_lacks_the_scopes_fact_is_counted_together() -> None:
    (claim,) = claims(budget("turn"), replace(DEMAND, subjects={"key": "ci"}))
    assert claim.subject == NONE


def test_time_that_ran_is_a_level_that_nothing_is_added_to() -> None:
    (claim,) = claims(budget(limits={"wall_clock": 60_000}))
    assert (claim.amount, claim.level, claim.limit) == (0, 61_000, 60_000)


def test_calls_are_counted_by_pattern_and_streaks_by_tool() -> None:
    found = claims(budget(limits={"tool_retries": 2}, calls={"Bash": 5, "*": 9, "mcp__*": 1, "Read": 1}))
    assert [(c.dimension, c.amount, c.level, c.limit) for c in found] == [
        ("tool_retries:Bash", 0, 3, 2),
        ("calls:Bash", 2, None, 5),
        ("calls:*", 3, None, 9),
        ("calls:mcp__*", 1, None, 1),
    ]


def test_an_attempt_costs_money_and_no_step() -> None:
    found = claims(budget(limits={"steps": 1, "spend_usd": 10**9}), replace(DEMAND, steps=0))
    assert [claim.dimension for claim in found] == ["spend_usd"]


def test_hard_at_moves_where_requests_stop_and_not_the_limit() -> None:
    (claim,) = claims(budget(limits={"steps": 10}, hard_at=20_000, alert_at=(8_000, 10_000)))
    assert (claim.limit, claim.hard, claim.alert_at) == (10, 20, (8_000, 10_000))


@pytest.mark.parametrize(
    ("dimension", "least"),
    [
        ("spend_usd", 3_750_000),
        ("output_tokens", 50),
        ("total_tokens", 1050),
        ("input_tokens", None),
        ("steps", None),
    ],
)
def test_a_clamp_takes_less_where_output_can_be_lowered(dimension: str, least: int | None) -> None:
    (claim,) = claims(budget(limits={dimension: 10**9}, clamp=True))
    assert claim.minimum == least


@pytest.mark.parametrize(
    ("narrowed", "falls_under"),
    [
        ({"upstreams": ("anthropic",)}, True), ({"upstreams": ("openai",)}, False),
        ({"models": ("acme-*",)}, True), ({"models": ("gpt-*", "claude-*")}, False),
        ({"keys": ("ci", "cd")}, True), ({"keys": ("alice",)}, False),
    ],
)  # fmt: skip
def test_match_narrows_a_budget(narrowed: dict[str, tuple[str, ...]], falls_under: bool) -> None:
    assert bool(claims(budget(**narrowed))) is falls_under


def test_BUD_14_one_budget_covers_two_upstreams_and_three_keys() -> None:
    shared = budget("org", "month", upstreams=("anthropic", "openai"), keys=("a", "b", "c"))
    counters = {
        (claim.budget, claim.subject)
        for upstream in ("anthropic", "openai")
        for key in ("a", "b", "c")
        for claim in claims(
            shared, replace(DEMAND, subjects={**DEMAND.subjects, "upstream": upstream, "key": key})
        )
    }
    assert counters == {("b", "acme")}


@pytest.mark.parametrize(
    ("reached", "caps"), [("deny", "b"), ("message", "b"), ("warn", None), ("observe", None)]
)
def test_only_what_refuses_caps_spend(reached: str, caps: str | None) -> None:
    rules = Budgets([budget(limits={"spend_usd": 1}, on_exhausted=reached)])
    assert rules.caps_spend(DEMAND.subjects) == caps
    assert Budgets([budget()]).caps_spend(DEMAND.subjects) is None


def test_an_unknown_model_may_be_any_that_a_cap_names() -> None:
    rules = Budgets([budget(limits={"spend_usd": 1}, models=("acme-*",))])
    assert rules.caps_spend({"upstream": "anthropic", "key": "ci"}) == "b"


def refused(
    dimension: str, *, scope: str = "turn", window: str = "life", resets: int | None = None
) -> Terminal:
    claim = Claim("b", scope, "trn_1", dimension, window, 250_000_000, 1_000_000_000)
    balance = Balance(
        "b",
        scope,
        "trn_1",
        window,
        dimension,
        1_000_000_000,
        1_000_000_000,
        800_000_000,
        100_000_000,
        0,
        resets,
    )
    kind = dimension.partition(":")[0]
    return Budgets([budget(limits={kind: 1})]).refusal(Refusal(claim, balance), now_ns=0)


def test_BUD_19_a_refusal_says_which_limit_of_whom_and_how_to_go_on() -> None:
    why = refused("spend_usd", resets=1_790_000_000_000_000_000)
    assert (why.kind, why.code, why.cause, why.retry_after_s) == (
        "deny",
        "looptap_budget_exceeded",
        "spend",
        None,
    )
    command = "looptap topup b --subject trn_1 --add USD, or wait until 2026-09-21T14:13:20.000000Z"
    assert why.fields == {
        "budget": "b", "scope": "turn", "subject": "trn_1", "dimension": "spend_usd", "limit": "1",
        "used": "0.8", "reserved": "0.1", "resets_at": "2026-09-21T14:13:20.000000Z", "needed": "0.25",
        "how_to_go_on": command,
    }  # fmt: skip
    assert why.message == (
        "Looptap: budget 'b' of turn trn_1 has no room for this request: it may take 0.25 USD, and 0.1 is "
        f"left of 1; 0.8 used, 0.1 held for requests under way. To go on: {command}."
    )


def test_a_refusal_beyond_the_limit_says_where_it_stops() -> None:
    claim = Claim("b", "key", "ci", "spend_usd", "day", 1_000_000_000, 2_000_000_000)
    balance = Balance("b", "key", "ci", "day", "spend_usd", 2_000_000_000, 4_000_000_000, 3_500_000_000, 0)
    why = Budgets([]).refusal(Refusal(claim, balance), now_ns=0)
    assert (why.fields["limit"], why.fields["stops_at"], why.fields["used"]) == ("2", "4", "3.5")
    assert "stops_at" not in refused("spend_usd").fields


def words(claim: Claim, *, used: int, hard: int | None = None, reserved: int = 0) -> str:
    """What a refusal of this claim says before the way to go on."""
    stops = claim.limit if hard is None else hard
    balance = Balance(
        claim.budget, claim.scope, claim.subject, claim.window, claim.dimension, claim.limit, stops, used,
        reserved,
    )  # fmt: skip
    message = Budgets([]).refusal(Refusal(claim, balance), now_ns=0).message
    return message.removeprefix("Looptap: ").partition(". To go on")[0]


def test_a_refusal_tells_what_is_used_up_from_what_does_not_fit() -> None:
    spend = Claim("b", "key", "ci", "spend_usd", "day", 30_000_000, 20_000_000)
    assert words(spend, used=0) == (
        "budget 'b' of key ci has no room for this request: it may take 0.03 USD, and 0.02 is left of 0.02; "
        "0 used"
    )
    assert words(spend, used=20_000_000, hard=40_000_000).endswith(
        "may take 0.03 USD, and 0.02 is left of 0.04 (where it stops; the limit is 0.02); 0.02 used"
    )
    assert words(spend, used=40_000_000, hard=40_000_000).endswith(
        "is used up: 0.04 of 0.02 USD, stops at 0.04, and this request may take 0.03"
    )
    assert words(Claim("b", "turn", "trn_1", "steps", "life", 1, 60), used=58, reserved=2).endswith(
        "is used up: 58 of 60 steps, 2 held for requests under way"
    )
    retries = Claim("b", "turn", "trn_1", "tool_retries:Bash", "life", 0, 25, level=26)
    assert words(retries, used=26).endswith(
        "is used up: Bash has failed 26 times in a row, and 25 are allowed"
    )


@pytest.mark.parametrize("subject", ["$(touch x)", "(none)", "a b; rm -r x", "it's", '"', "`id`", "a\\b"])
def test_what_a_client_chose_is_one_word_of_the_suggested_command(subject: str) -> None:
    claim = Claim("a b", "label:customer", subject, "calls:$(x)*", "day", 1, 1)
    balance = Balance("a b", claim.scope, subject, "day", claim.dimension, 1, 1, 1, 0)
    why = Budgets([]).refusal(Refusal(claim, balance), now_ns=0)
    assert shlex.split(str(why.fields["how_to_go_on"])) == [
        "looptap", "topup", "a b", "--subject", subject, "--add", "N", "--dimension", "calls:$(x)*",
    ]  # fmt: skip
    assert str(why.fields["how_to_go_on"]) in why.message
    code, told = read_refused_field(refused_field(why))
    assert (code, told["subject"], told["dimension"], told["tool"]) == (why.code, subject, "calls", "$(x)*")
    stopped = Budgets([]).refusal(Refusal(stopped=subject), now_ns=0)
    assert shlex.split(str(stopped.fields["how_to_go_on"]))[3:] == [subject]


def test_no_label_adds_a_field_to_the_header() -> None:
    subject = 'c7; budget=other; cut=True; x="'
    claim = Claim("b", "label:customer", subject, "steps", "day", 1, 1)
    balance = Balance("b", claim.scope, subject, "day", "steps", 1, 1, 1, 0)
    header = refused_field(Budgets([]).refusal(Refusal(claim, balance), now_ns=0))
    assert header.startswith(
        b'looptap_step_limit; policy=budgets; budget=b; scope=label:customer; subject="c7'
    )
    _, told = read_refused_field(header)
    assert (told["budget"], told["subject"], told["limit"], told.get("cut")) == ("b", subject, "1", None)
    older = b"looptap_step_limit; policy=budgets; subject=(none); how_to_go_on=looptap topup b, or wait"
    assert read_refused_field(older)[1]["how_to_go_on"] == "looptap topup b, or wait"
    long = Terminal("deny", "p", "c", "", fields={"model": "m" * 2_000, "limit": 1})
    assert refused_field(long) == b"c; policy=p; limit=1"


def test_the_header_names_each_field_once_and_booleans_as_its_standard_wants() -> None:
    why = Terminal("deny", "p", "c", "", fields={"policy": "p", "kind": "k", "landed": True})
    assert refused_field(why) == b"c; policy=p; kind=k; landed=?1"
    assert read_refused_field(refused_field(why))[1] == {"policy": "p", "kind": "k", "landed": "?1"}


@pytest.mark.parametrize(
    ("dimension", "cause", "code"),
    [
        ("steps", "steps", "looptap_step_limit"), ("input_tokens", "tokens", "looptap_budget_exceeded"),
        ("output_tokens", "tokens", "looptap_budget_exceeded"),
        ("total_tokens", "tokens", "looptap_budget_exceeded"),
        ("wall_clock", "wall_clock", "looptap_budget_exceeded"),
        ("calls:Bash", "calls", "looptap_budget_exceeded"),
        ("tool_retries:Bash", "tool_retries", "looptap_budget_exceeded"),
    ],
)  # fmt: skip
def test_each_dimension_gives_the_turn_its_cause(dimension: str, cause: str, code: str) -> None:
    why = refused(dimension)
    assert (why.cause, why.code) == (cause, code)
    assert why.fields["dimension"] == dimension.partition(":")[0]
    assert why.fields.get("tool") == (dimension.partition(":")[2] or None)


def test_the_pace_says_when_to_come_back_and_is_no_message() -> None:
    claim = Claim("b", "key", "ci", "requests_per_minute", "minute", 1, 2)
    balance = Balance("b", "key", "ci", "minute", "requests_per_minute", 2, 2, 2, 0, 0, 30_400_000_000)
    rules = Budgets([budget(limits={"requests_per_minute": 2}, on_exhausted="message")])
    why = rules.refusal(Refusal(claim, balance), now_ns=0)
    assert (why.kind, why.retry_after_s, why.code) == ("deny", 31, "looptap_request_pace")


def test_a_message_is_sent_where_the_budget_wants_one() -> None:
    claim = Claim("b", "turn", "trn_1", "steps", "life", 1, 60)
    balance = Balance("b", "turn", "trn_1", "life", "steps", 60, 60, 60, 0)
    assert (
        Budgets([budget(on_exhausted="message")]).refusal(Refusal(claim, balance), now_ns=0).kind == "message"
    )


def test_a_stop_names_what_was_stopped_and_by_whom() -> None:
    why = Budgets([]).refusal(Refusal(stopped="trn_1"), now_ns=0)
    assert (why.code, why.cause, why.fields["stopped"]) == (STOPPED, "interrupted", "trn_1")


def test_BUD_09_without_a_budget_nothing_is_claimed() -> None:
    assert Budgets([]).claims(DEMAND) == []
