"""`looptap show`: a session, a turn or a step as a tree with a time bar.

Drawn so that one look finds the slow, the costly and the failed step. Every step and tool call
of one drawing lies on the same time scale, so what ran side by side stands side by side. What is
not known is shown as ``?``; an estimate wears a ``~``; everything that came over the wire is
made inert first (``wording.inert``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from typing import Any

from rich.text import Text

from proxy.terminal.refused import how_to_go_on, nudge_words, refusal_words, repair_words
from proxy.terminal.screen import Glyphs, Screen, wrapped
from proxy.terminal.timeline import (
    Attempt,
    Session,
    Step,
    Thread,
    ToolRun,
    Turn,
    read_session,
    read_step,
    read_turn,
)
from proxy.terminal.wording import UNKNOWN, count, decimal, duration, inert, money, plain, share

Json = Mapping[str, Any]

_STANDS_OUT = Decimal("1.5")
"""A step is marked when it takes this many times its even share of the turn's time or cost."""
_CAUSE_STYLE = {"completed": "green", "error": "bold red", "interrupted": "yellow", "superseded": "yellow"}
_SEVERITY_STYLE = {"violation": "bold red", "warning": "yellow", "info": "dim"}
_MARKED = "bold yellow"
_BAR = (8, 36)
"""Narrowest and widest time bar; below the narrowest there is none."""
_BESIDE_BAR = 74
"""Columns that the rest of a step's line usually takes."""
_ARGUMENTS = 60
_WITH_IDS = 140
"""From this many columns on, a step's line ends with the beginning of its id."""
_ROOMY = 110
"""Below this many columns figures go without their words, so that marks stay in sight."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a row lies in time; ``phases`` are (from, to, kind)."""

    began: int | None
    ended: int | None
    phases: Sequence[tuple[int, int, str]] = ()
    stands_out: bool = False


@dataclass(slots=True)
class _Row:
    guide: str
    head: Text
    span: _Span | None = None
    cells: Sequence[Text] = ()
    """Figures that stand in columns, step under step."""
    tail: Text = field(default_factory=Text)


@dataclass(frozen=True, slots=True)
class _Node:
    """A row's content and what hangs below it."""

    head: Text
    span: _Span | None = None
    cells: Sequence[Text] = ()
    tail: Text | None = None
    below: "Sequence[_Node]" = ()


def draw_session(session: Json, findings: Sequence[Json], screen: Screen) -> list[Text]:
    """A session with all its threads."""
    read = read_session(session, findings)
    times = [t for thread in read.threads for turn in thread.turns for t in (turn.began, turn.ended)]
    return _draw(_Pen(screen).session(read), _window(times), screen)


def draw_turn(turn: Json, findings: Sequence[Json], screen: Screen) -> list[Text]:
    """A turn with its steps, and the threads that it started where ``threads`` holds them."""
    read = read_turn(turn, findings)
    children = read_session({"threads": turn.get("threads")}, findings).roots
    times = [t for c in children for x in c.turns for t in (x.began, x.ended)]
    return _draw(_Pen(screen).turn(read, children), _window([read.began, read.ended, *times]), screen)


def draw_step(step: Json, findings: Sequence[Json], screen: Screen) -> list[Text]:
    """A step with its attempts, tool calls and findings, nothing left out."""
    read = read_step(step, findings)
    window = _window([read.began, read.ended])
    pen = _Pen(screen)
    head = Text.assemble("step ", (_word(read.id), "dim"))
    return _draw(_Node(head, below=[pen.step(read, 1, (), (), every_attempt=True)]), window, screen)


def _window(times: Iterable[int | None]) -> tuple[int, int] | None:
    known = [t for t in times if t is not None]
    return (min(known), max(known)) if known else None


