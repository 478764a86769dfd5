"""Test library: streams, clock and reset, seeds, and the launcher that runs a cocotb module on a component.

Inside a simulation import from here and from `cocotb_tests.lib.stream`; in a pytest file use `cocotb_tests.lib.launch`.
"""

from cocotb_tests.lib import stalls
from cocotb_tests.lib.environment import params, rng, seed, simulator

__all__ = ["params", "rng", "seed", "simulator", "stalls"]
