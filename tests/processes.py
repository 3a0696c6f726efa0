"""Programs that a test starts: none outlives it, and none keeps a failed one waiting."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(process: "subprocess.Popen[Any]") -> Iterator["subprocess.Popen[Any]"]:
    """The process while the block runs. ``Popen``'s own block waits for it for ever where that fails."""
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
