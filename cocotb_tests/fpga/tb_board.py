"""A simulated board whose serial line is a socket; it runs until the program that uses it has ended."""

from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Timer

from cocotb_tests.fpga.dram_board import broken_rules
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import PERIOD_NS, start
from cocotb_tests.link.pins import SocketLine

FOLDER = Path(params()["folder"])
CLOCKS_PER_BIT = params()["clocks_per_bit"]


@cocotb.test()
async def serves(dut):
    with_memory = hasattr(dut, "broken")
    if with_memory:
        Clock(dut.clk2x, PERIOD_NS // 2, unit="ns").start()
        dut.clear.value = 0
    line = SocketLine(dut.rx, dut.tx, bit_ps=int(1000 * PERIOD_NS * CLOCKS_PER_BIT))
    await start(dut)
    running = cocotb.start_soon(line.run())
    address = FOLDER / "url.new"
    address.write_text(line.url)
    address.rename(FOLDER / "url")
    while not (FOLDER / "done").exists():
        await Timer(200, "us")
    running.cancel()
    if with_memory:
        assert broken_rules(int(dut.broken.value)) == []
