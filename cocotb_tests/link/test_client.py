"""The host's client: against a model of the link on a line that spoils bytes, against the pins, and without a board."""

import errno
import random
import re
import socket

import numpy as np
import pytest
import serial

from cocotb_tests.lib import launch, rng
from cocotb_tests.link.bus import COUNTER, FAULTY, SILENT, WordBus
from fpga import client as client_module
from fpga.client import Client, LinkError
from golden.errors import UserError
from golden.link.host_link import REQUEST_SYNC, WORD_BYTES, LinkModel, Operation, Request, encode_request
from rtl.link.host_link import HostLink, LinkConfig


def sentence(text: str) -> str:
    """A pattern that matches this text alone."""
    return f"^{re.escape(text)}$"


class ModelPort:
    """A serial port with a link at its other end; what nobody has read waits, what does not come takes no time."""

    def __init__(
        self, bus: WordBus, *, max_words: int = 16, spoil: float = 0, draw: random.Random | None = None
    ) -> None:
        self.link = LinkModel(bus, max_words=max_words)
        self.spoil, self.draw = spoil, draw or random.Random(0)
        self.waiting = b""
        self.closed = False

    def _altered(self, data: bytes) -> bytes:
        sent = bytearray()
        for byte in data:
            match self.draw.randrange(3) if self.draw.random() < self.spoil else None:
                case None:
                    sent.append(byte)
                case 0:
                    sent.append(byte ^ 1 << self.draw.randrange(8))
                case 1:
                    sent += bytes([byte, self.draw.choice([REQUEST_SYNC, self.draw.getrandbits(8)])])
        return bytes(sent)

    def write(self, data: bytes) -> None:
        self.waiting += self._altered(self.link.answer(self._altered(data)))

    def read(self, size: int) -> bytes:
        found, self.waiting = self.waiting[:size], self.waiting[size:]
        return found

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def connect(monkeypatch):
    """Returns a client of a port that a test has made."""

    def connected(port: ModelPort, **options) -> Client:
        monkeypatch.setattr(client_module.serial, "serial_for_url", lambda *_, **__: port)
        return Client("/dev/model", **options)

    return connected


def test_reads_and_writes_any_length(connect):
    bus = WordBus()
    with connect(ModelPort(bus)) as client:
        assert client.max_words == 16
        for words in (0, 1, 15, 16, 17, 100):
            values = np.arange(words, dtype=np.uint32) * 0x01234567
            client.write(0x400, values)
            assert client.read(0x400, words).dtype == np.uint32
            assert (client.read(0x400, words) == values).all()
        client.write(0x10, [1, 0xFFFFFFFF])
        assert client.read_bytes(0x10, 8) == bytes.fromhex("01000000ffffffff")
        client.write_bytes(0x14, b"abcdefgh")
        assert client.read(0x14, 2).tolist() == [0x64636261, 0x68676665]
        assert client.read(4 * COUNTER, 20, fixed=True).tolist() == list(range(1, 21))
        client.write(0x20, range(40), fixed=True)
        assert client.read(0x20, 1).tolist() == [39]
        assert (client.errors.crc, client.errors.timeouts, client.errors.retries) == (0, 0, 0)
    assert client._port.closed


@pytest.mark.parametrize("spoil", [0.001, 0.01])
def test_recovers_from_what_happens_on_the_line(connect, spoil):
    """Every call happens once: a place that counts its reads is read as often as asked for."""
    bus, draw = WordBus(), rng("line", spoil)
    with connect(ModelPort(bus, spoil=spoil, draw=draw), retries=40) as client:
        words: dict[int, int] = {}
        for _ in range(1000):
            address, count = draw.randrange(64), draw.randint(1, 6)
            if draw.random() < 0.5:
                values = [draw.getrandbits(32) for _ in range(count)]
                client.write(WORD_BYTES * address, values)
                words.update(zip(range(address, address + count), values, strict=True))
            else:
                expected = [words.get(place, ~place & 0xFFFFFFFF) for place in range(address, address + count)]
                assert client.read(WORD_BYTES * address, count).tolist() == expected
            before = bus.count
            assert client.read(4 * COUNTER, 2, fixed=True).tolist() == [before + 1, before + 2]
            assert bus.count == before + 2
        assert bus.words == words
        assert client.errors.retries and client.errors.crc and client.errors.timeouts and client.errors.repeats


