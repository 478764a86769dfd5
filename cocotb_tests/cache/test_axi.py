"""Signals, geometry and bursts of the AXI4 ports: golden's own properties, the splitter, bad configs."""

import re

import pytest
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.lib import rng
from golden.cache.axi import BOUNDARY_BYTES, DECERR, OKAY, SLVERR, bursts, is_error
from rtl.cache._bursts import Bursts
from rtl.cache.axi import READ, WRITE, AxiConfig, AxiSignature
from rtl.common.stage import Stage

EXOKAY = 1


@given(
    address=st.integers(0, 1 << 20),
    count=st.integers(0, 3000),
    max_burst=st.integers(1, 256),
    word_bytes=st.sampled_from([4, 8, 16, 32, 64]),
)
def test_bursts_are_legal_and_cover_the_request_once(address, count, max_burst, word_bytes):
    found = bursts(address, count, max_burst=max_burst, word_bytes=word_bytes)
    assert [a + n for a, beats in found for n in range(beats)] == list(range(address, address + count))
    page = BOUNDARY_BYTES // word_bytes
    for start, beats in found:
        assert 1 <= beats <= max_burst
        assert start // page == (start + beats - 1) // page


@pytest.mark.parametrize(
    "address, count, expected",
    [
        (1024 - 16, 16, [(1008, 16)]),  # ends exactly at 4 KiB
        (1024, 16, [(1024, 16)]),  # begins there
        (1024 - 16, 17, [(1008, 16), (1024, 1)]),
        (1023, 2, [(1023, 1), (1024, 1)]),
        (1000, 40, [(1000, 16), (1016, 8), (1024, 16)]),
        (5, 0, []),
    ],
)
def test_bursts_end_at_4_kib(address, count, expected):
    assert bursts(address, count, max_burst=16, word_bytes=4) == expected


def test_errors_are_slverr_and_decerr():
    assert [is_error(response) for response in (OKAY, EXOKAY, SLVERR, DECERR)] == [False, False, True, True]


@pytest.mark.parametrize("data_bits, max_burst", [(32, 256), (32, 1), (64, 7), (128, 16), (512, 64), (512, 200)])
def test_splitter_matches_golden(data_bits, max_burst):
    """Requests around 4 KiB and at random, one after the other, a burst a cycle; bad ones word by word."""
    config = AxiConfig(data_bits=data_bits, max_burst=max_burst, depths=(256,))
    draw, page = rng("splitter"), config.boundary_words
    requests = [(page - k, n, 0) for k in range(4) for n in (1, 2, max_burst, max_burst + 3)]
    requests += [(0, 0, 0), (9, 3, 1), (0, 0, 1), (page - 1, 2, 1), ((1 << config.word_addr_bits) - 9, 9, 0)]
    requests += [(draw.randrange(1 << 20), draw.randrange(1, 400), 0) for _ in range(30)]
    expected = []
    for address, count, bad in requests:
        most = 1 if bad else max_burst
        split = bursts(address, count, max_burst=most, word_bytes=config.word_bytes)
        expected += [(a, beats, bad, int(a + beats == address + count)) for a, beats in split]
    dut, got, taken = Bursts(config), [], []

    async def give(ctx) -> None:
        for address, count, bad in requests:
            ctx.set(dut.i.payload, {"address": address, "count": count, "bad": bad})
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def take(ctx) -> None:
        ctx.set(dut.o.ready, 1)
        cycle = 0
        while len(got) < len(expected):
            _, _, valid, payload = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            cycle += 1
            assert cycle < 10_000
            if valid:
                got.append((payload.address, payload.beats, payload.bad, payload.last))
                taken.append(cycle)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(give)
    simulator.add_testbench(take)
    simulator.run()
    assert got == expected
    nothing = sum(count == 0 for _, count, _ in requests)
    assert taken[-1] - taken[0] == len(taken) - 1 + nothing, "a burst a cycle; a request of none takes one too"


def test_stage_keeps_words_and_rate():
    """Words pass in order whatever both sides do; without stalls one a cycle, a cycle later."""
    dut, draw = Stage(8), rng("stage")
    words = [draw.randrange(256) for _ in range(300)]
    got = []

    async def give(ctx) -> None:
        for n, word in enumerate(words):
            if n >= 100 and draw.random() < 0.5:
                await ctx.tick().repeat(draw.randrange(1, 4))
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)

    async def take(ctx) -> None:
        cycle = 0
        while len(got) < len(words):
            ctx.set(dut.o.ready, len(got) < 100 or draw.random() < 0.5)
            _, _, valid, ready, payload = await ctx.tick().sample(dut.o.valid, dut.o.ready, dut.o.payload)
            cycle += 1
            assert cycle < 10_000
            if valid and ready:
                got.append(payload)
            assert len(got) == cycle - 1 or cycle > 101

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(give)
    simulator.add_testbench(take)
    simulator.run()
    assert got == words


def test_signature_has_the_signals_of_axi4():
    """Names, widths and directions of both halves are those of the whole."""
    fields = {"data_bits": 64, "addr_bits": 40, "id_bits": 3}
    whole = AxiSignature(**fields).members
    halves = {**AxiSignature(**fields, channels=READ).members, **AxiSignature(**fields, channels=WRITE).members}
    assert halves == dict(whole)
    address = {"id": 3, "addr": 40, "len": 8, "size": 3, "burst": 2, "valid": 1}
    word = {"data": 64, "last": 1, "valid": 1}
    outputs = {f"{c}{name}": width for c in ("aw", "ar") for name, width in address.items()}
    outputs |= {f"w{name}": width for name, width in {**word, "strb": 8}.items()} | {"bready": 1, "rready": 1}
    inputs = {f"r{name}": width for name, width in {**word, "id": 3, "resp": 2}.items()}
    inputs |= {"bid": 3, "bresp": 2, "bvalid": 1, "awready": 1, "wready": 1, "arready": 1}
    assert dict(whole) == {n: Out(w) for n, w in outputs.items()} | {n: In(w) for n, w in inputs.items()}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"data_bits": 16}, "data_bits must be a power of two from 32 to 512, not 16"),
        ({"data_bits": 96}, "data_bits must be a power of two from 32 to 512, not 96"),
        ({"data_bits": 1024}, "data_bits must be a power of two from 32 to 512, not 1024"),
        ({"addr_bits": 15}, "addr_bits must be from 16 to 64, not 15"),
        ({"addr_bits": 65}, "addr_bits must be from 16 to 64, not 65"),
        ({"max_burst": 0}, "max_burst must be from 1 to 256, not 0"),
        ({"max_burst": 257}, "max_burst must be from 1 to 256, not 257"),
        ({"outstanding": 0}, "outstanding must be from 1 to 256, not 0"),
        ({"outstanding": 257}, "outstanding must be from 1 to 256, not 257"),
        *(
            (
                {"depths": depths},
                f"depths must be from max_burst=16 to 32768 words for each of at least one requester, not {depths!r}",
            )
            for depths in ((), (16, 15), (1 << 16,))
        ),
    ],
    ids=str,
)
def test_rejects_bad_configs(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AxiConfig(**values)
