"""Clocks of a board from its oscillator, by the PLL of an ECP5."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any

from amaranth.hdl import Const, Instance, Module, Signal

__all__ = ["add_pll", "pll_parameters"]

#: what the oscillator inside may run at, in Hz
_OSCILLATOR = range(400_000_000, 800_000_001)
_MIDDLE = 600_000_000
_NAMES = ("CLKOP", "CLKOS", "CLKOS2", "CLKOS3")
_MUXES = "ABCD"


def pll_parameters(input_hz: int, outputs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Parameters of EHXPLLL for outputs of so many Hz and degrees; the first one is fed back.

    Raises `ValueError` when there is no oscillator frequency for all of them.
    """
    common = lcm(*(hz for hz, _ in outputs))
    candidates = [n for n in range(common, _OSCILLATOR.stop, common) if n in _OSCILLATOR]
    exact = [n for n in candidates if all(degrees * n % (360 * hz) == 0 for hz, degrees in outputs)]
    oscillator = min(exact or candidates, key=lambda hz: abs(hz - _MIDDLE), default=0)
    ratio = Fraction(outputs[0][0], input_hz)
    if not oscillator or max(ratio.numerator, ratio.denominator, *(oscillator // hz for hz, _ in outputs)) > 128:
        raise ValueError(f"outputs must have a common multiple from 400 to 800 MHz, not {outputs!r}")
    parameters: dict[str, Any] = {
        "a_FREQUENCY_PIN_CLKI": f"{input_hz / 1e6:g}",
        "a_ICP_CURRENT": "12",
        "a_LPF_RESISTOR": "8",
        "a_MFG_ENABLE_FILTEROPAMP": "1",
        "a_MFG_GMCREF_SEL": "2",
        "p_CLKI_DIV": ratio.denominator,
        "p_CLKFB_DIV": ratio.numerator,
        "p_FEEDBK_PATH": "CLKOP",
        **{f"p_{name}": "DISABLED" for name in ("PLLRST_ENA", "INTFB_WAKE", "STDBY_ENABLE", "DPHASE_SOURCE")},
    }
    for name, mux, (hz, degrees) in zip(_NAMES, _MUXES, outputs, strict=False):
        divider = oscillator // hz
        delay = Fraction(degrees * divider, 360)
        if delay.denominator != 1:
            raise ValueError(f"phases must be whole cycles of {oscillator} Hz, not {degrees!r} degrees of {hz!r} Hz")
        parameters |= {
            f"a_FREQUENCY_PIN_{name}": f"{hz / 1e6:g}",
            f"p_OUTDIVIDER_MUX{mux}": f"DIV{mux}",
            f"p_{name}_ENABLE": "ENABLED",
            f"p_{name}_DIV": divider,
            f"p_{name}_CPHASE": divider - 1 + delay.numerator,
            f"p_{name}_FPHASE": 0,
        }
    return parameters


def add_pll(m: Module, clock: Any, input_hz: int, outputs: Sequence[tuple[Any, int, int]]) -> Signal:
    """Drive clocks, each given with its Hz and its phase in degrees, from ``clock``; whether they are steady."""
    locked = Signal()
    ports: dict[str, Any] = {f"o_{name}": signal for name, (signal, _, _) in zip(_NAMES, outputs, strict=False)}
    low = ("RST", "STDBY", "PHASESEL0", "PHASESEL1", "PLLWAKESYNC", "ENCLKOP")
    ports |= {f"i_{name}": Const(0) for name in low}
    ports |= {f"i_{name}": Const(1) for name in ("PHASEDIR", "PHASESTEP", "PHASELOADREG")}
    m.submodules.pll = Instance(
        "EHXPLLL",
        i_CLKI=clock,
        i_CLKFB=outputs[0][0],
        o_LOCK=locked,
        **pll_parameters(input_hz, [(hz, degrees) for _, hz, degrees in outputs]),
        **ports,
    )
    return locked
