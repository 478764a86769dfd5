"""Reading and writing of simulator signals at a low cost per cycle.

cocotb builds an object for every read; a stream that flows in each cycle reads too often for that. Here a value is the
binary text that the simulator returns, which also shows unknown (X) and floating (Z) bits.
"""

from typing import Any

from cocotb.handle import LogicArrayObject, LogicObject

__all__ = ["bits_reader", "child"]


def bits_reader(handle: LogicObject | LogicArrayObject) -> Any:
    """Return a function without arguments that reads `handle` as binary text, such as `01X0`."""
    return handle._handle.get_signal_val_binstr


def child(dut: Any, name: str) -> Any:
    """Return the signal `name` of `dut`, or fail with a sentence that lists what is there."""
    handle = getattr(dut, name, None)
    if handle is None:
        names = ", ".join(sorted(item._name for item in dut))
        raise AttributeError(f"{dut._name} has no signal {name!r}; it has {names}")
    return handle
