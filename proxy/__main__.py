"""``python -m proxy`` is the same as ``looptap``."""

from proxy.cli import main

main()
