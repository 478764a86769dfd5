"""Groups of a real model's KV cache, as the quantizer gets them: INT16 rows, attention mass, calibration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import calibration_for, fixed_rows
from golden.dsq.compressor import Calibration
from golden.model import load_model, prefill
from golden.settings import KvoSettings, default_settings

__all__ = ["RealGroup", "real_groups"]


@dataclass(frozen=True, kw_only=True)
class RealGroup:
    """One closed group of the embedded model's cache on a shipped text."""

    layer: int
    kv_head: int
    group: int
    k_rows: NDArray[np.int16]  # [group_tokens, head_dim], after rotary embedding, before rotation
    v_rows: NDArray[np.int16]
    mass: NDArray[np.uint32]  # [group_tokens] from the queries of the own and the next group, units of 2**-16
    calibration: Calibration

    @property
    def first_group(self) -> bool:
        """It starts its sequence."""
        return self.group == 0


def real_groups(
    count: int,
    layers: Sequence[int] = (0, 14, 29),
    *,
    text: str = "legal",
    context: int = 1024,
    settings: KvoSettings | None = None,
    progress: bool = False,
) -> Iterator[RealGroup]:
    """The first ``count`` closed groups, spread over ``layers`` and all KV heads; the group number grows slowest.

    The prefill of ``context`` tokens and the calibration come from the cache folder, or are made on the first call.
    """
    settings = settings or default_settings()
    model = load_model()
    calibration = calibration_for(model, settings, progress=progress)
    cache = prefill(model, text, context, progress=progress)
    n = settings.group_tokens
    heads = [(layer, h) for layer in layers for h in range(model.config.kv_heads)]
    available = (context // n - 1) * len(heads)
    if count > available:
        raise ValueError(f"count must be at most {available}, not {count!r}")
    for number in range(count):
        group, (layer, h) = number // len(heads), heads[number % len(heads)]
        span = slice(group * n, (group + 1) * n)
        votes = np.asarray(cache.block_mass[layer, h], np.float64)[span.start // 64 : (span.stop + n) // 64, span]
        k_rows, v_rows = fixed_rows(calibration, layer, h, cache.k[layer, h, span], cache.v[layer, h, span])
        yield RealGroup(
            layer=layer,
            kv_head=h,
            group=group,
            k_rows=k_rows,
            v_rows=v_rows,
            mass=np.floor(votes.sum(axis=0) * 65536 + 0.5).astype(np.uint32),
            calibration=calibration.head(layer, h),
        )
