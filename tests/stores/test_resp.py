"""The pipelined connection: any split of the answers, and every way in which it ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.stores.resp import Place, Resp, RespGone


class Script:
    """A server that answers with prepared bytes, a piece at a time."""

    def __init__(self) -> None:
        self.answers = b""
        self.piece = 1
        self.got = b""
        self.hang_up = False
        self._server: asyncio.Server | None = None

    async def start(self) -> Place:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Place.parse(f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}")

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.got += data
                for at in range(0, len(self.answers), self.piece):
                    writer.write(self.answers[at : at + self.piece])
                    await asyncio.sleep(0)
                if self.hang_up:
                    break
        except ConnectionError:
            pass
        writer.close()


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    script = Script()
    yield script
    script.stop()


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
async def test_answers_come_in_order_however_they_are_cut(script: Script, piece: int) -> None:
    script.answers, script.piece = b"+OK\r\n$5\r\na\r\nbc\r\n:17\r\n$0\r\n\r\n$-1\r\n", piece
    resp = await Resp.connect(await script.start())
    asked = [resp.call("PING"), *(resp.call("GET", str(number)) for number in range(4))]
    assert await asyncio.gather(*asked) == [b"OK", b"a\r\nbc", b"17", b"", b"-1"]
    assert script.got.startswith(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\n0\r\n")
    resp.end("done")


async def test_an_error_ends_the_connection_for_all_who_wait(script: Script) -> None:
    script.answers = b"+OK\r\n-LOADING not yet\r\n"
    resp = await Resp.connect(await script.start())
    asked = [resp.call("PING") for _ in range(3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[0] == b"OK"
    assert [str(answer) for answer in answers[1:]] == ["LOADING not yet"] * 2
    with pytest.raises(RespGone, match="not connected"):
        await resp.call("PING")


async def test_a_hang_up_ends_it(script: Script) -> None:
    script.hang_up = True
    resp = await Resp.connect(await script.start())
    with pytest.raises(RespGone, match="closed"):
        await resp.call("PING")
    assert "closed" in await resp.gone


async def test_silence_ends_it(script: Script) -> None:
    resp = await Resp.connect(await script.start(), silence_s=0.05)
    with pytest.raises(RespGone, match="no answer within"):
        await resp.call("PING")


async def test_a_caller_that_has_gone_shifts_no_answer(script: Script) -> None:
    script.answers = b":1\r\n:2\r\n"
    resp = await Resp.connect(await script.start())
    first, second = resp.call("PING"), resp.call("PING")
    first.cancel()
    assert await second == b"2"
    resp.end("done")


async def test_nobody_there() -> None:
    with pytest.raises(RespGone, match=r"cannot reach 127\.0\.0\.1:1"):
        await Resp.connect(Place.parse("redis://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache", Place("cache", 6379, None, False, 0, ())),
        ("redis://:p%40ss@cache:7000/3", Place("cache", 7000, None, False, 3, ("p@ss",))),
        ("rediss://me:secret@cache/", Place("cache", 6379, None, True, 0, ("me", "secret"))),
        ("unix:///run/redis.sock?db=2", Place("", 0, "/run/redis.sock", False, 2, ())),
    ],
)
def test_places(url: str, place: Place) -> None:
    assert Place.parse(url) == place
    assert "secret" not in repr(place)


def test_a_strange_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="rediss://"):
        Place.parse("http://cache")
