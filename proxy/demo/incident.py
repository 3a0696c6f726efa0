"""The demo's incident: a tool that always fails, tried again and again with a history that grows.

Three customers of one service, told apart by a label. One's agent loops with tool calls, one's as a
text loop (ReAct), the third just works. Here are the caps that hold them (the ones README shows), the
agents, and what became of each, read from the record.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from rich.text import Text

from proxy.demo.agents import LAPTOP, Agent, Tool, play
from proxy.demo.model import Call, Line, Script
from proxy.model import Record
from proxy.pricing import usd_text

LABEL = "customer"
BUDGETS: Sequence[Mapping[str, Any]] = (
    {"name": "customer", "scope": "label:customer", "window": "day", "limits": {"spend_usd": 20},
     "alert_at": [1.0], "hard_at": 2.0},
    {"name": "retries", "scope": "turn", "limits": {"tool_retries": 25}},
    {"name": "thread-day", "scope": "thread", "window": "day", "limits": {"steps": 200}},
)  # fmt: skip
LESSON = (
    "The incident: a tool that always fails, tried again and again, each call dearer than the one before. "
    "A customer may spend 20 USD a day; at 20 an alert goes out, at 40 it stops."
)
_MANY = 400
_PROMPTS = tuple(f"Render the catalogue as PDF, attempt {number}" for number in range(1, _MANY))
_HANDBOOK = "You make catalogues. " + "Mind the house style on every page. " * 5_000
_RENDER = Tool(
    "Render a catalogue.", 0.0, "error: renderer out of memory\n" + "  at layout.page\n" * 500, True
)


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one customer's agent."""

    customer: str
    calls: int
    cost_usd: Decimal
    alerts: tuple[float, ...]
    ended_by: str | None
    """The budget that refused it."""
    message: str | None
    """What its user read."""

    def public(self) -> dict[str, Any]:
        """For machines."""
        return {
            "customer": self.customer, "calls": self.calls, "cost_usd": usd_text(self.cost_usd),
            "alerts": list(self.alerts), "ended_by": self.ended_by, "message": self.message,
        }  # fmt: skip


CALLING = Agent(
    name="acme",
    lesson="retries in tool calls",
    api="anthropic",
    model="claude-opus-4-1",
    system=_HANDBOOK,
    tools={"render": _RENDER},
    streams=False,
    max_steps=_MANY,
    script=Script(
        "Make our spring catalogue.",
        [Line(calls=(Call("render", {"prompt": prompt}),)) for prompt in _PROMPTS],
        first_output_s=0.0,
        cached=False,
    ),
)
WRITING = replace(
    CALLING,
    name="globex",
    lesson="retries in plain text",
    api="text",
    script=replace(
        CALLING.script,
        task="Make our autumn catalogue.",
        lines=[Line(text=f"It failed. Once more.\nAction: render[{prompt}]") for prompt in _PROMPTS],
    ),
)
WORKING = replace(LAPTOP, name="initech", lesson="ordinary work beside it")
CUSTOMERS: Sequence[Agent] = (CALLING, WRITING, WORKING)


async def happen(base_url: str) -> dict[str, str | None]:
    """Let all three work at once; what refused them, by customer."""
    told = await asyncio.gather(*(play(agent, f"{base_url}/@{LABEL}={agent.name}") for agent in CUSTOMERS))
    return {agent.name: message for agent, message in zip(CUSTOMERS, told, strict=True)}


def stories(
    records: Sequence[Record], sessions: Sequence[Mapping[str, Any]], told: Mapping[str, str | None]
) -> list[Story]:
    """What the record holds of each customer."""
    return [_story(agent.name, records, sessions, told[agent.name]) for agent in CUSTOMERS]


def _story(
    customer: str, records: Sequence[Record], sessions: Sequence[Mapping[str, Any]], message: str | None
) -> Story:
    own = [session for session in sessions if session.get("labels", {}).get(LABEL) == customer]
    turns = [turn for session in own for thread in session["threads"] for turn in thread["turns"]]
    ids = {session["id"] for session in own}
    return Story(
        customer,
        sum(len(turn["steps"]) for turn in turns),
        sum((Decimal(turn["cost_usd"] or 0) for turn in turns), Decimal(0)),
        tuple(
            record.data["share"]
            for record in records
            if record.type == "budget/alert" and record.data["subject"] == customer
        ),
        next((r.data["budget"] for r in records if r.type == "budget/exhausted" and r.session in ids), None),
        message,
    )


def draw(stories: Sequence[Story], log: Sequence[str]) -> list[Text]:
    """Each customer in a line, then what the proxy logged and what a user read."""
    lines = [Text(LESSON, "bold")]
    for agent, story in zip(CUSTOMERS, stories, strict=True):
        alert = f"alert at {story.alerts[0]:.0%}" if story.alerts else "no alert"
        end = f"stopped by {story.ended_by}" if story.ended_by else "done"
        lines.append(
            Text(
                f"  {story.customer:8} {agent.lesson:24} {story.calls:3} calls  ${story.cost_usd:7.4f}  "
                f"{alert:14}  {end}"
            )
        )
    lines += [Text(f"  log: {line}", "dim") for line in log]
    return lines
