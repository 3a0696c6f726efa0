"""Replies that came back reworded, summaries and lines quoted, what is opened often and never closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tracking.likeness import ENOUGH, Quoting, quotes, resembles
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


PIECES = st.text("a_é٣ -+(\n\u2028\u0301", max_size=60)


@given(PIECES, st.integers(0, 60), PIECES, st.lists(st.sampled_from(["foo", "x.y"]), max_size=9))
def test_lines_are_found_as_if_all_of_the_texts_were_searched_for_each(
    text: str, at: int, more: str, words: list[str]
) -> None:
    text = text + " ".join(words) + more
    reply = f"{more}\n+ {text[at : at + ENOUGH + 9]}\n{text[at:]}q"
    lines = [line.strip().lstrip("+-> ") for line in reply.splitlines()]
    assert Quoting(["", text]).shares_lines(reply) is any(len(one) >= ENOUGH and one in text for one in lines)


def test_a_long_prompt_is_looked_through_for_the_lines_of_no_reply() -> None:
    play = Play()
    line = "Line 17 of the edit, which is a rather long one."
    play.step(request(user("task")), said(line))
    noted = play.ask(request(user(f"Name this change:\n+{line}"), model="small", tools=()))
    longer = play.ask(request(user(f"{line}\n" * 20_000), model="small", tools=()))
    assert (noted.thread_state.kind, longer.thread_state.kind) == ("side", "main")
