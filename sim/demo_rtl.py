"""Hardware part of the demonstration: groups through the Quantizer and back through the Dequantizer on Verilator."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.lib import wiring
from numpy.typing import NDArray

from cocotb_tests.lib import launch
from golden.errors import UserError
from golden.model import ModelConfig
from golden.settings import KvoSettings
from rtl.config import PRESETS, AcceleratorConfig, DsqConfig, MhaConfig
from rtl.dsq.dequantizer import Dequantizer
from rtl.dsq.quantizer import Quantizer
from sim.demo_groups import Group
from sim.progress import watch
from sim.simulators import SimulationError

__all__ = ["HardwareError", "Rebuilt", "Records", "compress", "hardware_config", "preset_name", "rebuild"]


class HardwareError(Exception):
    """The hardware did not behave as its interface promises, so there is nothing to compare; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """What the Quantizer gave: a record per group, the cycles from one to the next, the seconds it took."""

    records: list[NDArray[np.uint8]]
    cycles_first: int  # from the first row beat to the first record's last word
    cycles: NDArray[np.int64]  # [groups - 1]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What the Dequantizer gave: ``rows[groups, 2, group_tokens, head_dim]``, the cycles of each record."""

    rows: NDArray[np.int16]
    cycles: NDArray[np.int64]  # [groups], from a record's first word to the next one's, or to the last element
    seconds: float


def hardware_config(model: ModelConfig, context: int, settings: KvoSettings) -> AcceleratorConfig:
    """The hardware for a model, context and settings; `UserError` when it cannot be built for them."""
    try:
        dsq = DsqConfig(
            head_dim=model.head_dim,
            group_tokens=settings.group_tokens,
            max_salient=max(16, settings.salient_tokens),
            delta_bits=settings.delta_bits,
            bus_bits=settings.bus_bits,
        )
        mha = MhaConfig(
            q_heads=model.q_heads // model.kv_heads,
            tile_groups=settings.tile_groups,
            max_groups=max(512, -(-context // settings.group_tokens)),
        )
        return AcceleratorConfig(dsq=dsq, mha=mha)
    except ValueError as error:
        raise UserError(f"the hardware cannot be built for {model.name}: {error}") from error


def preset_name(config: AcceleratorConfig) -> str | None:
    """The preset of `rtl.build` that has the same geometry and attention core, if there is one."""
    wanted = config.dsq, config.mha
    return next((name for name, (_, preset) in PRESETS.items() if (preset.dsq, preset.mha) == wanted), None)


def compress(
    groups: Sequence[Group],
    config: DsqConfig,
    settings: KvoSettings,
    record_bytes: int,
    folder: Path,
    advance: Callable[[int], None],
) -> Records:
    """Send the groups through the Quantizer; ``advance(n)`` is called for every n groups that are finished."""
    inputs = {
        "k_rows": np.stack([group.k_rows for group in groups]),
        "v_rows": np.stack([group.v_rows for group in groups]),
        "mass": np.stack([group.mass for group in groups]),
        "first_group": [group.number == 0 for group in groups],
        **_calibrations(groups),
    }
    words = record_bytes * 8 // config.bus_bits
    more = {"sink_tokens": settings.sink_tokens, "record_words": words}
    out, seconds = _run(Quantizer(config), "compresses", config, settings, inputs, more, folder, advance)
    framing = np.arange(words * len(groups)) % words
    for name, place in (("first", 0), ("last", words - 1)):
        wrong = np.flatnonzero(out[name] != (framing == place))
        if len(wrong):
            group, word = divmod(int(wrong[0]), words)
            raise HardwareError(f"{groups[group]}: `{name}` is wrong in word {word} of the record")
    ends = out["cycles"].reshape(len(groups), words)[:, -1]
    return Records(
        records=list(out["words"].reshape(len(groups), record_bytes)),
        cycles_first=int(ends[0] - out["begin"]) + 1,
        cycles=np.diff(ends),
        seconds=seconds,
    )


def rebuild(
    groups: Sequence[Group],
    records: Sequence[NDArray[np.uint8]],
    config: DsqConfig,
    settings: KvoSettings,
    folder: Path,
    advance: Callable[[int], None],
) -> Rebuilt:
    """Send the groups' records through the Dequantizer; ``advance`` as in `compress`."""
    word_bytes = config.bus_bits // 8
    packed = np.stack(records)
    inputs = {"records": packed.reshape(len(records), -1, word_bytes), **_calibrations(groups)}
    out, seconds = _run(Dequantizer(config), "rebuilds", config, settings, inputs, {}, folder, advance)
    ends = np.append(out["first_words"][1:], out["end"] + 1)
    return Rebuilt(rows=out["rows"], cycles=ends - out["first_words"], seconds=seconds)


def _calibrations(groups: Sequence[Group]) -> dict[str, Any]:
    tables = [group.calibration for group in groups]
    names = ("k_shape", "v_shape", "v_mean", "k_norm", "v_norm")
    return {name: np.stack([getattr(table, name) for table in tables]) for name in names} | {
        "load_calibration": [group.load_calibration for group in groups]
    }


def _run(
    component: wiring.Component,
    test: str,
    config: DsqConfig,
    settings: KvoSettings,
    inputs: dict[str, Any],
    more: dict[str, Any],
    folder: Path,
    advance: Callable[[int], None],
) -> tuple[Any, float]:
    """Build and run one block; what the test bench saved, and the seconds."""
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    np.savez(folder / "input.npz", **inputs)
    name = type(component).__name__.lower()
    parameters = {
        "folder": str(folder),
        "config": asdict(config),
        "salient_tokens": settings.salient_tokens,
        **more,
    }
    run = partial(
        launch.run,
        component,
        name=f"dsq_{name}",
        tb="cocotb_tests.tb_demo",
        parameters=parameters,
        simulators="verilator",
        tests=test,
    )
    began = time.perf_counter()
    try:
        watch(run, folder / "progress", advance)
    except SimulationError as error:
        raise HardwareError(f"the {name} could not be simulated: {error}") from error
    except AssertionError as error:
        raise HardwareError(f"the {name} did not finish: {error}") from error
    return np.load(folder / "output.npz"), time.perf_counter() - began
