"""Coroutines of the tests of the whole accelerator: compiled programs against golden."""

import pickle
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.plans import Plan
from cocotb_tests.control.system import Host
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import start
from cocotb_tests.lib.signals import child

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
