"""What the tracker tells, field by field, where a reader counts on it."""

import pytest

from proxy.model import Attempt, Cost, Exchange, Head, Outcome, Upstream
from proxy.tracking.asked import asked
from proxy.tracking.telling import step_attempt, traceparent
from tests.play import Play, request, user

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_an_attempt_names_its_upstream() -> None:
    placement = Play().ask(request(user("hello")))
    upstream = Upstream("acme", "http://127.0.0.1:1/v1", "openai")
    exchange = Exchange("exc_1", 1, Head("POST", "/v1/messages"), upstream, "/v1/messages", 1)
    attempt = Attempt("complete", "complete", Outcome(), None, Cost(None, "unpriced"), 200, 1, 2)
    assert step_attempt(placement.step_state, 0, exchange, attempt).data["upstream"] == "acme"


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-00-what-comes-later", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("hello", None),
        ("", None),
    ],
)
def test_a_trace_of_the_clients_is_told_only_where_it_is_one(header: str, told: str | None) -> None:
    assert traceparent(Head("POST", "/", ((b"Traceparent", header.encode()),))) == told


def test_what_a_request_asks_for_is_told_in_one_set_of_names() -> None:
    of_chat = {"temperature": 0.5, "n": 2, "reasoning_effort": "high", "seed": 7, "messages": "no"}
    of_gemini = {
        "generationConfig": {"topK": 3, "thinkingConfig": {"thinkingBudget": 9}, "topP": float("inf")}
    }
    of_claude = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto"}
    assert asked(request(user("x"), options=of_chat, max_output_tokens=5)) == {
        "max_tokens": 5, "temperature": 0.5, "choices": 2, "effort": "high", "seed": 7, "tools": 2,
    }  # fmt: skip
    assert asked(request(user("x"), options=of_gemini)) == {"top_k": 3, "thinking_budget": 9, "tools": 2}
    assert asked(request(user("x"), options=of_claude)) == {
        "thinking_budget": 1024, "service_tier": "auto", "tools": 2,
    }  # fmt: skip
