"""DRAM controllers of boards: at the pins of a timed memory, their initialization, what is generated."""

import json
import re
from dataclasses import asdict

import pytest

from cocotb_tests.fpga.ddr3_fake import FakeDdr3
from cocotb_tests.fpga.dram_board import CHIP, DramBoard, DramTraffic, Rule, SdramPins, board_sources
from cocotb_tests.lib import launch
from fpga import dram
from fpga.dram import CELLS, CSR_BASE, Controller, ControllerConfig, initialize
from golden.errors import UserError
from rtl.emit import run_yosys
from sim.simulators import ROOT

TB = "cocotb_tests.fpga.tb_dram_core"
SDR = ControllerConfig()
DDR3 = ControllerConfig(memory="ddr3-512mb", clock_hz=75_000_000)
# Icarus Verilog is too slow for the pause after power-up.
QUICKER = {"icarus": 50, "verilator": 1}
POWER_UP_PS = 200_000_000


def run(component, simulator, tests, **parameters):
    controller = Controller.generate(SDR)
    quicker = QUICKER[simulator]
    return launch.run(
        component(controller),
        name=f"fpga_dram_{component.__name__.lower()}",
        tb=TB,
        parameters={"config": asdict(SDR), "quicker": quicker, **parameters},
        simulators=simulator,
        tests=tests,
        sources=board_sources(controller, POWER_UP_PS=POWER_UP_PS // quicker),
    )


@launch.simulators()
def test_initializes(simulator):
    run(DramBoard, simulator, "initializes")


@launch.simulators("verilator")
def test_model_notices_a_host_that_does_not_wait(simulator):
    run(DramBoard, simulator, "hastily")


@launch.simulators()
def test_carries_content_of_both_ports(simulator):
    accesses, window = {"icarus": (6, 512), "verilator": (60, 4096)}[simulator]
    stalls = {"icarus": ["random"], "verilator": ["none", "random", "heavy"]}[simulator]
    run(DramBoard, simulator, "carries", accesses=accesses, window=window, stalls=stalls)


@launch.simulators("verilator")
def test_answers_in_order_whatever_the_ids(simulator):
    run(DramBoard, simulator, "in_order")


@launch.simulators("verilator")
def test_ports_are_closed_until_the_memory_is_initialized(simulator):
    run(DramBoard, simulator, "wait_until")


@launch.simulators("verilator")
def test_survives_a_reset(simulator):
    run(DramBoard, simulator, "survives")


# Cycles from a read's address to its first word, from a write's word to its answer.
FIGURES = {
    "read, open row": 12,
    "read, closed row": 16,
    "read, other row": 17,
    "write, open row": 12,
    "write, closed row": 15,
    "write, other row": 17,
}


@launch.simulators("verilator")
def test_single_accesses_take_their_figures(simulator):
    run(DramBoard, simulator, "single", figures=FIGURES)


# ns, of the fastest and the slowest FPGA and memory assumed: registers to pins, pins to registers, from a clock
# edge to its word, and from the next one to the end of it.
CORNERS = {"fast": (2.5, 0.5, 5.0, 2.5), "slow": (6.0, 1.5, 6.0, 2.5)}
SIMULATED_NS = 5  # of clk2x, whatever it is on the board


def run_far(simulator, test, clock_hz, degrees, corner):
    """With delays between controller and memory."""
    config = ControllerConfig(clock_hz=clock_hz)
    controller = Controller.generate(config)
    simulated = 1000 * SIMULATED_NS * controller.clocks["clk2x"] / 1e9  # ps for a ns
    delays = dict(zip(("OUT_PS", "IN_PS", "ACCESS_PS", "HOLD_PS"), CORNERS[corner], strict=True))
    launch.run(
        DramBoard(controller),
        name="fpga_dram_far",
        tb=TB,
        parameters={"config": asdict(config), "quicker": QUICKER[simulator]},
        simulators=simulator,
        tests=test,
        sources=board_sources(
            controller,
            far=True,
            POWER_UP_PS=POWER_UP_PS // QUICKER[simulator],
            SKEW_PS=1000 * SIMULATED_NS * degrees // 360,
            **{name: round(delay * simulated) for name, delay in delays.items()},
        ),
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize(("clock_hz", "degrees"), [(50_000_000, 180), (40_000_000, 216), (25_000_000, 270)])
def test_memory_is_read_with_the_phase_of_its_clock(simulator, clock_hz, degrees, corner):
    assert Controller.generate(ControllerConfig(clock_hz=clock_hz)).memory_phase == degrees
    run_far(simulator, "initializes", clock_hz, degrees, corner)


@launch.simulators("icarus")
def test_memory_is_not_read_with_another_phase(simulator):
    run_far(simulator, "cannot_read", 25_000_000, 180, "fast")


# Traffic: read, write, random, bytes of a request; least share of a word a cycle, in one direction or both.
KINDS = {
    "sequential reads": (1, 0, 0, 64, 0.92),
    "sequential writes": (0, 1, 0, 64, 0.88),
    "sequential reads and writes": (1, 1, 0, 64, 0.62),
    "random reads of 64 bytes": (1, 0, 1, 64, 0.63),
    "random writes of 64 bytes": (0, 1, 1, 64, 0.61),
}


@launch.simulators("verilator")
def test_gives_its_bandwidth(simulator, tmp_path):
    """Writes the table of docs/board-dram.md to build/dram/bandwidth.json."""
    file = tmp_path / "table.json"
    run(DramTraffic, simulator, "gives", kinds=list(KINDS.items()), cycles=20_000, file=str(file))
    table = json.loads(file.read_text())
    for name, row in table.items():
        print(f"{name:30} {row['cycles_per_word']:.3f} cycles per word, {row['megabytes_per_second']:.1f} MB/s")
        assert row["cycles_per_word"] <= 1 / KINDS[name][-1], name
    made = {"tool": "LiteDRAM 2024.12", "config": asdict(SDR), "traffic": table}
    (ROOT / "build" / "dram" / "bandwidth.json").write_text(json.dumps(made, indent=2) + "\n")


# Clocks of 10 ns; tRC longer than tRAS + tRP, so that it can be broken alone.
MODEL = {"POWER_UP_PS": 1_000_000, "RC_PS": 80_000, "REFI_PS": 2_000_000, "STORED_ROW_BITS": 4}


def run_model(simulator, tests):
    launch.run(
        SdramPins(**MODEL),
        name="fpga_sdram_model",
        tb="cocotb_tests.fpga.tb_sdram_model",
        simulators=simulator,
        tests=tests,
        sources=[CHIP],
    )


@launch.simulators()
def test_model_stores_words(simulator):
    run_model(simulator, "stores|masks|latency")


@launch.simulators()
def test_model_notices_each_broken_rule(simulator):
    """And notices nothing when a command comes a clock later."""
    run_model(simulator, "notices")


def test_model_has_a_bit_for_each_rule():
    text = CHIP.read_text()
    found = {name.removesuffix("_RULE"): int(bit) for name, bit in re.findall(r"localparam (\w+) = (\d+); +//", text)}
    assert found == {rule.name: rule.value for rule in Rule}


@pytest.mark.parametrize("config", [SDR, DDR3], ids=lambda config: config.memory)
def test_generated_text_is_the_same_in_every_run(config):
    first, second = (dram._generate.__wrapped__(config, "dram_controller") for _ in range(2))
    assert first == second
    assert not re.search(r"//|/\*|`|20\d\d-\d\d", first.verilog)


@pytest.mark.parametrize("config", [SDR, DDR3], ids=lambda config: config.memory)
def test_description_is_that_of_the_module(config):
    controller = Controller.generate(config)
    header = controller.verilog.partition(");")[0]
    found = re.findall(r"(input|output|inout) +(?:wire|reg) +(?:\[(\d+):0\] +)?(\w+)", header)
    kinds = {"input": "i", "output": "o", "inout": "io"}
    assert sorted((name, int(high or 0) + 1, kinds[kind]) for kind, high, name in found) == sorted(
        (port.name, port.width, port.direction) for port in controller.ports
    )
    places = [address + 4 * n for address, words in controller.registers.values() for n in range(words)]
    assert len(set(places)) == len(places)
    reach = 4 << next(port.width for port in controller.ports if port.name == "ctrl_adr")
    assert all(CSR_BASE <= place < CSR_BASE + reach for place in places)


@pytest.mark.parametrize("clock_hz", [14_000_000, 50_000_000])
def test_refreshes_often_enough(clock_hz):
    """8192 rows in 64 ms."""
    controller = Controller.generate(ControllerConfig(clock_hz=clock_hz))
    assert 8192 * controller.refresh_cycles / clock_hz <= 64e-3


@pytest.mark.parametrize("config", [SDR, DDR3], ids=lambda config: config.memory)
def test_cells_of_the_board_have_the_ports_of_ecp5(config, tmp_path):
    controller = Controller.generate(config)
    (tmp_path / "board.v").write_text(controller.verilog + controller.cells("ecp5"))
    reading = ["read_verilog -lib +/ecp5/cells_sim.v +/ecp5/cells_bb.v", "read_verilog board.v"]
    log = run_yosys("\n".join([*reading, f"hierarchy -check -top {controller.name}", "stat"]), tmp_path)
    assert "Warning" not in log
    modules = [set(re.findall(r"^module (\w+)\(", CELLS[kind].read_text(), re.MULTILINE)) for kind in CELLS]
    assert modules[0] == modules[1]


def test_initializes_ddr3_and_levels_it_in_the_middle():
    memory = FakeDdr3(Controller.generate(DDR3), working={0: (1, 2, 6), 1: (3, 0, 4)})
    initialize(memory, memory.controller)
    assert memory.places == {0: (1, 4), 1: (3, 2)}
    assert memory.modes == [2, 3, 1, 0]
    assert memory.ready and memory.hardware


def test_levels_to_the_longest_run():
    memory = FakeDdr3(Controller.generate(DDR3), working={0: (2, 6, 7), 1: (0, 3, 3)}, also={0: (0, 1, 3)})
    initialize(memory, memory.controller)
    assert memory.places == {0: (0, 2), 1: (0, 3)}


def test_burst_that_is_not_noticed_does_not_count():
    memory = FakeDdr3(Controller.generate(DDR3), working={0: (1, 2, 6), 1: (3, 0, 4)}, noticed=False)
    with pytest.raises(UserError, match=r"^the DDR3 memory does not answer: reads of byte 0 work with no delay$"):
        initialize(memory, memory.controller)
    assert not memory.ready


def test_memory_that_gives_other_words_takes_one_sentence():
    memory = FakeDdr3(Controller.generate(DDR3), working={0: (1, 2, 6), 1: (3, 0, 4)}, stuck=1 << 5)
    message = (
        "the memory does not answer properly: 46 of 61 words differ, the first at 0x0: 0x00000021 instead of "
        "0x00000001; check the board's memory, its clock and its pins"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        initialize(memory, memory.controller)
    assert not memory.ready


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "ddr9"}, "memory must be one of sdr-32mb, ddr3-512mb, not 'ddr9'"),
        ({"clock_hz": 60_000_000}, "clock_hz must be from 14000000 to 50000000 for sdr-32mb, not 60000000"),
        ({"data_bits": 64}, "data_bits must be one of (32,) for sdr-32mb, not 64"),
        ({"id_bits": 0}, "id_bits must be from 1 to 16, not 0"),
    ],
)
def test_rejects_bad_configs(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ControllerConfig(**changes)


def test_missing_generator_takes_one_sentence(monkeypatch):
    monkeypatch.setattr(dram, "find_spec", lambda name: None)
    message = "litedram not found: install the Python packages litedram, litex and migen (pip install .[fpga])"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        dram._generate.__wrapped__(SDR, "dram_controller")
