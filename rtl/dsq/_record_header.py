"""The header of a record in hardware: stored, run lengths summed, row scales looked up."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from golden.dsq.record import HEADER_BYTES
from rtl.config import DsqConfig
from rtl.dsq._row_format import base_index_shape

__all__ = ["RecordHeader", "scan_cycles"]

#: run lengths that are summed in a cycle: the scan reads the stored header in pieces of this many bytes
SCAN_BYTES = 4


def scan_cycles(config: DsqConfig, salient_tokens: int) -> int:
    """Cycles from a record's first word until its run lengths are summed."""
    return -(-salient_tokens // SCAN_BYTES) + (3 if config.bus_bits == 8 * SCAN_BYTES else 2)


class RecordHeader(wiring.Component):
    """Stores a record's header, sums its run lengths, then looks up row scales and the bases of rows.

    The scan takes a piece of ``SCAN_BYTES`` run lengths a cycle as soon as it has been written; ``done`` rises
    `scan_cycles` after ``start`` when the header comes without pauses. Then ``scales`` is combinational in ``pointer``,
    and ``bases`` in ``row``.

    Parameters
    ----------
    config : DsqConfig
    scales, bases : int
        Row scales and base indices that one lookup gives.

    Members
    -------
    w_en, w_addr, w_data : the header words, in order
    start : with the first word
    salient : held from the cycle after ``start`` on
    written : header words before the present one; ``complete``: no more follow
    done : the scan is over
    fault : the run lengths and the salient count do not add up to ``group_tokens``
    pointer : byte of the header; ``scales`` are the bytes from there on
    row : row of the K delta section; ``bases`` are the indices of the bases of this row and the next ones
    """

    def __init__(self, config: DsqConfig, *, scales: int, bases: int) -> None:
        self.config = config
        header_bytes = HEADER_BYTES + 3 * config.group_tokens
        self.depth = 1 << ceil_log2(-(-header_bytes * 8 // config.bus_bits))  # no address is out of range
        super().__init__(
            {
                "w_en": In(1),
                "w_addr": In(range(self.depth)),
                "w_data": In(config.bus_bits),
                "start": In(1),
                "salient": In(range(config.group_tokens + 1)),
                "written": In(range(self.depth)),
                "complete": In(1),
                "done": Out(1),
                "fault": Out(1),
                "pointer": In(range(header_bytes)),
                "scales": Out(data.ArrayLayout(8, scales)),
                "row": In(range(config.group_tokens)),
                "bases": Out(data.ArrayLayout(base_index_shape(config), bases)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus_bits, tokens = self.config.bus_bits, self.config.group_tokens
        word_bytes, pieces = bus_bits // 8, bus_bits // (8 * SCAN_BYTES)
        m.submodules.store = store = Memory(shape=unsigned(bus_bits), depth=self.depth, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        m.d.comb += [write.en.eq(self.w_en), write.addr.eq(self.w_addr), write.data.eq(self.w_data)]

        # The scan; the fixed HEADER_BYTES before the run lengths are one piece.
        number = Signal(range(-(-tokens // SCAN_BYTES) + 1))
        position = Signal(range(self.depth * pieces + 1))
        more, fetch, fetched = Signal(), Signal(), Signal()
        fetched_number = Signal.like(number)
        runs = Signal(data.ArrayLayout(8, SCAN_BYTES))
        total = Signal(range(255 * tokens + 1))
        m.d.comb += [
            position.eq(number + HEADER_BYTES // SCAN_BYTES),
            more.eq(number * SCAN_BYTES < self.salient),
            fetch.eq(more & (self.complete | (position // pieces < self.written))),
            self.done.eq(~more & ~fetched),
            self.fault.eq(total + self.salient != tokens),
        ]
        m.d.sync += [fetched.eq(fetch), fetched_number.eq(number)]
        with m.If(fetch):
            m.d.sync += number.eq(number + 1)
        piece = read.data.word_select(position % pieces, 8 * SCAN_BYTES)
        for i in range(SCAN_BYTES):
            m.d.sync += runs[i].eq(Mux(number * SCAN_BYTES + i < self.salient, piece.word_select(i, 8), 0))

        # ends[b] is the first row behind the run of base b; a row's base is the number of ends at or before it. Runs
        # that are not there end behind every row. (A sum that overflows here is a fault.)
        ends = [Signal(range(tokens), name=f"end_{b}") for b in range(self.config.max_salient - 1)]
        sums = [total + runs[0]]
        for i in range(1, SCAN_BYTES):
            sums.append(sums[-1] + runs[i])
        with m.If(fetched):
            m.d.sync += total.eq(sums[-1])
            for b, end in enumerate(ends):
                with m.If(fetched_number == b // SCAN_BYTES):
                    m.d.sync += end.eq(sums[b % SCAN_BYTES])
        with m.If(self.start):
            m.d.sync += [number.eq(0), fetched.eq(0), total.eq(0)]
            m.d.sync += [end.eq(tokens - 1) for end in ends]
        for i in range(self.bases.shape().length):
            passed = [Const(1, 1), *(end <= self.row + i for end in ends), Const(0, 1)]
            chosen = [passed[b] & ~passed[b + 1] for b in range(self.config.max_salient)]
            for bit in range(len(self.bases[i])):
                m.d.comb += self.bases[i][bit].eq(Cat(c for b, c in enumerate(chosen) if b >> bit & 1).any())

        # The bytes from the pointer on may reach into the next word, whose first bytes a second memory has.
        scales = self.scales.shape().length
        window = read.data
        if scales > 1:
            m.submodules.ahead = ahead = Memory(shape=unsigned(8 * (scales - 1)), depth=self.depth, init=[])
            ahead_write, ahead_read = ahead.write_port(), ahead.read_port(domain="comb")
            m.d.comb += [
                ahead_write.en.eq(self.w_en),
                ahead_write.addr.eq(self.w_addr),
                ahead_write.data.eq(self.w_data),
                ahead_read.addr.eq(self.pointer // word_bytes + 1),
            ]
            window = Cat(read.data, ahead_read.data)
        m.d.comb += [
            read.addr.eq(Mux(self.done, self.pointer // word_bytes, position // pieces)),
            self.scales.eq(window.bit_select(Cat(Const(0, 3), self.pointer % word_bytes), 8 * scales)),
        ]
        return m
