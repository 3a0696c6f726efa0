"""Alerts posted as JSON: one event a request, to whoever asked for its kind.

A post that fails is tried again a few times and then given up, which the outbox counts. This
exporter has a lane of its own: however slow a receiver is, only its own events wait or are dropped.
"""

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp

from exporters.lines import line
from proxy.model import Record

PATIENCE_S = 10.0
PAUSES_S = (0.5, 2.0, 8.0)
"""Between the tries of one event."""


class WebhookFailed(Exception):
    """A receiver did not take an event; its URL may hold a secret and is not named."""


class WebhookExporter:
    """Posts events of some kinds to one URL."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        events: Sequence[str],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._events = frozenset(events)
        self._pauses_s = tuple(pauses_s)
        self._session: aiohttp.ClientSession | None = None

    async def export(self, records: Sequence[Record]) -> None:
        """Post those that were asked for, in order. Raises WebhookFailed for the last that was not taken."""
        failed: WebhookFailed | None = None
        for record in records:
            if record.type in self._events:
                try:
                    await self._deliver(line(record))
                except WebhookFailed as error:
                    failed = error
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _deliver(self, body: bytes) -> None:
        for pause_s in (*self._pauses_s, None):
            trouble = await self._post(body)
            if trouble is None:
                return
            if pause_s is None:
                raise WebhookFailed(trouble)
            await asyncio.sleep(pause_s)

    async def _post(self, body: bytes) -> str | None:
        """What went wrong, if anything did."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as answer:
                return None if answer.status < 300 else f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__