class _Pen:
    """Turns what was read into nodes: the words, their colours, and nothing of where they go."""

    def __init__(self, screen: Screen) -> None:
        self._g = screen.glyphs
        self._terse = screen.width < _ROOMY
        self._ids = screen.cut and screen.width >= _WITH_IDS
        self._said: set[str] = set()
        """Names and labels that a line above has said."""

    # -- sessions and threads

    def session(self, session: Session) -> _Node:
        turns = [turn for thread in session.threads for turn in thread.turns]
        window = _window([t for turn in turns for t in (turn.began, turn.ended)])
        self._said = {_name(session.json), _labels(session.json)}
        facts = [
            Text.assemble("session ", (_word(session.id), "dim")),
            Text(_name(session.json), "bold"),
            Text(_plural(len(session.threads), "thread")),
            Text(_plural(len(turns), "turn")),
            Text(duration(_between(*window) if window else None)),
            Text(total_cost(turn.json for turn in turns)),
            Text(_labels(session.json), "dim"),
        ]
        return _Node(self._line(facts), below=self._threads(session.roots))

    def _threads(self, threads: Sequence[Thread]) -> list[_Node]:
        if len(threads) == 1 and threads[0].json.get("kind") == "main" and not threads[0].json.get("partial"):
            return self._turns(threads[0])
        nodes: list[_Node] = []
        for thread in sorted(threads, key=lambda t: (t.began is None, t.began or 0)):
            nodes.extend(self._thread(thread))
        return nodes

    def _thread(self, thread: Thread) -> list[_Node]:
        kind = str(thread.json.get("kind") or "unknown")
        if kind == "side":
            return [self._side(turn) for turn in thread.turns]
        words = {"subagent": "sub-agent", "main": "thread", "unknown": "thread"}
        facts = [Text.assemble((words.get(kind, "thread"), "cyan"), " ", (_word(thread.id), "dim"))]
        if thread.json.get("agent"):
            facts.append(Text(inert(str(thread.json["agent"]), 40)))
        if thread.json.get("parent") and kind != "subagent":
            facts.append(Text(f"fork of {_word(str(thread.json['parent']))}", "magenta"))
        if thread.json.get("partial"):
            facts.append(Text("seen from its middle", "yellow"))
        return [_Node(self._line(facts), below=self._turns(thread))]

    def _turns(self, thread: Thread) -> list[_Node]:
        """The turns of a thread, each with the threads that it started."""
        started: dict[str, list[Thread]] = {turn.id: [] for turn in thread.turns}
        homeless: list[Thread] = []
        for child in thread.children:
            home = child.json.get("parent_turn")
            if child.json.get("kind") == "main":  # a fork went its own way: no turn waits for it
                home = None
            elif home not in started:
                home = next((t.id for t in reversed(thread.turns) if _before(t.began, child.began)), None)
            (homeless if home is None else started[str(home)]).append(child)
        nodes = [self.turn(turn, started[turn.id]) for turn in thread.turns]
        for child in homeless:
            nodes.extend(self._thread(child))
        return nodes

    def _side(self, turn: Turn) -> _Node:
        facts = [
            Text.assemble("side call ", _word(turn.id)),
            Text(", ".join(_models(turn))),
            *self._usage(turn.json.get("usage")),
            Text(money(turn.json.get("cost_usd"), turn.json.get("cost_quality"))),
        ]
        if turn.json.get("cause") not in (None, "completed"):
            facts.append(Text(str(turn.json["cause"])))
        line = self._line(facts)
        line.stylize("dim")
        return _Node(line, _Span(turn.began, turn.ended, _reply_phases(turn.steps)))

    # -- turns

    def turn(self, turn: Turn, children: Sequence[Thread]) -> _Node:
        models = _models(turn)
        facts = [
            Text.assemble(("turn ", "bold"), (_word(turn.id), "dim")),
            self._once(_name(turn.json), "bold"),
            self._cause(turn.json),
            Text(duration(_between(turn.began, turn.ended))),
            Text(_plural(len(turn.steps), "step")),
            *self._usage(turn.json.get("usage")),
            Text(money(turn.json.get("cost_usd"), turn.json.get("cost_quality")), "bold"),
            *([Text(models[0])] if len(models) == 1 else []),
            self._once(_labels(turn.json), "dim"),
        ]
        return _Node(self._line(facts), below=self._steps(turn, children, len(models) > 1))

    def _steps(self, turn: Turn, children: Sequence[Thread], name_models: bool) -> list[_Node]:
        nodes: list[_Node] = []
        slowest, costliest = _standing_out(turn.steps)
        epoch = turn.steps[0].json.get("epoch") if turn.steps else None
        for index, step in enumerate(turn.steps):
            nodes.extend(self._refusals(turn, turn.steps[index - 1].began if index else None, step.began))
            if step.json.get("epoch") != epoch:
                epoch = step.json.get("epoch")
                fold = self._g.fold
                text = f"{fold} history was compacted or rewritten: epoch {count(epoch)} {fold}"
                nodes.append(_Node(Text(text, "magenta")))
            until = turn.steps[index + 1].began if index + 1 < len(turn.steps) else None
            here = [c for c in children if _home(c, step, until, index == 0)]
            marks = [*_mark("slowest", step, slowest), *_mark("costliest", step, costliest)]
            if name_models:
                marks.insert(0, inert(str(step.json.get("model") or UNKNOWN), 40))
            nodes.append(self.step(step, index + 1, marks, here))
        if not turn.steps:
            for child in children:
                nodes.extend(self._thread(child))
        nodes.extend(self._last_refusal(turn))
        return nodes

    def _refusals(self, turn: Turn, after: int | None, until: int | None) -> list[_Node]:
        """Steps that were refused between two that went out: history, for the turn went on."""
        known = {step.id for step in turn.steps}
        told = [
            self._refusal(one)
            for one in turn.refusals
            if one.step not in known and _before(one.began, until) and not _before(one.began, after)
        ]
        return [_Node(Text(f"{self._g.cross} {words}", "dim")) for words in dict.fromkeys(told)]

    def _last_refusal(self, turn: Turn) -> list[_Node]:
        """What ended the turn for now, and how to go on."""
        if not turn.refusals:
            return []
        last = turn.refusals[-1]
        if any(_before(last.ended, a.began) for step in turn.steps for a in step.attempts):
            return []
        words = Text(f"{self._g.cross} {self._refusal(last)}", "bold red")
        how = how_to_go_on(last.refused or {})
        return [_Node(words.append(self._g.dot + how, "not bold") if how else words)]

    @staticmethod
    def _refusal(attempt: Attempt) -> str:
        if attempt.refused is not None:
            return refusal_words(attempt.refused)
        return "refused" + (f": {inert(attempt.why, 160)}" if attempt.why else "")

    def _cause(self, turn: Json) -> Text:
        cause = turn.get("cause")
        if not cause:
            return Text("open" if turn.get("open") else UNKNOWN, "cyan")
        by = f" by {inert(str(turn['by']), 20)}" if turn.get("by") else ""
        return Text(inert(str(cause), 30) + by, _CAUSE_STYLE.get(str(cause), "bold yellow"))

    # -- steps

    def step(
        self,
        step: Step,
        number: int,
        marks: Sequence[str],
        children: Sequence[Thread],
        *,
        every_attempt: bool = False,
    ) -> _Node:
        below: list[_Node] = []
        if every_attempt or len(step.attempts) > 1 or step.failed:
            below.extend(self._attempt(step, index) for index in range(len(step.attempts)))
        below.extend(self._wait(a.waited) for a in step.attempts if a.waited)
        below.extend(self._finding(f) for f in step.findings)
        below.extend(self._nudge(n) for n in step.json.get("nudges") or () if isinstance(n, Mapping))
        below.extend(self._repair(r) for r in step.json.get("repairs") or () if isinstance(r, Mapping))
        below.extend(self._would(w) for w in step.json.get("would_end") or () if isinstance(w, Mapping))
        below.extend(self._tool(tool, step.tools) for tool in step.tools)
        for child in sorted(children, key=lambda c: (c.began is None, c.began or 0)):
            below.extend(self._thread(child))
        slow = any(m.startswith("slowest") for m in marks)
        costly = any(m.startswith("costliest") for m in marks)
        tail = Text()
        for mark in marks:
            known = mark.startswith(("slowest", "costliest"))
            tail.append((self._g.mark if known else "") + mark + "  ", _MARKED if known else "")
        if self._ids and not every_attempt:
            tail.append(_word(step.id)[:12], "dim")
        stop = step.json.get("stop_reason")
        cells = [
            *self._usage(step.json.get("usage")),
            Text(money(step.json.get("cost_usd"), step.json.get("cost_quality")), _MARKED if costly else ""),
            Text(inert(str(stop), 20) if stop else UNKNOWN, "" if stop else "yellow"),
        ]
        phases = [*_reply_phases([step]), *_tool_phases(step.tools)]
        style = "bold red" if step.failed else "bold"
        return _Node(
            Text(str(number), style), _Span(step.began, step.ended, phases, slow), cells, tail, below
        )

    def _usage(self, usage: Any) -> list[Text]:
        """Tokens read and written, each with its share that was cached or thought."""
        known = usage if isinstance(usage, Mapping) else {}
        cached = share(known.get("cache_read_tokens"), known.get("input_tokens"))
        read = Text(f"in {count(known.get('input_tokens'))}")
        if cached is not None:
            read.append(f" ({cached})" if self._terse else f" ({cached} cached)", "dim")
        wrote = Text(f"out {count(known.get('output_tokens'))}")
        if known.get("reasoning_tokens"):
            thought = count(known["reasoning_tokens"])
            wrote.append(f" ({thought})" if self._terse else f" ({thought} thinking)", "dim")
        return [read, wrote]

    def _attempt(self, step: Step, index: int) -> _Node:
        attempt = step.attempts[index]
        good = attempt.outcome == "complete"
        said = {"client_gone": "the client went away", "cut": "the reply broke off"}
        words = inert(said.get(attempt.outcome, attempt.outcome) or UNKNOWN, 30)
        if attempt.why and index and step.attempts[index - 1].why == attempt.why:
            words += ": the same"
        elif attempt.refused is not None:
            words = refusal_words(attempt.refused)
        elif attempt.why:
            if attempt.outcome == "client_gone":  # it did not leave by itself
                words = "broken off"
            words += f": {inert(attempt.why, 160, ellipsis=self._g.ellipsis)}"
        glyph, style = (self._g.tick, "green") if good else (self._g.cross, "bold red")
        span = _Span(
            attempt.began, attempt.ended, _attempt_phases(attempt.began, attempt.first, attempt.ended, good)
        )
        return _Node(
            Text(glyph, style), span, tail=Text(f"attempt {index + 1} {words}", "" if good else "red")
        )

    def _tool(self, tool: ToolRun, beside: Sequence[ToolRun]) -> _Node:
        tail = Text(inert(tool.name or UNKNOWN, 60), "cyan")
        if tool.arguments and tool.arguments != "{}":
            tail.append(" " + inert(tool.arguments, _ARGUMENTS, ellipsis=self._g.ellipsis), "dim")
        if tool.failed:
            tail.append("  error", "bold red")
        elif not tool.answered:
            tail.append("  no result yet", "yellow")
        glyph = self._g.parallel if len(beside) > 1 else self._g.call
        return _Node(Text(glyph, "dim"), _Span(tool.began, tool.ended, _tool_phases([tool])), tail=tail)

    def _wait(self, waited: int) -> _Node:
        return _Node(Text(f"{self._g.pen} waited {duration(waited)} for an operator", "cyan"))

    def _nudge(self, nudge: Json) -> _Node:
        return _Node(Text(f"{self._g.pen} {nudge_words(nudge, self._g.ellipsis)}", "cyan"))

    def _repair(self, repair: Json) -> _Node:
        return _Node(Text(f"{self._g.pen} {repair_words(repair)}", "cyan"))

    def _would(self, why: Json) -> _Node:
        return _Node(Text(f"{self._g.cross} {refusal_words(why, would=True)}", "yellow"))

    def _finding(self, finding: Json) -> _Node:
        severity = str(finding.get("severity") or "info")
        style = _SEVERITY_STYLE.get(severity, "yellow")
        glyph = {"violation": self._g.cross, "info": self._g.note}.get(severity, self._g.warn)
        what = f"{finding.get('policy')}/{finding.get('kind')}"
        words = Text.assemble((f"{glyph} ", style), (inert(what, 60), style), f" {inert(severity, 20)}")
        if finding.get("consequence"):
            words.append(f" ({inert(str(finding['consequence']), 20)})")
        if finding.get("path"):
            words.append(" " + inert(str(finding["path"]), 80))
        evidence = finding.get("evidence")
        if isinstance(evidence, Mapping) and evidence:
            pairs = ", ".join(f"{k}={plain(v)}" for k, v in evidence.items())
            words.append("  " + inert(pairs, 120, ellipsis=self._g.ellipsis), "dim")
        return _Node(words)

    def _once(self, words: str, style: str) -> Text:
        return Text("" if words in self._said else words, style)

    def _line(self, facts: Sequence[Text]) -> Text:
        return Text(self._g.dot).join(f for f in facts if f.plain)


