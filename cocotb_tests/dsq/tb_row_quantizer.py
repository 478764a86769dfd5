"""Coroutines of the RowQuantizer tests."""

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.dsq.rows import corner_rows, pack_row, random_rows, scale_rows, unpack_row
from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, reset, start
from cocotb_tests.lib.real import real_groups
from cocotb_tests.lib.stream import StreamSink, StreamSource
from golden.dsq.rotation import rotate
from golden.dsq.row_quantizer import quantize_rows


class Bench:
    """The design's streams, and rows sent through them against golden."""

    def __init__(self, dut, i_stall: str = "none", o_stall: str = "none") -> None:
        self.head_dim, self.lanes = params()["head_dim"], params()["lanes"]
        self.beats = self.head_dim // self.lanes
        self.draw = rng("bench", i_stall, o_stall)
        self.source = StreamSource(dut, "i", stall=stalls.named(i_stall, "i"))
        self.sink = StreamSink(dut, "o", stall=stalls.named(o_stall, "o"))

    def send(self, rows: NDArray[np.int16], rotated: list[bool]) -> None:
        for row, flag in zip(rows, rotated, strict=True):
            self.source.send_nowait(pack_row(flag, row, self.lanes, self.draw))

    async def check(self, rows: NDArray[np.int16], rotated: list[bool]) -> None:
        """Send `rows` and compare all that comes out."""
        self.send(rows, rotated)
        codes, scales = quantize_rows(np.where(np.array(rotated)[:, None], rotate(rows), rows))
        for n, row in enumerate(rows):
            got_scales, got_codes = unpack_row(await self.sink.recv(self.beats), self.lanes)
            where = f"row {n} (rotate={rotated[n]}) {row.tolist()}"
            assert got_scales == [int(scales[n])] * self.beats, f"{where}: scale {got_scales}, expected {scales[n]}"
            assert (got_codes == codes[n]).all(), f"{where}: {got_codes.tolist()}, expected {codes[n].tolist()}"


@cocotb.test()
@cocotb.parametrize(kind=["corner", "scale"], rotated=[False, True])
async def matches_golden_on_corner_rows(dut, kind, rotated):
    bench = Bench(dut)
    await start(dut)
    rows = {"corner": corner_rows, "scale": scale_rows}[kind](bench.head_dim)
    await bench.check(rows, [rotated] * len(rows))
    await bench.sink.expect_nothing(200)


@cocotb.test()
@cocotb.parametrize(i_stall=["none", "random", "bursty"], o_stall=["none", "random", "heavy", "bursty"])
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    rows = random_rows(bench.draw, params()["rows"], bench.head_dim)
    await bench.check(rows, [bool(bench.draw.getrandbits(1)) for _ in rows])
    await bench.sink.expect_nothing(200)


if params()["real_groups"]:

    @cocotb.test()
    async def matches_golden_on_real_rows(dut):
        """K rows rotated, V rows plain, token by token as the quantizer gets them."""
        bench = Bench(dut)
        await start(dut)
        for group in real_groups(params()["real_groups"]):
            rows = np.stack([group.k_rows, group.v_rows], axis=1).reshape(-1, bench.head_dim)
            await bench.check(rows, [True, False] * len(group.k_rows))
        await bench.sink.expect_nothing(200)


@cocotb.test()
@cocotb.parametrize(rotated=[False, True])
async def meets_latency_and_throughput(dut, rotated):
    bench = Bench(dut)
    await start(dut)
    rows = random_rows(bench.draw, 12, bench.head_dim)
    await bench.check(rows[:1], [rotated])
    expected = params()["latency"][rotated]
    measured = bench.sink.transfers[0] - bench.source.transfers[bench.beats - 1]
    assert measured == expected, f"latency {measured} cycles, not {expected}"
    await cycles(dut, 10)
    first = len(bench.sink.transfers)
    await bench.check(rows, [rotated] * len(rows))
    starts = np.array(bench.sink.transfers[first :: bench.beats])
    period = params()["row_cycles"][rotated]
    assert (np.diff(starts)[2:] == period).all(), f"rows {np.diff(starts)[2:]} cycles apart, not {period}"


@cocotb.test()
async def alternates_within_the_cycles_of_both_kinds(dut):
    bench = Bench(dut)
    await start(dut)
    rows = random_rows(bench.draw, 24, bench.head_dim)
    await bench.check(rows, [bool(n & 1) for n in range(len(rows))])
    pairs = np.diff(bench.sink.transfers[:: 2 * bench.beats])
    assert (pairs <= sum(params()["row_cycles"])).all(), f"pairs of rows {pairs} cycles apart"


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    for wait in (5, 23, 40, 61, 90, 140):
        rows = random_rows(bench.draw, 8, bench.head_dim)
        bench.send(rows, [bool(bench.draw.getrandbits(1)) for _ in rows])
        await cycles(dut, wait)
        await reset(dut)
        rows = random_rows(bench.draw, 3, bench.head_dim)
        await bench.check(rows, [bool(bench.draw.getrandbits(1)) for _ in rows])
        await bench.sink.expect_nothing(100)
