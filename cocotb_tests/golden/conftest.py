"""Hypothesis for the golden tests: the same examples in every run under CI, new ones elsewhere."""

import os

from hypothesis import HealthCheck, settings

# Worker processes on a shared machine stall at any time, so no example has a deadline.
settings.register_profile(
    "kvo",
    database=None,
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() not in ("", "0", "false"),
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvo")