# -- from nodes to lines


def _draw(root: _Node, window: tuple[int, int] | None, screen: Screen) -> list[Text]:
    rows = list(_rows(root, "", "", screen))
    left = max((len(r.guide) + r.head.cell_len for r in rows if r.cells or r.tail.plain), default=0)
    bar = _bar_width(screen, left, window)
    widths: list[int] = []
    for row in rows:
        for index, cell in enumerate(row.cells):
            if index == len(widths):
                widths.append(0)
            widths[index] = max(widths[index], cell.cell_len)
    lines = [_lay(row, left, bar, widths, window, screen.glyphs) for row in rows]
    if bar and any(r.span is not None and r.span.phases for r in rows):
        g = screen.glyphs
        lines.append(
            Text(f"{g.wait} waiting  {g.stream} streaming  {g.tool} tools  {g.broken} failed", "dim")
        )
    return lines


def _rows(node: _Node, guide: str, below: str, screen: Screen) -> Iterable[_Row]:
    glyphs = screen.glyphs
    head, *more = [node.head]
    if screen.cut and node.span is None and len(guide) + head.cell_len > screen.width:
        head, *more = wrapped(head, screen.width - len(guide) - len(glyphs.space), glyphs.dot)
    yield _Row(guide, head, node.span, node.cells, node.tail or Text())
    for line in more:
        yield _Row(below + (glyphs.pipe if node.below else glyphs.space), line)
    for index, child in enumerate(node.below):
        last = index == len(node.below) - 1
        joint = glyphs.last if last else glyphs.branch
        yield from _rows(child, below + joint, below + (glyphs.space if last else glyphs.pipe), screen)


