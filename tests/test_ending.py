"""How an attempt ended and what it took."""

import pytest

from proxy.core.ending import unheard
from proxy.model import Usage


@pytest.mark.parametrize(
    ("waited_s", "most", "written"),
    [(0.9, 64_000, 0), (12.5, 64_000, 1_200), (60, 500, 500)],
)
def test_a_client_that_leaves_before_a_whole_reply_is_charged_what_was_written_meanwhile(
    waited_s: float, most: int | None, written: int
) -> None:
    found = unheard(Usage(input_tokens=90, output_tokens=0), int(waited_s * 1e9), most)
    assert (found.input_tokens, found.output_tokens) == (90, written)
