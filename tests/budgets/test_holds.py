"""Requests that wait for an operator, with processes and commands: said from a terminal, over Redis, after a
kill in the middle of a wait, and by a client that a vendor wrote."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.budgets import kit
from tests.stores.ledger.kit import RedisServer

pytestmark = pytest.mark.real  # many processes: too long for every run

KEY: dict[str, Any] = {
    "name": "key", "scope": "key", "window": "total", "limits": {"steps": 1}, "on_exhausted": "hold",
}  # fmt: skip


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def held(proxy: kit.Served, least: int = 1) -> list[dict[str, Any]]:
    """What waits there, as its record says."""
    found: list[dict[str, Any]] = []

    def so_many() -> bool:
        try:
            found[:] = proxy.told("allow", "--list")
        except AssertionError:  # nothing has been recorded yet
            return False
        return len(found) >= least

    kit.eventually(so_many, "nothing waits")
    return found


def test_what_waits_is_listed_everywhere_and_a_yes_from_a_terminal_lets_it_go(
    tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[KEY]) as proxy:
        assert proxy.ask("first").status == 200
        second = beside.submit(proxy.ask, "second")
        (wait,) = held(proxy)
        assert (wait["facts"]["budget"], wait["model"], wait["adds"]) == ("key", "acme-1", 1)
        (turn,) = [one for one in proxy.told("turns") if one.get("held")]
        assert (turn["id"], turn["open"], turn["steps"]) == (wait["turn"], True, [])
        assert "waits" in proxy.looptap("budgets").stdout
        assert "1 of 1 steps" in proxy.looptap("allow", "--list").stdout
        assert "looptap_held_requests 1" in proxy_metrics(proxy)
        (counter,) = proxy.budgets(name="key")
        assert (counter["used"], counter["reserved"], len(model.asked), second.done()) == (1, 0, 1, False)
        done = proxy.looptap("allow", wait["id"][:12])
        assert "the limit on steps of budget key of key unnamed is raised by 1" in done.stderr
        assert second.result(kit.WAIT_S).status == 200
        (counter,) = proxy.idle()
        assert (counter["used"], counter["limit"]) == (2, 2)
        assert proxy.told("stop", "--list") == []
        assert proxy.looptap("allow", wait["id"]).returncode == 1


def proxy_metrics(proxy: kit.Served) -> str:
    port = int(proxy.admin.rpartition(":")[2])
    return kit.send(port, "/metrics", b"", "GET").body.decode()


def test_a_kill_in_the_middle_of_a_wait_leaves_nothing_sent_and_nothing_held(
    tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[KEY]) as proxy:
        assert proxy.ask("first").status == 200
        second = beside.submit(proxy.ask, "second")
        held(proxy)
        proxy.process.send_signal(signal.SIGKILL)
        proxy.process.wait(kit.WAIT_S)
        with pytest.raises((OSError, Exception)):
            second.result(kit.WAIT_S)
        again = kit.start(tmp_path, proxy.config)
        try:
            (counter,) = again.budgets(name="key")
            assert (counter["used"], counter["reserved"], len(model.asked)) == (1, 0, 1)
            second = beside.submit(again.ask, "second")
            kit.eventually(lambda: "looptap_held_requests 1" in proxy_metrics(again), "it waits again")
            assert again.looptap("topup", "key", "--add", "1").returncode == 0
            assert second.result(kit.WAIT_S).status == 200
            assert len(model.asked) == 2
        finally:
            kit.stop(again)


def test_over_redis_a_yes_is_said_wherever_there_is_the_ledger(
    tmp_path: Path, beside: ThreadPoolExecutor, redis: RedisServer
) -> None:
    shared = {"budgets": [KEY], "ledger": {"url": redis.url}}
    with kit.model() as model, kit.serve(tmp_path / "one", model, **shared) as proxy:
        other = kit.write_config(tmp_path / "two", model.url, shared)
        assert proxy.ask("first").status == 200
        waiting: list[Future[kit.Said]] = [beside.submit(proxy.ask, text) for text in ("second", "third")]
        first, second = held(proxy, 2)
        done = kit.looptap(other, tmp_path / "two" / "data", "allow", second["id"])
        assert done.returncode == 0, done.stderr
        kit.eventually(lambda: sum(one.done() for one in waiting) == 1, "one of them goes")
        done = kit.looptap(other, tmp_path / "two" / "data", "stop", first["turn"])
        assert done.returncode == 0, done.stderr
        said = [one.result(kit.WAIT_S) for one in waiting]
        assert sorted(one.status for one in said) == [200, 402]
        assert [one.fields["code"] for one in said if one.status == 402] == ["looptap_stopped"]
        assert len(model.asked) == 2


def test_an_sdk_waits_for_a_policys_yes_and_knows_nothing_of_it(
    tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    shell = {"name": "bash", "input_schema": {"type": "object"}}
    policy = {"tools": {"deny": ["bash"], "refuse": "offered", "action": "hold"}}
    with (
        kit.model() as model,
        kit.serve(tmp_path, model, policies=policy, hold_for="1s") as proxy,
        anthropic.Anthropic(api_key="sk", base_url=proxy.url, max_retries=0) as client,
    ):

        def ask() -> Any:
            messages = [{"role": "user", "content": "hello"}]
            return client.messages.create(model="acme-1", max_tokens=9, messages=messages, tools=[shell])  # type: ignore[call-overload]

        with pytest.raises(anthropic.APIStatusError) as caught:
            ask()
        assert caught.value.status_code == 402
        assert "It waited 1s for an operator, and nobody answered." in str(caught.value)
        config = proxy.config.read_text().replace("hold_for: 1s", "hold_for: 5m")
        proxy.config.write_text(config)
        kit.eventually(lambda: bool(proxy.log_lines("settings loaded again")), "the file is read again")
        said = beside.submit(ask)
        (wait,) = held(proxy)
        assert (wait["policy"], "adds" in wait) == ("tools", False)
        assert not model.asked
        assert proxy.looptap("allow", wait["turn"]).returncode == 0
        assert said.result(kit.WAIT_S).content[0].text == "answer 1"
        assert json.loads(model.asked[0]["body"])["tools"] == [shell]
