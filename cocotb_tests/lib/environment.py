"""What the launcher tells a simulation through environment variables: parameters, seed, simulator."""

import json
import os
import random
from typing import Any

__all__ = ["CI_SEED", "PARAMETERS_VARIABLE", "params", "rng", "seed", "simulator"]

PARAMETERS_VARIABLE = "KVO_TEST_PARAMETERS"

# Continuous integration always runs the same vectors, so that a failure belongs to the change under test.
CI_SEED = 1


def params() -> dict[str, Any]:
    """Return the parameters that the pytest side gave to `launch.run`."""
    return json.loads(os.environ.get(PARAMETERS_VARIABLE, "{}"))


def seed() -> int:
    """Return the seed of this run: `SEED` when set, a fixed one when `CI` is set, else a random one.

    A random seed is kept in `SEED`, so that it stays the same in this process and in those that it starts.
    """
    text = os.environ.get("SEED", "").strip()
    if text:
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError(f"SEED must be an integer, not {text!r}") from None
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return CI_SEED
    value = random.SystemRandom().getrandbits(31)
    os.environ["SEED"] = str(value)
    return value


def rng(*labels: object) -> random.Random:
    """Return a generator seeded by the seed of the run and `labels`, so that each test draws its own sequence."""
    return random.Random("/".join(str(part) for part in (seed(), *labels)))


def simulator() -> str:
    """Return the simulator this code runs in: `icarus`, `verilator`, or an empty string outside a simulation."""
    return os.environ.get("KVO_SIMULATOR", "")
