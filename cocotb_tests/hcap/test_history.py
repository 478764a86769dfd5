"""History: its code against golden, geometries, bad configs, and the start of the simulations."""

import re

import numpy as np
import pytest
from amaranth.sim import Simulator

from cocotb_tests.lib import launch, rng
from golden.hcap.history import HISTORY_BITS, history_code
from rtl.config import AcceleratorConfig, MhaConfig
from rtl.hcap._history_code import CODES, HistoryCode
from rtl.hcap.history import History


def run(simulator: str, max_groups: int, *, steps: int) -> None:
    config = AcceleratorConfig(mha=MhaConfig(max_groups=max_groups))
    launch.run(
        History(config),
        name="hcap_history",
        tb="cocotb_tests.hcap.tb_history",
        parameters={
            "max_groups": max_groups,
            "steps": steps,
            "latency": History.latency(config, max_groups),
        },
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("max_groups", [1, 21])
def test_matches_golden_in_small_geometries(simulator, max_groups):
    run(simulator, max_groups, steps=12)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, max_groups=512, steps=40)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("max_groups", [2, 64, 300])
def test_matches_golden_in_further_geometries(simulator, max_groups):
    run(simulator, max_groups, steps=300)


def test_codes_are_those_of_golden():
    """Where codes change and random histories, one a cycle."""
    draw = rng("histories")
    edges = [m << e >> 3 for m in range(8, 16) for e in range(HISTORY_BITS)]
    histories = sorted({0, *range(40), *(e - 1 for e in edges), *edges, (1 << HISTORY_BITS) - 1})
    histories = [h for h in histories if 0 <= h < 1 << HISTORY_BITS]
    histories += [draw.getrandbits(draw.randint(1, HISTORY_BITS)) for _ in range(500)]
    coder = HistoryCode()
    codes = []

    async def bench(ctx) -> None:
        ctx.set(coder.en, 1)
        for history in [*histories, 0, 0]:
            ctx.set(coder.history, history)
            codes.append(ctx.get(coder.code))
            await ctx.tick()

    simulator = Simulator(coder)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    expected = history_code(np.array(histories, np.int64)).tolist()
    assert codes[2:] == expected
    assert max(expected) == CODES - 1


@pytest.mark.parametrize("value", [0, (1 << 20) + 1])
def test_rejects_bad_configs(value):
    with pytest.raises(ValueError, match=f"^{re.escape(f'max_groups must be from 1 to 1048576, not {value}')}$"):
        MhaConfig(max_groups=value)
