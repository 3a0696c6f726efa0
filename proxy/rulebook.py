"""Builds the chain of policies from the settings: which ones, in which order, what each may do.

Built-in policies observe unless they are switched off; a policy of one's own (entry point group
``looptap.policies``) takes part as soon as the settings name it. A policy's own options are read
here, once; what is wrong with them is told as every other problem of the file. Its memory and its counters
go by its name, so that it must be the one that the settings know it by.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from policies import TABLE
from proxy.chain import Chain, Link
from proxy.config import ConfigError, PolicySettings, Problem, Settings, policy_options
from proxy.ports import Policy

GROUP = "looptap.policies"


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
    for name, cls in _classes(settings).items():
        entry = settings.policies.get(name, PolicySettings())
        if not entry.enabled:
            continue
        try:
            options = policy_options(settings, name).read(cls.Options)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        policy = cast(Policy, cls(options))
        if policy.name != name:
            hint = "its entry point has to bear the policy's own name"
            problem = settings.source.problem(("policies", name), f"calls itself {policy.name!r}", hint)
            problems.append(problem)
            continue
        links.append(Link(policy, entry.action))
    return links, problems


def _classes(settings: Settings) -> Mapping[str, Any]:
    """The built-in policies, then those of others that the settings name."""
    strangers = {name for name in settings.policies if name not in TABLE}
    if not strangers:
        return TABLE
    found = {point.name: point for point in entry_points(group=GROUP) if point.name in strangers}
    return {**TABLE, **{name: found[name].load() for name in sorted(found)}}
