"""Recordings whose labels we contradict, each with the items that decide. Empty is the aim.

The key is the recording as the scoring program names it, the value the argument.
"""

CORPUS: dict[str, str] = {}

CLIENT_TRAFFIC: dict[str, str] = {}
