"""Writes growing threads through a real outbox until it is killed. Run by test_durability.

After each batch that is known to be on disk the number of the last exchange goes to stdout.
"""

import sys
import time
from pathlib import Path

from proxy.outbox import Outbox
from proxy.record import Keep, RecordWriter
from tests.record.kit import Growth, end, event, start


def main(data_dir: Path, first: int) -> None:
    """Write until killed, at most 100,000 exchanges, with retention at work (its clock runs fast)."""
    began = time.time_ns()
    clock = lambda: began + (time.time_ns() - began) * 1_000  # noqa: E731
    writer = RecordWriter(data_dir, keep=Keep(max_bytes=1 << 20), clock=clock)
    outbox = Outbox(writer, batch_s=0.005)
    outbox.start()
    growths = [Growth(seed=n, block=400, alphabet=b"0123456789abcdef") for n in range(3)]
    for n in range(first, first + 100_000):
        ids = {"session": f"ses_{n // 50}", "thread": f"thr_{n % 3}", "turn": f"trn_{n // 10}"}
        outbox.put(event("step/start", n, step=f"stp_{n}", **ids))
        growth = growths[n % 3]
        if len(growth.messages) > 100:
            growth.messages.clear()
        outbox.capture(start(n, growth.step(), **ids))
        outbox.capture(end(n, b"answer %d" % n))
        if n % 10 == 9:
            outbox.put(event("turn/end", n, cause="completed", **ids))
        if n % 7 == 0:
            outbox.barrier().result(30)
            print(n, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
