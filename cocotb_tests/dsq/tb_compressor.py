"""Coroutines of the Compressor tests."""

from typing import Any

import cocotb
import numpy as np

from cocotb_tests.dsq.group_bench import GroupBench
from cocotb_tests.dsq.groups import (
    Group,
    beats,
    calibration_words,
    corner_groups,
    layout,
    random_groups,
    real_groups,
    record_words,
)
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import cycles, reset, start
from golden.dsq.compressor import compress
from golden.dsq.record import pack
from golden.dsq.row_quantizer import quantize_token_rows
from rtl.config import DsqConfig
from rtl.dsq.compressor import Compressor


class Bench(GroupBench):
    """Gives the Compressor what golden's row quantizer and salient pick make of the groups."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        group_shape = Compressor(DsqConfig(**params()["config"])).i_group_shape
        inputs = {"i_group": group_shape, "i_calibration": None, "i_salient": None, "i_row": None}
        super().__init__(dut, inputs, i_stall, o_stall)

    def send(self, group: Group) -> list[int]:
        c, calibration, salient = self.config, group.calibration, [int(token) for token in group.salient]
        rows = quantize_token_rows(group.k_rows, group.v_rows)
        fields = {
            "salient_tokens": group.salient_tokens,
            "load_calibration": int(group.load_calibration),
            "k_norm": calibration.k_norm,
            "v_norm": calibration.v_norm,
        }
        self.sources["i_group"].send_nowait([fields])
        if group.load_calibration:
            self.sources["i_calibration"].send_nowait(calibration_words(calibration))
        self.sources["i_salient"].send_nowait([*salient[:-1], salient[-1] | c.group_tokens])
        k_codes, k_scale, v_codes, v_scale = rows
        codes = beats(np.stack([k_codes, v_codes], axis=1).reshape(-1, c.head_dim), c.lanes, 8)
        scales = np.repeat(np.stack([k_scale, v_scale], axis=1).reshape(-1), c.row_beats)
        self.sources["i_row"].send_nowait(beat << 8 | int(scale) for beat, scale in zip(codes, scales, strict=True))
        compressed = compress(*rows, group.salient, calibration, delta_bits=c.delta_bits)
        return record_words(pack(compressed, layout(c, group.salient_tokens)), c.bus_bits)


@cocotb.test()
async def matches_golden_on_corner_groups(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(corner_groups(bench.config, bench.draw))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(i_stall=["none", "random", "bursty"], o_stall=["none", "random", "heavy", "bursty"])
async def matches_golden_under_stalls(dut, i_stall, o_stall):
    bench = Bench(dut, i_stall, o_stall)
    await start(dut)
    await bench.check(random_groups(bench.config, bench.draw, params()["groups"]))
    await bench.end()


if params()["real_groups"]:

    @cocotb.test()
    async def matches_golden_on_real_groups(dut):
        bench = Bench(dut)
        await start(dut)
        await bench.check(real_groups(bench.config, params()["real_groups"]))
        await bench.end()


@cocotb.test()
async def meets_latency_and_throughput(dut):
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    for salient_tokens in params()["salient_tokens"]:
        latency, period = await bench.measure(salient_tokens, {"i_row": 2 * c.group_tokens * c.row_beats})
        assert latency <= Compressor.latency(c, salient_tokens)
        assert period <= max(Compressor.group_cycles(c, salient_tokens), 2 * c.group_tokens * c.row_beats)


@cocotb.test()
async def takes_rows_of_the_next_group_while_compressing(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(random_groups(bench.config, bench.draw, 2))
    rows = bench.sources["i_row"].transfers
    load = len(rows) // 2
    assert rows[-1] - rows[load - 1] <= load + 16 and rows[load] < bench.sink.transfers[0]


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    c = bench.config
    load, compress_cycles = 2 * c.group_tokens * c.row_beats, Compressor.group_cycles(c, c.max_salient)
    for wait in (load // 3, load + 9, *(load + compress_cycles * part // 8 for part in (1, 3, 5, 7, 9))):
        for group in random_groups(c, bench.draw, 3):
            bench.send(group)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(random_groups(c, bench.draw, 1))
        await bench.end()
