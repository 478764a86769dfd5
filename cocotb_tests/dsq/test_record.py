"""RecordPacker: geometries and the start of the simulations."""

import re
from dataclasses import asdict

import pytest

from cocotb_tests.lib import launch
from rtl.config import DsqConfig
from rtl.dsq.record import RecordPacker


def run(simulator: str, config: DsqConfig) -> None:
    launch.run(
        RecordPacker(config),
        name="dsq_record",
        tb="cocotb_tests.dsq.tb_record",
        parameters={"config": asdict(config)},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize(
    "config",
    [
        DsqConfig(head_dim=16, group_tokens=16, max_salient=5, lanes=4, bus_bits=32),
        DsqConfig(head_dim=48, group_tokens=16, max_salient=7, lanes=16, bus_bits=128, delta_bits=4),
        DsqConfig(head_dim=64, group_tokens=16, max_salient=3, lanes=64, bus_bits=32),
    ],
    ids=str,
)
def test_matches_golden_in_small_geometries(simulator, config):
    run(simulator, config)


@launch.simulators("verilator")
@pytest.mark.parametrize("config", [DsqConfig(), DsqConfig(head_dim=80, lanes=16, bus_bits=512, delta_bits=4)], ids=str)
def test_matches_golden(simulator, config):
    run(simulator, config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"delta_bits": 3}, "delta_bits must be 2 or 4, not 3"),
        ({"bus_bits": 16}, "bus_bits must be a power of two from 32 to 512, not 16"),
        ({"bus_bits": 96}, "bus_bits must be a power of two from 32 to 512, not 96"),
        ({"bus_bits": 1024}, "bus_bits must be a power of two from 32 to 512, not 1024"),
    ],
)
def test_rejects_bad_configs(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DsqConfig(**fields)
