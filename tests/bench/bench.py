"""`make bench`: nginx, a bare relay and Looptap with everything on, in one interleaved run; then the caps.

What is measured and how is said in ``kit/README.md``; ``--quick`` gives a rough picture in about two
minutes. All figures are per core; ratios are taken within a round, so a slow minute slows all alike.
With options of the kit (``--scenarios …``) it measures just those; else follow what judging takes by the
length of a history (``judge.py``), a storm of refusals, the cost of holding a budget, how tight holds are,
and the share of a cap that can be used.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench import judge

HERE = Path(__file__).parent
KIT = HERE / "kit"
PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
QUICK = ["--rounds", "1", "--seconds", "1.5"]


def require(*programs: str) -> None:
    """End with one plain line if a program is missing."""
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"bench: not found: {names}. Install what is missing (on Debian: apt install {names})")


def build_kit() -> None:
    """Compile the load client and the model API, where they changed."""
    subprocess.run(["make", "--silent", "-C", str(KIT)], check=True)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="one short round")
    options, rest = arguments.parse_known_args()
    require("gcc", "make", "nginx")
    build_kit()
    command = [sys.executable, str(KIT / "run.py"), "--targets", str(HERE / "targets.json"), "--quiet", "5"]
    done = subprocess.run([*command, *(QUICK if options.quick else []), *rest], check=False).returncode
    if done or any(word.startswith("--scenarios") for word in rest):
        return done
    judge.report()
    return caps(options.quick)


def caps(quick: bool) -> int:
    """What budgets cost, and what they leave."""
    failed = 0
    for name, more in (
        ("refusals", ["--seconds", "1.5" if quick else "3"]),
        ("ledger", ["--rounds", "500"] if quick else []),
        ("holds", []),
        ("share", []),
    ):
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"tests.bench.{name}", *more]
        failed |= subprocess.run(command, cwd=HERE.parents[1], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
