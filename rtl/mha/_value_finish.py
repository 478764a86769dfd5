"""Part of ValueSum: sums of a channel to its output, golden ``finish_output``."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.dsq.compressor import SHAPE_FRACTION_BITS
from golden.mha.softmax import INVERSE_BITS, NORMAL_BITS
from rtl.common.fixed import half_up, saturate
from rtl.common.memory import NO_COLLISIONS
from rtl.config import AcceleratorConfig
from rtl.mha._digit_product import digit_product, stored
from rtl.mha._inverse import LENGTH_BITS
from rtl.mha._query_store import SLOT_BITS, SLOTS
from rtl.mha._value_format import ValueFormat, value_calibration_layout
from rtl.mha._value_lanes import ValueLanes

__all__ = ["ValueFinish"]

#: an aligned numerator has as many bits behind the point as the total has; beyond its limit every output saturates
ALIGNED_BITS = 16 + NORMAL_BITS


class ValueFinish(wiring.Component):
    """Divides one channel per cycle and gathers ``lanes`` of them in a beat.

    Nothing here stalls but ``o`` itself, so no more than two beats may be under way: a beat's first channel comes after
    the beat before the last has left.

    Members
    -------
    read, head, channel : those of a step of the accumulators
    exact, delta : of all heads, `ValueLanes.latency` cycles after it
    rest, scaled_rest, inverse, length, slot : of the row, constant while its channels are under way
    c_en, c_slot, c_channel, c_data : a channel's calibration to keep
    o : stream of beats
    """

    latency = ValueLanes.latency + 10
    """Cycles from the read of a beat's last channel to the beat at ``o``."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self.sizes = sizes = ValueFormat(config)
        self.lanes = config.dsq.lanes
        heads = sizes.heads
        super().__init__(
            {
                "read": In(1),
                "head": In(range(max(heads, 2))),
                "channel": In(range(sizes.channels)),
                "exact": In(data.ArrayLayout(signed(sizes.exact_bits), heads)),
                "delta": In(data.ArrayLayout(sizes.delta_bits, heads)),
                "rest": In(data.ArrayLayout(sizes.total_bits, heads)),
                "scaled_rest": In(data.ArrayLayout(sizes.scaled_bits, heads)),
                "inverse": In(data.ArrayLayout(INVERSE_BITS + 1, heads)),
                "length": In(data.ArrayLayout(LENGTH_BITS, heads)),
                "slot": In(SLOT_BITS),
                "c_en": In(1),
                "c_slot": In(SLOT_BITS),
                "c_channel": In(range(sizes.channels)),
                "c_data": In(value_calibration_layout),
                "o": Out(stream.Signature(sizes.beat_layout)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        # Position of the channel in each stage; that of stage 0 is the input.
        layout = data.StructLayout({"head": self.head.shape(), "channel": self.channel.shape()})
        valid, place = [self.read], [Signal(layout, name="place_0")]
        m.d.comb += [place[0].head.eq(self.head), place[0].channel.eq(self.channel)]
        for n in range(1, self.latency - 1):
            valid.append(Signal(name=f"valid_{n}"))
            place.append(Signal(layout, name=f"place_{n}", reset_less=True))
            m.d.sync += [valid[n].eq(valid[n - 1]), place[n].eq(place[n - 1])]
        first = ValueLanes.latency
        calibration = self._calibration(m, place[first - 1].channel)
        numerator = self._numerator(m, place[first - 1].head, place[first].head, calibration)
        quotient = self._divide(m, numerator, [stage.head for stage in place[first + 4 :]])
        self._gather(m, valid[-1], place[-1], quotient)
        return m

    def _calibration(self, m: Module, channel: Value) -> data.View:
        """The channel's calibration, a cycle later."""
        depth = SLOTS << len(channel)
        m.submodules.calibration = store = Memory(
            shape=value_calibration_layout, depth=depth, init=[], attrs=NO_COLLISIONS
        )
        w, r = store.write_port(), store.read_port()
        m.d.comb += [
            w.en.eq(self.c_en),
            w.addr.eq(Cat(self.c_channel, self.c_slot)),
            w.data.eq(self.c_data),
            r.addr.eq(Cat(channel, self.slot)),
        ]
        return r.data

    def _numerator(self, m: Module, next_head: Value, head: Value, calibration: data.View) -> Value:
        """Golden's numerator, four cycles later; ``next_head`` is that of the channel behind."""
        scaled_rest = Array(self.scaled_rest)[next_head]
        triple = stored(m, "triple", scaled_rest + (scaled_rest << 1))
        # Three times the sum of scaled weights lies below 3/4 of the range of twice a delta sum.
        odd = ((Array(self.delta)[head] << 1) - triple)[: self.sizes.delta_bits + 1].as_signed()
        odd, exact, rest = (
            stored(m, name, value)
            for name, value in (("odd", odd), ("exact_1", Array(self.exact)[head]), ("rest_1", Array(self.rest)[head]))
        )
        spread = digit_product(m, "spread", odd, stored(m, "shape", calibration.v_shape))
        mean = digit_product(m, "mean", rest, stored(m, "mean", calibration.v_mean), stored(m, "exact_2", exact))
        # mean + half_up(spread, SHAPE_FRACTION_BITS + 1) in one adder, whose lowest bit carries.
        doubled = Cat(Const(1, 1), mean).as_signed() + (spread >> SHAPE_FRACTION_BITS)
        return stored(m, "numerator", doubled[1:].as_signed())

    def _divide(self, m: Module, numerator: Value, heads: list[Value]) -> Value:
        """Golden's quotient, four cycles later; ``heads`` are the channel's in these cycles.

        The numerator is shifted so that the total would have NORMAL_BITS bits, to the left, too: golden's shift of the
        product then does not depend on the total. What reaches the limit here or golden's saturates the output.
        """
        lengths = [Array(self.length)[head] for head in heads[:2]]
        coarse = stored(m, "coarse", (numerator << NORMAL_BITS) >> Cat(Const(0, 3), lengths[0][3:]))
        aligned = stored(m, "aligned", saturate(coarse >> lengths[1][:3], ALIGNED_BITS))
        # Of the inverse, at most 2**INVERSE_BITS, the two upper bits are worth no multiplier.
        inverse = Array(self.inverse)[heads[2]]
        lower, one, two = inverse[:-2], inverse[-2], inverse[-1]
        upper = Mux(two, aligned << 1, Mux(one, aligned, 0)) << INVERSE_BITS - 1
        product = digit_product(m, "quotient", aligned, lower, stored(m, "upper", upper))
        return saturate(half_up(product, NORMAL_BITS - 1 + INVERSE_BITS), 16)

    def _gather(self, m: Module, valid: Value, place: data.View, quotient: Value) -> None:
        """Shift channels into a beat, and hand it on when it is full and the one before has left."""
        beat = Signal(self.sizes.beat_layout, reset_less=True)
        full = Signal()
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [self.o.valid.eq(full), full.eq(0)]
            with m.If(full):
                m.d.sync += self.o.payload.eq(beat)
        with m.If(valid):
            m.d.sync += [
                full.eq(place.channel % self.lanes == self.lanes - 1),
                beat.head.eq(place.head),
                beat.data.eq(Cat(beat.data, quotient)[16:]),
                beat.last.eq((place.channel == self.sizes.channels - 1) & (place.head == self.sizes.heads - 1)),
            ]
