"""What policies see of an exchange, and of a turn that is over. Frozen values, made from the living state."""

from collections.abc import Callable, Mapping

from proxy.model import Attempt, Cost, Exchange, ModelRequest, Usage
from proxy.ports import View
from proxy.tracking.placement import Placement
from proxy.tracking.threads import Step, Turn
from proxy.verdict import Balance, Demand


def view_of(
    exchange: Exchange,
    placement: Placement,
    request: ModelRequest | None,
    attempt: Attempt | None,
    *,
    now_ns: int,
    mode: str,
    price: Callable[[Usage], Cost] | None,
    balances: Mapping[str, Balance],
    demand: Demand | None = None,
    repaired: frozenset[str] = frozenset(),
) -> View:
    """An exchange at one point. ``attempt``, ``price`` and ``repaired``: once its reply is over.
    ``demand``: for claims."""
    step = placement.step_state
    thread, turn = step.thread, step.turn
    return View(
        now_ns=now_ns,
        mode=mode,
        session=thread.session.id,
        thread=thread.id,
        turn=turn.id,
        step=step.id,
        step_index=placement.step_index,
        number=exchange.number,
        kind=thread.kind,
        relation=placement.relation,
        attempt_index=placement.attempt,
        new_turn=placement.new_turn,
        upstream=exchange.upstream,
        request=request,
        previous=placement.previous,
        answered=placement.answered,
        delta=placement.delta,
        answers=placement.answers,
        results=placement.results,
        outcome=attempt.reply if attempt is not None else None,
        attempt=attempt,
        price=price,
        balances=balances,
        demand=demand,
        repaired=repaired,
    )


def end_view(turn: Turn, last: Step | None, mode: str) -> View:
    """What a policy sees of a turn that is over."""
    thread = turn.thread
    return View(
        now_ns=turn.last_ns,
        mode=mode,
        session=thread.session.id,
        thread=thread.id,
        turn=turn.id,
        step=last.id if last is not None else "",
        step_index=max(0, turn.steps - 1),
        number=last.number if last is not None else 0,
        kind=thread.kind,
        cause=turn.cause,
    )
