"""HostLink: geometries, bad configs, and the start of the simulations."""

import re
import zlib

import pytest
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC

from cocotb_tests.lib import launch
from cocotb_tests.link.bus import COUNTER, WordBus
from golden.link.host_link import (
    LinkModel,
    Operation,
    Reply,
    Request,
    Status,
    decode_reply,
    encode_reply,
    encode_request,
)
from rtl.link.host_link import HostLink, LinkConfig
from sim.simulators import ROOT

# Four cycles in a bit, the least there may be; short pauses.
FAST = {"clock_hz": 4, "baud": 1, "pause_bytes": 4, "watchdog_cycles": 300}


def run(simulator: str, config: LinkConfig, *, requests: int, tests: str | None = None) -> None:
    launch.run(
        HostLink(config),
        name="link_host_link",
        tb="cocotb_tests.link.tb_host_link",
        parameters={
            "clocks_per_bit": f"{config.clock_hz}/{config.baud}",
            "max_words": config.max_words,
            "pause_cycles": config.pause_cycles,
            "watchdog_cycles": config.watchdog_cycles,
            "requests": requests,
        },
        simulators=simulator,
        tests=tests,
    )


@launch.simulators("icarus")
def test_matches_golden_in_small(simulator):
    run(simulator, LinkConfig(**FAST, max_words=1), requests=6)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    run(simulator, LinkConfig(**FAST, max_words=16), requests=10)


@launch.simulators("verilator")
def test_matches_golden_at_a_fraction_of_the_clock(simulator):
    """50 MHz and 3 Mbaud: sixteen and two thirds of a cycle in a bit."""
    run(simulator, LinkConfig(max_words=4, pause_bytes=4, watchdog_cycles=700), requests=4)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize("clock_hz, baud, max_words, requests", [(9, 2, 2, 40), (25, 3, 32, 10), (4, 1, 256, 3)])
def test_matches_golden_in_further_geometries(simulator, clock_hz, baud, max_words, requests):
    config = LinkConfig(clock_hz=clock_hz, baud=baud, max_words=max_words, pause_bytes=7, watchdog_cycles=1000)
    run(simulator, config, requests=requests)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"baud": 0}, "baud must be from 1 to a quarter of clock_hz, not 0"),
        ({"baud": 12_500_001}, "baud must be from 1 to a quarter of clock_hz, not 12500001"),
        ({"clock_hz": 11_999_999}, "baud must be from 1 to a quarter of clock_hz, not 3000000"),
        ({"clock_hz": 1 << 60, "baud": 1}, "baud must be clock_hz / 4194304 or more, not 1"),
        ({"max_words": 0}, "max_words must be a power of two from 1 to 256, not 0"),
        ({"max_words": 48}, "max_words must be a power of two from 1 to 256, not 48"),
        ({"max_words": 512}, "max_words must be a power of two from 1 to 256, not 512"),
        ({"pause_bytes": 1}, "pause_bytes must be from 2 to 1048576, not 1"),
        ({"pause_bytes": 1 << 21}, "pause_bytes must be from 2 to 1048576, not 2097152"),
        ({"watchdog_cycles": 1}, "watchdog_cycles must be from 2 to 1073741824, not 1"),
        ({"watchdog_cycles": 1 << 31}, "watchdog_cycles must be from 2 to 1073741824, not 2147483648"),
    ],
)
def test_rejects_bad_configs(wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LinkConfig(**wrong)


def test_crc_is_the_one_of_zlib():
    assert CRC32_ISO_HDLC().compute(b"123456789") == zlib.crc32(b"123456789")


def test_example_of_the_page_is_what_golden_makes():
    page = (ROOT / "docs" / "blocks" / "link-host_link.md").read_text()
    shown = [bytes.fromhex(line) for line in re.findall(r"^    ((?:A5|5A) [0-9A-F ]+)$", page, re.MULTILINE)]
    data = bytes.fromhex("78563412")
    assert shown == [
        encode_request(Request(operation=Operation.WRITE, sequence=7, address=0x80000010, data=data)),
        encode_reply(Reply(status=Status.OK, sequence=7)),
        encode_request(Request(operation=Operation.READ, sequence=8, address=0x80000010)),
        encode_reply(Reply(status=Status.OK, sequence=8, data=data)),
    ]


@pytest.mark.parametrize("data", [b"", b"\x5a\xa5\x00\xff" * 3])
def test_decodes_what_it_encodes(data):
    reply = Reply(status=Status.OK, sequence=200, last=2, data=data)
    frame = encode_reply(reply)
    assert decode_reply(b"\x00\xa5\xff" + frame + b"\x5a") == (reply, 3 + len(frame))
    for length in range(len(frame)):
        found, missing = decode_reply(frame[:length])
        assert found is None and 0 < missing <= len(frame) - length
    for place in range(4, len(frame)):
        assert decode_reply(frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]) == (None, 0)


def test_model_answers_once():
    """The remembered answer, by hand."""
    bus = WordBus()
    link = LinkModel(bus)
    read = encode_request(Request(operation=Operation.READ, sequence=3, address=4 * COUNTER))
    first = link.answer(read)
    assert link.answer(b"\x00" + read) == first and bus.count == 1
    assert link.answer(read[:-1]) == encode_reply(Reply(status=Status.REPEAT, sequence=3))
    assert link.answer(b"\x00\xff") == b""
    assert link.answer(read) == first and bus.count == 1
    hello = link.answer(encode_request(Request(operation=Operation.HELLO, sequence=0)))
    assert hello == encode_reply(Reply(status=Status.OK, sequence=0, last=255))
    assert link.answer(read) != first and bus.count == 2
