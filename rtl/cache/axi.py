"""AXI4 ports of the memory side: signals, geometry, faults (golden `bursts`)."""

from dataclasses import dataclass

from amaranth.hdl import Module, Signal, ValueLike, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.cache.axi import BOUNDARY_BYTES

__all__ = ["READ", "WRITE", "AxiConfig", "AxiSignature", "keep_first_fault"]

#: the channels of reads and writes
READ = ("ar", "r")
WRITE = ("aw", "w", "b")

_MAX_BURST = 256
_COUNT_BITS = 16
_INCR = 1


class AxiSignature(wiring.Signature):
    """AXI4 as its manager (master) sees it: flat members ``awid``, ``awaddr``, ... ``rready``.

    Bursts are INCR of whole words; a peer that wants them gets lock 0, cache 0b0011, prot 0, qos 0, region 0.

    Parameters
    ----------
    data_bits : of a word
    addr_bits : of a byte address
    id_bits : of the requester's number
    channels : which ones there are; all by default, or `READ`, or `WRITE`
    """

    def __init__(
        self, *, data_bits: int, addr_bits: int, id_bits: int, channels: tuple[str, ...] = WRITE + READ
    ) -> None:
        address = {"id": id_bits, "addr": addr_bits, "len": 8, "size": 3, "burst": 2}
        answer = {"id": id_bits, "resp": 2}
        word = {"data": data_bits, "last": 1}
        payloads = {
            "aw": (Out, address),
            "w": (Out, {**word, "strb": data_bits // 8}),
            "b": (In, answer),
            "ar": (Out, address),
            "r": (In, {**answer, **word}),
        }
        members = {}
        for channel in channels:
            flow, fields = payloads[channel]
            members |= {f"{channel}{name}": flow(shape) for name, shape in (fields | {"valid": 1}).items()}
            members[f"{channel}ready"] = flow.flip()(1)
        super().__init__(members)


@dataclass(frozen=True, kw_only=True)
class AxiConfig:
    """Geometry of an AXI4 port that several requesters share.

    Parameters
    ----------
    data_bits : of a word of the bus
    addr_bits : of a byte address
    max_burst : beats of a burst at most
    outstanding : bursts that are under way at most
    depths : for each requester the words of its buffer; a full rate takes what comes while a burst is under way, and
        ``max_burst`` more
    """

    data_bits: int = 128
    addr_bits: int = 32
    max_burst: int = 16
    outstanding: int = 16
    depths: tuple[int, ...] = (64,) * 6

    def __post_init__(self) -> None:
        if self.data_bits not in (32, 64, 128, 256, 512):
            raise ValueError(f"data_bits must be a power of two from 32 to 512, not {self.data_bits!r}")
        if not 16 <= self.addr_bits <= 64:
            raise ValueError(f"addr_bits must be from 16 to 64, not {self.addr_bits!r}")
        if not 1 <= self.max_burst <= _MAX_BURST:
            raise ValueError(f"max_burst must be from 1 to {_MAX_BURST}, not {self.max_burst!r}")
        if not 1 <= self.outstanding <= 256:
            raise ValueError(f"outstanding must be from 1 to 256, not {self.outstanding!r}")
        if not self.depths or not all(self.max_burst <= depth <= 1 << 15 for depth in self.depths):
            limits = f"from max_burst={self.max_burst} to 32768 words"
            raise ValueError(f"depths must be {limits} for each of at least one requester, not {self.depths!r}")

    @property
    def ports(self) -> int:
        """The requesters."""
        return len(self.depths)

    @property
    def word_bytes(self) -> int:
        """Bytes of a word."""
        return self.data_bits // 8

    @property
    def boundary_words(self) -> int:
        """Words between the addresses that no burst crosses."""
        return BOUNDARY_BYTES // self.word_bytes

    @property
    def word_addr_bits(self) -> int:
        """Bits of the address of a word."""
        return self.addr_bits - ceil_log2(self.word_bytes)

    @property
    def id_bits(self) -> int:
        """Bits of a requester's number."""
        return max(1, ceil_log2(self.ports))

    @property
    def beats_shape(self) -> unsigned:
        """Shape of the length of a burst."""
        return unsigned(bits_for(self.max_burst))

    @property
    def request_shape(self) -> data.StructLayout:
        """``count`` words from word ``address`` on; ``bad``: from nowhere."""
        return data.StructLayout({"address": self.word_addr_bits, "count": _COUNT_BITS, "bad": 1})

    @property
    def burst_shape(self) -> data.StructLayout:
        """``last`` of its request; ``bad`` as the request."""
        return data.StructLayout({"address": self.word_addr_bits, "beats": self.beats_shape, "bad": 1, "last": 1})

    @property
    def fault_shape(self) -> data.StructLayout:
        """``valid`` there was one, of ``requester``, at word ``address``, with AXI ``response``."""
        return data.StructLayout({"valid": 1, "requester": self.id_bits, "address": self.word_addr_bits, "response": 2})

    def signature(self, channels: tuple[str, ...]) -> AxiSignature:
        """Signals of the port, of these channels."""
        return AxiSignature(data_bits=self.data_bits, addr_bits=self.addr_bits, id_bits=self.id_bits, channels=channels)

    def address_fields(self, port: ValueLike, address: ValueLike, beats: ValueLike) -> dict[str, ValueLike]:
        """Values of the members of an address channel for a burst."""
        shift = ceil_log2(self.word_bytes)
        return {"id": port, "addr": address << shift, "len": beats - 1, "size": shift, "burst": _INCR}


def keep_first_fault(m: Module, fault: data.View, clear: Signal, faulty: ValueLike, **fields: ValueLike) -> None:
    """Keep the fields of the first fault since ``clear``; one in the same cycle is kept."""
    with m.If(clear):
        m.d.sync += fault.valid.eq(0)
    with m.If(faulty & (~fault.valid | clear)):
        m.d.sync += [fault.valid.eq(1), *(fault[name].eq(value) for name, value in fields.items())]
