"""Coroutines of the Quantizer tests."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from cocotb_tests.dsq.group_bench import GroupBench
from cocotb_tests.dsq.groups import (
    Group,
    beats,
    calibration_words,
    corner_groups,
    random_groups,
    real_groups,
    record_words,
)
from cocotb_tests.lib import params
from cocotb_tests.lib.bench import cycles, reset, start
from golden.dsq.quantizer import quantize
from rtl.config import DsqConfig
from rtl.dsq.quantizer import Quantizer


class Bench(GroupBench):
    """Groups to all inputs of the Quantizer."""

    def __init__(self, dut: Any, i_stall: str = "none", o_stall: str = "none") -> None:
        group_shape = Quantizer(DsqConfig(**params()["config"])).i_group_shape
        inputs = {"i_group": group_shape, "i_calibration": None, "i_mass": None, "i_row": None}
        super().__init__(dut, inputs, i_stall, o_stall)

    def send(self, group: Group, asked: int | None = None) -> list[int]:
        """``asked`` is the salient count that goes to the Quantizer, if other than golden's."""
        c, calibration = self.config, group.calibration
        fields = {
            "salient_tokens": group.salient_tokens if asked is None else asked,
            "sink_tokens": group.sink_tokens,
            "first_group": int(group.first_group),
            "load_calibration": int(group.load_calibration),
            "k_norm": calibration.k_norm,
            "v_norm": calibration.v_norm,
        }
        self.sources["i_group"].send_nowait([fields])
        if group.load_calibration:
            self.sources["i_calibration"].send_nowait(calibration_words(calibration))
        self.sources["i_mass"].send_nowait(int(mass) for mass in group.mass)
        rows = np.stack([group.k_rows, group.v_rows], axis=1).reshape(-1, c.head_dim)
        self.sources["i_row"].send_nowait(beats(rows, c.lanes, 16))
        record = quantize(
            group.k_rows,
            group.v_rows,
            group.mass,
            group.first_group,
            calibration,
            salient_tokens=group.salient_tokens,
            sink_tokens=group.sink_tokens,
            delta_bits=c.delta_bits,
            bus_bits=c.bus_bits,
        )
        return record_words(record, c.bus_bits)

    async def check(self, groups: Sequence[Group]) -> None:
        await super().check(groups)
        assert int(self.dut.error.value) == 0


@cocotb.test()
async def matches_golden_on_corner_groups(dut):
    bench = Bench(dut)
    await start(dut)
    await bench.check(corner_groups(bench.config, bench.draw))
    await bench.end()


@cocotb.test()
@cocotb.parametrize(i_stall=["none", "random", "bursty"], o_stall=["none", "heavy", "bursty"])
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
    inputs = {"i_row": 2 * c.group_tokens * c.row_beats, "i_mass": c.group_tokens}
    for salient_tokens in params()["salient_tokens"]:
        latency, period = await bench.measure(salient_tokens, inputs)
        assert latency <= Quantizer.latency(c, salient_tokens)
        assert period <= Quantizer.group_cycles(c, salient_tokens)


@cocotb.test()
@cocotb.parametrize(asked=["none", "one too many", "most of the field"])
async def clamps_impossible_salient_counts_and_says_so(dut, asked):
    """The group is compressed with the nearest possible count; ``error`` stays until reset."""
    bench = Bench(dut)
    await start(dut)
    c = bench.config
    count = {"none": 0, "one too many": c.max_salient + 1, "most of the field": 2 * c.group_tokens - 1}[asked]
    used = 1 if count == 0 else c.max_salient
    groups = [replace(group, salient_tokens=used) for group in random_groups(c, bench.draw, 2)]
    await bench.check(groups[:1])
    words = bench.send(groups[1], count)
    assert await bench.sink.recv(len(words), timeout=bench.timeout) == words
    assert int(dut.error.value) == 1
    words = bench.send(groups[0])
    assert await bench.sink.recv(len(words), timeout=bench.timeout) == words
    assert int(dut.error.value) == 1
    await reset(dut)
    assert int(dut.error.value) == 0
    await bench.check(groups[:1])
    await bench.end()


@cocotb.test()
async def takes_inputs_in_any_order(dut):
    """Each input alone, in turn: what the others carry comes later."""
    bench = Bench(dut)
    await start(dut)
    names = list(bench.sources)
    for shift in range(len(names)):
        group = replace(random_groups(bench.config, bench.draw, 1)[0], load_calibration=True)
        words = bench.send(group)
        for name, source in bench.sources.items():
            late = (names.index(name) + shift) % len(names)
            source.stall = (n < 700 * late for n in range(1 << 30))
        assert await bench.sink.recv(len(words), timeout=bench.timeout) == words
        await bench.end()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    bench = Bench(dut, "none", "random")
    await start(dut)
    c = bench.config
    period = Quantizer.group_cycles(c, c.max_salient)
    for wait in (period * part // 5 for part in (1, 2, 4, 6, 9, 12)):
        for group in random_groups(c, bench.draw, 4):
            bench.send(group)
        await cycles(dut, wait)
        await reset(dut)
        await bench.check(random_groups(c, bench.draw, 1))
        await bench.end()
