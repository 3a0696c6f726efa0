"""The record that the common options point at.

Apart from ``settled``: whoever only reads needs no policies, and starts in half the time without.
"""

from proxy.commands.options import Common
from proxy.config import load
from proxy.record import Reader


def record_of(common: Common) -> Reader:
    """A reader of the record; the configuration says where, unless an option does.

    Raises ConfigError, RecordMissing.
    """
    return Reader(common.data_dir if common.data_dir is not None else load(common.config).store.path)
