"""Says in plain lines what a configuration enforces and what it only observes."""

from collections.abc import Iterator

from proxy.config.tree import COUNTED_LIMITS, BudgetSettings, Settings


def explain(settings: Settings) -> tuple[str, ...]:
    """What ``serve`` prints at its start, and ``check`` when all is well."""
    enforced, observed = _split(settings)
    lines = [f"data port {settings.listen}, admin port {settings.admin}"]
    if not settings.listen.is_loopback:
        lines.append(f"other machines can reach the data port; record: {settings.store.record}")
    if not settings.admin.is_loopback:
        lines.append("other machines can reach the admin port, which asks for its token")
    if settings.mode == "observe":
        lines.append("mode observe: nothing acts, decisions are recorded as would_…")
    lines += [f"enforced: {line}" for line in enforced] or ["enforced: nothing"]
    lines += [f"observed: {line}" for line in observed]
    lines += [f"upstream {name}: {one.url} ({one.api})" for name, one in settings.upstreams.items()]
    if settings.ledger.url is not None:
        lines.append(f"ledger shared at {settings.ledger.url}, {settings.ledger.away} while it is away")
    if settings.exporters:
        lines.append(f"exporters: {', '.join(settings.exporters)}")
    return tuple(lines)


def _split(settings: Settings) -> tuple[list[str], list[str]]:
    may_act = settings.mode == "enforce"
    enforced: list[str] = []
    observed: list[str] = []
    for budget in settings.budgets:
        (enforced if may_act and budget.acts else observed).append(_budget(budget))
    if may_act and any(b.acts and b.limits.spend_usd is not None for b in settings.budgets):
        enforced.append(f"requests that cannot be priced under a spend cap: {_unmodelled(settings)}")
    for name, policy in settings.policies.items():
        if policy.enabled:
            (enforced if may_act and policy.acts else observed).append(
                f"policy {name} (action {policy.action})"
            )
    if may_act and settings.holds:
        enforced.append(f"what is held waits {settings.hold_for} for an operator: looptap allow --list")
    return enforced, observed


def _unmodelled(settings: Settings) -> str:
    choice = settings.unmodelled
    return choice if isinstance(choice, str) else f"held at {choice.hold_usd:f} USD each"


def _budget(budget: BudgetSettings) -> str:
    window = f" a {budget.window}" if budget.window not in (None, "total") else ""
    if budget.window == "total":
        window = " in total"
    alerts = f", alerts at {', '.join(f'{share:f}' for share in budget.alert_at)}" if budget.alert_at else ""
    hard = f", stops at {budget.hard_at:f} of it" if budget.hard_at != 1 else ""
    narrowed = _narrowed(budget)
    scope = budget.scope.removeprefix("label:")
    limits = ", ".join(_limits(budget))
    return (
        f"budget {budget.name}: {limits} per {scope}{window}{narrowed}{alerts}{hard} ({budget.on_exhausted})"
    )


def _limits(budget: BudgetSettings) -> Iterator[str]:
    limits = budget.limits
    for name in COUNTED_LIMITS:
        value = getattr(limits, name)
        if value is not None:
            yield f"{value} {name.replace('_', ' ')}"
    if limits.spend_usd is not None:
        yield f"{limits.spend_usd:f} USD"
    if limits.wall_clock is not None:
        yield f"{limits.wall_clock} of wall clock"
    for tool, count in limits.calls.items():
        yield f"{count} calls of {tool}"


def _narrowed(budget: BudgetSettings) -> str:
    parts = [
        f"{name} {' or '.join(given)}"
        for name, given in (
            ("upstream", budget.match.upstream),
            ("model", budget.match.model),
            ("key", budget.match.key),
        )
        if given
    ]
    return f" for {', '.join(parts)}" if parts else ""
