"""The DSQ unit of a board at its serial line: its test on it, and what a host may do wrong."""

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import cocotb
import pytest

from cocotb_tests.lib import params
from cocotb_tests.lib.bench import PERIOD_NS, cycles, start
from cocotb_tests.link.pins import SocketLine
from fpga.client import Client, LinkError
from fpga.dsq_selftest import row_words, run
from fpga.dsq_unit import CODES, K_ROWS, V_ROWS
from fpga.host import INFORMATION
from golden.dsq.row_quantizer import quantize_rows

CLOCKS_PER_BIT = 4


async def host(dut: Any, talk: Any) -> None:
    """Lets a program of the host speak to the design."""
    line = SocketLine(dut.rx, dut.tx, bit_ps=1000 * PERIOD_NS * CLOCKS_PER_BIT)
    await start(dut)
    cocotb.start_soon(line.run())
    failures = []

    def program() -> None:
        try:
            with Client(line.url, timeout=120, retries=0) as client:
                talk(client)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=program)
    thread.start()
    while thread.is_alive():
        await cycles(dut, 500)
    if failures:
        raise failures[0]


@cocotb.test()
async def selftest_passes(dut):
    plan, rows = pickle.loads(Path(params()["plan"]).read_bytes()), []

    def talk(client: Client) -> None:
        board, fault = run(client, plan, passed=rows.append)
        assert fault is None, fault
        assert (board.clock_hz, board.dram_bytes) == (12_000_000, 0)

    await host(dut, talk)
    assert [row.words for row in rows] == [len(head.k_rows) * plan.config.head_dim for head in plan.heads]
    assert int(dut.waiting.value) == 0


@cocotb.test()
async def goes_on_after_mistakes_of_the_host(dut):
    """Reads of nothing, a third row, unknown addresses are errors; a reset makes all as new."""
    plan = pickle.loads(Path(params()["plan"]).read_bytes())
    head = plan.heads[0]
    short = replace(plan, heads=[replace(head, k_rows=head.k_rows[:1], v_rows=head.v_rows[:1])])
    rows = head.v_rows[:1]
    words = rows[0].astype("<i2").view("<u4")

    def fails(act: Any, address: int) -> None:
        with pytest.raises(LinkError, match=f"{address:#010x} failed: the board has nothing there"):
            act()

    def talk(client: Client) -> None:
        fails(lambda: client.read(CODES, 1), CODES)
        for _ in range(2):
            client.write(V_ROWS, words, fixed=True)

        def further() -> None:
            for _ in range(3):
                client.write(V_ROWS, words, fixed=True)

        fails(further, V_ROWS)
        for address in (K_ROWS, V_ROWS, INFORMATION + 16):
            fails(lambda address=address: client.read(address, 1), address)
        for address in (CODES, INFORMATION):
            fails(lambda address=address: client.write(address, [0]), address)
        _, fault = run(client, short, passed=lambda row: None)
        assert fault is None, fault
        client.write(V_ROWS, words[:1])  # half a beat, which the next access drops
        client.read(INFORMATION, 1)
        client.write(V_ROWS, words, fixed=True)
        codes, scales = quantize_rows(rows)
        assert (client.read(CODES, len(words), fixed=True) == row_words(codes[0], int(scales[0]))).all()

    await host(dut, talk)
    assert int(dut.waiting.value) == 0
