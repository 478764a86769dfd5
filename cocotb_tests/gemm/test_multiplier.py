"""The array's multiplier: as it is and as ECP5 has it, the same cycle for cycle."""

import subprocess
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from cocotb_tests.lib import rng
from fpga.fmax import map_multipliers
from fpga.synth import run_script
from rtl.emit import verilog
from rtl.gemm._multiplier import Multiplier

MODEL = Path(__file__).with_name("mult18x18d.v")
BENCH = """
module bench;
  reg clk = 0;
  reg [{top_a}:0] a [0:{count} - 1];
  reg [{top_b}:0] b [0:{count} - 1];
  wire [{top}:0] plain, mapped;
  integer n;
  plain one (.clk(clk), .rst(1'b0), .a(a[n]), .b(b[n]), .product(plain));
  mapped two (.clk(clk), .rst(1'b0), .a(a[n]), .b(b[n]), .product(mapped));
  initial begin
    $readmemh("a.hex", a);
    $readmemh("b.hex", b);
    for (n = 0; n < {count}; n = n + 1) begin
      #1 clk = 1;
      #1 clk = 0;
      if (n > 1) $display("%h %h", plain, mapped);
    end
  end
endmodule
"""


class Around(wiring.Component):
    """A module with the multiplier in it."""

    def __init__(self, a_bits: int, b_bits: int) -> None:
        self.multiplier = Multiplier(a_bits, b_bits)
        super().__init__(self.multiplier.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiplier_0 = self.multiplier
        wiring.connect(m, wiring.flipped(self), self.multiplier)
        return m


def signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word


@pytest.mark.parametrize(("a_bits", "b_bits"), [(12, 8), (8, 8), (16, 8), (18, 18)])
def test_dsp_block_does_the_same(tmp_path, a_bits, b_bits):
    """Corners against corners and random numbers, a pair a cycle, on Icarus; all pairs of 8 bits."""
    draw = rng("multiplier", a_bits, b_bits)

    def corners(bits: int) -> list[int]:
        top = 1 << (bits - 1)
        return [0, 1, top - 1, top, top + 1, 2 * top - 1]

    pairs = [(a, b) for a in corners(a_bits) for b in corners(b_bits)]
    if a_bits == b_bits == 8:
        pairs += [(a, b) for a in range(256) for b in range(256)]
    pairs += [(draw.getrandbits(a_bits), draw.getrandbits(b_bits)) for _ in range(5000)]
    for name, words in zip("ab", zip(*pairs, strict=True), strict=True):
        (tmp_path / f"{name}.hex").write_text("\n".join(f"{word:x}" for word in words))

    (tmp_path / "plain.v").write_text(verilog(Around(a_bits, b_bits), name="plain"))
    script = ["read_verilog plain.v", *map_multipliers(a_bits, b_bits), "rename plain mapped", "select mapped"]
    run_script("\n".join([*script, "write_verilog -selected mapped.v"]) + "\n", tmp_path)
    assert "MULT18X18D" in (tmp_path / "mapped.v").read_text()
    sizes = {"top_a": a_bits - 1, "top_b": b_bits - 1, "top": a_bits + b_bits - 1, "count": len(pairs)}
    (tmp_path / "bench.v").write_text(BENCH.format(**sizes))
    files = ["bench.v", "plain.v", "mapped.v", str(MODEL)]
    subprocess.run(["iverilog", "-g2005", "-s", "bench", "-o", "bench", *files], cwd=tmp_path, check=True)
    done = subprocess.run(["vvp", "-n", "bench"], cwd=tmp_path, check=True, capture_output=True, text=True)
    results = [line.split() for line in done.stdout.splitlines()]
    expected = [signed(a, a_bits) * signed(b, b_bits) & ((1 << (a_bits + b_bits)) - 1) for a, b in pairs]
    assert [(int(plain, 16), int(mapped, 16)) for plain, mapped in results] == [(p, p) for p in expected[1:-1]]
