"""The load client sends what its shapes say. Compiles it, so it runs where gcc is: marked `real`."""

import itertools
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench import KIT, build_kit
from tests.bench.soak import verdict
from tests.clients.wire import Listener, read_message

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def bodies(*arguments: str) -> list[bytes]:
    """The bodies of a short growing loop, as they arrive."""
    build_kit()
    got: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as source:
            while (request := read_message(source)) is not None:
                got.append(request.body)
                connection.sendall(ANSWER)

    listener = Listener(serve)
    try:
        load = [str(Path(KIT, "load")), "--url", listener.url, "--mode", "growing", "--steps", "4"]
        done = subprocess.run(
            [*load, "--grow-bytes", "3000", *arguments], capture_output=True, timeout=30, check=True
        )
    finally:
        listener.close()
    assert json.loads(done.stdout)["errors"] == 0
    return got


def histories(sent: list[bytes]) -> list[list[dict[str, Any]]]:
    return [json.loads(body)["messages"] for body in sent]


@pytest.mark.real
def test_append_only_bodies_extend_the_one_before() -> None:
    sent = bodies("--shape", "append")
    assert len(sent) == 4
    assert all(new.startswith(old.removesuffix(b"]}")) for old, new in itertools.pairwise(sent))


@pytest.mark.real
def test_tools_after_messages_keep_the_history_but_not_the_bytes() -> None:
    sent = bodies("--shape", "tools")
    assert [list(json.loads(body))[-1] for body in sent] == ["tools"] * 4
    pairs = list(zip(histories(sent), histories(sent)[1:], strict=False))
    assert all(new[: len(old)] == old for old, new in pairs)
    assert not any(new.startswith(old[:-2]) for old, new in itertools.pairwise(sent))


@pytest.mark.real
def test_one_cache_mark_moves_on_to_the_last_message() -> None:
    for messages in histories(bodies("--shape", "marks")):
        marked = [number for number, message in enumerate(messages) if "cache_control" in json.dumps(message)]
        assert marked == [len(messages) - 1]


@pytest.mark.real
def test_distinct_loops_open_with_words_of_their_own() -> None:
    sent = bodies("--distinct", "1", "--conns", "2", "--loops", "3")
    assert len(sent) == 24
    assert len({messages[0]["content"] for messages in histories(sent)}) == 6


def test_soak_tells_growth_from_unrest() -> None:
    done = [0, 10_000, 20_000, 30_000, 50_000, 90_000, 120_000, 150_000, 199_000]  # slowly at first
    filling_then_flat = [50.0, 90.0, 100.0, 105.0, 119.0, 122.0, 121.0, 120.0, 123.0]
    leaking = [50.0 + 10 * step for step in range(9)]
    assert verdict(list(zip(done, filling_then_flat, strict=True)), 200_000)[0]
    assert not verdict(list(zip(done, leaking, strict=True)), 200_000)[0]
    assert not verdict(list(zip(done[:5], filling_then_flat[:5], strict=True)), 200_000)[0]
