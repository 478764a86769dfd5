"""What `sim.bench` runs in the simulator: compiled programs, their counts and events, and memory against golden."""

import json
import pickle
from pathlib import Path
from typing import Any

import cocotb

from cocotb_tests.control.plans import Plan
from cocotb_tests.control.system import Host, LoggedAccelerator
from cocotb_tests.control.tb_accelerator import begin, compare
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import start

FOLDER = Path(params()["folder"])


async def measure(host: Host, plan: Plan, event_shape: Any, finished: int) -> dict[str, Any]:
    """A plan; counts and events of its measured part."""
    await begin(host, plan)

    def progress(done: int) -> None:
        (FOLDER / "progress").write_text(str(finished + done))

    for queue, ring in plan.rings.items():
        if ring[2]:
            await host.give(queue, ring[2])
    await host.finish(plan.limit, progress)
    await host.clear_counters()
    for queue, ring in plan.rings.items():
        if ring[3]:
            await host.give(queue, ring[3])
    await host.finish(plan.limit, progress)
    counters = await host.counters()
    events = await host.events(event_shape)
    await compare(host, plan)
    return {"name": plan.name, "counters": counters, "events": [[e.time, e.queue, e.kind, e.tag] for e in events]}


@cocotb.test()
async def measures(dut):
    given = pickle.loads((FOLDER / "plans.pkl").read_bytes())
    shape = LoggedAccelerator(given["config"]).event_shape
    host = Host(dut, given["config"], given["dram"])
    await start(dut)
    results: list[dict[str, Any]] = []
    finished = 0
    for number, plan in enumerate(given["plans"]):
        if number:
            await host.soft_reset()
        try:
            results.append(await measure(host, plan, shape, finished))
        except Exception as error:
            (FOLDER / "difference").write_text(f"{plan.name}: {str(error).strip().splitlines()[0]}")
            raise
        finished += sum(ring[2] + ring[3] for ring in plan.rings.values())
        (FOLDER / "results.json").write_text(json.dumps(results))
