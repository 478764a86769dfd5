"""The self test of boards in a thread, with the RTL of the accelerator in place of a board."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.task import bridge, resume
from numpy.typing import NDArray

from cocotb_tests.control.system import Host, Registers
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import cycles, start
from cocotb_tests.lib.dram_image import DramImage
from fpga.host import INFORMATION, MAGIC, REGISTERS, config_crc
from fpga.selftest_run import Row, run

FOLDER = Path(params()["folder"])
CLOCK_HZ = 50_000_000
#: that an access of a register takes at least, as over a serial line
ACCESS_CYCLES = 200


class RtlLink:
    """Reads and writes for a thread; memory beside the bus, registers over AXI4-Lite."""

    def __init__(self, dut: Any, registers: Registers, image: DramImage, information: list[int]) -> None:
        self.dut, self.registers, self.image, self.information = dut, registers, image, information
        self.names = {address: name for name, address in registers.addresses.items()}

    async def _read(self, address: int, words: int) -> NDArray[np.uint32]:
        if address < REGISTERS:
            return np.frombuffer((await self.image.dump(address, 4 * words)).tobytes(), "<u4")
        await cycles(self.dut, ACCESS_CYCLES)
        names = [self.names[address - REGISTERS + 4 * n] for n in range(words)]
        return np.array([await self.registers.read(name) for name in names], np.uint32)

    async def _write(self, address: int, words: NDArray[np.uint32] | Sequence[int]) -> None:
        if address < REGISTERS:
            await self.image.load({address: np.asarray(words, "<u4").tobytes()})
            return
        await cycles(self.dut, ACCESS_CYCLES)
        for n, word in enumerate(words):
            await self.registers.write(self.names[address - REGISTERS + 4 * n], int(word))

    def read(self, address: int, words: int) -> NDArray[np.uint32]:
        """As `fpga.client.Client`."""
        if address >= INFORMATION:
            return np.array(self.information[:words], np.uint32)
        return resume(self._read)(address, words)

    def write(self, address: int, words: NDArray[np.uint32] | Sequence[int]) -> None:
        """As `fpga.client.Client`."""
        resume(self._write)(address, words)


@cocotb.test()
async def passes(dut):
    """All parts pass, and the cores count cycles."""
    given = pickle.loads((FOLDER / "plan.pkl").read_bytes())
    plan, memory = given["plan"], given["dram"]
    host = Host(dut, plan.config, memory)
    await start(dut)
    information = [MAGIC, CLOCK_HZ, memory.words * memory.word_bytes, config_crc(plan.config)]
    link = RtlLink(dut, host.registers, host.image, information)

    rows: list[Row] = []

    def test() -> Any:
        return run(link, plan, initialize=lambda link, board: None, random_words=64, passed=rows.append, patience=60)

    _, fault = await bridge(test)()
    assert fault is None, fault
    assert [row.part for row in rows] == ["board", "memory", "dsq", "heads", "gemm", "faults", "step"]
    assert all(row.cycles > 0 for row in rows if row.part in ("dsq", "heads", "gemm", "step"))
    assert host.image.violations == []
    for row in rows:
        cocotb.log.info("%s: %d words, %d cycles", row.part, row.words, row.cycles)
