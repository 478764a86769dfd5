"""Part of ValueSum: what the accumulators do in each cycle."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from golden.mha.softmax import PROBABILITY_BITS
from golden.mha.value_sum import SCALED_BITS
from rtl.mha._query_store import SLOT_BITS
from rtl.mha._value_format import ValueFormat

__all__ = ["PATIENCE", "ValueIssue"]

#: cycles that a read waits for one in which nothing else is done, before it takes the next one
PATIENCE = 3


class ValueIssue(wiring.Component):
    """Turns tokens, words and reads into steps, one per cycle, in the order of the tokens.

    Before a token is added, the sums of each head whose maximum it makes rise are shifted right: by one in each pass
    over their chunks. A token is over with its last chunk. Sums of a row start fresh: its first token of either kind
    replaces what is stored, and until then shifts change nothing.

    Members
    -------
    i, i_word : tokens and their words
    end_ready : the row may end: the one before is finished
    read_wanted, read_head, read_channel : a channel of the row that ended last is wanted
    read_taken : the read goes with the next step
    step, word, scaled, weights, shifts : inputs of `ValueLanes`, in the cycle after they were decided
    slot : of the row that ended last
    """

    def __init__(self, sizes: ValueFormat) -> None:
        self.sizes = sizes
        step = sizes.step_layout.members
        super().__init__(
            {
                "i": In(stream.Signature(sizes.scaled_layout)),
                "i_word": In(stream.Signature(sizes.word_bits)),
                "end_ready": In(1),
                "read_wanted": In(1),
                "read_head": In(step["head"]),
                "read_channel": In(step["channel"]),
                "read_taken": Out(1),
                "step": Out(sizes.step_layout),
                "word": Out(sizes.word_bits),
                "scaled": Out(data.ArrayLayout(SCALED_BITS, sizes.heads)),
                "weights": Out(data.ArrayLayout(PROBABILITY_BITS, sizes.heads)),
                "shifts": Out(sizes.heads),
                "slot": Out(SLOT_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sizes, token = self.sizes, self.i.payload
        word, word_valid = Signal(sizes.word_bits, reset_less=True), Signal()
        passes, chunk = Signal(token.rises[0].shape()), Signal(range(sizes.row_chunks))
        rising = Cat(rise > passes for rise in token.rises)
        shifted, more = Signal(), Signal()  # a pass is over; a head needs another one
        any_rising = Mux(shifted, more, token.some)
        overdue, waited = Signal(), Signal(range(PATIENCE + 1))

        # One of these at a time; a read takes the place of the others.
        shift, add, end = Signal(), Signal(), Signal()
        active = self.i.valid & ~token.end
        can_shift, can_add = active & any_rising, active & ~any_rising & word_valid
        last_chunk = Mux(token.delta & ~any_rising, sizes.delta_chunks - 1, sizes.row_chunks - 1)
        last = (shift | add) & (chunk == last_chunk)
        # A word of deltas has several chunks, but for the last word of a row, which may have fewer.
        word_over = last | ~token.delta | ((chunk + 1)[: exact_log2(sizes.delta_cycles)] == 0)
        m.d.comb += [
            self.read_taken.eq(self.read_wanted & (overdue | ~(can_shift | can_add))),
            shift.eq(can_shift & ~self.read_taken),
            add.eq(can_add & ~self.read_taken),
            end.eq(self.i.valid & token.end & self.end_ready),
            self.i.ready.eq(end | (add & last)),
            self.i_word.ready.eq(~word_valid | (add & word_over)),
        ]
        m.d.sync += waited.eq(Mux(self.read_wanted & ~self.read_taken, waited + 1, 0))
        m.d.comb += overdue.eq(waited == PATIENCE)
        with m.If(self.i_word.ready):
            m.d.sync += [word_valid.eq(self.i_word.valid), word.eq(self.i_word.payload)]
        with m.Elif(add):
            m.d.sync += word.eq(word >> sizes.word_bits // sizes.delta_cycles)
        with m.If(shift | add):
            m.d.sync += chunk.eq(Mux(last, 0, chunk + 1))
        with m.If(last):
            m.d.sync += [passes.eq(Mux(shift, passes + 1, 0)), shifted.eq(shift), more.eq(token.most > passes + 1)]

        bank = Signal()
        fresh, ended_fresh = Signal(2, init=0b11), Signal(2)
        with m.If(last & add):
            m.d.sync += fresh.bit_select(token.delta, 1).eq(0)
        with m.If(end):
            m.d.sync += [bank.eq(~bank), fresh.eq(0b11), ended_fresh.eq(fresh), self.slot.eq(token.slot)]

        taken, step = self.read_taken, self.step
        row_fresh, delta_fresh = Mux(taken, ended_fresh, fresh)
        m.d.sync += [
            step.row_write.eq((add & ~token.delta) | (shift & ~fresh[0])),
            step.delta_write.eq((add & token.delta) | (shift & ~fresh[1] & (chunk < sizes.delta_chunks))),
            Cat(step.delta, step.shift, step.last, step.end, step.read).eq(Cat(token.delta, shift, last, end, taken)),
            Cat(step.row_fresh, step.delta_fresh).eq(Cat(row_fresh, delta_fresh)),
            step.bank.eq(bank ^ taken),
            step.row_chunk.eq(Mux(taken, self.read_channel >> exact_log2(sizes.row_lanes), chunk)),
            step.delta_chunk.eq(Mux(taken, self.read_channel >> exact_log2(sizes.delta_lanes), chunk)),
            step.channel.eq(self.read_channel),
            step.head.eq(self.read_head),
            self.word.eq(word),
            self.weights.eq(token.weights),
            self.shifts.eq(rising),
        ]
        m.d.sync += [kept.eq(Mux(add, scaled, 0)) for kept, scaled in zip(self.scaled, token.scaled, strict=True)]
        return m
