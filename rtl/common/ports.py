"""Members of an inner component that are members of the one around it."""

from collections.abc import Iterable

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped

__all__ = ["expose"]


def expose(m: Module, inner: wiring.Component, outer: wiring.Component, names: Iterable[str]) -> None:
    """Connect the members of ``inner`` that are called so with those of ``outer``, which have the same names."""
    for name in names:
        member, inside, outside = inner.signature.members[name], getattr(inner, name), getattr(outer, name)
        if member.is_port:
            m.d.comb += outside.eq(inside) if member.flow is wiring.Out else inside.eq(outside)
        elif member.dimensions:
            for port, end in zip(inside, outside, strict=True):
                connect(m, port, flipped(end))
        else:
            connect(m, inside, flipped(outside))
