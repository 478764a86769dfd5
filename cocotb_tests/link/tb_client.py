"""The host's client against the pins of a HostLink, over a socket, with faults on the line."""

import random
import threading
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import PERIOD_NS, cycles, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.link.bus import COUNTER, FAULTY, WordBus
from cocotb_tests.link.pins import SocketLine
from fpga.client import Client, LinkError


def spoiler(draw: random.Random, rate: float) -> Any:
    """Flips bits of bytes, drops bytes and adds some, both ways."""

    def alter(to_design: bool, byte: int) -> bytes:
        if draw.random() >= rate:
            return bytes([byte])
        return draw.choice([b"", bytes([byte ^ 1 << draw.randrange(8)]), bytes([byte, draw.getrandbits(8)])])

    return alter


def talk(url: str, rounds: int, found: dict[str, Any]) -> None:
    """What a program on the host does; in a thread of its own."""
    try:
        draw = np.random.default_rng(rng("host").getrandbits(32))
        # As short as a few bytes take, so that a lost reply costs little time.
        with Client(url, timeout=params()["timeout"], retries=20) as client:
            for n in range(1, rounds + 1):
                words = draw.integers(0, 1 << 32, n * 7 % 20, np.uint32)
                client.write(0x80, words)
                assert (client.read(0x80, len(words)) == words).all()
                first = 3 * (n - 1) + 1
                assert client.read(4 * COUNTER, 3, fixed=True).tolist() == [first, first + 1, first + 2], "read twice"
            try:
                client.read(4 * (FAULTY - 3), 5)
            except LinkError as error:
                found["fault"] = str(error)
            found["errors"] = client.errors
    except BaseException as error:
        found["failure"] = error


@cocotb.test()
@cocotb.parametrize(rate=[0.0, 0.003])
async def client_reads_and_writes_once(dut, rate):
    draw, bus, rounds = rng("line", rate), WordBus(), params()["rounds"]
    line = SocketLine(dut.rx, dut.tx, bit_ps=4 * 1000 * PERIOD_NS, alter=spoiler(draw, rate))
    accesses, results = StreamSink(dut, "o_access"), StreamSource(dut, "i_result")
    await start(dut)
    cocotb.start_soon(line.run())

    async def serve() -> None:
        while True:
            (word,) = await accesses.recv(1, timeout=1 << 40)
            data, error = bus(word & (1 << 30) - 1, bool(word >> 30 & 1), word >> 31)
            results.send_nowait([data | error << 32])

    cocotb.start_soon(serve())
    found: dict[str, Any] = {}
    host = threading.Thread(target=talk, args=(line.url, rounds, found))
    host.start()
    while host.is_alive():
        await cycles(dut, 2000)
    assert "failure" not in found, repr(found["failure"])
    assert found["fault"] == f"read of address 0x{4 * FAULTY:08x} failed: the board has nothing there"
    assert bus.count == 3 * rounds
    cocotb.log.info("%s", found["errors"])
    assert (found["errors"].retries > 0) == (rate > 0), found["errors"]
