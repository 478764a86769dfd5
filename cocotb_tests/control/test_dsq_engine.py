"""DsqEngine: presets; the bus is wider and narrower than the scratchpad in them."""

from cocotb_tests.lib import launch
from rtl.config import preset
from rtl.control._dsq_engine import DsqEngine


def run(
    name: str, simulator: str, *, appends: int, groups: int, resets: tuple[int, ...], real: int = 0, tests: str = ".*"
) -> None:
    launch.run(
        DsqEngine(preset(name)),
        name="control_dsq_engine",
        tb="cocotb_tests.control.tb_dsq_engine",
        parameters={"preset": name, "appends": appends, "groups": groups, "real_groups": real, "resets": resets},
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
def test_matches_golden_in_the_smallest_geometry(simulator):
    run("tiny", simulator, appends=9, groups=2, resets=(20, 75, 131, 333, 801))


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run("smollm2", simulator, appends=30, groups=2, resets=(20, 75, 333, 1801, 4001), real=6)
