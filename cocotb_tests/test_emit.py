"""Verilog emission: stream ports, no traces of the machine, the same text in every run, errors as one line."""

import os
import subprocess
import sys

import pytest
from amaranth.hdl import Module, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.lib.fifo import Queue
from rtl.emit import YosysError, run_yosys, verilog


def test_streams_become_ports():
    text = verilog(Queue(unsigned(12), 4), name="queue")
    assert "module queue(" in text
    for port in ("input [11:0] i__payload;", "input i__valid;", "output i__ready;", "output [11:0] o__payload;"):
        assert port in text


def test_text_holds_no_sources_and_no_tool_version():
    text = verilog(Queue(unsigned(12), 4))
    assert ".py" not in text
    assert "Yosys" not in text


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_text_is_the_same_in_every_run(hash_seed):
    program = (
        "from amaranth.hdl import unsigned\n"
        "from cocotb_tests.lib.fifo import Queue\n"
        "from rtl.emit import verilog\n"
        "print(verilog(Queue(unsigned(12), 4)), end='')\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert again == verilog(Queue(unsigned(12), 4))


class PartlyConstant(wiring.Component):
    """A condition decides about the lower half of the output, a constant is the upper half."""

    enable: In(1)
    o: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o[4:].eq(5)
        with m.If(self.enable):
            m.d.comb += self.o[:4].eq(9)
        return m


def test_constant_part_of_a_vector_is_driven_on_icarus(tmp_path):
    bench = "module bench; reg e = 1; wire [7:0] o; top dut(.enable(e), .o(o)); initial #1 $display(o); endmodule"
    (tmp_path / "top.v").write_text(verilog(PartlyConstant()) + bench)
    build = ["iverilog", "-g2005", "-Wall", "-Wno-timescale", "-s", "bench", "-o", "bench.vvp", "top.v"]
    done = subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    done = subprocess.run(["vvp", "bench.vvp"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert int(done.stdout) == 0x59


def test_yosys_errors_are_one_line():
    with pytest.raises(YosysError, match=r"^ERROR: No such command: nonsense[^\n]*$"):
        run_yosys("nonsense")


def test_yosys_log_is_returned(tmp_path):
    (tmp_path / "top.v").write_text(verilog(Queue(unsigned(12), 4)))
    assert "cells" in run_yosys("read_verilog top.v\nproc\nstat", tmp_path)
