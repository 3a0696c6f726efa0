"""Orders take effect at the next request: stop, keys, top-up by the admin port; and the self-check."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Settings
from proxy.model import Record
from proxy.money.orders import Operator, OrderRefused
from proxy.record import RecordWriter
from proxy.stores.ledger_memory import MemoryLedger
from tests.budgets import kit

pytestmark = pytest.mark.real  # many processes: too long for every run

BUDGET = {"name": "turn", "scope": "turn", "limits": {"steps": 2}}


def admin(proxy: kit.Served, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(proxy.admin + path, data, {"Authorization": f"Bearer {proxy.token}"})
    try:
        with urllib.request.urlopen(asked, timeout=kit.WAIT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_stopped_session_is_refused_until_it_is_let_go(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[BUDGET]) as proxy:
        body = kit.request("go")
        said = proxy.post("/v1/messages", body, x_calls="1")
        (session,) = proxy.told("sessions")
        assert proxy.told("stop", session["id"]) == {"id": session["id"], "stopped": True}
        body = kit.grown(body, said.json)
        refused = proxy.post("/v1/messages", body)
        assert (refused.status, refused.fields["code"]) == (402, "looptap_stopped")
        (turn,) = proxy.told("turns")
        assert turn["cause"] == "interrupted"
        assert proxy.told("stop", session["id"], "--lift")["stopped"] is False
        assert proxy.post("/v1/messages", body).status == 200


def test_a_stop_works_without_any_budget(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model) as proxy:
        assert proxy.ask("one").status == 200
        assert "looptap stop --lift unnamed" in proxy.looptap("stop", "unnamed").stderr
        assert proxy.ask("two").fields["stopped"] == "unnamed"
        (stop,) = proxy.told("stop", "--list")
        assert stop["id"] == "unnamed"
        assert stop["stopped_at"] in proxy.looptap("stop", "--list").stdout
        assert proxy.looptap("stop", "unnamed", "--lift").returncode == 0
        assert proxy.told("stop", "--list") == []
        assert proxy.ask("three").status == 200


def test_orders_that_name_nothing_known_say_what_there_is(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[BUDGET]) as proxy:
        for arguments, word in (
            (("stop", "nobody"), "unnamed"),
            (("stop", "unnamed", "--lift"), "is not stopped"),
            (("topup", "other", "--add", "1"), "no budget is called 'other': configured are turn"),
            (("budgets", "--budget", "trun"), "no budget is called 'trun': configured are turn"),
            (("topup", "turn", "--add", "1"), "has no counter yet"),
            (("topup", "turn", "--subject", "trn_1", "--add", "x"), "no whole number"),
            (("topup", "turn", "--add", "1", "--dimension", "spend_usd"), "does not limit spend_usd"),
            (("keys", "revoke", "ci"), "there is none"),
            (("keys", "create", "ci", "--team", "nobody"), "no team is called"),
        ):
            done = proxy.looptap(*arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert word in done.stderr
            assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("scope", "subject", "word"),
    [
        ("turn", "trn_nope", "no turn is called 'trn_nope'"),
        ("thread", "x", "no thread is called 'x'"),
        ("session", "ses_0", "no session is called 'ses_0'"),
        ("turn", "ses_1", "is a session; this budget counts by turn"),
        ("key", "nobody", "no key is called 'nobody': alice, ci, unnamed"),
        ("team", "nobody", "no team is called 'nobody': default, search"),
        ("org", "nobody", "no org is called 'nobody': acme, default"),
        ("upstream", "nobody", "no upstream is called 'nobody': "),
        ("label:env", "x" * 65, "can be no label"),
    ],
)
async def test_a_top_up_of_nobody_is_refused(tmp_path: Path, scope: str, subject: str, word: str) -> None:
    ledger = MemoryLedger()
    operator = Operator(settings(tmp_path, scope), ledger)
    await operator.create_key("ci", "search", {})
    record(tmp_path, session="ses_" + "1" * 20)
    with pytest.raises(OrderRefused, match=re.escape(word)) as caught:
        await operator.topup("cap", "1", subject=subject)
    assert isinstance(caught.value, LookupError) is not scope.startswith("label")
    assert await ledger.balances(now_ns=0) == []


@pytest.mark.parametrize(
    ("scope", "subject", "whole"),
    [
        ("session", "ses_1", "ses_" + "1" * 20), ("key", "alice", None), ("team", "search", None),
        ("org", "acme", None), ("upstream", "openai", None), ("label:env", "(none)", None),
        ("model", "acme-1", None),
    ],
)  # fmt: skip
async def test_a_top_up_may_come_before_the_first_request(
    tmp_path: Path, scope: str, subject: str, whole: str | None
) -> None:
    notes: list[str] = []
    operator = Operator(settings(tmp_path, scope), MemoryLedger())
    record(tmp_path, session="ses_" + "1" * 20)
    told = await operator.topup("cap", "1", subject=subject)
    assert (told["subject"], told["limit"]) == (whole or subject, 3)
    assert f"has counted no request of {scope} " in told["note"]
    assert "note" not in await operator.topup("cap", "1", subject=subject)
    await Operator(settings(tmp_path, scope), MemoryLedger(), notes.append).raised(
        "cap", "1", subject=subject
    )
    assert notes == [told["note"]]


@pytest.mark.parametrize(
    "add", ["0", "-1", "nan", "1e400", "1_000", "٣", "0.0000000001", "1000000000", "", "$"]
)
async def test_what_is_no_amount_adds_nothing(tmp_path: Path, add: str) -> None:
    ledger = MemoryLedger()
    with pytest.raises(OrderRefused, match=r"is no (?:sensible )?amount"):
        await Operator(settings(tmp_path, "key", spend_usd=1), ledger).topup("cap", add, subject="alice")
    assert await ledger.balances(now_ns=0) == []


async def test_what_is_counted_for_a_policy_is_not_topped_up(tmp_path: Path) -> None:
    operator = Operator(settings(tmp_path, "key", steps=5), MemoryLedger())
    with pytest.raises(OrderRefused, match=r"its limit is an option of policies\.long_prompts"):
        await operator.topup("long_prompts/hourly", "1", subject="alice")


async def test_a_top_up_says_which_of_several_limits_it_took(tmp_path: Path) -> None:
    notes: list[str] = []
    operator = Operator(settings(tmp_path, "key", spend_usd=1, steps=5), MemoryLedger(), notes.append)
    await operator.raised("cap", "1", subject="alice", dimension="steps")
    assert not [note for note in notes if "--dimension" in note]
    assert (await operator.raised("cap", "1", subject="alice")).dimension == "spend_usd"
    assert "spend_usd is raised; for steps say --dimension" in notes
    with pytest.raises(OrderRefused, match="also limits steps: --dimension"):
        await operator.raised("cap", "30m", subject="alice")


def settings(place: Path, scope: str, **limits: int) -> Settings:
    window = {} if scope in ("turn", "thread", "session") else {"window": "day"}
    return Settings.model_validate(
        {
            "store": {"path": str(place)},
            "teams": {"search": {"org": "acme"}},
            "keys": [{"name": "alice", "sha256": "0" * 64, "team": "search"}],
            "budgets": [{"name": "cap", "scope": scope, "limits": limits or {"steps": 2}, **window}],
        }
    )


def record(place: Path, session: str) -> None:
    """A record that knows a session."""
    writer = RecordWriter(place, warn=print)
    writer.write([Record(1, "session/start", session)])
    writer.close()


def test_keys_stand_for_the_real_one_and_end_at_once(tmp_path: Path) -> None:
    upstreams = {"anthropic": {"api_key": "sk-real"}}
    teams = {"search": {"org": "acme"}}
    with kit.model() as model, kit.serve(tmp_path, model, upstreams=upstreams, teams=teams) as proxy:
        made = proxy.told("keys", "create", "ci", "--team", "search", "--label", "env=ci")
        key = made["key"]
        assert key.startswith("lt_")
        assert proxy.ask("a", x_api_key=key).status == 200
        assert model.asked[-1]["headers"]["x-api-key"] == "sk-real"
        assert proxy.ask("b", x_api_key="", authorization=f"Bearer {key}").status == 200
        assert model.asked[-1]["headers"]["x-api-key"] == "sk-real"
        assert key not in str(model.asked[-1])
        assert proxy.ask("c", x_api_key="sk-own", x_looptap_key=key).status == 200
        assert model.asked[-1]["headers"]["x-api-key"] == "sk-own"
        assert "x-looptap-key" not in model.asked[-1]["headers"]
        assert proxy.ask("d", x_api_key="sk-other").status == 200
        assert model.asked[-1]["headers"]["x-api-key"] == "sk-other"
        labels = [turn["labels"] for turn in proxy.told("turns")]
        assert labels == [{}, {"env": "ci"}, {"env": "ci"}, {"env": "ci"}]
        (listed,) = proxy.told("keys", "list")
        assert (listed["name"], listed["team"]) == ("ci", "search")
        kept = b"".join(path.read_bytes() for path in proxy.data.iterdir() if path.is_file())
        assert key.encode() not in kept
        assert b"sk-real" not in kept
        asked = len(model.asked)
        assert proxy.looptap("keys", "revoke", "ci").returncode == 0
        said = proxy.ask("e", x_api_key=key)
        assert said.status == 401
        assert b"revoked" in said.body
        assert proxy.ask("f", x_api_key="lt_madeup").status == 401
        assert len(model.asked) == asked


def test_a_virtual_key_without_a_real_one_never_leaves(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model) as proxy:
        key = proxy.told("keys", "create", "ci")["key"]
        said = proxy.ask("a", x_api_key=key)
        assert said.status == 401
        assert b"api_key" in said.body
        assert not model.asked


def test_the_admin_port_counts_tops_up_and_stops(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[BUDGET]) as proxy:
        body = kit.request("go")
        for _ in range(2):
            body = kit.grown(body, proxy.post("/v1/messages", body, x_calls="1").json)
        refused = proxy.post("/v1/messages", body, x_calls="1")
        assert refused.status == 402
        status, counters = admin(proxy, "/api/v1/budgets")
        assert status == 200
        assert counters == [
            {
                "name": "turn", "scope": "turn", "subject": refused.fields["subject"], "window": "life",
                "dimension": "steps", "limit": 2, "used": 2, "reserved": 0, "resets_at": None,
            }
        ]  # fmt: skip
        assert admin(proxy, "/api/v1/topup", {"budget": "turn", "add": 1})[1]["limit"] == 3
        assert proxy.post("/v1/messages", body).status == 200
        assert admin(proxy, "/api/v1/topup", {"budget": "nope", "add": 1})[0] == 404
        assert admin(proxy, "/api/v1/topup", {"budget": "turn", "more": 1})[0] == 400
        nobody = {"budget": "turn", "subject": "trn_nope", "add": 1}
        assert admin(proxy, "/api/v1/topup", nobody)[0] == 404
        assert len(proxy.told("budgets")) == 1
        status, told = admin(proxy, "/api/v1/stop", {"id": refused.fields["subject"]})
        assert (status, told["stopped"]) == (200, True)


def test_BUD_12_a_valid_limit_is_listed_as_enforced(tmp_path: Path) -> None:
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[BUDGET]) as proxy:
        line = "enforced: budget turn: 2 steps per turn (deny)"
        assert line in proxy.says
        assert line in admin(proxy, "/readyz")[1]["says"]


def test_BUD_12_what_is_not_built_is_refused_at_start(tmp_path: Path) -> None:
    for wrong, word in (
        ({"on_exhausted": "land", "limits": {"spend_usd": 1}, "clamp": True}, "beside on_exhausted: land"),
        ({"hold": "slices"}, "slices are not built yet"),
        ({"clamp": True}, "has no effect on these limits"),
        ({"limits": {"max_steps": 3}}, "did you mean steps?"),
    ):
        config = kit.write_config(tmp_path, "http://127.0.0.1:9", {"budgets": [{**BUDGET, **wrong}]})
        done = kit.looptap(config, tmp_path / "data", "serve")
        assert done.returncode == 2
        assert word in done.stderr
        assert f"{config}:" in done.stderr
