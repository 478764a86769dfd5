"""Part of RunSelector, History and MassBank: a memory of sums, to each of which something is added, one in a cycle."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.fixed import saturate_unsigned

__all__ = ["Accumulators"]


class Accumulators(wiring.Component):
    """Sums in block RAM that saturate; each cycle one of them may grow, or be given out and begin anew.

    A sum is read, registered, added to and written in three cycles. The next operation reads too early to see what this
    one writes and gets it from a comparison of addresses; the one after it reads while it is written and gets it from
    the memory's port.

    Latency: ``value`` shows what a sum was two cycles after ``en``, whatever the operations between were.

    Parameters
    ----------
    depth : sums.
    bits : of each.
    amount_bits : of what is added, at most ``bits``.

    Members
    -------
    en : an operation on the sum ``addr``: it becomes ``amount`` if ``clear``, else grows by it.
    value : the sum before the operation of two cycles ago.
    """

    def __init__(self, *, depth: int, bits: int, amount_bits: int) -> None:
        self.bits = bits
        self.addr_bits = max(1, ceil_log2(depth))
        super().__init__(
            {
                "en": In(1),
                "addr": In(self.addr_bits),
                "amount": In(amount_bits),
                "clear": In(1),
                "value": Out(bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.sums = sums = Memory(shape=unsigned(self.bits), depth=1 << self.addr_bits, init=[])
        write = sums.write_port()
        read = sums.read_port(transparent_for=(write,))
        m.d.comb += [read.en.eq(self.en), read.addr.eq(self.addr)]

        reading = Signal()
        addr = Signal(self.addr_bits)
        amount, clear = Signal.like(self.amount), Signal()
        m.d.sync += [reading.eq(self.en), addr.eq(self.addr), amount.eq(self.amount), clear.eq(self.clear)]

        write_amount, write_clear = Signal.like(self.amount), Signal()
        result = Signal(self.bits)
        same = write.en & (write.addr == addr)
        m.d.sync += [
            write.en.eq(reading),
            write.addr.eq(addr),
            write_amount.eq(amount),
            write_clear.eq(clear),
            self.value.eq(Mux(same, result, read.data)),
        ]
        m.d.comb += [
            result.eq(saturate_unsigned(Mux(write_clear, 0, self.value) + write_amount, self.bits)),
            write.data.eq(result),
        ]
        return m
