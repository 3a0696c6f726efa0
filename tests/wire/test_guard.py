"""The guard around the part that thinks: what it still asks once that has failed."""

import pytest

from proxy.model import Exchange, Head, Identity, Upstream
from proxy.verdict import Reply
from proxy.wire.guard import Faults, Watch
from proxy.wire.rounds import Rounds
from proxy.wire.timing import Timings
from tests.wire.raw_upstream import Recorded, RecordingThinker

WORDS = Reply(402, (), b"{}")


class Ending(Recorded):
    """Knows how its answer is to end."""

    closing = b"data: the end\n\n"

    def last_words(self) -> Reply:
        self._thinker.maybe_fail("last_words")
        return WORDS


class Thinker(RecordingThinker):
    def open(self, exchange: Exchange, body: bytes, now_ns: int) -> Recorded:
        return Ending(exchange, body, self)


@pytest.mark.parametrize(("fails", "words"), [("feed", WORDS), ("last_words", None)])
def test_how_an_answer_ends_is_asked_of_who_failed_before(fails: str, words: Reply | None) -> None:
    thinker = Thinker()
    faults = Faults(lambda where, error: None)
    watch = Watch(thinker, faults, Timings(), Rounds())
    upstream = Upstream("anthropic", "http://127.0.0.1:9", "anthropic")
    watch.open(Exchange("exc_1", 1, Head("POST", "/", ()), upstream, "/", 1, Identity()), b"{}")
    thinker.fail_at = fails
    watch.feed(b"data: 1\n\n")
    assert watch.last_words() == words
    assert watch.closing == b"data: the end\n\n"
    assert (watch.stamps, watch.refusal) == ((), None)
    assert list(faults.counts) == [(fails, "RuntimeError")]
