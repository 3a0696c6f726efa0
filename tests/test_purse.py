"""What is held ends as it should: a reply that its client has whole is not cut."""

import re

import pytest

from policies.budgets import Budget
from proxy.core import Opened
from proxy.model import ResponseHead
from tests.live.loops import NAMES, Dialect, Loop, Said
from tests.purse import House

EVENT = re.compile(rb".*?(?:\r?\n){2}", re.DOTALL)
SOON = Budget("turn", "turn", "life", {"wall_clock": 1}, on_exhausted="cut")
"""One millisecond."""


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_a_reply_is_cut_in_time_unless_all_of_it_has_come(dialect: Dialect, missing: int) -> None:
    """In chat completions the choice ends two events before the end mark."""
    house, loop = House(SOON), Loop(dialect)
    loop.user("a long task")
    play = loop.ask(Said(0, text="an answer", calls=("one",)))
    opened = await house.ask(play.target, play.request_body)
    assert isinstance(opened, Opened)
    opened.respond(ResponseHead(200, b"OK", ((b"content-type", b"text/event-stream"),)), 1)
    events = EVENT.findall(play.response)
    for event in events[: len(events) - missing]:
        opened.feed(event, 2)
    await opened.tab.clock  # type: ignore[union-attr, misc]
    whole = missing <= {"anthropic": 0, "chat": 2, "responses": 0, "gemini": 0}[dialect]
    assert (opened.ended_by is None) is whole
    assert [one["action"] for one in house.told("budget/exhausted")] == ([] if whole else ["cut"])
