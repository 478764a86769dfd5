"""Coroutines of the tests of the whole accelerator: compiled programs against golden."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.plans import Plan
from cocotb_tests.control.system import Host
from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, start
from cocotb_tests.lib.signals import child
from golden.cache.page_table import PageOp, PageStatus
from golden.control.commands import LINE_BYTES, Command, Error, Opcode, Wait
from golden.gemm.core import Fault as GemmFault
from rtl.config import AcceleratorConfig

FOLDER = Path(params()["folder"])


async def begin(host: Host, plan: Plan) -> None:
    """Memory, registers and rings of a plan."""
    word = host.dram.word_bytes
    pieces: dict[int, bytes] = {}
    for address, content in plan.image:
        pieces[address] = content + bytes(-len(content) % word)
    await host.image.load(pieces)
    child(host.dut, "padded").value = int(plan.padded)
    await host.configure(plan.settings, {queue: ring[:2] for queue, ring in plan.rings.items()})


async def compare(host: Host, plan: Plan) -> None:
    """Memory is what golden says; the first difference by its name."""
    first = min(address for _, address, _ in plan.expected)
    last = max(address + len(content) for _, address, content in plan.expected)
    found = await host.image.dump(first, last - first)
    for label, address, content in plan.expected:
        got = found[address - first :][: len(content)]
        wrong = np.flatnonzero(got != np.frombuffer(content, np.uint8))
        if len(wrong):
            raise AssertionError(f"{label}: {len(wrong)} of {len(content)} bytes differ, the first at {wrong[0]}")
    assert host.image.violations == []


async def carry_out(host: Host, plan: Plan) -> None:
    """A plan from its beginning to its end."""
    await begin(host, plan)
    for part in (2, 3):
        for queue, ring in plan.rings.items():
            if ring[part]:
                await host.give(queue, ring[part])
        await host.finish(plan.limit)
    await compare(host, plan)


def load() -> dict[str, Any]:
    return pickle.loads((FOLDER / "plans.pkl").read_bytes())


@cocotb.test()
async def decodes(dut):
    """Outputs, records, INT8 tokens and states of attention after decoding are golden's."""
    given = load()
    host = Host(dut, given["config"], given["dram"])
    await start(dut)
    for number, plan in enumerate(given["plans"]):
        if number:
            await host.soft_reset()
        await carry_out(host, plan)


@dataclass(frozen=True, kw_only=True)
class FaultCase:
    """Commands of a queue of which the last one is wrong, and how that is reported."""

    queue: str
    commands: tuple[bytes, ...]
    error: Error
    detail: int | None = None
    watchdog: int = 0
    error_words: tuple[int, int] | None = None  # that answer SLVERR


def fault_cases(config: AcceleratorConfig, lines: int) -> dict[str, FaultCase]:
    """By name; ``lines`` is the end of the window, and line 0 is ordinary memory."""

    def one(opcode: Opcode, waits: tuple[Wait, ...] = (), **operands: int) -> tuple[bytes, ...]:
        return (Command(opcode=opcode, operands=operands, waits=waits).to_bytes(),)

    project = {"rows": 1, "k": 4, "columns": 4, "parts": 1, "source_stride": 2, "target_stride": 2}
    rows = {"rows": 1, "k": 4, "stride": 2}
    opened = one(Opcode.PAGE, op=PageOp.OPEN, sequence=0)
    outside = lines
    far = config.control.scratch_words - 1
    return {
        "opcode": FaultCase(queue="mha", commands=(b"\xee" + bytes(63),), error=Error.OPCODE, detail=0xEE),
        "opcode_of_another_queue": FaultCase(queue="dma", commands=one(Opcode.ATTEND), error=Error.OPCODE, detail=2),
        "semaphore": FaultCase(
            queue="gemm0", commands=one(Opcode.NOP, (Wait(255, 1),)), error=Error.SEMAPHORE, detail=255
        ),
        "never_signalled": FaultCase(
            queue="dsq", commands=one(Opcode.NOP, (Wait(5, 3),)), error=Error.TIMEOUT, detail=5 | 3 << 8, watchdog=500
        ),
        "projection_outside": FaultCase(
            queue="gemm1", commands=one(Opcode.PROJECT, **project, stream=outside), error=Error.ADDRESS
        ),
        "rows_outside": FaultCase(queue="dma", commands=one(Opcode.LOAD, **rows, address=outside), error=Error.ADDRESS),
        "zeros_outside": FaultCase(
            queue="dma", commands=one(Opcode.FILL, address=outside - 1, lines=2), error=Error.ADDRESS
        ),
        "state_outside": FaultCase(
            queue="dsq",
            commands=one(Opcode.CLOSE, state=outside, groups=1, salient=1),
            error=Error.ADDRESS,
        ),
        "calibration_outside": FaultCase(
            queue="mha",
            commands=one(Opcode.ATTEND, calibration=outside, load_calibration=1, tokens=1, salient=1),
            error=Error.ADDRESS,
        ),
        "no_rows": FaultCase(queue="dma", commands=one(Opcode.LOAD, k=4), error=Error.LENGTH),
        "no_zeros": FaultCase(queue="dma", commands=one(Opcode.FILL), error=Error.LENGTH),
        "too_long": FaultCase(
            queue="gemm0",
            commands=one(Opcode.PROJECT, **{**project, "k": config.gemm.max_k + 1}),
            error=Error.GEMM,
            detail=GemmFault.K,
        ),
        "behind_the_scratchpad": FaultCase(
            queue="dma", commands=one(Opcode.STORE, **rows, scratchpad=far), error=Error.SCRATCHPAD
        ),
        "closed_sequence": FaultCase(
            queue="dsq",
            commands=one(Opcode.PAGE, op=PageOp.BLOCK, sequence=1),
            error=Error.PAGE,
            detail=PageStatus.CLOSED,
        ),
        "no_such_page": FaultCase(queue="dsq", commands=opened + one(Opcode.APPEND, group=3), error=Error.WRITE),
        "no_such_group": FaultCase(
            queue="mha",
            commands=one(Opcode.ATTEND, sequence=2, tokens=1, salient=1, keep=256),
            error=Error.MEMORY,
        ),
        "memory": FaultCase(
            queue="gemm1", commands=one(Opcode.PROJECT, **project), error=Error.MEMORY, error_words=(0, 3)
        ),
    }


