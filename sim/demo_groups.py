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

__all__ = ["Group", "check_count", "choose", "golden_record", "golden_rows", "row_difference", "word_difference"]

LEAST_LAYERS = 3
GROUPS_PER_HEAD = 4


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


def _spread(count: int, total: int) -> list[int]:
    """``count`` of the numbers below ``total``, evenly spread, the first and the last among them."""
    return [round(place * (total - 1) / max(count - 1, 1)) for place in range(count)]


def _closed_groups(context: int, settings: KvoSettings) -> int:
    """Groups of a head that can be compressed: the last one has no later queries that vote."""
    return context // settings.group_tokens - 1


def check_count(config: ModelConfig, context: int, settings: KvoSettings, count: int) -> None:
    """``UserError`` when a prefill of ``context`` tokens does not have ``count`` closed groups."""
    most = _closed_groups(context, settings) * config.layers * config.kv_heads
    if not 1 <= count <= most:
        raise UserError(f"the number of groups must be from 1 to {most} with {context} tokens, not {count}")


def choose(
    config: ModelConfig, sample: Prefill, calibration: ModelCalibration, settings: KvoSettings, count: int
) -> list[Group]:
    """``count`` closed groups of a prefill, spread over the layers, all KV heads and the whole text.

    At least three layers, more if that is needed for about four groups a head. Groups of one head follow each other.
    """
    n, layers, context = settings.group_tokens, config.layers, len(sample.tokens) - 1
    check_count(config, context, settings, count)
    closed = _closed_groups(context, settings)
    wanted = max(LEAST_LAYERS, -(-count // (config.kv_heads * min(GROUPS_PER_HEAD, closed))))
    heads = [(layer, h) for layer in _spread(min(wanted, layers), layers) for h in range(config.kv_heads)]
    if count < len(heads):
        heads = [heads[place] for place in _spread(count, len(heads))]
    chosen = []
    for place, (layer, h) in enumerate(heads):
        share = count // len(heads) + (place < count % len(heads))
        for first, number in enumerate(_spread(share, closed)):
            chosen.append(_group(sample, calibration, n, layer, h, number, load_calibration=first == 0))
    return chosen


def _group(
    sample: Prefill, calibration: ModelCalibration, n: int, layer: int, h: int, number: int, *, load_calibration: bool
) -> Group:
    span = slice(number * n, (number + 1) * n)
    blocks = slice(span.start // BLOCK_TOKENS, (span.stop + n) // BLOCK_TOKENS)
    votes = np.asarray(sample.block_mass[layer, h, blocks, span], np.float32)
    mass = np.floor(votes.sum(axis=0).astype(np.float64) * 65536 + 0.5)
    k_rows, v_rows = fixed_rows(calibration, layer, h, sample.k[layer, h, span], sample.v[layer, h, span])
    return Group(
        layer=layer,
        kv_head=h,
        number=number,
        load_calibration=load_calibration,
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
