"""A real Chromium, driven by its own DevTools protocol over a WebSocket: no driver, no library.

Waits are for conditions in the page, bounded. Whatever the page logs as an error, every exception,
every request and every refusal of its security policy is kept, so that a test can say "none".
"""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE_S = 60.0
SCREENSHOTS = Path(__file__).parents[2] / ".artifacts" / "screenshots"
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}


def chromium() -> str | None:
    """The browser on this machine."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Page:
    """One tab."""

    socket: aiohttp.ClientWebSocketResponse
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _answers: dict[int, "asyncio.Future[Any]"] = field(default_factory=dict)
    _count: int = 0

    async def read(self) -> None:
        """Take what the browser says, until it closes."""
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                waiting = self._answers.pop(told["id"])
                if not waiting.done():
                    waiting.set_result(told)
            else:
                self._heard(told["method"], told["params"])

    def _heard(self, method: str, params: Any) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def send(self, method: str, **params: Any) -> Any:
        """One command and its answer."""
        self._count += 1
        waiting = asyncio.get_running_loop().create_future()
        self._answers[self._count] = waiting
        await self.socket.send_json({"id": self._count, "method": method, "params": params})
        told = await asyncio.wait_for(waiting, PATIENCE_S)
        assert "error" not in told, f"{method}: {told['error']}"
        return told["result"]

    async def go(self, url: str) -> None:
        """Open an address."""
        await self.send("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(AssertionError):  # between two documents
                    if await self.run(f"Boolean({condition})"):
                        return
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """A key, down and up."""
        facts: dict[str, Any] = {"key": key}
        if key in KEYS:
            facts["windowsVirtualKeyCode"] = KEYS[key]
        if key == "Enter":
            facts["text"] = "\r"
        elif len(key) == 1:
            facts["text"] = key
        await self.send("Input.dispatchKeyEvent", type="keyDown", **facts)
        await self.send(
            "Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in facts.items() if k != "text"}
        )

    async def write(self, text: str) -> None:
        """Type into what has the focus."""
        await self.send("Input.insertText", text=text)

    async def look(self, *, dark: bool = False, width: int = 1360, height: int = 860) -> None:
        """Size and colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send("Emulation.setEmulatedMedia", features=features)
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def nameless(self) -> list[str]:
        """What can be used in the page and has no name that a screen reader could say."""
        told = await self.send("Accessibility.getFullAXTree")
        used = {"button", "link", "textbox", "combobox", "meter", "img", "table", "region", "navigation"}
        return [
            node["role"]["value"]
            for node in told["nodes"]
            if not node.get("ignored")
            and node.get("role", {}).get("value") in used
            and not node.get("name", {}).get("value")
        ]

    async def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await self.run("scrollTo(0, 0)")
        told = await self.send("Page.captureScreenshot", captureBeyondViewport=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(told["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A browser with one empty tab, gone afterwards."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="looptap-browser-", ignore_cleanup_errors=True) as home:
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        flags += [
            "--disable-background-networking",
            "--disable-component-update",
            "--remote-debugging-port=0",
        ]
        process = await asyncio.create_subprocess_exec(
            program, *flags, f"--user-data-dir={home}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            port = await _port(process.stderr)
            async with aiohttp.ClientSession() as session, _tab(session, port) as page:
                yield page
        finally:
            process.kill()
            await process.communicate()


async def _port(stderr: asyncio.StreamReader) -> int:
    async with asyncio.timeout(60):
        async for line in stderr:
            if b"DevTools listening on ws://" in line:
                return int(line.partition(b"ws://")[2].split(b"/")[0].rpartition(b":")[2])
    raise AssertionError("the browser did not start")


@asynccontextmanager
async def _tab(session: aiohttp.ClientSession, port: int) -> AsyncIterator[Page]:
    async with session.get(f"http://127.0.0.1:{port}/json/list") as told:
        tabs = await told.json()
    url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
    async with session.ws_connect(url, max_msg_size=1 << 27) as socket:
        page = Page(socket)
        reading = asyncio.get_running_loop().create_task(page.read())
        try:
            for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
                await page.send(f"{domain}.enable")
            await page.look()
            yield page
        finally:
            reading.cancel()
            await asyncio.wait({reading})
