"""Which requests that nobody reads may cost money."""

import pytest

from proxy.money.unread import is_billable

BILLABLE = [
    "/v1/embeddings", "/v1/images/generations", "/v1/audio/speech", "/v1/batches", "/v1/messages/batches",
    "/v1/completions", "/v1/rerank", "/v1beta/models/gemini-3:embedContent", "/v1/whatever/comes/next",
    "/v1/fine_tuning/jobs", "/v1/threads/t_1/runs",
]  # fmt: skip
FREE = [
    "/v1/messages/count_tokens", "/v1beta/models/gemini-3:countTokens", "/v1/responses/input_tokens",
    "/v1/files", "/v1/uploads/u_1/parts", "/v1/moderations", "/v1/responses/resp_1/cancel",
    "/v1/messages/batches/b_1/cancel", "/api/event_logging/batch", "/v1/oauth/token",
]  # fmt: skip


@pytest.mark.parametrize("path", BILLABLE)
def test_BUD_11_what_is_posted_may_be_billed(path: str) -> None:
    assert is_billable("POST", path)
    assert not is_billable("GET", path)


@pytest.mark.parametrize("path", FREE)
def test_BUD_11_what_is_known_to_be_free_is_not(path: str) -> None:
    assert not is_billable("POST", path)
