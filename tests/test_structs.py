"""A struct is a frozen dataclass to everybody who uses it."""

import copy
import dataclasses
import pickle

import pytest

from proxy.model import Identity, Usage
from proxy.structs import replace, struct


def test_it_is_a_frozen_dataclass_by_all_that_can_be_asked() -> None:
    usage = Usage(input_tokens=3)
    assert dataclasses.is_dataclass(usage)
    assert [field.name for field in dataclasses.fields(usage)][:2] == ["input_tokens", "cache_read_tokens"]
    assert dataclasses.asdict(usage)["input_tokens"] == 3
    assert dataclasses.replace(usage, output_tokens=4) == replace(usage, output_tokens=4)
    with pytest.raises(AttributeError):
        usage.input_tokens = 4  # type: ignore[misc]
    assert not hasattr(usage, "__dict__")


def test_it_is_compared_and_hashed_by_its_fields() -> None:
    @struct(frozen=True, slots=True)
    class Place:
        at: tuple[int, ...]
        name: str = "here"

    assert Place((1,)) == Place(at=(1,))
    assert Place((1,)) != Place((1,), "there")
    assert len({Place((1,)), Place((1,))}) == 1
    assert "name='here'" in repr(Place((1,)))
    with pytest.raises(TypeError):
        Place()  # type: ignore[call-arg]


def test_what_is_made_by_default_is_its_own() -> None:
    assert Identity().labels is not Identity().labels
    assert Identity().scope == "default/unnamed"


def test_it_can_be_copied_and_sent() -> None:
    usage = Usage(input_tokens=3, extra={"web_searches": 1})
    assert pickle.loads(pickle.dumps(usage)) == copy.deepcopy(usage) == usage
