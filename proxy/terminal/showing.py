"""What `looptap show`, `run` and `demo` put on the screen: ids resolved, trees built and drawn.

Reads the record through ``Reader`` and knows no SQL; draws through ``render`` and knows no
glyphs. Trees come from ``trees`` and ``details``, the same for records of a live run, of the
store and of a replay.
"""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from proxy.details import Details
from proxy.model import Record
from proxy.record import Reader
from proxy.terminal.render import draw_session, draw_step, draw_turn
from proxy.terminal.screen import Screen
from proxy.trees import Forest

Json = dict[str, Any]


class Album:
    """Records turned into complete trees, by id."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.forest = Forest()
        self.details = Details()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take one record."""
        self.forest.add(record)
        self.details.add(record)

    def session(self, id: str) -> Json:
        """A session with everything that is known of it."""
        return self.details.complete(self.forest.session(id, more=True))

    def sessions(self) -> list[Json]:
        """All sessions, in the order in which they began."""
        return [self.session(id) for id in self.forest.sessions]

    def find(self, id: str) -> Json | None:
        """A session, turn or step by its whole id; None where the records hold none of it."""
        if id in self.forest.sessions:
            return self.session(id)
        for session in self.sessions():
            for thread in session["threads"]:
                if thread["id"] == id:
                    return session
                for turn in thread["turns"]:
                    if turn["id"] == id:
                        return self._with_children(turn, thread["id"], session)
                    found = next((s for s in turn["steps"] if s["id"] == id), None)
                    if found is not None:
                        return dict(found)
        return None

    @staticmethod
    def _with_children(turn: Json, thread: str, session: Json) -> Json:
        """A turn together with the threads that it started."""
        below = [t for t in session["threads"] if t.get("parent_turn") == turn["id"] and t["id"] != thread]
        return {**turn, "threads": below} if below else dict(turn)

    def draw(self, node: Json, screen: Screen) -> list[Text]:
        """A node of the tree as lines."""
        findings = self.forest.findings
        if str(node["id"]).startswith("ses_"):
            return draw_session(node, findings, screen)
        if str(node["id"]).startswith("stp_"):
            return draw_step(node, findings, screen)
        return draw_turn(node, findings, screen)

    def draw_all(self, screen: Screen) -> list[Text]:
        """Every session, with a blank line between two."""
        lines: list[Text] = []
        for session in self.sessions():
            if lines:
                lines.append(Text())
            lines.extend(self.draw(session, screen))
        return lines

    def answer(self, node: Json) -> Json:
        """The same for machines: the node itself, with the findings that its steps point into.

        Steps hold indexes into ``findings`` as in a replay; a step shown alone holds its findings.
        """
        told: dict[int, int] = {}
        own = _renumbered(node, told)
        findings = [self.forest.findings[index] for index in told]
        return {**own, "findings": findings}


def _renumbered(node: Json, told: dict[int, int]) -> Json:
    """A copy of a node whose steps count findings from 0, in the order in which they stand."""
    copy = dict(node)
    for below in ("threads", "turns", "steps"):
        if below in copy:
            copy[below] = [_renumbered(child, told) for child in copy[below]]
    if isinstance(copy.get("findings"), list):
        copy["findings"] = [told.setdefault(index, len(told)) for index in copy["findings"]]
    return copy


def of_one_run(reader: Reader, after_seq: int, label: tuple[str, str]) -> tuple[Album, list[Json]]:
    """The sessions that wore a label since an event, less the turns that did not.

    A client may go on with a session of an earlier run; and others may write to the same record.
    """
    name, value = label
    seen = {record.session for _, record in reader.events(after_seq, types=["step/start"])}
    album = Album(())
    touched: set[str | None] = set()
    for session in sorted(s for s in seen if s is not None):
        turns = {e.turn for e in reader.exchanges(session=session) if e.labels.get(name) == value}
        if turns:
            touched |= turns
            for _, record in reader.events(session=session):
                album.add(record)
    sessions = sorted(album.sessions(), key=lambda s: str(s["started_at"]))
    for tree in sessions:
        for thread in tree["threads"]:
            thread["turns"] = [t for t in thread["turns"] if t["id"] in touched]
        tree["threads"] = [t for t in tree["threads"] if t["turns"]]
    return album, sessions
