"""The newest replies: looked for by a few words, and none left out that a text repeats."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.tracking.newest import SUMMED_UP, Newest

REPLY = "The parser drops the last line of a file that has no newline at its end."
WORDS = st.text(alphabet="ab \n\t\u00a0é\"'<>/", max_size=60)


def among(*replies: str) -> Newest[str]:
    newest: Newest[str] = Newest()
    for reply in replies:
        newest.add(reply, reply)
    return newest


@given(reply=WORDS, before=WORDS, after=WORDS, others=st.lists(WORDS, max_size=4))
def test_a_reply_that_a_text_repeats_is_never_left_out(
    reply: str, before: str, after: str, others: list[str]
) -> None:
    found = among(*others, reply).within(["something else", before + reply.strip() + after])
    assert reply in found


def test_replies_of_other_words_are_left_out_and_the_newest_comes_first() -> None:
    newest = among(REPLY, "Nothing of this was ever said to anybody here.", REPLY + " Mended.")
    assert list(newest.within([f"A colleague found: «{REPLY} Mended.» Go on."])) == [
        REPLY + " Mended.",
        REPLY,
    ]
    assert list(newest.within(["Say hello."])) == []


def test_a_reply_with_a_summary_in_it_may_be_quoted_without_its_other_words() -> None:
    reply = f"<analysis>I looked at everything twice.</analysis><summary>The parser drops a line.{SUMMED_UP}"
    assert list(among(reply).within(["This session continues: The parser drops a line."])) == [reply]


def test_some_are_kept_and_long_texts_are_searched_for_all_of_them() -> None:
    replies = [f"Reply number {at} says that all tests pass." for at in range(100)]
    newest = among(*replies)
    assert list(newest) == replies[:35:-1]
    assert list(newest.within(["x" * 30_000])) == list(newest)
    assert newest
    assert not among()
