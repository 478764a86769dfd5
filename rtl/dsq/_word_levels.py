"""Part of RowQuantizer: butterfly levels between the words of a row."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.dsq._rotator_geometry import RotatorGeometry

__all__ = ["WordLevels"]


class WordLevels(wiring.Component):
    """One butterfly step a cycle: two words into the banks of even and odd words, two regions of a row each.

    Operands given with ``valid`` are stored 3 cycles (sum) and 4 cycles (difference) later; a plain operand, whose
    partner is held at zero, only as a sum. ``r_data`` follows ``r_addr`` in the same cycle.
    """

    def __init__(self, g: RotatorGeometry) -> None:
        self.geometry = g
        self.word_shape = data.ArrayLayout(signed(g.stored_bits), g.word_lanes)
        pair_shape = data.ArrayLayout(self.word_shape, 2)
        super().__init__(
            {
                "valid": In(1),
                "operand": In(pair_shape),
                "zero": In(2),
                "plain": In(1),
                "step": In(range(g.pairs)),
                "bank": In(1),
                "region": In(1),
                "r_addr": In(g.pair_bits + 1),
                "r_data": Out(pair_shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        g = self.geometry
        low = g.word_levels - 1  # bits of the step within a block; the lowest one selects the bank
        address_bits = len(self.r_addr)

        # Bank addresses: results go to the halves of the block, word by word in turns to the two banks.
        sum_address, difference_address = (Cat(self.step[1:low], Const(n, 1), self.step[low:]) for n in range(2))

        # Stage 1: operands. Stage 2: sum and difference. Stage 3: the difference again, stored while the next sum is.
        x = Signal.like(self.operand)
        x_valid, x_difference, x_bank = Signal(), Signal(), Signal()
        x_sum_address, x_difference_address = Signal(address_bits), Signal(address_bits)
        sums, first_differences, differences = (Signal(self.word_shape) for _ in range(3))
        s_valid, d_valid, d_valid_next, s_bank = (Signal() for _ in range(4))
        s_address, d_address, d_address_next = (Signal(address_bits) for _ in range(3))
        for operand in range(2):
            m.d.sync += x[operand].eq(Mux(self.zero[operand], 0, self.operand[operand].as_value()))
        m.d.sync += [
            x_valid.eq(self.valid),
            x_difference.eq(self.valid & ~self.plain),
            x_bank.eq(self.bank),
            x_sum_address.eq(Cat(Mux(self.plain, self.step, sum_address), self.region)),
            x_difference_address.eq(Cat(difference_address, self.region)),
            s_valid.eq(x_valid),
            s_address.eq(x_sum_address),
            s_bank.eq(Mux(x_valid, x_bank, ~s_bank)),
            Cat(d_valid_next, d_valid).eq(Cat(x_difference, d_valid_next)),
            Cat(d_address_next, d_address).eq(Cat(x_difference_address, d_address_next)),
            differences.eq(first_differences),
        ]
        for lane in range(g.word_lanes):
            m.d.sync += sums[lane].eq(x[0][lane] + x[1][lane])
            m.d.sync += first_differences[lane].eq(x[0][lane] - x[1][lane])

        # Steps alternate between the banks, so the former step's difference always goes to the bank that the sum leaves
        # free.
        for bank in range(2):
            memory = Memory(shape=self.word_shape, depth=1 << address_bits, init=[])
            m.submodules[f"bank{bank}"] = memory
            w, r = memory.write_port(), memory.read_port(domain="comb")
            is_sum = s_bank == bank
            m.d.comb += [
                w.en.eq(Mux(is_sum, s_valid, d_valid)),
                w.addr.eq(Mux(is_sum, s_address, d_address)),
                w.data.eq(Mux(is_sum, sums.as_value(), differences.as_value())),
                r.addr.eq(self.r_addr),
                self.r_data[bank].eq(r.data),
            ]
        return m
