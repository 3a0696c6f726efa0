"""What the wire measures of itself adds up, and has as many series as upstreams."""

from proxy.ports import Spread
from proxy.wire.timing import ADDED_S, WAITS_S, Timings

MS = 1_000_000


def spread(timings: Timings, name: str) -> Spread:
    return next(one for one in timings.spreads() if one.name == name)


def test_times_fall_into_their_buckets() -> None:
    timings = Timings()
    for ms in (1, 2, 40, 400_000):
        timings.gaps("anthropic").add(ms * MS)
    ((labels, counts, total),) = spread(timings, "time_between_chunks_seconds").rows
    assert labels == ("anthropic",)
    assert {WAITS_S[at] if at < len(WAITS_S) else None: n for at, n in enumerate(counts) if n} == {
        0.001: 1, 0.005: 1, 0.05: 1, None: 1,
    }  # fmt: skip
    assert total == 400.043


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    timings = Timings()
    timings.first("openai").add(-5 * MS)
    ((_, counts, total),) = spread(timings, "time_to_first_chunk_seconds").rows
    assert (counts[0], total) == (1, 0.0)


def test_what_is_added_is_told_by_phase() -> None:
    timings = Timings()
    timings.request.add(3 * MS)
    timings.chunk.add(50_000)
    found = {labels: counts for labels, counts, _ in spread(timings, "added_seconds").rows}
    assert found[("request",)][ADDED_S.index(0.005)] == 1
    assert found[("chunk",)][0] == 1
