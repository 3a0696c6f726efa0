"""The dashboard in a real browser, on a real proxy: every view, live, by keyboard, and no error anywhere.

Pictures of each view are kept in ``.artifacts/screenshots``.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy import demo
from tests.admin import kit as written
from tests.budgets import kit
from tests.budgets.test_operator import admin
from tests.dashboard.browser import Page, browser, chromium

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BUDGETS = [
    {"name": "turn", "scope": "turn", "limits": {"steps": 6, "spend_usd": "0.02"}},
    {
        "name": "key-day",
        "scope": "key",
        "window": "day",
        "limits": {"spend_usd": "0.05"},
        "alert_at": [0.1],
        "hard_at": 2.0,
    },
]
ROWS = "document.querySelectorAll('tr[data-go]').length"
TEXT = "document.querySelector('main').innerText"


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    assert chromium() is not None, "no chromium here: .ci/run installs the browser"
    async with browser() as made:
        yield made
        assert made.errors == []


@pytest.fixture
def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[kit.Served]:
    budgets = BUDGETS if request.node.get_closest_marker("real").kwargs.get("budgets", True) else []
    with kit.model() as model, kit.serve(tmp_path, model, budgets=budgets) as served:
        yield served


async def said(proxy: kit.Served, body: dict[str, Any], **headers: str) -> kit.Said:
    return await asyncio.to_thread(proxy.post, "/@env=ci/v1/messages", body, **headers)


async def loop(proxy: kit.Served, steps: int, text: str = "go") -> dict[str, Any]:
    """An agent that calls two tools a step; the next request of it."""
    body = kit.request(text, system="You are thorough.", max_tokens=50)
    for _ in range(steps):
        answer = await said(proxy, body, x_calls="2")
        assert answer.status == 200
        body = kit.grown(body, answer.json)
    return body


async def open_at(page: Page, proxy: kit.Served, view: str = "") -> None:
    await page.go(f"{proxy.admin}/?token={proxy.token}{view}")
    await page.until("document.querySelector('h1')")


async def view(page: Page, name: str) -> None:
    await page.run(f"location.hash = '#/{name}'")
    await page.until(f"location.hash.startsWith('#/{name}') && document.querySelector('h1')")


async def test_every_view_shows_what_it_is_for(proxy: kit.Served, page: Page) -> None:
    await said(proxy, kit.grown(await loop(proxy, 3), (await said(proxy, await loop(proxy, 2))).json))
    await loop(proxy, 5)
    await open_at(page, proxy)
    assert await page.run("location.search") == ""
    await page.until(f"{ROWS} >= 3")
    await page.shoot("turns")
    await page.run("document.querySelector('tr[data-go]').click()")
    await page.until("document.querySelectorAll('.plot').length >= 3")
    await page.run("document.querySelectorAll('[aria-label=Steps] tbody tr')[4].click()")
    await page.until("document.querySelectorAll('.message.new').length >= 2")
    assert "What the model saw at step 5" in await page.run(TEXT)
    assert await page.run("document.querySelectorAll('a[download]').length") == 2
    assert await page.nameless() == []
    for dark in (False, True):
        await page.look(dark=dark, height=1700)
        await page.run("scrollTo(0, 0)")
        await page.shoot(f"turn-{'dark' if dark else 'light'}")
    await page.look()
    for name, word in (
        ("sessions", "Client"),
        ("findings", "Findings"),
        ("budgets", "stops at $0.10"),
        ("reports", "how turns end"),
    ):
        await view(page, name)
        await page.until(
            f"{TEXT}.includes({word!r}) && !{TEXT}.includes('Loading') && !{TEXT}.includes('Reading')"
        )
        assert await page.nameless() == []
        await page.shoot(name)
        await page.look(dark=True)
        await page.shoot(f"{name}-dark")
        await page.look(width=420)
        await page.shoot(f"{name}-narrow")
        wide = await page.run("document.documentElement.scrollWidth")
        assert wide <= 420, f"{name} is {wide} wide"
        await page.look()
    assert [url for url in page.requests if not url.startswith((proxy.admin, "data:"))] == []


async def test_the_demo_can_be_read(tmp_path: Path, page: Page) -> None:
    await demo.perform(tmp_path / "data")
    with kit.model() as model, kit.serve(tmp_path, model) as proxy:
        await open_at(page, proxy)
        await page.until(f"{ROWS} >= 20")
        agents: dict[str, str] = await page.run(
            "Object.fromEntries([...document.querySelectorAll('tr[data-go]')]"
            ".map(r => [r.cells[3].innerText.trim(), r.dataset.go]))"
        )
        assert len(agents) >= 7
        for agent, address in agents.items():
            await page.run(f"location.hash = {address!r}")
            await page.until(f"document.querySelector('.figures')?.innerText.includes({agent!r})")
            await page.run("document.querySelector('[aria-label=Steps] tbody tr:last-child')?.click()")
            await page.run("document.querySelectorAll('.finding button').forEach(b => b.click())")
            if agent == "demo-forgetful":
                await page.until("document.querySelector('.change .minus')?.innerText.includes('settings')")
            await page.until(f"!{TEXT}.includes('Loading')")
            await page.shoot(agent)
        await view(page, "reports")
        await page.until("document.querySelectorAll('.plot').length >= 8")
        await page.shoot("reports-demo")
        await page.go("about:blank")


async def test_a_running_turn_grows(proxy: kit.Served, page: Page) -> None:
    await open_at(page, proxy)
    await page.until(f"{TEXT}.includes('No turn yet')")
    body = kit.request("go")
    for steps in (1, 2, 3):
        body = kit.grown(body, (await said(proxy, body, x_calls="1")).json)
        await page.until(
            f"{ROWS} === 1 && document.querySelector('tr[data-go]').cells[5].innerText === '{steps}'"
        )
    await page.run("document.querySelector('tr[data-go]').click()")
    rows = "document.querySelectorAll('[aria-label=Steps] tbody tr').length"
    await page.until(f"{rows} === 3")
    for steps in (4, 5):
        body = kit.grown(body, (await said(proxy, body, x_calls="1")).json)
        await page.until(f"{rows} === {steps}")
    await said(proxy, body)
    await page.until("document.querySelector('.head .badge').innerText === 'completed'")
    await page.until("document.getElementById('told').textContent.includes('ended')")


async def test_it_does_not_look_alive_where_nothing_is_recorded(tmp_path: Path, page: Page) -> None:
    (tmp_path / "data").write_text("no directory")
    with kit.model() as model, kit.serve(tmp_path, model) as proxy:
        await open_at(page, proxy)
        await page.until("document.getElementById('live').textContent === 'not recorded'")
        assert "the place cannot be opened" in await page.run("document.getElementById('live').title")
        await page.shoot("not-recorded")
        await page.go("about:blank")


async def test_it_can_be_used_by_keyboard_alone(proxy: kit.Served, page: Page) -> None:
    for text in ("one", "two", "three"):
        await loop(proxy, 1, text)
    await open_at(page, proxy)
    await page.until(f"{ROWS} === 3")
    await page.press("?")
    await page.until("document.querySelector('dialog[open]')")
    await page.press("Escape")
    await page.until("!document.querySelector('dialog')")
    await page.press("j")
    await page.press("ArrowDown")
    await page.until("document.activeElement === document.querySelectorAll('tr[data-go]')[1]")
    await page.press("Enter")
    await page.until("location.hash.startsWith('#/turn/') && document.querySelector('.plot')")
    await page.until("document.activeElement.tagName === 'H1'")
    await page.press("u")
    await page.until(f"location.hash === '#/turns' && {ROWS} === 3")
    await page.press("/")
    await page.until("document.activeElement.name === 'agent'")
    await page.write("nobody")
    await page.press("Enter")
    await page.until(f"location.hash.includes('agent=nobody') && {TEXT}.includes('No turn fits')")
    for digit, name in enumerate(("turns", "sessions", "findings", "budgets", "reports"), 1):
        await page.run("document.activeElement.blur()")
        await page.press(str(digit))
        await page.until(f"location.hash === '#/{name}'")
    await page.press("Tab")
    await page.until("document.activeElement !== document.body")


async def test_orders_are_asked_twice_and_written_down(proxy: kit.Served, page: Page) -> None:
    body = await loop(proxy, 6)
    assert (await said(proxy, body)).status == 402
    await open_at(page, proxy, "#/budgets")
    await page.until(f"{TEXT}.includes('exhausted')")
    await page.shoot("budgets-exhausted")
    row = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('steps'))"
    await page.run(f"[...{row}.querySelectorAll('button')][0].click()")
    await page.until("document.querySelector('dialog[open] input')")
    await page.shoot("topup")
    await page.run("document.querySelector('dialog input').focus()")
    await page.write("x")
    await page.press("Enter")
    await page.until("document.querySelector('dialog [role=alert]').innerText.includes('no whole number')")
    page.errors.clear()  # the browser itself notes that the proxy said no
    await page.run("document.querySelector('dialog input').value = '2'")
    await page.press("Enter")
    await page.until("!document.querySelector('dialog')")
    await page.until(f"{TEXT}.includes('topup')")
    assert (await said(proxy, body, x_calls="1")).status == 200
    await page.run(f"[...{row}.querySelectorAll('button')][1].click()")
    await page.until("document.querySelector('dialog[open]')")
    assert await asyncio.to_thread(proxy.told, "budgets")
    await page.run("document.querySelector('dialog button.risky').click()")
    orders = "document.querySelector('table[aria-label=\"Alerts and orders\"]').innerText"
    await page.until(f"!document.querySelector('dialog') && {orders}.includes('stop')")
    told = [e for e in await asyncio.to_thread(_alerts, proxy) if e["data"].get("policy") == "operator"]
    assert [e["data"]["kind"] for e in told] == ["stop", "topup"]


def _alerts(proxy: kit.Served) -> Any:
    return admin(proxy, "/api/v1/alerts")[1]


async def test_what_waits_shows_itself_and_is_answered_by_two_buttons(tmp_path: Path, page: Page) -> None:
    budget = {"name": "turn", "scope": "turn", "limits": {"steps": 1}, "on_exhausted": "hold"}
    with kit.model() as model, kit.serve(tmp_path, model, budgets=[budget]) as proxy:
        body = kit.request("a long task")
        body = kit.grown(body, (await said(proxy, body, x_calls="1")).json)
        await open_at(page, proxy)
        await page.until(f"{ROWS} >= 1")
        waits = asyncio.create_task(said(proxy, body, x_calls="1"))
        await page.until(f"{TEXT}.includes('Waiting for an operator') && {TEXT}.includes('needs 1')")
        await page.until(f"{TEXT}.includes('held')")
        assert await page.nameless() == []
        await page.shoot("held")
        await page.run(
            "[...document.querySelectorAll('button')].find(b => b.textContent === 'Yes …').click()"
        )
        await page.until("document.querySelector('dialog')?.innerText.includes('by 1')")
        await page.run("document.querySelector('dialog button[type=submit]').click()")
        answer = await waits
        assert answer.status == 200
        await page.until("document.querySelector('[aria-label=\"Waiting for an operator\"]').hidden")
        waits = asyncio.create_task(said(proxy, kit.grown(body, answer.json)))
        await view(page, "budgets")
        await page.until(f"{TEXT}.includes('Waiting for an operator')")
        await page.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'No …').click()")
        await page.run("document.querySelector('dialog button[type=submit]').click()")
        assert (await waits).status == 402
        await page.go("about:blank")  # it would note that the proxy goes


@pytest.mark.real(budgets=False)  # a megabyte costs more than they allow
async def test_hostile_content_stays_text(proxy: kit.Served, page: Page) -> None:
    nasty = (
        "<script>alert(1)</script><img src=x onerror=alert(1)>\u202egnp.exe\u0007\u001b[31m" + "A" * 1_000_000
    )
    body = kit.request(nasty, system=written.HOSTILE)
    answer = await said(proxy, body, x_calls="1")
    grown = kit.grown(body, answer.json)
    grown["messages"][-1]["content"][0]["content"] = nasty
    await said(proxy, grown, **{"user-agent": "<b>agent</b>/1"})
    await open_at(page, proxy)
    await page.until(f"{ROWS} >= 1")
    await page.run("document.querySelector('tr[data-go]').click()")
    await page.until("document.querySelectorAll('[aria-label=Steps] tbody tr').length === 2")
    await page.run("document.querySelectorAll('[aria-label=Steps] tbody tr')[1].click()")
    await page.until("document.querySelector('.message.new .odd')")
    await page.run("document.querySelector('details').open = true")
    await page.until("document.querySelectorAll('.quoted').length >= 3")
    assert await page.run("document.querySelectorAll('main script, main img, main b > b').length") == 0
    shown = await page.run("document.querySelector('.message.new:last-of-type').innerText")
    assert "<img src=x" in shown
    assert "\u202e" not in await page.run(TEXT)
    assert "⟨U+202E⟩" in shown
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    await page.run(
        "document.querySelectorAll('button').forEach(b => b.innerText.startsWith('Show more') && b.click())"
    )
    await page.shoot("hostile")


async def test_ten_thousand_turns_open_at_once(tmp_path: Path, page: Page) -> None:
    place = tmp_path / "data"
    log: list[Any] = []
    step = (written.body(written.ASKED), written.answer({"type": "text", "text": "Done."}, stop="end_turn"))
    for number in range(1, 10_001):
        log += [e for e in written.events(number, [step]) if not type(e).__name__.startswith("Capture")]
    writer = written.RecordWriter(place)
    writer.write(log)
    writer.close()
    with kit.model() as model, kit.serve(tmp_path, model) as proxy:
        await page.go(f"{proxy.admin}/?token={proxy.token}")
        began = time.perf_counter()
        await page.go(f"{proxy.admin}/")
        await page.until(f"{ROWS} === 100")
        print(f"100 of 10,000 turns on the screen after {time.perf_counter() - began:.2f} s")
        await page.run("[...document.querySelectorAll('.more button')][0].click()")
        await page.until(f"{ROWS} === 200")
        await page.shoot("ten-thousand")
        for name in ("sessions", "reports"):
            await view(page, name)
            await page.until(f"!{TEXT}.includes('Loading') && !{TEXT}.includes('Reading')")
        await page.go("about:blank")
