"""Runs inside the simulator: the model of an SDR SDRAM, driven at its pins. Clocks of 10 ns."""

import cocotb

from cocotb_tests.fpga.dram_board import Rule, broken_rules
from cocotb_tests.lib.bench import cycles, start

NAMES = {"nop": 7, "act": 3, "read": 5, "write": 4, "pre": 2, "ref": 1, "mode": 0, "stop": 6}
ALL = 1 << 10  # of precharge; by itself after read and write
MODE = 0x21
# Clocks that a command has to keep after another one, as test_dram.py sets up the model.
RCD, RP, RAS, RC, RFC, RRD, WR, MRD = 2, 2, 5, 8, 7, 2, 2, 2
POWER_UP, REFI = 100, 200


class Pins:
    def __init__(self, dut):
        self.dut = dut
        for name in ("dm", "dq_i", "ba", "a", "off", "clear"):
            getattr(dut, name).value = 0
        dut.cke.value = dut.cs_n.value = 1
        self._drive(7)

    def _drive(self, command):
        for n, name in enumerate(("we_n", "cas_n", "ras_n")):
            getattr(self.dut, name).value = command >> n & 1

    async def give(self, name, wait=1, ba=0, a=0):
        """A command; the next one comes `wait` clocks later."""
        self.dut.cs_n.value = 0
        self.dut.ba.value, self.dut.a.value = ba, a
        self._drive(NAMES[name])
        await cycles(self.dut, 1)
        self.dut.cs_n.value = 1
        self._drive(7)
        await cycles(self.dut, wait - 1)

    async def play(self, commands):
        for command in commands:
            await self.give(*command)

    async def broken(self):
        """What was broken until now, and forget it."""
        await cycles(self.dut, 1)
        found = broken_rules(int(self.dut.broken.value))
        self.dut.clear.value = 1
        await cycles(self.dut, 1)
        self.dut.clear.value = 0
        await cycles(self.dut, 1)
        return found

    async def clean(self):
        """Close and refresh everything, and wait until all times are over."""
        await cycles(self.dut, 10)
        await self.play([("pre", RP, 0, ALL), ("ref", RFC), ("ref", RFC)])
        await self.broken()


INITIALIZATION = [("pre", RP, 0, ALL), ("ref", RFC), ("ref", RFC), ("mode", MRD, 0, MODE)]


async def ready(dut):
    pins = Pins(dut)
    await start(dut)
    await cycles(dut, POWER_UP + 2)
    await pins.play(INITIALIZATION)
    await pins.broken()  # what an earlier test left
    return pins


async def write(pins, column, words, masks=(0, 0), ba=0, auto=0):
    pins.dut.dq_i.value, pins.dut.dm.value = words[0], masks[0]
    await pins.give("write", 1, ba, column | auto)
    pins.dut.dq_i.value, pins.dut.dm.value = words[1], masks[1]
    await cycles(pins.dut, 1)
    pins.dut.dm.value = 0


async def read(pins, column, ba=0):
    """The two words of a burst, which come two and three clocks after the command."""
    await pins.give("read", 2, ba, column)
    found = []
    for _ in range(2):
        await cycles(pins.dut, 1)
        assert int(pins.dut.dq_oe.value) == 3
        found.append(int(pins.dut.dq_o.value))
    await cycles(pins.dut, 1)
    assert int(pins.dut.dq_oe.value) == 0
    return found


@cocotb.test()
async def stores_words(dut):
    pins = await ready(dut)
    for ba in range(4):
        await pins.give("act", RCD, ba, 5 + ba)
        await write(pins, 6, (0x1230 + ba, 0x4560 + ba), ba=ba)
    await write(pins, 9, (0xAAAA, 0xBBBB), ba=0)  # the second word goes to column 8
    for ba in range(4):
        assert await read(pins, 6, ba) == [0x1230 + ba, 0x4560 + ba]
    assert await read(pins, 8, 0) == [0xBBBB, 0xAAAA]
    await cycles(dut, 5)
    await pins.give("pre", RP, 0, ALL)
    await pins.give("act", RCD, 2, 9)
    await write(pins, 6, (1, 2), ba=2)
    await pins.give("read", 2, 2, 6)
    await cycles(dut, 4)
    await pins.give("pre", RP, 2)
    await pins.give("act", RCD, 2, 7)
    assert await read(pins, 6, 2) == [0x1232, 0x4562]
    assert await pins.broken() == []


@cocotb.test()
async def masks_choose_bytes(dut):
    pins = await ready(dut)
    await pins.give("act", RCD)
    await write(pins, 0, (0x1111, 0x2222))
    await write(pins, 0, (0x3344, 0x5566), masks=(1, 2))
    assert await read(pins, 0) == [0x3311, 0x2266]
    dut.dm.value = 2  # two clocks ahead of a word that is read
    await pins.give("read", 1)
    dut.dm.value = 3
    await cycles(dut, 1)
    dut.dm.value = 0
    await cycles(dut, 1)
    assert int(dut.dq_oe.value) == 1
    await cycles(dut, 1)
    assert int(dut.dq_oe.value) == 0
    assert await pins.broken() == []


