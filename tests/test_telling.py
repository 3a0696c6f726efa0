"""What the tracker tells, field by field, where a reader counts on it."""

from proxy.model import Attempt, Cost, Exchange, Head, Outcome, Upstream
from proxy.tracking.telling import step_attempt
from tests.play import Play, request, user


def test_an_attempt_names_its_upstream() -> None:
    placement = Play().ask(request(user("hello")))
    upstream = Upstream("acme", "http://127.0.0.1:1/v1", "openai")
    exchange = Exchange("exc_1", 1, Head("POST", "/v1/messages"), upstream, "/v1/messages", 1)
    attempt = Attempt("complete", "complete", Outcome(), None, Cost(None, "unpriced"), 200, 1, 2)
    assert step_attempt(placement.step_state, 0, exchange, attempt).data["upstream"] == "acme"