async def place_ring(host: Host, queue: int, line: int, commands: Sequence[bytes]) -> tuple[int, int]:
    """Commands in a ring of their own at a line; its place."""
    await host.image.load({line * LINE_BYTES: b"".join(commands)})
    return line, (len(commands) - 1).bit_length()


@cocotb.test()
async def reports_faults(dut):
    """The queue stops and says why; the others come to their ends; after a soft reset all is as new."""
    given = load()
    plan: Plan = given["plans"][0]
    lines = plan.settings["window_end"]
    host = Host(dut, given["config"], given["dram"])
    await start(dut)
    nops = [
        Command(opcode=Opcode.NOP, waits=(Wait(7, n),) if n else (), signal=7 if n < 2 else None).to_bytes()
        for n in range(3)
    ]
    for name, case in fault_cases(given["config"], lines).items():
        where = host.queues.index(case.queue)
        rings = {}
        for queue in range(len(host.queues)):
            commands = case.commands if queue == where else nops
            rings[queue] = await place_ring(host, queue, lines - 64 + 4 * queue, commands)
        if case.error_words:
            host.image.error(0, *case.error_words, 2)
        await host.configure({**plan.settings, "watchdog": case.watchdog}, rings)
        await host.registers.write("irq_enable", 2)
        for queue in range(len(host.queues)):
            await host.give(queue, len(case.commands) if queue == where else len(nops))
        for _ in range(40):
            await cycles(dut, 100)
            if await host.registers.read("status") & 5 == 4:
                break
        error = await host.error()
        assert (error.queue, error.error) == (case.queue, case.error), f"{name}: {error}"
        assert case.detail is None or error.detail == case.detail, f"{name}: {error}"
        assert error.command == len(case.commands) - 1, f"{name}: {error}"
        assert int(child(dut, "irq").value) == 1, name
        for queue in range(len(host.queues)):
            done = await host.registers.read(f"queue[{queue}].done")
            assert done == (len(case.commands) - 1 if queue == where else len(nops)), f"{name}: queue {queue}"
        fault = await host.registers.read("read_fault")
        assert fault & 1 == int(case.error_words is not None), name
        host.image.error(0, 0, 0, 0)
        await host.registers.write("control", 8)
        await host.registers.write("irq_status", 3)
        await host.soft_reset()
        assert await host.registers.read("status") & 0x1F == 0, name
        assert int(child(dut, "irq").value) == 0, name
    await carry_out(host, plan)


@cocotb.test()
async def recovers_from_resets_in_traffic(dut):
    """Soft resets at any time, also while memory stalls, break no rule of AXI; what follows is right."""
    given = load()
    plan: Plan = given["plans"][0]
    host = Host(dut, given["config"], given["dram"])
    await start(dut)
    draw = rng("resets")
    for number in range(params()["resets"]):
        await begin(host, plan)
        host.image.restart_stalls(number + 1)
        host.image.stall(0.5 * (number % 3 == 1))
        for queue, ring in plan.rings.items():
            await host.give(queue, ring[2] + ring[3])
        await cycles(dut, draw.randrange(50, 20000))
        await host.soft_reset()
        assert host.image.idle and host.image.violations == []
    host.image.stall(0)
    await carry_out(host, plan)


@cocotb.test()
async def memory_may_stall(dut):
    """All channels stall at random; the numbers stay the same."""
    given = load()
    host = Host(dut, given["config"], given["dram"])
    await start(dut)
    host.image.restart_stalls(7)
    host.image.stall(0.4)
    await carry_out(host, given["plans"][0])
