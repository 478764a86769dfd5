"""Estimator: geometries, bad configs, and the start of the simulations."""

import re
from dataclasses import asdict
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from cocotb_tests.lib import launch
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig, preset
from rtl.hcap.estimator import Estimator


class Renamed(wiring.Component):
    """Estimator with names of ports that are no keywords of Verilog and not that of the module."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self._estimator = Estimator(config)
        names = {"begin": "tile_begin", "end": "item_end", "top": "tile_top"}
        self._names = {name: names.get(name, name) for name in self._estimator.signature.members}
        members = self._estimator.signature.members
        super().__init__({self._names[name]: member for name, member in members.items()})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.estimator = estimator = self._estimator
        for name, member in estimator.signature.members.items():
            inner, outer = getattr(estimator, name), getattr(self, self._names[name])
            m.d.comb += inner.eq(outer) if member.flow == wiring.In else outer.eq(inner)
        return m


def run(simulator: str, config: AcceleratorConfig, *, rounds: int) -> None:
    launch.run(
        Renamed(config),
        name="hcap_estimator",
        tb="cocotb_tests.hcap.tb_estimator",
        parameters={**asdict(config), "rounds": rounds},
        simulators=simulator,
    )


def geometry(q_heads: int, tile_groups: int, max_salient: int, group_tokens: int) -> AcceleratorConfig:
    return AcceleratorConfig(
        dsq=DsqConfig(max_salient=max_salient, group_tokens=group_tokens),
        mha=MhaConfig(q_heads=q_heads, tile_groups=tile_groups),
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config", [preset("tiny"), geometry(1, 1, 1, 16), geometry(3, 2, 7, 32)], ids=("tiny", "one", "odd")
)
def test_keeps_what_golden_functions_gave_in_small_geometries(simulator, config):
    run(simulator, config, rounds=2)


@launch.simulators("verilator")
def test_keeps_what_golden_functions_gave(simulator):
    run(simulator, preset("smollm2"), rounds=1)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("name", ["tiny", "dac25"])
def test_keeps_what_golden_functions_gave_in_further_presets(simulator, name):
    run(simulator, preset(name), rounds=5)


@pytest.mark.parametrize(
    ("config", "field", "value", "message"),
    [
        (MhaConfig, "tile_groups", 0, "tile_groups must be a power of two from 1 to 1024, not 0"),
        (DsqConfig, "max_salient", 64, "max_salient must be from 1 to group_tokens-1=63, not 64"),
    ],
)
def test_rejects_bad_configs(config, field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config(**{field: value})
