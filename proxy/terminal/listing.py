"""`looptap sessions`, `turns` and `tail`: aligned tables and one line per event, newest first.

Columns are as wide as their widest cell, a pipe gets them uncut. What came over the wire is made
inert, what is not known is ``?``.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.text import Text

from proxy.terminal.refused import reached_words
from proxy.terminal.wording import UNKNOWN, age, count, duration, inert, moment, money, share

Json = Mapping[str, Any]


_FIGURES = frozenset({"AGE", "STEPS", "TURNS", "TOOK", "IN", "CACHED", "OUT", "COST"})
_TURNS = ["AGE", "TURN", "AGENT", "MODEL", "CAUSE", "STEPS", "TOOK", "IN", "CACHED", "OUT", "COST", "LABELS"]
_WAITS = ["SINCE", "REQUEST", "TURN", "AGENT", "MODEL", "WHY", "A YES"]
_SESSIONS = ["AGE", "SESSION", "CLIENT", "TURNS", "STEPS", "TOOK", "COST", "LABELS"]
_CAUSE_STYLE = {"completed": "green", "error": "bold red", "open": "cyan", "held": "bold yellow"}

Fold = Sequence[tuple[str, int]]
"""Columns and how narrow each may become (0: it goes), in the order in which room is made."""
_FOLD_TURNS: Fold = (
    ("TURN", 12), ("LABELS", 16), ("MODEL", 16), ("AGENT", 12), ("LABELS", 0), ("CACHED", 0), ("MODEL", 8),
    ("AGENT", 8), ("AGENT", 0), ("AGE", 0), ("MODEL", 0),
)  # fmt: skip
_FOLD_SESSIONS: Fold = (("SESSION", 12), ("LABELS", 16), ("CLIENT", 12), ("LABELS", 0), ("CLIENT", 8))
_FOLD_WAITS: Fold = (
    ("TURN", 12), ("REQUEST", 12), ("MODEL", 16), ("AGENT", 12), ("MODEL", 0), ("AGENT", 0), ("WHY", 24),
    ("SINCE", 0),
)  # fmt: skip
_IDS = frozenset({"TURN", "SESSION", "REQUEST"})
"""Cut without a mark: the beginning of an id finds it."""


def turns_table(turns: Sequence[Json], now: int, width: int | None = None) -> list[Text]:
    """Turns as they come, one a line."""
    return table(_TURNS, [_turn_cells(t, now) for t in turns], width=width, fold=_FOLD_TURNS)


def waits_table(waits: Sequence[Json], now: int, width: int | None = None) -> list[Text]:
    """What waits for an operator, one a line."""
    rows = [
        [
            Text(age(moment(wait.get("since")), now), "dim"),
            Text(_text(wait.get("id"), 40)),
            Text(_text(wait.get("turn"), 40)),
            Text(_text(wait.get("agent"), 24)),
            Text(_text(wait.get("model"), 32)),
            Text(
                reached_words(
                    {**wait.get("facts", {}), "policy": wait.get("policy"), "code": wait.get("code")}
                )
            ),
            Text(_a_yes(wait)),
        ]
        for wait in waits
    ]
    return table(_WAITS, rows, width=width, fold=_FOLD_WAITS)


def _a_yes(wait: Json) -> str:
    facts = wait.get("facts", {})
    if wait.get("adds") is None:
        return "lets it go"
    return inert(f"raises {facts.get('dimension')} of {facts.get('budget')} by {wait['adds']}", 80)


def sessions_table(sessions: Sequence[Json], now: int, width: int | None = None) -> list[Text]:
    """Sessions as they come, one a line."""
    return table(_SESSIONS, [_session_cells(s, now) for s in sessions], width=width, fold=_FOLD_SESSIONS)


def _turn_cells(turn: Json, now: int) -> list[Text]:
    began = moment(turn.get("started_at"))
    cause = str(turn.get("cause") or ("open" if turn.get("open") else UNKNOWN))
    cause = "held" if turn.get("held") else cause
    usage = turn.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    steps = turn.get("steps")
    models = turn.get("models") or [s.get("model") for s in steps or () if isinstance(s, Mapping)]
    return [
        Text(age(began, now), "dim"),
        Text(_text(turn.get("id"), 40)),
        Text(_text(turn.get("agent"), 24)),
        Text(_text(", ".join(dict.fromkeys(str(m) for m in models if m)), 32)),
        Text(_text(cause, 24), _CAUSE_STYLE.get(cause, "yellow")),
        Text(str(len(steps)) if isinstance(steps, list) else count(steps)),
        Text(_took(turn)),
        Text(count(usage.get("input_tokens"))),
        Text(share(usage.get("cache_read_tokens"), usage.get("input_tokens")) or UNKNOWN),
        Text(count(usage.get("output_tokens"))),
        Text(money(turn.get("cost_usd"), turn.get("cost_quality"))),
        Text(_labels(turn), "dim"),
    ]


def _session_cells(session: Json, now: int) -> list[Text]:
    return [
        Text(age(moment(session.get("started_at")), now), "dim"),
        Text(_text(session.get("id"), 40)),
        Text(_text(session.get("client") or session.get("agent"), 24)),
        Text(count(session.get("turns"))),
        Text(count(session.get("steps"))),
        Text(_took(session)),
        Text(money(session.get("cost_usd"), session.get("cost_quality"))),
        Text(_labels(session), "dim"),
    ]


def _took(node: Json) -> str:
    began, ended = moment(node.get("started_at")), moment(node.get("ended_at"))
    return duration(None if began is None or ended is None else ended - began)


def _labels(node: Json) -> str:
    labels = node.get("labels")
    if not isinstance(labels, Mapping):
        return ""
    return inert(" ".join(f"{k}={v}" for k, v in labels.items()), 80)


def _text(value: Any, limit: int) -> str:
    return inert(str(value), limit) if value else UNKNOWN


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text]],
    figures: Collection[str] = _FIGURES,
    *,
    width: int | None = None,
    fold: Fold = (),
) -> list[Text]:
    """Titles and rows in columns as wide as their widest cell; ``figures`` stand to the right.

    ``width``: columns of the terminal, for which ``fold`` makes room; None: everything is written whole.
    """
    kept = [i for i, title in enumerate(titles) if title != "LABELS" or any(r[i].plain for r in rows)]
    widths = {i: max([len(titles[i]), *(r[i].cell_len for r in rows)]) for i in kept}
    if width is not None:
        _make_room(titles, widths, width, fold)
    lines = []
    for cells in ([Text(title, "bold") for title in titles], *rows):
        line = Text()
        for i in widths:
            cell = cells[i].copy()
            cell.truncate(widths[i], overflow="crop" if titles[i] in _IDS else "ellipsis")
            gap = " " * (widths[i] - cell.cell_len)
            line.append(gap if titles[i] in figures else "")
            line.append_text(cell)
            line.append("  " if titles[i] in figures else gap + "  ")
        line.rstrip()
        lines.append(line)
    return lines


def _make_room(titles: Sequence[str], widths: dict[int, int], width: int, fold: Fold) -> None:
    for title, least in fold:
        too_much = sum(widths.values()) + 2 * (len(widths) - 1) - width
        if too_much <= 0:
            return
        at = titles.index(title) if title in titles else -1
        if at not in widths or widths[at] <= least:
            continue
        if least:
            widths[at] = least if title in _IDS else max(least, widths[at] - too_much)
        else:
            del widths[at]


# -- events


_EVENT_STYLE = {"finding": "yellow", "turn/end": "bold", "internal/error": "bold red", "gap": "bold red"}


def event_line(event: Json) -> Text:
    """One event of the log in one line: clock, what, whose, and what matters of it."""
    kind = str(event.get("type") or UNKNOWN)
    when = str(event.get("time") or "")
    clock = when[11:23] if len(when) >= 23 else inert(when, 32)
    whose = event.get("step") or event.get("turn") or event.get("thread") or event.get("session") or ""
    data = event.get("data")
    words = _event_words(kind, data if isinstance(data, Mapping) else {})
    line = Text.assemble((clock, "dim"), "  ", (f"{inert(kind, 24):<16}", _EVENT_STYLE.get(kind, "cyan")))
    line.append(f"  {inert(str(whose), 30):<24}", "dim")
    line.append("  " + words)
    line.rstrip()
    return line


def _event_words(kind: str, data: Json) -> str:
    cost = money(data.get("cost_usd"), data.get("cost_quality"))
    if kind == "step/start":
        index = data.get("index")  # from 0; a person counts as `show --step` does
        parts = [f"step {count(index + 1 if isinstance(index, int) else None)}", data.get("model")]
    elif kind == "step/attempt":
        error = data.get("error")
        error = error if isinstance(error, Mapping) else {}
        said = " ".join(str(error[k]) for k in ("type", "message") if error.get(k))
        said = said or str(data.get("failure") or "")
        parts = [data.get("outcome"), data.get("status"), data.get("stop_reason"), cost, said]
    elif kind == "item":
        flag = "error" if data.get("is_error") else ""
        parts = [data.get("direction"), data.get("kind"), data.get("tool"), flag, data.get("preview")]
    elif kind == "step/end":
        parts = [data.get("stop_reason"), *_tokens(data.get("usage")), cost]
    elif kind == "turn/end":
        steps = data.get("steps")
        parts = [
            data.get("cause"),
            f"{count(steps)} step{'' if steps == 1 else 's'}",
            *_tokens(data.get("usage")),
            cost,
        ]
    elif kind == "finding":
        parts = [f"{data.get('policy')}/{data.get('kind')}", data.get("severity"), data.get("path")]
    elif kind in ("budget/reserve", "budget/settle"):
        holds = data.get("holds")
        parts = (
            ["; ".join(_hold(h) for h in holds if isinstance(h, Mapping))] if isinstance(holds, list) else []
        )
    else:
        parts = [f"{k}={v}" for k, v in data.items() if isinstance(v, (str, int)) and not isinstance(v, bool)]
    return inert(" ".join(str(p) for p in parts if p not in (None, "")), 240)


def _hold(hold: Json) -> str:
    """One counter of a reservation, or of what came of it."""
    in_usd = hold.get("dimension") == "spend_usd"
    amounts = [str(money(hold[k]) if in_usd else hold[k]) for k in ("charged", "held") if k in hold]
    unit = "" if in_usd else f" {hold.get('dimension')}"
    return f"{hold.get('budget')} {hold.get('subject')}: {' of '.join(amounts)}{unit}"


def _tokens(usage: Any) -> list[str]:
    known = usage if isinstance(usage, Mapping) else {}
    return [f"in {count(known.get('input_tokens'))}", f"out {count(known.get('output_tokens'))}"]
