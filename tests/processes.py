"""Programs that a test starts: none outlives it, none keeps a failed one waiting; and ports for them."""

import socket
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


def free_ports(count: int) -> list[int]:
    """Ports on loopback on which nobody listens, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]
