"""The configuration that the common options point at."""

import os
from dataclasses import replace
from pathlib import Path
from shlex import quote

from proxy import rulebook
from proxy.commands.options import Common
from proxy.config import Look, Overrides, Settings, load, reload

_NOTHING = Overrides()


def settings_of(common: Common, over: Overrides = _NOTHING, look: Look = rulebook.problems) -> Settings:
    """The configuration, with options put over it, and the policies' own options (``look``) found right.

    Raises ConfigError.
    """
    return load(common.config, _over(common, over), look=look)


def settings_again(common: Common, old: Settings, over: Overrides) -> Settings:
    """The configuration anew, for a proxy that runs with ``old``."""
    return reload(common.config, old, _over(common, over), look=rulebook.problems)


def file_of(common: Common) -> Path | None:
    """The configuration's file, where there is one."""
    named = common.config or os.environ.get("LOOPTAP_CONFIG") or None
    return Path(named) if named is not None else None


def same_place(common: Common) -> str:
    """The options by which a command in another directory finds the same settings and record."""
    named = (("--config", file_of(common)), ("--data-dir", common.data_dir))
    return "".join(f" {option} {quote(str(path.absolute()))}" for option, path in named if path is not None)


def _over(common: Common, over: Overrides) -> Overrides:
    return replace(over, data_dir=str(common.data_dir) if common.data_dir is not None else None)
