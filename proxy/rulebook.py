"""Builds the chain of policies from the settings: which ones, in which order, what each may do.

Built-in policies observe unless they are switched off; a policy of one's own (entry point group
``looptap.policies``) takes part as soon as the settings name it. A policy's own options are read
here, once; what is wrong with them is told as every other problem of the file. Its memory and its counters
go by its name, so that it must be the one that the settings know it by.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast

from policies import TABLE
from proxy.chain import POINTS, Chain, Link
from proxy.config import ConfigError, PolicySettings, Problem, Settings, policy_options
from proxy.ports import Policy

GROUP = "looptap.policies"
_PARTS = (*POINTS, "claims", "delta", "wants_deltas")
"""What the chain asks a policy for."""
_LONGEST = 200
"""Characters of an error of somebody else's that are told."""


def chain(
    settings: Settings, on_fault: Callable[[str, BaseException], None] = lambda where, error: None
) -> Chain:
    """The chain that the settings ask for. Raises ConfigError."""
    links, problems = _links(settings)
    if problems:
        raise ConfigError(tuple(problems))
    return Chain(links, mode=settings.mode, on_fault=on_fault)


def problems(settings: Settings) -> list[Problem]:
    """What is wrong with the policies' own options."""
    return _links(settings)[1]


def _links(settings: Settings) -> tuple[list[Link], list[Problem]]:
    links: list[Link] = []
    problems: list[Problem] = []
    for name, load in _loaders(settings).items():
        entry = settings.policies.get(name, PolicySettings())
        if not entry.enabled:
            continue
        try:
            cls = load()
            policy = cast(Policy, cls(policy_options(settings, name).read(cls.Options)))
            fault, hint = _fault(policy, name)
            if not fault:
                links.append(Link(policy, entry.action))
                continue
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        except Exception as error:  # noqa: BLE001 - somebody else's code: told as what the file asks for
            said = " ".join(str(error).split())[:_LONGEST]
            fault, hint = (
                f"fails when it is loaded: {type(error).__name__}: {said}",
                "mend it, or leave it out",
            )
        problems.append(settings.source.problem(("policies", name), fault, hint))
    return links, problems


def _fault(policy: Policy, name: str) -> tuple[str, str]:
    """Why a policy cannot take part, if it cannot, and what to do."""
    if policy.name != name:
        return f"calls itself {policy.name!r}", "its entry point has to bear the policy's own name"
    missing = [part for part in _PARTS if not hasattr(policy, part)]
    return (f"lacks {', '.join(missing)}" if missing else ""), "derive it from policies.base.Policy"


def _loaders(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """How to get at the built-in policies, then at those of others that the settings name."""
    own = {name: partial(TABLE.__getitem__, name) for name in TABLE}
    strangers = {name for name in settings.policies if name not in TABLE}
    if not strangers:
        return own
    found = {point.name: point for point in entry_points(group=GROUP) if point.name in strangers}
    return {**own, **{name: found[name].load for name in sorted(found)}}
