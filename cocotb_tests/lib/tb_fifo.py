"""Runs inside the simulator: the stream library against a queue."""

import time

import cocotb

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start, throughput
from cocotb_tests.lib.stream import StreamMonitor, StreamSink, StreamSource


def _bind(dut, source_stall="none", sink_stall="none"):
    source = StreamSource(dut, "i", stall=stalls.named(source_stall, "source"))
    sink = StreamSink(dut, "o", stall=stalls.named(sink_stall, "sink"))
    return source, sink


def _words(count):
    draw = rng("words")
    return [draw.getrandbits(params()["width"]) for _ in range(count)]


@cocotb.test()
@cocotb.parametrize(source_stall=["none", "random", "bursty"], sink_stall=["none", "heavy", "every2"])
async def passes_words(dut, source_stall, sink_stall):
    source, sink = _bind(dut, source_stall, sink_stall)
    await start(dut)
    words = _words(params()["count"])
    cocotb.start_soon(source.send(words))
    assert await sink.recv(len(words)) == words
    await sink.expect_nothing()
    assert source.idle


@cocotb.test()
async def meets_latency_and_throughput(dut):
    source, sink = _bind(dut)
    await start(dut)
    words = _words(200)
    source.send_nowait(words)
    assert await sink.recv(200) == words
    assert latency(source, sink) == 2
    assert throughput(sink) == 1.0


@cocotb.test()
async def survives_reset_during_traffic(dut):
    source, sink = _bind(dut, "none", "heavy")
    await start(dut)
    source.send_nowait(_words(500))
    await cycles(dut, 100)
    await reset(dut)
    assert source.idle and sink.empty()
    words = _words(50)
    source.send_nowait(words)
    assert await sink.recv(50) == words
    await sink.expect_nothing()


@cocotb.test()
async def monitor_sees_what_the_sink_sees(dut):
    source, sink = _bind(dut, "random", "random")
    monitor = StreamMonitor(dut, "o")
    await start(dut)
    words = _words(100)
    source.send_nowait(words)
    assert await sink.recv(100) == words
    assert monitor.take_all() == words


@cocotb.test()
async def reports_speed(dut):
    source, sink = _bind(dut)
    await start(dut)
    count = params().get("speed_count", 2000)
    source.send_nowait(_words(count))
    began = time.perf_counter()
    await sink.recv(count)
    cocotb.log.info("stream speed: %d cycles per second", count / (time.perf_counter() - began))
