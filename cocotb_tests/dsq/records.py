"""Records for the tests of the Dequantizer: random ones, faulty ones, and the beats that golden expects of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.dsq.rows import HIGHEST, LOWEST, corner_rows, random_rows
from golden.dsq.compressor import VALUE_BITS, Calibration, CompressedGroup
from golden.dsq.dequantizer import dequantize
from golden.dsq.quantizer import quantize
from golden.dsq.record import HEADER_BYTES, RecordLayout, pack
from golden.dsq.scale import MAX_EXPONENT
from rtl.config import DsqConfig

__all__ = [
    "FAULTS",
    "Beat",
    "Record",
    "make_calibration",
    "make_record",
    "quantized_record",
    "random_record",
    "record_bytes",
    "with_fault",
]

K_BASE, K_DELTA, V_SALIENT, V_DELTA = range(4)


@dataclass(frozen=True)
class Beat:
    """One output beat; ``word`` is the index of the record word that gives it. An error beat has no elements."""

    section: int
    row: int
    channel: int
    count: int
    last: bool
    error: bool
    elements: tuple[int, ...]
    word: int = field(compare=False, default=-1)


@dataclass(frozen=True)
class Record:
    """Words as ``(data, first, last)``, the beats that they give, and the salient count."""

    words: list[tuple[int, bool, bool]]
    beats: list[Beat]
    salient: int


def make_calibration(draw: random.Random, head_dim: int) -> Calibration:
    """Shapes and means over their whole ranges, the ends included."""
    generator = np.random.default_rng(draw.getrandbits(64))

    def shape() -> NDArray[np.int64]:
        values = np.exp2(generator.uniform(0, 12, head_dim)).astype(np.int64)
        values[generator.integers(head_dim, size=2)] = 1, 4095
        return np.clip(values, 1, 4095)

    mean = generator.normal(0, 3000, head_dim).astype(np.int64)
    mean[generator.integers(head_dim, size=2)] = LOWEST, HIGHEST
    k_shape, v_shape = shape(), shape()
    return Calibration(
        k_shape=k_shape,
        v_shape=v_shape,
        v_mean=np.clip(mean, LOWEST, HIGHEST),
        k_norm=int(k_shape.sum()) + 1,
        v_norm=int(v_shape.sum()) + 1,
    )


def quantized_record(
    draw: random.Random, config: DsqConfig, salient: int, calibration: Calibration
) -> NDArray[np.uint8]:
    """The record of a group of random rows, now and then of corner rows."""
    tokens, head_dim = config.group_tokens, config.head_dim
    corners = corner_rows(head_dim)
    rows = []
    for _ in range(2):
        if draw.random() < 0.25:
            rows.append(corners[[draw.randrange(len(corners)) for _ in range(tokens)]])
        else:
            rows.append(random_rows(draw, tokens, head_dim))
    mass = np.array([draw.choice((0, draw.getrandbits(32))) for _ in range(tokens)], np.uint32)
    return quantize(
        *rows,
        mass,
        draw.random() < 0.5,
        calibration,
        salient_tokens=salient,
        delta_bits=config.delta_bits,
        bus_bits=config.bus_bits,
    )


def random_record(draw: random.Random, config: DsqConfig, salient: int) -> NDArray[np.uint8]:
    """A record of random fields: any codes, row scales up to the largest exponent, group scales and run lengths.

    What no field uses, and should be zero, is random, too.
    """
    generator = np.random.default_rng(draw.getrandbits(64))
    rest, head_dim = config.group_tokens - salient, config.head_dim
    row_scale_end = (MAX_EXPONENT + 1) << 3
    lowest_scale = draw.choice((0, 80, row_scale_end - 1))
    runs = np.bincount(generator.integers(salient, size=rest), minlength=salient)
    if draw.random() < 0.25:  # one base stands for all
        runs = np.where(np.arange(salient) == draw.randrange(salient), rest, 0)
    group = CompressedGroup(
        k_base=generator.integers(-128, 128, (salient, head_dim)).astype(np.int8),
        k_base_scale=generator.integers(lowest_scale, row_scale_end, salient).astype(np.uint8),
        v_salient=generator.integers(-128, 128, (salient, head_dim)).astype(np.int8),
        v_salient_scale=generator.integers(lowest_scale, row_scale_end, salient).astype(np.uint8),
        run_length=runs,
        k_group_scale=draw.choice((0, 255, draw.randrange(256), draw.randrange(60, 150))),
        v_group_scale=draw.choice((0, 255, draw.randrange(256), draw.randrange(60, 150))),
        k_delta=generator.integers(1 << config.delta_bits, size=(rest, head_dim)).astype(np.uint8),
        v_delta=generator.integers(1 << VALUE_BITS, size=(rest, head_dim)).astype(np.uint8),
        order=np.zeros(0, np.int64),
    )
    layout = _layout(config, salient)
    return pack(group, layout) | _unused_bits(generator, group, layout)


def _unused_bits(generator: np.random.Generator, group: CompressedGroup, layout: RecordLayout) -> NDArray[np.uint8]:
    """Random values for the bits of a record that belong to no field."""
    full = {name: np.full_like(getattr(group, name), -1) for name in ("k_base", "v_salient")}
    full |= {name: np.full_like(getattr(group, name), 255) for name in ("k_delta", "v_delta")}
    used = pack(replace(group, **full), layout)
    used[: layout.header_bytes] = 255
    return generator.integers(256, size=len(used)).astype(np.uint8) & ~used


def make_record(record: NDArray[np.uint8], config: DsqConfig, calibration: Calibration) -> Record:
    """The words of a record's bytes and the beats that golden dequantize expects."""
    salient = int(record[0])
    layout = _layout(config, salient)
    k_rows, v_rows = dequantize(
        record,
        calibration,
        head_dim=config.head_dim,
        group_tokens=config.group_tokens,
        delta_bits=config.delta_bits,
        bus_bits=config.bus_bits,
    )
    word_bytes = config.bus_bits // 8
    beats = []
    for section, place, rows in (
        (K_BASE, layout.lower, k_rows[:salient]),
        (K_DELTA, layout.k_fine if layout.k_fine.rows else layout.k_delta, k_rows[salient:]),
        (V_SALIENT, layout.v_salient, v_rows[:salient]),
        (V_DELTA, layout.v_delta, v_rows[salient:]),
    ):
        # The elements of each word: by the byte where their code begins.
        bits = np.arange(config.head_dim) * place.code_bits
        at = place.offset + np.arange(place.rows)[:, None] * place.stride + bits[None, :] // 8
        word, flat = (at // word_bytes).reshape(-1), rows.reshape(-1)
        for index in np.unique(word):
            (members,) = np.nonzero(word == index)
            row, channel = divmod(int(members[0]), config.head_dim)
            elements = tuple(flat[members].tolist())
            beats.append(Beat(section, row, channel, len(elements), False, False, elements, int(index)))
    beats[-1] = replace(beats[-1], last=True)
    count = len(record) // word_bytes
    data = [int.from_bytes(record[i * word_bytes : (i + 1) * word_bytes].tobytes(), "little") for i in range(count)]
    return Record([(word, i == 0, i == count - 1) for i, word in enumerate(data)], beats, salient)


def record_bytes(record: Record, config: DsqConfig) -> NDArray[np.uint8]:
    """The bytes of a record's words."""
    words = b"".join(data.to_bytes(config.bus_bits // 8, "little") for data, _, _ in record.words)
    return np.frombuffer(words, np.uint8)


def _layout(config: DsqConfig, salient: int) -> RecordLayout:
    return RecordLayout(
        head_dim=config.head_dim,
        group_tokens=config.group_tokens,
        salient_tokens=salient,
        delta_bits=config.delta_bits,
        bus_bits=config.bus_bits,
    )


def _broken_at(record: Record, words: list[tuple[int, bool, bool]], word: int) -> Record:
    """The record with other words, whose fault shows in ``word``."""
    error = Beat(0, 0, 0, 0, True, True, ())
    return replace(record, words=words, beats=[beat for beat in record.beats if beat.word < word] + [error])


def _with_byte(record: Record, config: DsqConfig, at: int, value: int) -> list[tuple[int, bool, bool]]:
    word, shift = divmod(8 * at, config.bus_bits)
    words = list(record.words)
    data, first, last = words[word]
    words[word] = (data & ~(0xFF << shift) | value << shift, first, last)
    return words


def _bad_salient(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    kinds = [[0], range(config.max_salient + 1, config.group_tokens), range(config.group_tokens + 1, 256)]
    value = draw.choice(draw.choice([kind for kind in kinds if len(kind)]))
    return _broken_at(record, _with_byte(record, config, 0, value), 0)


def _too_many_salient(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    """A record that is right but for the hardware's ``max_salient``."""
    if config.max_salient + 1 == config.group_tokens:
        return _bad_salient(record, config, draw)
    salient = draw.randint(config.max_salient + 1, config.group_tokens - 1)
    calibration = make_calibration(draw, config.head_dim)
    return _broken_at(record, make_record(random_record(draw, config, salient), config, calibration).words, 0)


def _bad_delta_bits(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    value = draw.choice([n for n in range(256) if n != config.delta_bits])
    return _broken_at(record, _with_byte(record, config, 1, value), 0)


def _bad_runs(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    at = HEADER_BYTES + draw.randrange(record.salient)
    word, shift = divmod(8 * at, config.bus_bits)
    run = record.words[word][0] >> shift & 0xFF
    words = _with_byte(record, config, at, draw.choice([n for n in {0, run - 1, run + 1, 255} if n not in (run, -1)]))
    return _broken_at(record, words, record.beats[0].word)


def _bad_row_scale(section: int) -> Callable[[Record, DsqConfig, random.Random], Record]:
    def broken(record: Record, config: DsqConfig, draw: random.Random) -> Record:
        row = draw.choice((record.salient - 1, draw.randrange(record.salient)))
        at = HEADER_BYTES + record.salient * (1 if section == K_BASE else 2) + row
        words = _with_byte(record, config, at, draw.randrange((MAX_EXPONENT + 1) << 3, 256))
        shows = (b for b in record.beats if b.section == section)
        first = next(b.word for b in shows if b.row * config.head_dim + b.channel + b.count > row * config.head_dim)
        return _broken_at(record, words, first)

    return broken


def _too_short(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    count = draw.choice((1, 2, len(record.words) - 1, draw.randrange(1, len(record.words))))
    words = record.words[:count]
    words[-1] = (words[-1][0], words[-1][1], True)
    return _broken_at(record, words, count - 1)


def _too_long(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    words = [(data, first, False) for data, first, _ in record.words]
    words += [(draw.getrandbits(config.bus_bits), False, False) for _ in range(draw.choice((0, 1, 20)))]
    words.append((draw.getrandbits(config.bus_bits), False, True))
    return _broken_at(record, words, len(record.words) - 1)


def _first_missing(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    return _broken_at(record, [(record.words[0][0], False, False), *record.words[1:]], 0)


def _first_again(record: Record, config: DsqConfig, draw: random.Random) -> Record:
    at = draw.randrange(1, len(record.words))
    words = list(record.words)
    words[at] = (words[at][0], True, words[at][2])
    return _broken_at(record, words, at)


FAULTS: dict[str, Any] = {
    "salient": _bad_salient,
    "too_many_salient": _too_many_salient,
    "delta_bits": _bad_delta_bits,
    "runs": _bad_runs,
    "k_scale": _bad_row_scale(K_BASE),
    "v_scale": _bad_row_scale(V_SALIENT),
    "short": _too_short,
    "long": _too_long,
    "first_missing": _first_missing,
    "first_again": _first_again,
}


def with_fault(name: str, record: Record, config: DsqConfig, draw: random.Random) -> Record:
    """A record with one fault of ``FAULTS``, and the beats that it still gives."""
    return FAULTS[name](record, config, draw)
