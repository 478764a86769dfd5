"""Datapath of the Compressor: row and base memories, one multiplier per lane, search, sums and deltas."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from golden.dsq.record import COARSE_BITS
from golden.dsq.scale import SCALE_BIAS
from rtl.common.fixed import half_up, split_scale
from rtl.common.memory import NO_COLLISIONS
from rtl.config import DsqConfig
from rtl.dsq._compressor_steps import STEP_CODE_BITS
from rtl.dsq.record import CodeKind, beat_layout

__all__ = ["Lanes", "Pass", "operation_layout", "pipeline_depth", "total_bits"]

#: largest magnitude of a difference of two INT16 values
MAX_DIFFERENCE = 0xFFFF


class Pass(enum.Enum, shape=4):
    """What is being done with the rows, in this order; K rows unless the name says V."""

    BASES = 0  # salient rows to the base memory
    SEARCH = 1  # nearest base of every other row
    K_SUM = 2
    V_SUM = 3
    K_SCALES = 4
    V_SCALES = 5
    UPPER = 6  # nibbles of the base rows
    LOWER = 7
    K_DELTAS = 8  # upper two bits of the codes
    K_FINE = 9  # the other bits; not done when there are none
    V_CODES = 10
    V_DELTAS = 11


def operation_layout(config: DsqConfig) -> data.StructLayout:
    """What enters the pipeline in one cycle: a beat of a row, or a pair of the held row beat and a base.

    ``row_address`` and ``base_address`` are places in the two memories, ``beat`` is the beat of the row. ``last``
    marks a row beat that ends a section, and a pair of the last beat; ``last_base`` the pair with the last base,
    ``token`` the pair's row.
    """
    return data.StructLayout(
        {
            "row": 1,
            "pair": 1,
            "row_address": range(4 * config.group_tokens * config.row_beats),
            "base_address": range((config.max_salient + 1) * config.row_beats),
            "beat": range(config.row_beats),
            "last": 1,
            "last_base": 1,
            "token": range(config.group_tokens),
            "base": range(config.max_salient),
        }
    )


def total_bits(config: DsqConfig) -> int:
    """Width of the sum of the magnitudes of all differences in a group."""
    return bits_for(config.group_tokens * config.head_dim * MAX_DIFFERENCE)


def _tree_stages(config: DsqConfig) -> int:
    return ceil_log2(config.lanes)


def _delta_stage(config: DsqConfig) -> int:
    return 9 + config.delta_bits - 1


def pipeline_depth(config: DsqConfig) -> int:
    """Cycles from an operation to the end of ``busy``, if nothing stalls."""
    return max(9 + _tree_stages(config), _delta_stage(config))


class Lanes(wiring.Component):
    """A pipeline that takes one operation a cycle (``op``, in the cycles in which ``advance`` is high).

    Index of the register that holds a value, counted from the cycle of the operation (0):

    ===== ============== ===================================================================================
    row   pair
    ===== ============== ===================================================================================
    3                    ``raw``: codes and scale from the row memory
    4     4              multiplier operands: a code and its scale, or a difference twice
    5     5              product
    6                    ``fresh``: reconstructed row
    7                    ``held``: row that differences are taken of; in SEARCH the first pair of a beat loads it
    7     2              ``reference``: from the base memory, a base or (its last row) the mean of the V rows
    8     3              ``difference``
    9                    magnitude and step
    9 + T 5 + T          adder tree of T stages: sum of the magnitudes, squared distance
    ===== ============== ===================================================================================

    So a row beat may be followed by its first pair ``PAIR_DISTANCE`` cycles later. Squares are summed instead of the
    products that golden ranks the bases by; both differ by the row's own norm, the same for all bases.

    ``current`` holds while anything is in flight (``busy``).

    Members
    -------
    row : struct{valid, address, scale, data}: a beat to the row memory
    mean : struct{valid, channel, value}: the mean of the V rows, channels in order
    step : step codes of the channels, from ChannelSteps
    op, advance, busy, current : operations and the pass that they belong to
    ends_record : this pass is the record's last section
    nearest : struct{valid, token, base}: result of SEARCH, valid for one cycle
    total, clear_total : sum of magnitudes of the passes K_SUM and V_SUM
    o : beats for RecordPacker
    """

    PAIR_DISTANCE = 5

    def __init__(self, config: DsqConfig) -> None:
        self.config = c = config
        lanes = c.lanes
        self._row_shape = data.StructLayout({"data": data.ArrayLayout(signed(8), lanes), "scale": 8})
        row = {"valid": 1, "address": range(4 * c.group_tokens * c.row_beats), "beat": self._row_shape}
        step = {"valid": 1, "channel": range(c.head_dim), "code": STEP_CODE_BITS}
        super().__init__(
            {
                "row": In(data.StructLayout(row)),
                "mean": In(data.StructLayout({"valid": 1, "channel": range(c.head_dim), "value": signed(16)})),
                "step": In(data.StructLayout(step)),
                "op": In(operation_layout(c)),
                "advance": Out(1),
                "busy": Out(1),
                "current": In(Pass),
                "ends_record": In(1),
                "nearest": Out(
                    data.StructLayout({"valid": 1, "token": range(c.group_tokens), "base": range(c.max_salient)})
                ),
                "total": Out(total_bits(c)),
                "clear_total": In(1),
                "o": Out(stream.Signature(beat_layout(c))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        raw_pass, delta_pass = Signal(), Signal()
        with m.Switch(self.current):
            with m.Case(Pass.K_SCALES, Pass.V_SCALES, Pass.UPPER, Pass.LOWER, Pass.V_CODES):
                m.d.comb += raw_pass.eq(1)
            with m.Case(Pass.K_DELTAS, Pass.K_FINE, Pass.V_DELTAS):
                m.d.comb += delta_pass.eq(1)
        ops = [self.op]
        for index in range(1, pipeline_depth(self.config) + 1):
            op = Signal(operation_layout(self.config), name=f"op_{index}")
            with m.If(self.advance):
                m.d.sync += op.eq(ops[-1])
                if index == 4:
                    m.d.sync += op.row.eq(ops[-1].row & ~raw_pass)
            ops.append(op)
        m.d.comb += [
            self.busy.eq(Cat(*((op.row, op.pair) for op in ops[1:])).any()),
            self.o.valid.eq((raw_pass & ops[3].row) | (delta_pass & ops[_delta_stage(self.config)].row)),
            self.o.payload.last.eq(
                Mux(raw_pass, ops[3].last & (self.current != Pass.K_SCALES), ops[_delta_stage(self.config)].last)
            ),
            self.o.payload.end.eq(self.o.payload.last & self.ends_record),
            self.advance.eq(~self.o.valid | self.o.ready),
        ]
        raw = self._fetch(m, ops)
        difference = [
            Signal(signed(17), name=f"difference_{lane}", reset_less=True) for lane in range(self.config.lanes)
        ]
        products = self._multiply(m, ops, raw, difference)
        self._subtract(m, ops, products, difference)
        self._search(m, ops, products)
        deltas = self._quantize(m, ops, difference)
        self._format(m, raw, deltas)
        return m

    def _fetch(self, m: Module, ops: Sequence[data.View]) -> data.View:
        """Row memory and the register behind it."""
        depth = 4 * self.config.group_tokens * self.config.row_beats
        # The half that is filled is not at work.
        m.submodules.rows = rows = memory.Memory(shape=self._row_shape, depth=depth, init=[], attrs=NO_COLLISIONS)
        w, r = rows.write_port(), rows.read_port()
        raw = Signal(self._row_shape, reset_less=True)
        m.d.comb += [
            w.en.eq(self.row.valid),
            w.addr.eq(self.row.address),
            w.data.eq(self.row.beat),
            r.addr.eq(ops[1].row_address),
            r.en.eq(self.advance),
        ]
        with m.If(self.advance):
            m.d.sync += raw.eq(r.data)
        return raw

    def _multiply(
        self, m: Module, ops: Sequence[data.View], raw: data.View, difference: Sequence[Signal]
    ) -> list[Signal]:
        """One multiplier per lane: reconstruction of a row beat, or squares of differences.

        The exponent of a scale would need a barrel shifter per lane. Instead its lower part shifts the significand,
        once for all lanes, and the multiplier does the rest; exponents from 8 on also put the code 8 bits higher.
        """
        significand, exponent = split_scale(raw.scale)
        large = exponent[3] | exponent[4]
        factor = Signal(12)
        m.d.comb += factor.eq(Mux(exponent[4], significand << 8, significand << exponent[:3]))
        products = []
        for lane in range(self.config.lanes):
            a, b, product = (Signal(shape, reset_less=True) for shape in (signed(17), signed(17), 32))
            code = raw.data[lane]
            with m.If(self.advance):
                m.d.sync += [
                    a.eq(Mux(ops[3].pair, difference[lane], Mux(large, code << 8, code))),
                    b.eq(Mux(ops[3].pair, difference[lane], factor)),
                    product.eq((a * b)[:32]),
                ]
            products.append(product)
        return products

    def _subtract(
        self, m: Module, ops: Sequence[data.View], products: Sequence[Signal], difference: Sequence[Signal]
    ) -> None:
        """Rows in INT16, the base memory, and their differences."""
        c = self.config
        row_shape = data.ArrayLayout(signed(16), c.lanes)
        fresh, held, reference = (Signal(row_shape, reset_less=True) for _ in range(3))
        mean_lane, mean_beat = self.mean.channel[: ceil_log2(c.lanes)], self.mean.channel[ceil_log2(c.lanes) :]
        for lane, product in enumerate(products):
            # The product is below 2**27: one bit more than INT16 behind the rounding. Two selection bits, so that
            # value, mean, 0 and 1 meet in one 4-input function per bit.
            value, fill, select = Signal(17), Signal(), Signal()
            clips = value[16] ^ value[15]
            m.d.comb += [
                value.eq(half_up(product[:28].as_signed(), SCALE_BIAS)),
                fill.eq(~self.mean.valid & clips),
                select.eq(self.mean.valid | (clips & ~value[16])),
            ]
            low = Mux(fill, select.replicate(15), Mux(select, self.mean.value[:15], value[:15]))
            top = Mux(self.mean.valid, self.mean.value[15], value[16])
            with m.If((self.advance & ops[5].row) | (self.mean.valid & (mean_lane == lane))):
                m.d.sync += fresh[lane].eq(Cat(low, top))

        mean_row = c.max_salient * c.row_beats
        # Rows are written in a pass, and means before all passes, in which differences do not count.
        m.submodules.bases = bases = memory.Memory(
            shape=row_shape, depth=mean_row + c.row_beats, init=[], attrs=NO_COLLISIONS
        )
        w, r = bases.write_port(), bases.read_port()
        mean_store, mean_address = Signal(), Signal.like(w.addr)
        m.d.sync += [mean_store.eq(self.mean.valid & mean_lane.all()), mean_address.eq(mean_row + mean_beat)]
        m.d.comb += [
            w.en.eq(mean_store | (ops[6].row & (self.current == Pass.BASES))),
            w.addr.eq(Mux(mean_store, mean_address, ops[6].base_address)),
            w.data.eq(fresh),
            r.addr.eq(Mux(self.op.pair, self.op.base_address, ops[5].base_address)),
            r.en.eq(self.advance),
        ]
        searching = self.current == Pass.SEARCH
        with m.If(self.advance):
            m.d.sync += reference.eq(r.data)
            m.d.sync += [difference[lane].eq(held[lane] - reference[lane]) for lane in range(c.lanes)]
            with m.If(Mux(searching, ops[1].pair & (ops[1].base == 0), ops[6].row)):
                m.d.sync += held.eq(fresh)

    def _add(self, m: Module, values: Sequence[Value]) -> Value:
        """Sum of unsigned values through ``_tree_stages`` registers, one level of adders each."""
        while len(values) > 1:
            sums = [Signal(len(values[0]) + 1, reset_less=True) for _ in values[::2]]
            with m.If(self.advance):
                m.d.sync += [s.eq(a + b) for s, a, b in zip(sums, values[::2], values[1::2], strict=True)]
            values = sums
        return values[0]

    def _search(self, m: Module, ops: Sequence[data.View], products: Sequence[Signal]) -> None:
        """Accumulates squared distances over a row's beats, one sum per base, and keeps the base of the least."""
        distance_bits = bits_for(self.config.head_dim * MAX_DIFFERENCE**2)
        at = 5 + _tree_stages(self.config)
        squares = self._add(m, products)
        m.submodules.distances = distances = memory.Memory(
            shape=unsigned(distance_bits), depth=self.config.max_salient, init=[]
        )
        w, r = distances.write_port(), distances.read_port(domain="comb")
        distance, least, base = Signal(distance_bits), Signal(distance_bits), Signal(range(self.config.max_salient))
        m.d.comb += [
            r.addr.eq(ops[at].base),
            w.addr.eq(ops[at].base),
            w.data.eq(squares + Mux(ops[at].beat == 0, 0, r.data)),
            w.en.eq(ops[at].pair),
        ]
        pair = ops[at + 1]
        m.d.sync += distance.eq(w.data)
        with m.If(pair.pair & pair.last & ((pair.base == 0) | (distance < least))):
            m.d.sync += [least.eq(distance), base.eq(pair.base)]
        done = ops[at + 2]
        m.d.comb += [
            self.nearest.valid.eq(done.pair & done.last & done.last_base),
            self.nearest.token.eq(done.token),
            self.nearest.base.eq(base),
        ]

    def _quantize(self, m: Module, ops: Sequence[data.View], difference: Sequence[Signal]) -> list[tuple[Value, Value]]:
        """Magnitudes and their total; per lane the sign and the code's other bits, by restoring division.

        The digits of a magnitude, inverted below a negative difference, are the bits of the code under the upper one.
        """
        c = self.config
        step_row = data.ArrayLayout(unsigned(STEP_CODE_BITS), c.lanes)
        m.submodules.steps = steps = memory.Memory(shape=step_row, depth=c.row_beats, init=[])
        w, r = steps.write_port(granularity=1), steps.read_port(domain="comb")
        lane_bits = ceil_log2(c.lanes)
        m.d.comb += [w.addr.eq(self.step.channel[lane_bits:]), r.addr.eq(ops[8].beat)]
        magnitudes, deltas = [], []
        for lane in range(c.lanes):
            m.d.comb += [
                w.data[lane].eq(self.step.code),
                w.en[lane].eq(self.step.valid & (self.step.channel[:lane_bits] == lane)),
            ]
            step, sign, rest = (Signal(bits, reset_less=True) for bits in (STEP_CODE_BITS, 1, 16))
            negative = difference[lane][16]
            with m.If(self.advance):
                m.d.sync += [
                    step.eq(r.data[lane]),
                    sign.eq(negative),
                    rest.eq((difference[lane] ^ negative.replicate(17))[:16] + negative),
                ]
            magnitudes.append(rest)
            digits: Value = Const(0, 0)
            for level in reversed(range(c.delta_bits - 1)):
                # A step code is the step minus 1, so 2**level steps fit if the rest is greater than (step << level) -
                # 1.
                below = Cat(Const((1 << level) - 1, level), step)
                trial = Signal(signed(19 + level))  # twice the remaining rest, less 1
                m.d.comb += trial.eq(Cat(Const(0, 1), rest) - Cat(Const(1, 1), below))
                fits = ~trial[-1]
                next_step, next_sign, next_rest = Signal.like(step), Signal(), Signal.like(rest)
                next_digits = Signal(len(digits) + 1)
                with m.If(self.advance):
                    m.d.sync += [
                        next_step.eq(step),
                        next_sign.eq(sign),
                        next_rest.eq(Mux(fits, trial[1:17], rest)),
                        next_digits.eq(Cat(fits ^ sign, digits)),
                    ]
                step, sign, rest, digits = next_step, next_sign, next_rest, next_digits
            deltas.append((sign, digits))

        total_of = self._add(m, magnitudes)
        is_sum = (self.current == Pass.K_SUM) | (self.current == Pass.V_SUM)
        with m.If(self.clear_total):
            m.d.sync += self.total.eq(0)
        with m.Elif(is_sum & ops[9 + _tree_stages(self.config)].row):
            m.d.sync += self.total.eq(self.total + total_of)
        return deltas

    def _format(self, m: Module, raw: data.View, deltas: Sequence[tuple[Value, Value]]) -> None:
        """Chooses what the present pass puts into the record."""
        codes = [raw.data[lane].as_unsigned() for lane in range(self.config.lanes)]
        choices = {
            Pass.K_SCALES: (CodeKind.BYTE, raw.scale),
            Pass.V_SCALES: (CodeKind.BYTE, raw.scale),
            Pass.UPPER: (CodeKind.FOUR, Cat(code[4:] for code in codes)),
            Pass.LOWER: (CodeKind.FOUR, Cat(code[:4] for code in codes)),
            Pass.V_CODES: (CodeKind.EIGHT, Cat(codes)),
            Pass.K_DELTAS: (CodeKind.TWO, Cat(Cat(digits[-1], ~sign) for sign, digits in deltas)),
            Pass.V_DELTAS: (CodeKind.TWO, Cat(_value_code(*delta) for delta in deltas)),
        }
        if self.config.delta_bits > COARSE_BITS:
            fine = Cat(digits[:-1] for _, digits in deltas)
            choices[Pass.K_FINE] = (CodeKind.TWO, fine)
        with m.Switch(self.current):
            for choice, (kind, value) in choices.items():
                with m.Case(choice):
                    m.d.comb += [self.o.payload.kind.eq(kind), self.o.payload.data.eq(value)]


def _value_code(sign: Value, digits: Value) -> Value:
    """V delta code from what a K delta code is made of: the magnitude stops at 1."""
    return Cat(Mux(sign, digits.all(), digits.any()), ~sign)
