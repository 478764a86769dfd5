"""Groups of a model's KV cache for the demonstration, what golden makes of them, and where hardware differs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.calibrate import ModelCalibration, fixed_rows
from golden.dsq.compressor import Calibration
from golden.dsq.dequantizer import dequantize
from golden.dsq.quantizer import quantize
from golden.errors import UserError
from golden.model import ModelConfig, Prefill
from golden.model.attention import BLOCK_TOKENS
from golden.settings import KvoSettings
from golden.state import fixed_mass

__all__ = [
    "Group",
    "check_heads",
    "choose_heads",
    "closed_groups",
    "golden_record",
    "golden_rows",
    "row_difference",
    "word_difference",
]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One closed group as the Quantizer gets it; ``load_calibration`` marks the first one of its (layer, kv_head)."""

    layer: int
    kv_head: int
    number: int
    load_calibration: bool
    k_rows: NDArray[np.int16]  # [group_tokens, head_dim], after rotary embedding, before rotation
    v_rows: NDArray[np.int16]
    mass: NDArray[np.uint32]  # [group_tokens], units of 2**-16
    calibration: Calibration

    def __str__(self) -> str:
        return f"layer {self.layer}, KV head {self.kv_head}, group {self.number}"


def _count(context: int, settings: KvoSettings) -> int:
    """Groups of a head that are compressed when the newest query attends: not the open one, nor the one that waits."""
    return (context - 1) // settings.group_tokens - 1


def check_heads(config: ModelConfig, context: int, settings: KvoSettings, count: int) -> None:
    """``UserError`` when there are not so many heads to choose, or none of their groups is closed."""
    if not 1 <= count <= config.layers:
        raise UserError(f"the number of heads must be from 1 to {config.layers}, not {count}")
    if _count(context, settings) < 1:
        least = 2 * settings.group_tokens
        raise UserError(f"a context of {context} tokens has no compressed group: more than {least} are needed")


def choose_heads(config: ModelConfig, count: int) -> list[tuple[int, int]]:
    """``count`` times a layer and a KV head: layers evenly spread from the first to the last, KV heads in turn."""
    layers = [round(place * (config.layers - 1) / max(count - 1, 1)) for place in range(count)]
    return [(layer, place % config.kv_heads) for place, layer in enumerate(layers)]


def closed_groups(
    sample: Prefill, calibration: ModelCalibration, settings: KvoSettings, heads: Sequence[tuple[int, int]]
) -> list[Group]:
    """All groups of these (layer, kv_head) that are compressed when the newest token of a prefill attends."""
    count = _count(len(sample.tokens) - 1, settings)
    return [
        _group(sample, calibration, settings.group_tokens, layer, h, number)
        for layer, h in heads
        for number in range(count)
    ]


def _group(sample: Prefill, calibration: ModelCalibration, n: int, layer: int, h: int, number: int) -> Group:
    span = slice(number * n, (number + 1) * n)
    blocks = slice(span.start // BLOCK_TOKENS, (span.stop + n) // BLOCK_TOKENS)
    votes = np.asarray(sample.block_mass[layer, h, blocks, span], np.float32)
    # As golden's cache adds them up: each group's queries have their votes rounded.
    mass = fixed_mass(votes.reshape(2, -1, n).sum(axis=1)).sum(axis=0)
    k_rows, v_rows = fixed_rows(calibration, layer, h, sample.k[layer, h, span], sample.v[layer, h, span])
    return Group(
        layer=layer,
        kv_head=h,
        number=number,
        load_calibration=number == 0,
        k_rows=k_rows,
        v_rows=v_rows,
        mass=mass.astype(np.uint32),
        calibration=calibration.head(layer, h),
    )


def golden_record(group: Group, settings: KvoSettings) -> NDArray[np.uint8]:
    """The record that golden packs, bytes."""
    return quantize(
        group.k_rows,
        group.v_rows,
        group.mass,
        group.number == 0,
        group.calibration,
        salient_tokens=settings.salient_tokens,
        sink_tokens=settings.sink_tokens,
        delta_bits=settings.delta_bits,
        bus_bits=settings.bus_bits,
    )


def golden_rows(record: NDArray[np.uint8], group: Group, settings: KvoSettings) -> NDArray[np.int16]:
    """What golden rebuilds from a record: ``[2, group_tokens, head_dim]``, K and V, in the order of the record."""
    tokens, head_dim = group.k_rows.shape
    return np.stack(
        dequantize(
            record,
            group.calibration,
            head_dim=head_dim,
            group_tokens=tokens,
            delta_bits=settings.delta_bits,
            bus_bits=settings.bus_bits,
        )
    )


def _words(record: NDArray[np.uint8], bus_bits: int) -> Iterator[str]:
    size = bus_bits // 8
    for first in range(0, len(record), size):
        yield record[first : first + size][::-1].tobytes().hex()


def word_difference(
    groups: Sequence[Group], got: Sequence[NDArray[np.uint8]], expected: Sequence[NDArray[np.uint8]], bus_bits: int
) -> str | None:
    """A sentence on the first record word that differs, or None when all records are the same."""
    for group, mine, reference in zip(groups, got, expected, strict=True):
        words = list(_words(mine, bus_bits)), list(_words(reference, bus_bits))
        if len(words[0]) != len(words[1]):
            return f"{group}: the record has {len(words[0])} words, golden {len(words[1])}"
        for number, (word, wanted) in enumerate(zip(*words, strict=True)):
            if word != wanted:
                return f"{group}: word {number} of the record is 0x{word}, golden 0x{wanted}"
    return None


def row_difference(
    groups: Sequence[Group], got: Sequence[NDArray[np.int16]], expected: Sequence[NDArray[np.int16]]
) -> str | None:
    """A sentence on the first element that differs, or None when all rows are the same."""
    for group, mine, reference in zip(groups, got, expected, strict=True):
        places = np.argwhere(mine != reference)
        if len(places):
            kind, row, channel = (int(place) for place in places[0])
            name = "KV"[kind]
            return (
                f"{group}: {name} row {row}, channel {channel} is {mine[kind, row, channel]}, "
                f"golden {reference[kind, row, channel]}"
            )
    return None
