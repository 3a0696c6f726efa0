"""Whether a message that came back is the reply that went out, though the client rewrote it.

Libraries cut a reply at ``Observation:``, pass structured output back as text, take ``<think>``
out or put it in, turn a tool call into prose, keep only the first of several calls, or write
``[empty string]`` where nothing was said. Pure comparisons of text; no state, no index.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from proxy.model import Item, ModelRequest
from proxy.tracking.newest import SUMMED_UP
from proxy.tracking.threads import CLIPPED, Call, Step, joins

_THOUGHTS = tuple(
    (re.compile(rf"<{name}>.*?</{name}>", re.DOTALL), f"</{name}>")
    for name in ("think", "thinking", "reasoning")
)
_NOTHING = re.compile(r"^[\s\[\](){}.]*(empty|no content|none|null)?[\s\w\[\](){}.]{0,12}$", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
_WORD = re.compile(r"\w+")
_INNER_WORD = re.compile(r"(?<=\W)\w+(?=\W)")
ENOUGH = 24
"""Characters from which a quotation is evidence and no accident."""
SENTENCE = 3
"""Blanks from which it is no path and no single command."""


def reply_text(items: Sequence[Item]) -> str:
    """The visible text of a reply or of an assistant message, clipped."""
    text = "\n".join(item.text for item in items if item.kind == "text" and item.text)
    return text[:CLIPPED]


def resembles(step: Step, came_back: Sequence[Item]) -> bool:
    """Whether assistant items read as what this step's reply said."""
    calls = [item for item in came_back if item.kind == "tool_call"]
    if _share_calls(step.calls, calls) or any(
        refers(item) and item.item_id in step.item_ids for item in came_back
    ):
        return True
    text = _plain(reply_text(came_back))
    sent = _plain(step.text)
    if not sent and not step.calls:
        return _NOTHING.match(text) is not None
    if text and sent and (text.startswith(sent) or sent.startswith(text) or text in sent or sent in text):
        return True
    return any(tells(call, text) for call in step.calls)


def refers(item: Item) -> bool:
    """Whether an item stands for another by its id (Responses)."""
    return item.form == "item_reference"


def _share_calls(known: Sequence[Call], calls: Sequence[Item]) -> bool:
    ids = {name for call in known for name in (call.call_id, call.item_id) if name}
    digests = {call.digest for call in known if call.digest}
    return any(
        item.call_id in ids or item.item_id in ids or (item.digest and item.digest in digests)
        for item in calls
    )


def tells(call: Call, text: str) -> bool:
    """A call told as text: its id or arguments stand in it, or the text is its arguments."""
    if not text:
        return False
    if call.call_id is not None and joins(call.call_id) and call.call_id in text:
        return True
    if call.arguments and len(call.arguments) > 2:
        if call.arguments in text:
            return True
        if text[:1] in "[{":
            return bool(_value(text) == _value(call.arguments))
    return False


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _plain(text: str) -> str:
    for thought, mark in _THOUGHTS:
        end = _last(mark, text)
        text = thought.sub(" ", text[:end]) + text[end:]
    return " ".join(text.split())


def _last(mark: str, text: str) -> int:
    """Where the last of these marks ends: a model may open one thing a thousand times and close none, and
    from each opening all of the text would be searched."""
    return text.rfind(mark) + len(mark) if mark in text else 0


def opening(request: ModelRequest, most: int = 4) -> list[str]:
    """The user texts that a request begins with (before any assistant), shortest evidence last."""
    texts: list[str] = []
    for message in request.messages:
        if message.role == "assistant" or len(texts) >= most:
            break
        texts.extend(item.text for item in message.items if item.kind == "user" and item.text.strip())
    return texts


def quotes(texts: Sequence[str], reply: str) -> bool:
    """Whether a new history's first texts carry an earlier reply (a summary of what was)."""
    for part in (reply, *(match[1] for match in _SUMMARY.finditer(reply, 0, _last(SUMMED_UP, reply)))):
        if repeats(texts, part.strip()):
            return True
    return False


def repeats(texts: Sequence[str], words: str) -> bool:
    """Whether texts carry words that are long enough to be no accident."""
    return len(words) >= ENOUGH and any(words in text for text in texts)


def as_argument(text: str) -> str:
    """How a text stands in the canonical arguments of a call."""
    return json.dumps(text.strip(), ensure_ascii=False)


def tasked(written: Sequence[str], call: Call) -> bool:
    """Whether a new history's first texts (``as_argument``) are what a pending call hands on."""
    arguments = call.arguments
    return any(
        text in arguments or (len(text) > ENOUGH and text[1:-1] in arguments)
        for text in written
        if len(text) <= len(arguments) + 2
    )


def carries(texts: Sequence[str], call: Call) -> bool:
    """Whether a new history's first texts are a template around a sentence that a pending call hands on."""
    arguments = call.arguments
    if not ENOUGH <= len(arguments) < CLIPPED or arguments.count(" ") < SENTENCE:
        return False
    value = _value(arguments)
    said = [one.strip() for one in value.values() if isinstance(one, str)] if isinstance(value, dict) else []
    return any(repeats(texts, one) for one in said if one.count(" ") >= SENTENCE)


def unheard(reply: str, prompt: str) -> str:
    """The lines of a reply that its prompt did not hold already."""
    return "\n".join(line for line in reply.splitlines() if line.strip() not in prompt)


class Quoting:
    """Texts in which lines of many replies are looked for.

    To search them costs by the length of both, so a line goes first by its words: all but those at its
    ends stand in the texts as words, or the line does not.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._words: frozenset[str] | None = None

    def shares_lines(self, reply: str) -> bool:
        """Whether the texts repeat whole lines of a reply (a commit message call quotes the edit)."""
        lines = {line.strip().lstrip("+-> ") for line in reply.splitlines()}
        return any(self._holds(line) for line in lines if len(line) >= ENOUGH)

    def _holds(self, line: str) -> bool:
        if self._words is None:
            self._words = frozenset(word for text in self.texts for word in _WORD.findall(text))
        if not all(found[0] in self._words for found in _INNER_WORD.finditer(line)):
            return False
        return any(line in text for text in self.texts)