@cocotb.test()
async def latency_is_kept_without_gaps(dut):
    pins = await ready(dut)
    await pins.give("act", RCD)
    for n in range(4):
        await write(pins, 2 * n, (2 * n, 2 * n + 1))
    found = []
    for n in range(6):
        if n < 4:
            await pins.give("read", 1, 0, 2 * n)
        else:
            await cycles(dut, 1)
        found.append(int(dut.dq_o.value) if int(dut.dq_oe.value) else None)
        await cycles(dut, 1)
        found.append(int(dut.dq_o.value) if int(dut.dq_oe.value) else None)
    assert found == [None, None, *range(8), None, None]
    assert await pins.broken() == []


# Rule, commands: the clocks after the command before the last one are the least that are allowed.
GAPS = [
    (Rule.RCD, [("act", RCD), ("read",)]),
    (Rule.RCD, [("act", RCD), ("write",)]),
    (Rule.RP, [("act", RC), ("pre", RP), ("act",)]),
    (Rule.RP, [("act", RC), ("pre", RP, 0, ALL), ("ref",)]),
    (Rule.RP, [("act", RC), ("pre", RP), ("mode", 1, 0, MODE)]),
    (Rule.RP, [("act", RC), ("read", 2 + RP, 0, ALL), ("act",)]),
    (Rule.RP, [("act", RC), ("write", 1 + WR + RP, 0, ALL), ("act",)]),
    (Rule.RAS, [("act", RAS), ("pre",)]),
    (Rule.RAS, [("act", RAS - 2), ("read", 1, 0, ALL)]),  # which closes the bank two clocks later
    (Rule.RC, [("act", RAS), ("pre", RC - RAS), ("act",)]),
    (Rule.RFC, [("ref", RFC), ("act",)]),
    (Rule.RFC, [("ref", RFC), ("ref",)]),
    (Rule.RRD, [("act", RRD), ("act", 1, 1)]),
    (Rule.WR, [("act", RAS), ("write", 1 + WR), ("pre",)]),
    (Rule.MRD, [("mode", MRD, 0, MODE), ("act",)]),
    (Rule.BUS, [("act", RCD), ("read", 5), ("write",)]),
]
# Commands that are wrong at any time.
WRONG = [
    (Rule.CLOSED, [("read",)]),
    (Rule.CLOSED, [("act", RCD, 1), ("write", 1, 2)]),
    (Rule.OPEN, [("act", RC), ("act",)]),
    (Rule.OPEN, [("act", RC), ("ref",)]),
    (Rule.OPEN, [("act", RC), ("mode", 1, 0, MODE)]),
    (Rule.MODE, [("mode", 1, 0, MODE | 0x10)]),
    (Rule.MODE, [("mode", 1, 1, MODE)]),
    (Rule.BUS, [("act", RCD), ("read", 1), ("write",)]),
    (Rule.STORED, [("act", RCD, 0, 1 << 4), ("read",)]),
    (Rule.UNKNOWN, [("stop",)]),
]


@cocotb.test()
async def notices_commands_that_come_too_early(dut):
    pins = await ready(dut)
    for rule, commands in GAPS:
        *before, (name, gap, *rest), last = commands
        for wait, expected in ((gap, []), (gap - 1, [rule])):
            await pins.play([*before, (name, wait, *rest), last])
            found = await pins.broken()
            assert found == expected, f"{commands} with {wait}: {found} instead of {expected}"
            await pins.clean()


@cocotb.test()
async def notices_wrong_commands(dut):
    pins = await ready(dut)
    for rule, commands in WRONG:
        await pins.play(commands)
        found = await pins.broken()
        assert found == [rule], f"{commands}: {found}"
        await pins.clean()


@cocotb.test()
async def notices_missing_refreshes(dut):
    """From the first opened row on: before it there is no content."""
    pins = await ready(dut)
    await pins.give("act", RAS)
    await pins.give("pre", RP, 0, ALL)
    await pins.play([("ref", REFI), ("ref", REFI), ("ref", 2 * REFI - 30), ("ref", RFC)])
    assert await pins.broken() == []
    await cycles(dut, 2 * REFI)
    assert await pins.broken() == [Rule.REFRESH]


@cocotb.test()
async def notices_each_missing_step_of_the_initialization(dut):
    close, *refreshes, mode = INITIALIZATION
    use = ("act", RC)
    for pause, commands, expected in (
        (POWER_UP, [*INITIALIZATION, use], []),
        (POWER_UP, [close, mode, *refreshes, use], []),
        (POWER_UP - 1, [*INITIALIZATION, use], [Rule.ORDER]),
        (POWER_UP, [*refreshes, mode, use], [Rule.ORDER]),
        (POWER_UP, [close, refreshes[0], mode, use], [Rule.ORDER]),
        (POWER_UP, [close, *refreshes, use], [Rule.ORDER]),
    ):
        pins = await ready(dut)
        dut.off.value = 1
        await cycles(dut, 1)
        dut.off.value = 0
        await cycles(dut, pause)
        await pins.play(commands)
        found = await pins.broken()
        assert found == expected, f"{commands} after {pause}: {found}"
