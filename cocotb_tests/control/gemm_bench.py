"""A bench for the GEMM engine: jobs with places in memory and in the scratchpad, a memory, the processor's part."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.control.gemm_system import CORE, GemmSystem
from cocotb_tests.gemm.jobs import Job
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.control.commands import LINE_BYTES, Command, Error, Opcode
from golden.control.memory import pack_angles, pack_projection
from golden.gemm.core import Fault
from golden.gemm.epilogue import Function
from golden.gemm.prologue import magnitude
from rtl.config import AcceleratorConfig, CacheConfig, ControlConfig, DsqConfig, GemmConfig

__all__ = ["CONFIG", "Bench", "PlacedJob"]

CONFIG = AcceleratorConfig(
    dsq=DsqConfig(**params()["dsq"]),
    gemm=GemmConfig(**params()["gemm"]),
    cache=CacheConfig(**params()["cache"]),
    control=ControlConfig(**params()["control"]),
)
LANES = CONFIG.gemm.row_lanes
WORD_BYTES = CONFIG.dsq.bus_bits // 8
#: what lies in the scratchpad where nothing was written
_JUNK = -0x12345678
NOP = Command(opcode=Opcode.NOP)


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """A job, where its data are, and operands that say something else."""

    job: Job
    operands: dict[str, int]
    #: other slots' magnitudes of each source row, by slot
    slots: list[dict[int, int]]
    changes: dict[str, int] = field(default_factory=dict)

    @property
    def command(self) -> Command:
        """As the host writes it."""
        fields = dict(self.job.fields)
        epsilon = fields.pop("epsilon")
        fields |= {"epsilon_low": epsilon & 0xFFFFFFFF, "epsilon_high": epsilon >> 32}
        return Command(opcode=Opcode.PROJECT, operands={**fields, **self.operands, **self.changes})


class Bench:
    """The design's streams, a memory, and places in both memories, which are given out in turn.

    Parameters
    ----------
    stall : of the memory's words and of the answers
    latency : of a request of memory, at most
    """

    def __init__(self, dut: Any, stall: str = "none", latency: int = 0) -> None:
        self.dut, self.latency = dut, latency
        self.draw = rng("gemm engine", stall, latency)
        members = GemmSystem(CONFIG).shapes

        def source(name: str, stall: str = "none") -> StreamSource:
            return StreamSource(dut, name, shape=members[name], stall=stalls.named(stall, name))

        def sink(name: str, stall: str = "none") -> StreamSink:
            return StreamSink(dut, name, shape=members[name], stall=stalls.named(stall, name))

        self.command, self.go, self.done = source("i_command"), source("i_go", stall), sink("o_done", stall)
        self.requests, self.words = sink("o_read", stall), source("i_read", stall)
        self.scratch_read, self.scratch_word = source("i_word"), sink("o_word")
        self.scratch_write, self.put_magnitude = source("i_write"), source("i_magnitude")
        self.ask, self.magnitude = source("i_ask"), sink("o_magnitude")
        self.memory = bytearray(1 << 10)
        self.bad_words: set[int] = set()
        self.window_end = 1 << 40
        self.requested: list[tuple[int, int]] = []
        self.forget()
        cocotb.start_soon(self._serve())

    def forget(self) -> None:
        """All places are free; what was asked of memory is forgotten."""
        self.word = self.row = 0
        self.memory = bytearray(LINE_BYTES)
        self.bad_words = set()
        self.window_end = 1 << 40
        self.requested = []
        self.dut.outside.value = 0
        self._epoch = getattr(self, "_epoch", 0) + 1

    async def _serve(self) -> None:
        """Memory: words in the order of requests."""
        draw = random.Random(1)
        while True:
            for request in await self.requests.recv(1, timeout=1 << 40):
                epoch = self._epoch
                if self.latency:
                    await cycles(self.dut, draw.randrange(self.latency))
                if epoch == self._epoch:
                    self._answer(int(request["address"]), int(request["count"]), bool(request["bad"]))

    def _answer(self, address: int, count: int, bad: bool) -> None:
        assert count
        self.requested.append((address, count))
        outside = address + count > self.window_end
        if outside and not bad:
            self.dut.outside.value = 1
        for word in range(address, address + count):
            content = self.memory[word * WORD_BYTES : (word + 1) * WORD_BYTES]
            failed = bad or outside or word in self.bad_words
            data = self.draw.getrandbits(8 * WORD_BYTES) if failed else int.from_bytes(content, "little")
            self.words.send_nowait([{"data": data, "error": int(failed)}])

    def _store(self, content: bytes) -> int:
        """Puts something into memory, and returns its line."""
        line = len(self.memory) // LINE_BYTES
        self.memory += content + bytes(-len(content) % LINE_BYTES)
        return line

    def _room(self, rows: int, elements: int) -> tuple[int, int]:
        """Words for rows of the scratchpad: the first one and the stride."""
        stride = -(-elements // LANES) + self.draw.randrange(3)
        at = self.word
        self.word += rows * stride
        assert self.word <= CONFIG.control.scratch_words, "the scratchpad is full"
        return at, stride

    def place(self, job: Job, changes: dict[str, int] | None = None, *, after: PlacedJob | None = None) -> PlacedJob:
        """Gives a job places; its rows are what the one ``after`` which it comes gives, if there is one."""
        draw, outputs = self.draw, job.golden[0].shape[1] if job.fault is Fault.NONE else 1
        operands: dict[str, int] = {}
        operands["stream"] = self._store(
            pack_projection(job.projection.weights, job.projection.columns, CONFIG.gemm.columns, CONFIG.dsq.bus_bits)
        )
        if job.command.function is Function.ROTARY:
            assert job.rotary is not None
            operands["angles"] = self._store(pack_angles(*job.rotary))
        slots: list[dict[int, int]] = []
        if after is not None:
            names = (("source", "target"), ("source_stride", "target_stride"), ("source_magnitude", "target_magnitude"))
            operands |= {mine: after.operands[other] for mine, other in names}
            operands["parts"] = 1 << CORE
        else:
            operands["source"], operands["source_stride"] = self._room(job.rows, job.k)
            operands["source_magnitude"] = self.row
            self.row += job.rows
            operands["parts"] = draw.randrange(1, 1 << CONFIG.gemm.cores)
            for size in magnitude(job.x).tolist():
                owners = [slot for slot in range(CONFIG.gemm.cores) if operands["parts"] >> slot & 1]
                largest = draw.choice(owners)
                slots.append(
                    {
                        slot: size if slot == largest else draw.randint(0, size if slot in owners else 31)
                        for slot in range(CONFIG.gemm.cores)
                    }
                )
        operands["target"], operands["target_stride"] = self._room(job.rows, outputs)
        operands["target_magnitude"] = self.row
        self.row += job.rows
        assert self.row <= CONFIG.control.scratch_rows
        if job.residual is not None:
            in_place = draw.random() < 0.5
            room = (operands["target"], operands["target_stride"]) if in_place else self._room(job.rows, outputs)
            operands["residual"], operands["residual_stride"] = room
        return PlacedJob(job=job, operands=operands, slots=slots, changes=changes or {})

    async def clear(self) -> None:
        """Junk in all places that are given."""
        everything = {"mask": (1 << LANES) - 1, "data": [_JUNK] * LANES}
        await self.scratch_write.send({"address": n, **everything} for n in range(self.word))

    def _write_rows(self, first: int, stride: int, rows: np.ndarray) -> None:
        """Rows into the scratchpad; what lies behind them in their last word stays."""
        for n, row in enumerate(rows):
            for at in range(0, len(row), LANES):
                part = row[at : at + LANES].tolist()
                word = {"address": first + n * stride + at // LANES, "mask": (1 << len(part)) - 1}
                self.scratch_write.send_nowait([{**word, "data": part + [0] * (LANES - len(part))}])

    async def load(self, placed: PlacedJob) -> None:
        """Rows, their magnitudes and residuals into the scratchpad."""
        job, at = placed.job, placed.operands
        if placed.slots:
            self._write_rows(at["source"], at["source_stride"], job.x)
            for n, slots in enumerate(placed.slots):
                row = at["source_magnitude"] + n
                sizes = [{"row": row, "slot": s, "magnitude": size, "first": 1} for s, size in slots.items()]
                self.put_magnitude.send_nowait(sizes)
        if job.residual is not None:
            self._write_rows(at["residual"], at["residual_stride"], job.residual)
        await self.scratch_write.send([])
        await self.put_magnitude.send([])
        await cycles(self.dut, 2)

    def send(self, *commands: Command) -> None:
        """Give commands to the engine."""
        for command in commands:
            operands = int.from_bytes(command.to_bytes()[16:], "little")
            self.command.send_nowait([{"opcode": int(command.opcode), "operands": operands}])

    async def ended(self, error: Error = Error.NONE, detail: int = 0) -> None:
        """The next command ends so."""
        (done,) = await self.done.recv(1, timeout=200_000)
        assert (done["error"].value, int(done["detail"])) == (error, detail), done

    async def compare(self, placed: PlacedJob) -> None:
        """Results and magnitudes; nothing beside them was written."""
        rows, magnitudes = placed.job.golden
        at, outputs = placed.operands, rows.shape[1]
        words = -(-outputs // LANES)
        places = [at["target"] + n * at["target_stride"] + word for n in range(len(rows)) for word in range(words)]
        self.scratch_read.send_nowait({"address": place} for place in places)
        got = np.array([list(word["data"]) for word in await self.scratch_word.recv(len(places))])
        wanted = np.full((len(rows), words * LANES), _JUNK, np.int64)
        wanted[:, :outputs] = rows
        np.testing.assert_array_equal(got.reshape(len(rows), -1), wanted, err_msg=f"{placed.command}")
        asked = [{"row": at["target_magnitude"] + n, "parts": 1 << CORE} for n in range(len(rows))]
        self.ask.send_nowait(asked)
        assert await self.magnitude.recv(len(rows)) == magnitudes.tolist()

    async def check(self, jobs: Sequence[Job]) -> None:
        """Jobs back to back, with NOPs among them, each with its go at once."""
        self.forget()
        placed = [self.place(job) for job in jobs]
        await self.clear()
        for one in placed:
            await self.load(one)
        nops = [n for n in range(len(placed)) if self.draw.random() < 0.3]
        for n, one in enumerate(placed):
            self.send(*([NOP] if n in nops else []), one.command)
        self.go.send_nowait([0] * (len(placed) + len(nops)))
        for _ in range(len(placed) + len(nops)):
            await self.ended()
        for one in placed:
            await self.compare(one)

    async def end(self) -> None:
        """Nothing more comes, all words have been taken."""
        for sink in (self.done, self.requests, self.scratch_word, self.magnitude):
            await sink.expect_nothing(20)
        assert self.words.idle and self.go.idle and self.command.idle
        assert int(self.dut.scratch_outside.value) == 0
