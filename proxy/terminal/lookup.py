"""Finds in the record what a person names: the beginning of an id, "last", the n-th attempt.

Raises ``NotRecorded`` in words that say what to do instead.
"""

from collections.abc import Iterable
from typing import Any

from proxy.record import NotRecorded, Reader, StoredExchange


def named(reader: Reader, text: str) -> tuple[str, str]:
    """Kind and whole id of what is named; ``last`` is the newest turn."""
    if text == "last":
        newest = reader.turns(1)
        if not newest:
            raise NotRecorded(
                "nothing is recorded yet: point an agent at `looptap serve`, or try `looptap demo`"
            )
        return "turn", str(newest[0]["id"])
    try:
        found = reader.resolve(text)
    except NotRecorded as error:
        raise NotRecorded(f"{error}; `looptap turns` and `looptap sessions` list what there is") from None
    return found.kind, found.id


def whole_id(reader: Reader, text: str, kind: str) -> str:
    """The whole id of a thing of that kind."""
    found_kind, found = named(reader, text)
    if found_kind != kind:
        raise NotRecorded(f"{found} is a {found_kind}, not a {kind}")
    return found


def session_of(reader: Reader, kind: str, id: str) -> str:
    """The session that a thing belongs to."""
    return id if kind == "session" else reader.parents(id)[-1]


def exchanges_of(reader: Reader, kind: str, id: str) -> Iterable[StoredExchange]:
    """The exchanges of a session, thread, turn or step, in order of arrival."""
    if kind == "exchange":
        return [reader.exchange(id)]
    only: dict[str, Any] = {kind: id}
    return reader.exchanges(**only)


def exact_body(reader: Reader, kind: str, id: str, which: str, attempt: int | None) -> bytes:
    """Request or response of an exchange or step; of anything larger, of its last step."""
    if kind == "exchange":
        chosen = reader.exchange(id)
    else:
        step = id if kind == "step" else steps_of(reader, kind, id)[-1]
        chosen = _attempt(reader.attempts(step), step, attempt)
    if which == "request":
        return reader.request_body(chosen.id)
    if chosen.end is not None and chosen.status is None:
        raise NotRecorded(f"no answer came to {chosen.id}: {_failure(reader, chosen)}")
    return reader.response_body(chosen.id)


def _failure(reader: Reader, exchange: StoredExchange) -> str:
    """Why an exchange has no answer."""
    told = reader.events(step=exchange.step, types=["step/attempt"]) if exchange.step is not None else ()
    own = next((record.data for _, record in told if record.data.get("exchange") == exchange.id), {})
    said = {
        "client_gone": "its client left before",
        "shutdown": "looptap was stopped",
        "refused": "it was refused",
    }
    return str(own.get("failure") or said.get(str(exchange.end), exchange.end))


def steps_of(reader: Reader, kind: str, id: str) -> list[str]:
    """The steps of a session, thread or turn, as they stand in its tree."""
    only: dict[str, Any] = {kind: id}
    steps = [record.step for _, record in reader.events(types=["step/start"], **only)]
    if not steps:
        raise NotRecorded(f"{id} has no steps")
    return list(dict.fromkeys(step for step in steps if step is not None))


def step_of(reader: Reader, kind: str, id: str, number: int) -> str:
    """A turn's step by its number."""
    if kind != "turn":
        raise NotRecorded(f"--step counts the steps of a turn, and {id} is a {kind}")
    steps = steps_of(reader, kind, id)
    if number > len(steps):
        have = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        raise NotRecorded(f"{id} has {have}, counted from 1; there is no step {number}")
    return steps[number - 1]


def _attempt(attempts: list[StoredExchange], step: str, number: int | None) -> StoredExchange:
    if not attempts:
        raise NotRecorded(f"no exchange of {step} is recorded")
    if number is None:
        return attempts[-1]
    if not 1 <= number <= len(attempts):
        raise NotRecorded(
            f"{step} has {len(attempts)} attempt{'' if len(attempts) == 1 else 's'}, counted from 1; "
            f"there is no attempt {number}"
        )
    return attempts[number - 1]
