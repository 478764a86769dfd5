"""What yosys-smtbmc proves of the AXI4 reader and writer, whatever requesters and memory do.

Small geometries: bursts of 2, two under way, two words of buffer, so that everything fills up within a few cycles.
"""

import pytest

from cocotb_tests.formal.axi_parts import BurstsAreLegal, HoldsAndKeepsOrder
from cocotb_tests.formal.axi_read import ReaderIsRight, ReaderMovesOn
from cocotb_tests.formal.axi_write import WriterAddresses, WriterAnswers, WriterMovesOn, WriterWords
from cocotb_tests.formal.smtbmc import prove
from rtl.cache._queue import Queue
from rtl.cache.axi import AxiConfig
from rtl.common.stage import Stage

READER = AxiConfig(data_bits=512, addr_bits=16, max_burst=2, outstanding=2, depths=(2,) * 3)
WRITER = AxiConfig(data_bits=512, addr_bits=16, max_burst=2, outstanding=2, depths=(2,) * 2)


@pytest.mark.parametrize("data_bits, max_burst", [(32, 256), (128, 16), (512, 7)])
def test_bursts_are_legal_for_ever(data_bits, max_burst):
    prove(BurstsAreLegal(AxiConfig(data_bits=data_bits, max_burst=max_burst, depths=(256,))), cycles=3, induction=True)


@pytest.mark.parametrize("part, cycles", [(Stage, 16), (Queue, 20)])
def test_streams_hold_and_lose_nothing(part, cycles):
    prove(HoldsAndKeepsOrder(part(8) if part is Stage else part(8, depth=4)), cycles=cycles)


@pytest.mark.parametrize("watched", [0, 2])
def test_reader_is_right(watched):
    prove(ReaderIsRight(READER, watched), cycles=12)


@pytest.mark.parametrize("watched, within", [(0, 15), (1, 15), (2, 17)])
def test_reader_never_stops(watched, within):
    prove(ReaderMovesOn(READER, watched, within=within), cycles=26)


@pytest.mark.parametrize("properties, cycles", [(WriterAddresses, 10), (WriterWords, 11), (WriterAnswers, 12)])
def test_writer_is_right(properties, cycles):
    prove(properties(WRITER, 0), cycles=cycles)


def test_writer_never_stops():
    prove(WriterMovesOn(WRITER, 0, within=32), cycles=34)


def test_bounds_of_the_reader_are_the_least():
    """Which also shows that the fair peers of these proofs do something."""
    for proof in (ReaderMovesOn(READER, 0, within=14), ReaderMovesOn(READER, 2, within=16)):
        with pytest.raises(AssertionError, match="BMC failed"):
            prove(proof, cycles=26)
