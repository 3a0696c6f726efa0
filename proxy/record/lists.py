"""The lists behind `sessions`, `turns` and the dashboard: rows of the derived tables as public JSON.

Newest first, page by page. Used under its reader's lock.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any

import orjson

from proxy.model import QUALITIES, TOKENS, rfc3339
from proxy.record.events import decode, kinds_mask
from proxy.record.names import Names
from proxy.record.summaries import money

_INT64 = (1 << 63) - 1


class Lists:
    """Sessions, turns and spenders of one connection."""

    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        connection.create_function("has_label", 2, _has_label, deterministic=True)
        connection.create_function("label_of", 2, _label_of, deterministic=True)

    def sessions(
        self,
        limit: int = 50,
        *,
        before: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        label: str | None = None,
    ) -> list[dict[str, Any]]:
        """Sessions, newest first, with the sums of their turns; ``before`` one for the next page."""
        sums = ", ".join(f"sum(t.{name})" for name in (*TOKENS, "cost_pico"))
        where, values = ["1"], list[Any]()
        for condition, value in (("client = ?", agent), ("key = ?", key), ("has_label(labels, ?)", label)):
            if value is not None:
                where.append(condition)
                values.append(value)
        if before is not None:
            where.append("no < ?")
            values.append(self._names.no(before) or 0)
        rows = self._connection.execute(
            f"""SELECT s.no, s.started_ns, s.client, s.key, s.team, s.org, s.labels, max(t.last_ns),
                count(t.no), sum(t.steps), sum(t.findings), max(t.quality),
                count(DISTINCT t.thread), {sums}
                FROM (SELECT * FROM sessions WHERE {" AND ".join(where)} ORDER BY no DESC LIMIT ?) s
                LEFT JOIN turns t ON t.session = s.no
                GROUP BY s.no ORDER BY s.no DESC""",
            (*values, limit),
        ).fetchall()
        return [self._session_json(row) for row in rows]

    def _session_json(self, row: tuple[Any, ...]) -> dict[str, Any]:
        no, started, client, key, team, org, labels, last = row[:8]
        turns, steps, findings, quality, threads = row[8:13]
        return {
            "id": self._names.id(no), "client": client or None, "key": key, "team": team, "org": org,
            "labels": labels_of(labels), "started_at": rfc3339(started), "ended_at": rfc3339(last or started),
            "threads": threads, "turns": turns, "steps": steps or 0, "findings": findings or 0,
            "usage": _usage(row[13:18]), "cost_usd": money(row[18], quality or 0),
            "cost_quality": QUALITIES[quality or 0],
        }  # fmt: skip

    def turns(
        self,
        limit: int = 50,
        *,
        session: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        cause: str | None = None,
        label: str | None = None,
        key: str | None = None,
        finding: str | None = None,
        before: str | None = None,
    ) -> list[dict[str, Any]]:
        """Turns, newest first; ``before`` one for the next page.

        ``cause`` may be ``open``; ``label`` is ``name`` or ``name=value``; ``finding`` is a policy,
        ``policy/kind``, a severity, or ``any``.
        """
        where: list[str] = ["1"]
        values: list[Any] = []
        if agent is not None:
            where.append("(h.agent = ? OR s.client = ?)")
            values += [agent, agent]
        if model is not None:
            where.append("instr(t.models, ?)")
            values.append(f"{model}\n")
        if cause is not None:
            where.append("t.ended_ns IS NULL" if cause == "open" else "t.cause = ?")
            values += [] if cause == "open" else [cause]
        if label is not None:
            where.append("has_label(s.labels, ?)")
            values.append(label)
        if key is not None:
            where.append("s.key = ?")
            values.append(key)
        if finding is not None:
            where.append("t.findings > 0")
        if finding not in (None, "any"):
            where.append("t.no IN (SELECT value FROM json_each(?))")
            values.append(orjson.dumps(self._turns_with(str(finding))).decode())
        if before is not None:
            where.append("t.no < ?")
            values.append(self._names.no(before) or 0)
        if session is not None:
            where.append("t.session = ?")
            values.append(self._names.no(session))
        rows = self._connection.execute(
            f"""SELECT t.no, t.session, t.thread, t.place, t.started_ns, t.last_ns, t.ended_ns,
                t.cause, t.by, t.steps, t.findings, t.models, t.cost_pico, t.quality,
                h.kind, h.agent, s.client, s.labels, s.key, {", ".join(f"t.{name}" for name in TOKENS)}
                FROM turns t LEFT JOIN threads h ON h.no = t.thread
                LEFT JOIN sessions s ON s.no = t.session
                WHERE {" AND ".join(where)} ORDER BY t.no DESC LIMIT ?""",
            (*values, limit),
        ).fetchall()
        return [self._turn_json(row) for row in rows]

    def _turns_with(self, finding: str) -> list[int]:
        """The turns, by number, that hold a finding of this policy, kind or severity."""
        found: set[int] = set()
        rows = self._connection.execute(
            "SELECT turn, data FROM events WHERE kinds & ? AND turn IS NOT NULL", (kinds_mask(("finding",)),)
        )
        for no, data in rows:
            if no not in found and any(
                finding in (r.data.get("policy"), f"{r.data.get('policy')}/{r.data.get('kind')}",
                            r.data.get("severity"))
                for r in decode(data, None, None, None)
                if r.type == "finding"
            ):  # fmt: skip
                found.add(no)
        return sorted(found)

    def spenders(self, by: str, since_ns: int = 0, limit: int = 20) -> list[dict[str, Any]]:
        """What turns cost by key, team, org, agent, model, session or ``label:NAME``, most first."""
        column = {
            "key": "s.key", "team": "s.team", "org": "s.org", "agent": "coalesce(h.agent, s.client)",
            "model": "t.models", "session": "t.session",
        }.get(by, "label_of(s.labels, ?)")  # fmt: skip
        values = [by.removeprefix("label:")] if column.startswith("label_of") else []
        rows = self._connection.execute(
            f"""SELECT {column} AS name, count(*), sum(t.steps), sum(t.cost_pico), max(t.quality)
                FROM turns t LEFT JOIN threads h ON h.no = t.thread
                LEFT JOIN sessions s ON s.no = t.session WHERE t.started_ns >= ?
                GROUP BY name ORDER BY sum(t.cost_pico) DESC LIMIT ?""",
            (*values, min(since_ns, _INT64), limit),
        ).fetchall()
        return [self._spender_json(by, row) for row in rows]

    def _spender_json(self, by: str, row: tuple[Any, ...]) -> dict[str, Any]:
        name, turns, steps, cost, quality = row
        if by == "session":
            name = self._names.id(name)
        elif by == "model" and name:
            name = ", ".join(name.split())
        quality = quality or 0
        return {
            "name": name or None, "turns": turns, "steps": steps or 0,
            "cost_usd": money(cost, min(quality, len(QUALITIES) - 2)), "cost_quality": QUALITIES[quality],
        }  # fmt: skip

    def _turn_json(self, row: tuple[Any, ...]) -> dict[str, Any]:
        no, session, thread, place, started, last, ended = row[:7]
        cause, by, steps, findings, models, cost, quality = row[7:14]
        kind, agent, client, labels, key = row[14:19]
        turn: dict[str, Any] = {
            "id": self._names.id(no), "session": self._names.id(session), "thread": self._names.id(thread),
            "index": place, "kind": kind, "agent": agent or client or None, "cause": cause,
            "open": ended is None, "started_at": rfc3339(started),
            "ended_at": rfc3339(ended if ended is not None else last),
            "models": [name for name in models.split("\n") if name], "steps": steps, "findings": findings,
            "usage": _usage(row[19:]), "cost_usd": money(cost, quality), "cost_quality": QUALITIES[quality],
            "key": key, "labels": labels_of(labels),
        }  # fmt: skip
        if by is not None:
            turn["by"] = by
        return turn


def labels_of(text: str | None) -> dict[str, str]:
    """Labels as they lie in a column."""
    return orjson.loads(text) if text else {}


def _has_label(text: str | None, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    labels = labels_of(text)
    return name in labels and (not equals or labels[name] == value)


def _label_of(text: str | None, name: str) -> str | None:
    return labels_of(text).get(name)


def _usage(values: Iterable[int | None]) -> dict[str, int]:
    return {name: value for name, value in zip(TOKENS, values, strict=True) if value is not None}