def test_errors_name_the_address(connect):
    with connect(ModelPort(WordBus())) as client:
        faulty, silent = 4 * FAULTY, 4 * SILENT
        for access, message in [
            (
                lambda: client.read(faulty - 20, 8),
                f"read of address 0x{faulty:08x} failed: the board has nothing there",
            ),
            (lambda: client.write(faulty, [1]), f"write of address 0x{faulty:08x} failed: the board has nothing there"),
            (
                lambda: client.read(silent, 1),
                f"read of address 0x{silent:08x} did not end: that part of the board hangs",
            ),
        ]:
            with pytest.raises(LinkError, match=sentence(message)):
                access()
        client.max_words = 32
        with pytest.raises(
            LinkError, match=r"^the link at '/dev/model' does not know a read of 80 bytes at 0x00000000"
        ):
            client.read(0, 20)


def test_rejects_addresses_and_lengths(connect):
    with connect(ModelPort(WordBus())) as client:
        for address, words in ((2, 1), (-4, 1), (0xFFFFFFFC, 2), (1 << 32, 1)):
            message = f"address must be a multiple of 4 below 2**32, not {address}"
            with pytest.raises(ValueError, match=sentence(message)):
                client.read(address, words)
        with pytest.raises(ValueError, match=r"^count must be a multiple of 4, not 6$"):
            client.read_bytes(0, 6)
        with pytest.raises(ValueError, match=r"^data must have a multiple of 4 bytes, not 3$"):
            client.write_bytes(0, b"abc")


def test_no_answer_takes_one_sentence(connect):
    port = ModelPort(WordBus(), spoil=1)
    port.link.answer = lambda burst: b""
    with pytest.raises(LinkError, match=r"^no answer from '/dev/model' at 115200 baud; is the board on and loaded"):
        connect(port, baud=115_200, retries=2)
    assert port.closed


def test_silence_later_takes_one_sentence(connect):
    port = ModelPort(WordBus())
    with connect(port, retries=2) as client:
        port.link.answer = lambda burst: b""
        message = "no answer from '/dev/model' to a read of 8 bytes at 0x00000100, asked 3 times"
        with pytest.raises(LinkError, match=sentence(message)):
            client.read(0x100, 2)
        assert client.errors.retries == 2 and client.errors.timeouts == 3


def test_a_lost_port_takes_one_sentence(connect):
    port = ModelPort(WordBus())
    with connect(port) as client:

        def unplugged(_: bytes) -> None:
            raise serial.SerialException("device reports readiness to read but returned no data")

        port.write = unplugged
        with pytest.raises(
            LinkError, match=r"^lost '/dev/model' during a read of 4 bytes at 0x00000000: device reports"
        ):
            client.read(0, 1)


@pytest.mark.parametrize(
    "number, reason",
    [
        (errno.ENOENT, "there is no such port; is the board plugged in?"),
        (errno.EACCES, "permission denied; on Debian, 'sudo adduser $USER dialout' and a new login grant it"),
        (errno.EAGAIN, "another program uses it"),
        (errno.EIO, "[Errno 5] no"),
    ],
)
def test_ports_that_cannot_be_opened_take_one_sentence(monkeypatch, number, reason):
    def refuse(*_, **__):
        raise serial.SerialException(number, "no")

    monkeypatch.setattr(client_module.serial, "serial_for_url", refuse)
    with pytest.raises(LinkError, match=sentence(f"cannot open '/dev/x': {reason}")):
        Client("/dev/x")


def test_missing_ports_of_the_machine_take_one_sentence():
    message = "cannot open '/dev/no-such-port': there is no such port; is the board plugged in?"
    with pytest.raises(UserError, match=sentence(message)):
        Client("/dev/no-such-port")
    with socket.create_server(("localhost", 0)) as listener:
        free = listener.getsockname()[1]
    with pytest.raises(UserError, match=rf"^cannot open 'socket://localhost:{free}': .*refused"):
        Client(f"socket://localhost:{free}")


def test_late_replies_are_not_taken_for_new_ones(connect):
    port = ModelPort(WordBus())
    with connect(port) as client:
        client.write(0, [7])
        late = encode_request(Request(operation=Operation.READ, sequence=1, address=0x1000))
        port.waiting += port.link.answer(late)
        assert client.read(0, 1).tolist() == [7]


@launch.simulators()
def test_client_reads_and_writes_through_the_pins(simulator):
    config = LinkConfig(clock_hz=4, baud=1, max_words=4, pause_bytes=4, watchdog_cycles=300)
    launch.run(
        HostLink(config),
        name="link_client",
        tb="cocotb_tests.link.tb_client",
        parameters={"rounds": 4 if simulator == "icarus" else 25, "timeout": 2.0 if simulator == "icarus" else 0.5},
        simulators=simulator,
    )
