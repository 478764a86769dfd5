"""Runs inside the simulator: the stream agents against a queue."""

import time

import cocotb
from amaranth.hdl import signed

from cocotb_tests.lib import params, rng, stalls
from cocotb_tests.lib.bench import cycles, latency, reset, start, throughput, with_timeout
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
    sending = cocotb.start_soon(source.send(words))
    assert await sink.recv(len(words)) == words
    await sending
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
    assert source.idle
    assert sink.empty()
    assert not sink.transfers
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
async def timeout_ends_a_wait(dut):
    _, sink = _bind(dut)
    await start(dut)
    message = ""
    try:
        await with_timeout(sink.recv(1), 30)
    except AssertionError as error:
        message = str(error)
    assert message == "not done after 30 cycles"


@cocotb.test()
async def signed_words(dut):
    source = StreamSource(dut, "i", shape=signed(9))
    sink = StreamSink(dut, "o", shape=signed(9))
    await start(dut)
    words = [-256, -1, 0, 1, 255]
    source.send_nowait(words)
    assert await sink.recv(5) == words


@cocotb.test()
async def stalled_output(dut):
    source, sink = _bind(dut, "none", "heavy")
    await start(dut)
    source.send_nowait([7] * 100)
    if await sink.recv(80, timeout=200) == [7] * 80:
        sink.stall = None
        await sink.recv(20, timeout=200)


@cocotb.test()
async def idle_streams(dut):
    _bind(dut)
    await start(dut)
    await cycles(dut, 50)


@cocotb.test()
async def speed(dut):
    source, sink = _bind(dut)
    await start(dut)
    count = params()["count"]
    source.send_nowait(_words(count))
    began = time.process_time()
    await sink.recv(count)
    rate = count / (time.process_time() - began)
    cocotb.log.info("%d cycles per CPU second", rate)
    assert rate >= params()["minimum"], f"{rate:.0f} cycles per CPU second"
