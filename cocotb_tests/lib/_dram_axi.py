"""Signals of the port of `DramModel`."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AxiSignature"]


class AxiSignature(wiring.Signature):
    """AXI4 as its manager (master) sees it: flat members ``awid``, ``awaddr``, ... ``rready``."""

    def __init__(self, *, data_bits: int, addr_bits: int, id_bits: int) -> None:
        address = {"id": id_bits, "addr": addr_bits, "len": 8, "size": 3, "burst": 2}
        answer = {"id": id_bits, "resp": 2}
        word = {"data": data_bits, "last": 1}
        payloads = {
            "aw": (Out, address),
            "w": (Out, {**word, "strb": data_bits // 8}),
            "b": (In, answer),
            "ar": (Out, address),
            "r": (In, {**answer, **word}),
        }
        members = {}
        for channel, (flow, fields) in payloads.items():
            members |= {f"{channel}{name}": flow(shape) for name, shape in (fields | {"valid": 1}).items()}
            members[f"{channel}ready"] = flow.flip()(1)
        super().__init__(members)
