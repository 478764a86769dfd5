"""Conversion between the values a test handles and the packed integer on a port."""

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Const, Shape, ShapeCastable
from amaranth.lib import data

__all__ = ["codec", "placed"]


def codec(shape: Any, width: int) -> tuple[Callable[[Any], int], Callable[[int], Any]]:
    """Return functions value -> packed integer and packed integer -> value.

    Without a shape values are unsigned integers. `signed(n)` gives negative integers, an aggregate (`data.Struct`,
    `data.ArrayLayout`, ...) takes what its `const` takes and gives what its `from_bits` gives.
    """
    if shape is None:
        return int, int
    if isinstance(shape, ShapeCastable):
        size = Shape.cast(shape).width
        if size != width:
            raise ValueError(f"the shape has {size} bits, the port has {width}")

        def encode(value: Any) -> int:
            return Const.cast(shape.const(value)).value & ((1 << width) - 1)

        return encode, shape.from_bits
    plain = Shape.cast(shape)
    if plain.width != width:
        raise ValueError(f"the shape has {plain.width} bits, the port has {width}")
    if not plain.signed:
        return int, int
    mask, sign = (1 << width) - 1, 1 << (width - 1)
    return (lambda value: int(value) & mask), (lambda bits: (bits ^ sign) - sign)


def placed(layout: Any, path: str) -> tuple[int, int] | None:
    """First bit and width in a port of a field such as ``queue[1].head.count``; None if it is not there."""
    offset = 0
    for part in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(layout, data.StructLayout) and part not in layout.members:
            return None
        place = layout[int(part) if part.isdigit() else part]
        offset, layout = offset + place.offset, place.shape
    return offset, Shape.cast(layout).width
