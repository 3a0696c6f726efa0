"""What holds for every test: how hypothesis runs.

No deadline and no check on how long data takes to make: both measure the machine, not the code.
In CI examples are the same each time, so that a red run can be repeated.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("house")