def _bar_width(screen: Screen, left: int, window: tuple[int, int] | None) -> int:
    if window is None or window[1] <= window[0]:
        return 0
    room = screen.width - left - _BESIDE_BAR
    narrow, wide = _BAR
    return min(wide, max(narrow, room)) if room >= narrow - 16 else 0


def _lay(
    row: _Row, left: int, bar: int, widths: Sequence[int], window: tuple[int, int] | None, glyphs: Glyphs
) -> Text:
    line = Text.assemble((row.guide, "dim"), row.head)
    if not row.cells and not row.tail.plain:
        return line
    line.append(" " * (left - line.cell_len))
    if row.span is not None and window is not None:
        offset = None if row.span.began is None else max(0, row.span.began - window[0])  # clocks differ
        took = _between(row.span.began, row.span.ended)
        line.append(f" {('+' + duration(offset)) if offset is not None else UNKNOWN:>7}", "dim")
        line.append(f" {duration(took):>6} ", _MARKED if row.span.stands_out else "")
        if bar:
            line.append(" ")
            line.append_text(_bar(row.span.phases, window, bar, glyphs))
            line.append(" ")
    for index, cell in enumerate(row.cells):
        line.append("  " if index else " ")
        line.append_text(cell)
        line.append(" " * (widths[index] - cell.cell_len))
    if row.tail.plain:
        line.append("  " if row.cells else " ")
        line.append_text(row.tail)
    line.rstrip()
    return line


