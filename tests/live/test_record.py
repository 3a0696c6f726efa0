"""What the model saw is in the record: exact bytes of every step, in little room, whatever the disk does."""

import asyncio
import json
import random
import string
from pathlib import Path

import pytest

from proxy.record import writer
from tests.live.kit import Json, Message, Peer, Stage, answer_head, stage, until
from tests.live.loops import Loop, Said
from tests.live.recorded import Play, Player

MODEL = "claude-sonnet-4-5"
CACHE_MARK = {"type": "ephemeral"}


def noise(seed: object, size: int) -> str:
    """Words without meaning, which compress as badly as text can."""
    letters = string.ascii_letters + string.digits + "+/ "
    return "".join(random.Random(str(seed)).choices(letters, k=size))


class Growing:
    """A client that resends its history, moves its cache mark to the newest message, and reads a lot."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Json] = [
            {"role": "user", "content": [{"type": "text", "text": f"task of {name}"}]}
        ]

    def request(self) -> bytes:
        marked = [dict(message) for message in self.messages]
        marked[-1]["content"] = [
            *marked[-1]["content"][:-1],
            {**marked[-1]["content"][-1], "cache_control": CACHE_MARK},
        ]
        told = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 99,
            "messages": marked,
            "system": noise(self.name, 500),
        }
        return json.dumps(told, ensure_ascii=False).encode()

    def took(self, step: int, size: int) -> None:
        id = f"toolu_{self.name}_{step}"
        call = {"type": "tool_use", "id": id, "name": "read", "input": {"at": step}}
        result = {"type": "tool_result", "tool_use_id": id, "content": noise((self.name, step), size)}
        self.messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    def reply(self, step: int, last: bool) -> bytes:
        call = {"type": "tool_use", "id": f"toolu_{self.name}_{step}", "name": "read", "input": {"at": step}}
        content = [{"type": "text", "text": "done"}] if last else [call]
        return json.dumps(
            {
                "id": f"msg_{self.name}_{step}", "type": "message", "role": "assistant", "model": MODEL,
                "content": content, "stop_reason": "end_turn" if last else "tool_use",
                "usage": {"input_tokens": 100 + step, "output_tokens": 7},
            }
        ).encode()  # fmt: skip


class Answers:
    """An upstream that answers by the request's body."""

    def __init__(self) -> None:
        self.by_body: dict[bytes, bytes] = {}

    async def respond(self, request: Message, peer: Peer) -> None:
        body = self.by_body[request.body]
        await peer.send(answer_head(200, [("Content-Type", "application/json")], len(body)) + body)


async def grow(
    here: Stage, answers: Answers, client: Growing, steps: int, size: int
) -> list[tuple[bytes, bytes]]:
    """Play a client's whole turn; what it sent and got, step by step."""
    told = []
    for step in range(steps):
        request, reply = client.request(), client.reply(step, step == steps - 1)
        answers.by_body[request] = reply
        answer = await here.ask("/anthropic/v1/messages", request, [("Content-Type", "application/json")])
        assert answer.body == reply
        client.took(step, size)
        told.append((request, reply))
    return told


def steps_by_session(tree: Json) -> list[list[str]]:
    return [
        [step["id"] for thread in session["threads"] for turn in thread["turns"] for step in turn["steps"]]
        for session in tree["sessions"]
    ]


