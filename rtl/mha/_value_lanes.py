"""Part of ValueSum: the accumulators of one query head, golden ``accumulate``."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from golden.dsq.compressor import VALUE_BITS
from golden.mha.softmax import PROBABILITY_BITS
from golden.mha.value_sum import SCALED_BITS
from rtl.common.memory import BLOCK_DEPTH, NO_COLLISIONS, ram_style
from rtl.mha._digit_product import DIGIT_BITS
from rtl.mha._value_format import CODE_BITS, ROW_SCALED_BITS, ValueFormat

__all__ = ["ValueLanes"]


class ValueLanes(wiring.Component):
    """Sums of one head, for two rows: one accumulates while the other is read.

    A step passes three registers: operands (the inputs), digit products, terms. Then the sums are changed and written
    within one cycle, so steps follow each other in the order in which they were decided. Nothing stalls.

    An INT8 lane multiplies; a delta lane only chooses between 0, 1, 2 and 3 scaled weights.

    Members
    -------
    step, word : what to do, and the codes to add
    scaled, weight : of the token, 0 unless the step adds
    shifts : a shift concerns this head
    exact, delta : sums of the step's channel, ``latency`` cycles after a step with ``read``
    total, rest, scaled_rest : golden ``Sums`` of the row that ended last, from the cycle after a step with ``end``
    """

    latency = 3

    def __init__(self, sizes: ValueFormat) -> None:
        self.sizes = sizes
        super().__init__(
            {
                "step": In(sizes.step_layout),
                "word": In(sizes.word_bits),
                "scaled": In(SCALED_BITS),
                "weight": In(PROBABILITY_BITS),
                "shifts": In(1),
                "exact": Out(signed(sizes.exact_bits)),
                "delta": Out(sizes.delta_bits),
                "total": Out(sizes.total_bits),
                "rest": Out(sizes.total_bits),
                "scaled_rest": Out(sizes.scaled_bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sizes, step = self.sizes, self.step
        self._add_scalars(m)

        step_2, step_3 = (Signal(sizes.step_layout, name=f"step_{n}", reset_less=True) for n in (2, 3))
        writes_2, writes_3 = Signal(2), Signal(2)
        word_2 = Signal(sizes.word_bits, reset_less=True)
        scaled_2, triple_2 = Signal(SCALED_BITS, reset_less=True), Signal(SCALED_BITS + 2, reset_less=True)
        m.d.sync += [
            step_2.eq(step),
            step_3.eq(step_2),
            writes_2.eq(Mux(~step.shift | self.shifts, Cat(step.row_write, step.delta_write), 0)),
            writes_3.eq(writes_2),
            word_2.eq(self.word),
            scaled_2.eq(self.scaled),
            triple_2.eq(self.scaled + (self.scaled << 1)),
        ]

        products, multiples = [], []
        lower, upper = self.scaled[:DIGIT_BITS], self.scaled[DIGIT_BITS:ROW_SCALED_BITS]
        for lane in range(sizes.row_lanes):
            code = self.word.word_select(lane, CODE_BITS).as_signed()
            low, high = (
                Signal(signed(CODE_BITS + len(digit)), name=f"{name}_{lane}", reset_less=True)
                for name, digit in (("low", lower), ("high", upper))
            )
            product = Signal(signed(CODE_BITS + ROW_SCALED_BITS), name=f"product_{lane}", reset_less=True)
            m.d.sync += [low.eq(code * lower), high.eq(code * upper), product.eq(low + (high << DIGIT_BITS))]
            products.append(product)
        for lane in range(sizes.delta_lanes):
            code = word_2.word_select(lane, VALUE_BITS)
            multiple = Signal(len(triple_2), name=f"multiple_{lane}", reset_less=True)
            odd, even = Mux(code[1], triple_2, scaled_2), Mux(code[1], scaled_2 << 1, 0)
            m.d.sync += multiple.eq(Mux(code[0], odd, even))
            multiples.append(multiple)

        for name, terms, output, write in (
            ("row", products, self.exact, writes_3[0]),
            ("delta", multiples, self.delta, writes_3[1]),
        ):
            addresses = [Cat(step[f"{name}_chunk"], step.bank) for step in (step_2, step_3)]
            stored = _sums(m, name, output.shape(), terms, addresses, write, step_3[f"{name}_fresh"], step_3.shift)
            m.d.sync += output.eq(_select(stored, step_3.channel))
        return m

    def _add_scalars(self, m: Module) -> None:
        """Sums of weights change with the last chunk of a token and the last chunk of a shift by one."""
        step = self.step
        for output, addend in (
            (self.total, self.weight),
            (self.rest, Mux(step.delta, self.weight, 0)),
            (self.scaled_rest, Mux(step.delta, self.scaled, 0)),
        ):
            running = Signal.like(output, name=f"running_{output.name}")
            with m.If(step.end):
                m.d.sync += [output.eq(running), running.eq(0)]
            with m.Elif(step.last & step.shift):
                m.d.sync += running.eq(Mux(self.shifts, running >> 1, running))
            with m.Elif(step.last):
                m.d.sync += running.eq(running + addend)


def _sums(
    m: Module,
    name: str,
    shape: Shape,
    terms: Sequence[Value],
    addresses: Sequence[Value],
    write: Value,
    fresh: Value,
    shift: Value,
) -> list[Value]:
    """A memory of sums, one for each term, that the terms are added to; returns the ones at the last of ``addresses``.

    ``addresses`` are those of the next cycle and of this one. Block RAM is read a cycle before, which is early enough:
    no chunk is changed in two cycles in a row unless it is the only one.
    """
    layout = data.ArrayLayout(shape, len(terms))
    following, address = addresses
    depth = 1 << len(address)
    deep = depth >= BLOCK_DEPTH
    attributes = NO_COLLISIONS | ram_style(depth)
    m.submodules[f"{name}_sums"] = store = Memory(shape=layout, depth=depth, init=[], attrs=attributes)
    w, r = store.write_port(), store.read_port(domain="sync" if deep else "comb")
    m.d.comb += [r.addr.eq(following if deep else address), w.addr.eq(address), w.en.eq(write)]
    stored = []
    for lane, term in enumerate(terms):
        old = Signal(shape, name=f"{name}_old_{lane}")
        m.d.comb += [
            old.eq(Mux(fresh, 0, Mux(shift, r.data[lane] >> 1, r.data[lane]))),
            w.data[lane].eq(old + term),
        ]
        stored.append(old)
    return stored


def _select(values: Sequence[Value], index: Value) -> Value:
    """The value at the index, of which only the lowest bits count: as many as the number of values has."""
    if len(values) == 1:
        return values[0]
    pairs = [Mux(index[0], odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return _select(pairs, index[1:])
