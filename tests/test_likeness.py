"""Replies that came back as other words, and summaries quoted; what is opened often and never closed."""

import pytest

from proxy.tracking.likeness import quotes, resembles
from tests.play import TOOLS, Play, assistant, grown, request, said, user

STUCK = 2_000
"""So often a model that is stuck repeats itself: to look for its end from each place would take a second."""


@pytest.mark.parametrize("name", ["think", "thinking", "reasoning"])
def test_thoughts_are_left_out_and_what_is_only_opened_stays(name: str) -> None:
    play = Play()
    opened = f"<{name}>" * STUCK
    step = play.step(request(user("task")), said(f"<{name}>why</{name}> The answer. {opened}")).step_state
    assert resembles(step, [said(f"The answer. {opened}")])
    assert resembles(step, [said(f"The <{name}>no</{name}>answer. {opened}")])
    assert not resembles(step, [said(f"Another answer. {opened}")])


def test_a_summary_is_what_stands_between_its_marks() -> None:
    words = "All of the tests have been mended by now."
    texts = [f"Go on from here. {words}"]
    assert quotes(texts, f"Let me see. <summary> {words} </summary>{'<summary>' * STUCK}")
    assert not quotes(texts, f"{'<summary>' * STUCK}{words}")


def test_a_conversation_of_a_model_that_is_stuck_goes_on() -> None:
    play = Play()
    first = request(user("task"), tools=TOOLS)
    play.step(first, said("<think>" * STUCK))
    play.step(grown(first, assistant(said("<think>" * STUCK + "…")), user("go on")), said("Well."))
    assert play.shape() == [[[[[0]], [[1]]]]]
