"""The loop's state: what the tracker knows of sessions, threads, turns and steps.

``placing`` finds the thread a request continues, with ``likeness`` where prefixes fail; ``births``
begins threads, ``turns`` opens and ends turns; ``threads`` and ``shelf`` hold the state, ``heads``
writes it down, ``placement`` is the answer and ``telling`` its records. ``proxy.tracker`` drives them.
"""
