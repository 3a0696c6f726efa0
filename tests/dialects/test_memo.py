"""Remembered readings: the very same object is read once, an equal one again."""

from typing import Any

from proxy.dialects.memo import Remembered


def test_the_same_object_is_read_once_and_few_are_kept() -> None:
    seen: list[Any] = []

    def read(raw: Any) -> int:
        seen.append(raw)
        return len(raw) if raw is not None else 0

    remembered = Remembered(read)
    tools = [1, 2]
    assert [remembered(tools), remembered(tools), remembered([1, 2, 3])] == [2, 2, 3]
    assert seen == [tools, [1, 2, 3]]
    for _ in range(100):
        remembered([])
    assert remembered(tools) == 2
    assert seen[-1] is tools
    assert [remembered(None), remembered(None)] == [0, 0]