def disk_bytes(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


async def test_forty_steps_to_two_megabytes_cost_less_than_two_last_bodies_and_read_back_exactly(
    tmp_path: Path,
) -> None:
    answers = Answers()
    async with stage(tmp_path, answers.respond) as here:
        told = await grow(here, answers, Growing("a"), 40, 51_000)
        tree = await here.live_tree()
        (steps,) = steps_by_session(tree)
        for step, (request, reply) in zip(steps, told, strict=True):
            assert here.looptap("show", step, "--request") == request
            assert here.looptap("show", step, "--response", "--attempt", "1") == reply
    last = len(told[-1][0])
    assert last > 1_950_000
    assert disk_bytes(here.data_dir) < 2 * last


async def test_clients_at_once_are_kept_apart_byte_for_byte(tmp_path: Path) -> None:
    answers = Answers()
    async with stage(tmp_path, answers.respond) as here:
        clients = [Growing(f"client {n}") for n in range(6)]
        told = await asyncio.gather(*(grow(here, answers, client, 8, 4_000) for client in clients))
        tree = await here.live_tree()
        by_first = {here.looptap("show", steps[0], "--request"): steps for steps in steps_by_session(tree)}
        assert len(by_first) == len(clients)
        for mine in told:
            steps = by_first[mine[0][0]]
            for step, (request, reply) in zip(steps, mine, strict=True):
                assert here.looptap("show", step, "--request") == request
                assert here.looptap("show", step, "--response") == reply


async def test_every_attempt_of_a_step_has_its_own_bytes(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        loop = Loop("anthropic")
        loop.user("hello")
        plays = [
            loop.ask(Said(1, status=529)),
            loop.ask(Said(2, "half of it", cut=True)),
            loop.ask(Said(3, "whole")),
        ]
        for play in plays:
            await player.play(play)
        ((step,),) = steps_by_session(await here.live_tree())
        for number, play in enumerate(plays, 1):
            assert here.looptap("show", step, "--response", "--attempt", str(number)) == play.response
            assert here.looptap("show", step, "--request", "--attempt", str(number)) == play.request_body


# -- the disk


async def turn_of(here: Stage, player: Player, serial: int) -> Play:
    loop = Loop("anthropic")
    loop.user(f"task {serial}")
    play = loop.ask(Said(serial, text="done"))
    await player.play(play)
    return play


async def test_PERF_08_a_place_that_cannot_be_written_costs_the_record_and_one_warning(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    player = Player()
    async with stage(tmp_path, player.respond, store={"path": str(tmp_path / "file" / "data")}) as here:
        player.stage = here
        await until(lambda: here.warnings)
        for serial in range(5):
            await turn_of(here, player, serial)
        await until(lambda: here.running.parts.outbox.readings().away)
        record = [w for w in here.warnings if "record" in w]
        ready, said = here.running.parts.ready()
    assert len(record) == 1, record
    assert str(tmp_path / "file") in record[0]
    assert "traffic goes on" in record[0]
    assert ready
    assert str(tmp_path / "file") in said["record"]


async def test_a_full_disk_costs_nothing_but_time_when_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.outbox.drain.RETRY_S", (0.02,))
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        await turn_of(here, player, 0)
        await here.running.flush()
        outbox = here.running.parts.outbox
        disk = here.running.parts.writer._connection
        assert disk is not None
        disk.execute("PRAGMA max_page_count = 1")  # no page more than there are
        serial = 0
        while not outbox.readings().away:
            serial += 1
            await turn_of(here, player, serial)
        assert "the disk is full" in str(outbox.readings().away)
        await turn_of(here, player, serial + 1)
        disk.execute("PRAGMA max_page_count = 1000000")
        await here.running.flush()
        told = [w for w in here.warnings if "record" in w]
        tree = await here.live_tree()
        lost = outbox.readings()
    assert len(told) == 2, told
    assert "the disk is full" in told[0]
    assert told[1] == "the record can be written again"
    assert len(tree["sessions"]) == serial + 2
    assert (lost.dropped_bodies, lost.dropped_events) == (0, 0)


async def test_who_stops_waiting_for_the_record_does_not_stop_it(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        for serial in range(20):
            waiting = asyncio.ensure_future(here.running.flush())
            await turn_of(here, player, serial)
            waiting.cancel()
        assert len((await here.live_tree())["sessions"]) == 20


async def test_retention_at_work_while_traffic_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "TIDY_NS", 0)
    answers = Answers()
    most = 3_000_000
    async with stage(tmp_path, answers.respond, store={"max_size": "3MB"}) as here:
        for round in range(6):
            clients = [Growing(f"{round} {n}") for n in range(4)]
            await asyncio.gather(*(grow(here, answers, client, 6, 30_000) for client in clients))
        await here.running.flush()
        readings = here.running.parts.outbox.readings()
        assert (readings.dropped_events, readings.dropped_bodies, readings.write_errors) == (0, 0, {})
        assert here.warnings == []
        await until(lambda: disk_bytes(here.data_dir) < 3 * most)

        def listed() -> list[Json]:
            found: list[Json] = json.loads(here.looptap("turns", "--json", "--limit", "100"))
            return found

        await until(lambda: len(listed()) < 24)  # the last batch is tidied up behind its flush
        turns = listed()
    assert 0 < len(turns) < 24
    assert all(turn["cause"] == "completed" for turn in turns)


async def test_a_turn_is_listed_whole_soon_after_its_last_byte(tmp_path: Path) -> None:
    player = Player()
    async with stage(tmp_path, player.respond) as here:
        player.stage = here
        for serial in range(20):
            await turn_of(here, player, serial)
        await here.running.flush()
        for serial in range(20, 40):
            await turn_of(here, player, serial)

        def listed() -> list[Json]:
            found: list[Json] = json.loads(here.looptap("turns", "--json", "--limit", "100"))
            return found

        await until(lambda: len(listed()) == 40)  # without a flush: the batch's own time
        for turn in listed():
            assert (turn["cause"], turn["open"], len(turn["steps"])) == ("completed", False, 1)
            assert turn["usage"]["output_tokens"] > 0
            assert float(turn["cost_usd"]) > 0