def _bar(phases: Sequence[tuple[int, int, str]], window: tuple[int, int], width: int, glyphs: Glyphs) -> Text:
    """Proportional; whatever took any time takes at least a cell."""
    drawn: Mapping[str, tuple[str, str]] = {
        "tool": (glyphs.tool, "cyan"),
        "wait": (glyphs.wait, "blue"),
        "stream": (glyphs.stream, "green"),
        "broken": (glyphs.broken, "red"),
    }
    cells: list[tuple[str, str]] = [(" ", "")] * width
    start, whole = window[0], window[1] - window[0]
    for kind in drawn:  # later kinds lie over earlier ones
        for began, ended, what in phases:
            if what == kind:
                first = min(width - 1, max(0, (began - start) * width // whole))
                until = min(width, max(first + 1, -((start - ended) * width // whole)))
                cells[first:until] = [drawn[kind]] * (until - first)
    text = Text()
    for (char, style), run in groupby(cells):
        text.append(char * len(list(run)), style)
    return text


# -- small facts


def _attempt_phases(
    began: int | None, first: int | None, ended: int | None, good: bool
) -> list[tuple[int, int, str]]:
    if began is None or ended is None:
        return []
    if not good:
        return [(began, ended, "broken")]
    if first is None:
        return [(began, ended, "wait")]
    return [(began, first, "wait"), (first, ended, "stream")]


def _reply_phases(steps: Sequence[Step]) -> list[tuple[int, int, str]]:
    return [
        phase
        for step in steps
        for a in step.attempts
        for phase in _attempt_phases(a.began, a.first, a.ended, a.outcome == "complete")
    ]


def _tool_phases(tools: Sequence[ToolRun]) -> list[tuple[int, int, str]]:
    return [(t.began, t.ended, "tool") for t in tools if t.began is not None and t.ended is not None]


def _standing_out(steps: Sequence[Step]) -> tuple[dict[str, str], dict[str, str]]:
    return _outlier(steps, lambda s: s.took), _outlier(steps, lambda s: s.cost)


def _outlier(steps: Sequence[Step], measure: Callable[[Step], int | Decimal | None]) -> dict[str, str]:
    """The one step that takes far more than its even share, with that share; or nothing."""
    known = [(Decimal(value), step) for step in steps if (value := measure(step)) is not None]
    whole = sum((v for v, _ in known), Decimal(0))
    if len(known) < 2 or whole <= 0:
        return {}
    most, step = max(known, key=lambda pair: pair[0])
    if most * len(known) < whole * _STANDS_OUT:
        return {}
    return {step.id: f"{int(most * 100 / whole)}%"}


def _mark(word: str, step: Step, outliers: Mapping[str, str]) -> list[str]:
    return [f"{word} {outliers[step.id]}"] if step.id in outliers else []


def _home(child: Thread, step: Step, until: int | None, first: bool) -> bool:
    """Whether a thread began during this step (what began at no known time: the first)."""
    if child.began is None or step.began is None:
        return first
    return (first or step.began <= child.began) and (until is None or child.began < until)


def _between(began: int | None, ended: int | None) -> int | None:
    """How long; None where the end is not known (a log without it says the same moment twice)."""
    return ended - began if began is not None and ended is not None and ended != began else None


def _before(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a <= b


def _models(turn: Turn) -> list[str]:
    return list(dict.fromkeys(inert(str(s.json["model"]), 40) for s in turn.steps if s.json.get("model")))


def total_cost(turns: Iterable[Json]) -> str:
    """The sum of what is priced; ``+ ?`` says that something is not."""
    total, quality, priced, holes = Decimal(0), "measured", 0, 0
    for turn in turns:
        cost = decimal(turn.get("cost_usd"))
        if cost is None or turn.get("cost_quality") == "unpriced":
            holes += 1
            continue
        total, priced = total + cost, priced + 1
        if turn.get("cost_quality") in ("estimated", "assumed"):
            quality = "estimated"
    if not priced:
        return UNKNOWN if holes else money("0")
    return money(str(total), quality) + (f" + {UNKNOWN}" if holes else "")


def _name(node: Json) -> str:
    return inert(str(node.get("agent") or node.get("client") or ""), 40)


def _labels(node: Json) -> str:
    labels = node.get("labels")
    return inert(" ".join(f"{k}={v}" for k, v in labels.items()), 80) if isinstance(labels, Mapping) else ""


def _word(value: str) -> str:
    return inert(value, 40)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
