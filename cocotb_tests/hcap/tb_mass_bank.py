"""Coroutines of the MassBank tests."""

from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.golden.draws import generator
from cocotb_tests.lib import params, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.hcap.mass_bank import SUM_BITS, add_masses
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.hcap.mass_bank import MassBank

CONFIG = AcceleratorConfig(
    dsq=DsqConfig(head_dim=16, lanes=4, bus_bits=32, max_salient=1, group_tokens=params()["group_tokens"]),
    mha=MhaConfig(max_groups=params()["max_groups"]),
)
GROUPS, TOKENS = CONFIG.mha.max_groups, 2 * CONFIG.dsq.group_tokens
TOP = (1 << SUM_BITS) - 1
MOST_MASS = (1 << 20) - 1


@dataclass(kw_only=True)
class Job:
    """Sums, and the masses of a query."""

    recent: NDArray[np.int64]
    votes: NDArray[np.int64]
    first: int
    group: NDArray[np.bool_]
    index: NDArray[np.int64]
    mass: NDArray[np.int64]

    @property
    def masses(self) -> list[dict[str, int]]:
        """Transfers of ``i_mass``."""
        entries = zip(self.group.tolist(), self.index.tolist(), self.mass.tolist(), strict=True)
        made = [{"group": group, "index": index, "mass": mass, "last": 0} for group, index, mass in entries]
        made[-1]["last"] = 1
        return made

    @property
    def sums(self) -> list[int]:
        """What comes out."""
        fields = {name: getattr(self, name) for name in ("recent", "votes", "group", "index", "mass", "first")}
        return np.concatenate(add_masses(**fields, group_tokens=CONFIG.dsq.group_tokens)).tolist()


def random_job(draw: np.random.Generator, *, size: int = 0) -> Job:
    """A query of all groups and tokens, or some, in any order; ``size`` entries, else so many as there may be."""
    groups, tokens = (int(draw.choice([0, 1, most, draw.integers(0, most + 1)])) for most in (GROUPS, TOKENS))
    groups += groups + tokens == 0
    size = size or int(draw.choice([1, 2, groups + tokens]))
    group = draw.random(size) < draw.choice([0, 0.5, 1])
    far = draw.random(size) < draw.choice([0, 0.1])
    index = np.where(group, draw.integers(0, max(groups, 1), size), draw.integers(0, max(tokens, 1), size))
    most = [1 << int(draw.integers(0, SUM_BITS + 1)) for _ in range(2)]
    return Job(
        recent=draw.integers(0, most[0], groups),
        votes=TOP - draw.integers(0, most[1], tokens),
        first=int(draw.choice([0, max(groups - 2, 0), draw.integers(0, 1 << 20)])),
        group=group,
        index=np.where(far, draw.integers(0, 1 << 20, size), index),
        mass=draw.integers(0, 1 << int(draw.integers(0, 21)), size),
    )


class Bench:
    """The design's streams, jobs against golden."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        bank = MassBank(CONFIG)
        self.command = StreamSource(
            dut, "i_command", shape=bank.command_shape, stall=stalls.named(i_stall, "i_command")
        )
        self.sums = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.mass = StreamSource(dut, "i_mass", shape=bank.mass_shape, stall=stalls.named(i_stall, "i_mass"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, job: Job) -> None:
        self.command.send_nowait([{"groups": len(job.recent), "tokens": len(job.votes), "first": job.first}])
        self.sums.send_nowait([*job.recent.tolist(), *job.votes.tolist()])
        self.mass.send_nowait(job.masses)

    async def check(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.send(job)
        for number, job in enumerate(jobs):
            got = await self.sink.recv(len(job.sums), timeout=20_000)
            np.testing.assert_array_equal(got, job.sums, err_msg=f"job {number}: {job}")

    async def end(self) -> None:
        await self.sink.expect_nothing(50)
        assert self.command.idle and self.sums.idle and self.mass.idle


@cocotb.test()
@cocotb.parametrize(
    (("i_stall", "o_stall"), [("none", "none"), ("heavy", "none"), ("none", "heavy"), ("random", "bursty")])
)
async def matches_golden(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    draw = generator("mass bank", i_stall, o_stall)
    await bench.check([random_job(draw) for _ in range(params()["jobs"])])
    await bench.end()


@cocotb.test()
async def adds_masses_one_after_the_other(dut):
    """The same token and group after one, two, three and more cycles, until both saturate and beyond."""
    bench = Bench(dut)
    await start(dut)
    places = np.array([0, 0, 0, 1, 0, 1, 1, 2, 0, 3, 1, 2, 0, 0] * 3)
    for group in (False, True):
        for sum_before in (0, TOP - 5 * MOST_MASS, TOP):
            job = Job(
                recent=np.full(min(GROUPS, 4), sum_before),
                votes=np.full(4, sum_before),
                first=0,
                group=np.full(len(places), group),
                index=places,
                mass=np.arange(len(places)) * 3 + MOST_MASS - 3 * len(places),
            )
            await bench.check([job])
    await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    draw = generator("rate")
    size = GROUPS + TOKENS
    job = random_job(draw, size=size)
    job.recent, job.votes = draw.integers(0, 100, GROUPS), draw.integers(0, 100, TOKENS)
    await bench.check([job, job])
    assert bench.sums.transfers[size - 1] - bench.command.transfers[0] == size
    assert bench.mass.transfers[0] == bench.sums.transfers[size - 1] + 1
    assert bench.mass.transfers[size - 1] - bench.mass.transfers[0] == size - 1
    assert bench.sink.transfers[0] - bench.mass.transfers[size - 1] == MassBank.latency
    assert bench.sink.transfers[size - 1] - bench.sink.transfers[0] == size - 1
    await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    draw = generator("reset")
    for wait in (3, GROUPS // 2, GROUPS + TOKENS + 5, 2 * (GROUPS + TOKENS) + 9, 3 * GROUPS + 20):
        for _ in range(3):
            bench.send(random_job(draw))
        await cycles(dut, wait)
        await reset(dut)
        await bench.check([random_job(draw) for _ in range(3)])
        await bench.end()
