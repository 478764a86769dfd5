"""Values of a test and packed integers on a port convert both ways."""

import pytest
from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from cocotb_tests.lib.shapes import codec


class Pair(data.Struct):
    low: unsigned(3)
    high: signed(5)


def test_leaves_integers_alone_without_shape():
    encode, decode = codec(None, 8)
    assert encode(200) == 200
    assert decode(200) == 200


@pytest.mark.parametrize("value", [-128, -1, 0, 127])
def test_converts_signed_values(value):
    encode, decode = codec(signed(8), 8)
    assert encode(value) == value % 256
    assert decode(encode(value)) == value


def test_converts_structures():
    encode, decode = codec(Pair, 8)
    bits = encode({"low": 5, "high": -2})
    assert bits == 0b11110_101
    assert decode(bits).low == 5
    assert decode(bits).high == -2


def test_converts_arrays():
    encode, decode = codec(data.ArrayLayout(signed(4), 3), 12)
    assert encode([-1, 2, 3]) == 0x32F
    assert [decode(0x32F)[index] for index in range(3)] == [-1, 2, 3]


@pytest.mark.parametrize("shape", [signed(8), Pair])
def test_rejects_port_of_other_width(shape):
    with pytest.raises(ValueError, match=r"^the shape has 8 bits, the port has 9$"):
        codec(shape, 9)
