"""Groups for the tests of the Compressor and the Quantizer: corner cases, random ones, stream payloads."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cocotb_tests.dsq.rows import HIGHEST, LOWEST, random_rows
from cocotb_tests.lib import real as cache
from golden.dsq.compressor import Calibration
from golden.dsq.record import RecordLayout
from golden.dsq.salient import pick_salient
from golden.settings import default_settings
from rtl.config import DsqConfig

__all__ = [
    "Group",
    "beats",
    "calibration_words",
    "corner_groups",
    "layout",
    "random_groups",
    "real_groups",
    "record_words",
]

MAX_NORM = (1 << 20) - 1


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group as the Quantizer gets it; without ``load_calibration`` only the norms of ``calibration`` are new."""

    name: str
    k_rows: NDArray[np.int16]
    v_rows: NDArray[np.int16]
    mass: NDArray[np.uint32]
    salient_tokens: int
    calibration: Calibration
    load_calibration: bool = True
    first_group: bool = False
    sink_tokens: int = 4

    @property
    def salient(self) -> NDArray[np.int64]:
        """Its salient tokens, ascending."""
        return pick_salient(
            self.mass, self.first_group, salient_tokens=self.salient_tokens, sink_tokens=self.sink_tokens
        )


def _calibration(draw: random.Random, head_dim: int) -> Calibration:
    """Shapes over their range and moderate means, with extreme channels; norms as in use, now and then any."""
    generator = np.random.default_rng(draw.getrandbits(64))

    def shape() -> NDArray[np.int64]:
        values = np.clip(generator.lognormal(5.5, 0.7, head_dim), 1, 4095).astype(np.int64)
        values[generator.integers(head_dim, size=2)] = 1, 4095
        return values

    mean = generator.normal(0, 1000, head_dim).astype(np.int64)
    if draw.random() < 0.3:
        mean[generator.integers(head_dim, size=2)] = LOWEST, HIGHEST
    shapes = shape(), shape()
    norms = [int(values.sum() * generator.uniform(0.7, 1.5)) for values in shapes]
    if draw.random() < 0.2:
        norms = [draw.randint(1, 1 << draw.randint(0, 19)) for _ in norms]
    k_norm, v_norm = (min(max(norm, 1), MAX_NORM) for norm in norms)
    return Calibration(k_shape=shapes[0], v_shape=shapes[1], v_mean=mean, k_norm=k_norm, v_norm=v_norm)


def _clustered_rows(draw: random.Random, tokens: int, head_dim: int) -> NDArray[np.int16]:
    """Rows around a few centres, as keys are."""
    generator = np.random.default_rng(draw.getrandbits(64))
    centres = generator.normal(0, 3000, (max(tokens // 8, 2), head_dim))
    rows = centres[generator.integers(len(centres), size=tokens)] + generator.normal(0, 600, (tokens, head_dim))
    return np.clip(np.rint(rows), LOWEST, HIGHEST).astype(np.int16)


def _mass(draw: random.Random, tokens: int) -> NDArray[np.uint32]:
    return np.array([draw.getrandbits(draw.randint(1, 32)) for _ in range(tokens)], np.uint32)


def random_groups(config: DsqConfig, draw: random.Random, count: int) -> list[Group]:
    """Groups with changing salient counts, seldom all salient; the first one and about half of the others calibrate."""
    tokens, head_dim = config.group_tokens, config.head_dim
    groups: list[Group] = []
    for number in range(count):
        rows = [
            _clustered_rows(draw, tokens, head_dim) if draw.random() < 0.6 else random_rows(draw, tokens, head_dim)
            for _ in "kv"
        ]
        salient_tokens = tokens if draw.random() < 0.1 else draw.randint(1, config.max_salient)
        calibration = _calibration(draw, head_dim)
        load = not groups or draw.random() < 0.5
        if not load:
            calibration = replace(groups[-1].calibration, k_norm=calibration.k_norm, v_norm=calibration.v_norm)
        groups.append(
            Group(
                name=f"random {number}",
                k_rows=rows[0],
                v_rows=rows[1],
                mass=_mass(draw, tokens),
                salient_tokens=salient_tokens,
                calibration=calibration,
                load_calibration=load,
                first_group=draw.random() < 0.3,
                sink_tokens=draw.randint(0, min(6, tokens)),
            )
        )
    return groups


def real_groups(config: DsqConfig, count: int) -> list[Group]:
    """Groups of a real model's cache, with the default settings' salient count as far as the hardware allows it."""
    settings = default_settings()
    return [
        Group(
            name=f"layer {real.layer}, KV head {real.kv_head}, group {real.group}",
            k_rows=real.k_rows,
            v_rows=real.v_rows,
            mass=real.mass,
            salient_tokens=min(settings.salient_tokens, config.max_salient),
            calibration=real.calibration,
            first_group=real.first_group,
            sink_tokens=settings.sink_tokens,
        )
        for real in cache.real_groups(count)
    ]


def corner_groups(config: DsqConfig, draw: random.Random) -> list[Group]:
    """The corner table; every group calibrates. Salient counts change from group to group."""
    tokens, head_dim, most = config.group_tokens, config.head_dim, config.max_salient
    some = max(most * 2 // 3, 1)
    plain = Group(
        name="clustered",
        k_rows=_clustered_rows(draw, tokens, head_dim),
        v_rows=_clustered_rows(draw, tokens, head_dim),
        mass=_mass(draw, tokens),
        salient_tokens=some,
        calibration=_calibration(draw, head_dim),
    )
    c = plain.calibration
    zeros = np.zeros((tokens, head_dim), np.int16)
    token, channel = np.arange(tokens)[:, None], np.arange(head_dim)
    constant = np.where(channel == head_dim // 2, 1234, plain.k_rows).astype(np.int16)
    spikes = np.where(channel == head_dim - 1, HIGHEST, zeros).astype(np.int16)
    signs = np.array([[draw.choice((LOWEST, HIGHEST)) for _ in channel] for _ in token], np.int16)
    ramp = (token * 64 + channel * 0).astype(np.int16)
    alone = replace(plain, salient_tokens=1).salient
    k_ends = np.where(token + channel * 0 == alone, HIGHEST, LOWEST).astype(np.int16)
    v_ends = np.where(channel % 2 + token * 0, HIGHEST, LOWEST).astype(np.int16)
    bits = (token % 2 + channel * 0).astype(np.int16)
    few = np.array([[draw.randint(-5, 5) for _ in channel] for _ in token], np.int16)
    halves = 128 + channel % 4 * 128  # shapes of 1/2, 1, 3/2 and 2
    unit = Calibration(
        k_shape=halves, v_shape=halves, v_mean=halves * 0, k_norm=int(halves.sum()), v_norm=int(halves.sum())
    )
    far = replace(c, v_mean=np.where(channel % 2, LOWEST, HIGHEST))
    ones = np.ones(head_dim, np.int64)
    least = Calibration(k_shape=ones, v_shape=ones, v_mean=ones, k_norm=MAX_NORM, v_norm=MAX_NORM)

    def changed(name: str, **fields: Any) -> Group:
        return replace(plain, name=name, **fields)

    return [
        plain,
        changed("one salient", salient_tokens=1),
        changed("two salient", salient_tokens=min(2, most)),
        changed("most salient", salient_tokens=most, first_group=True),
        changed("all salient", salient_tokens=tokens),
        changed("all-zero", k_rows=zeros, v_rows=zeros),
        changed("all-zero with means of zero", k_rows=zeros, v_rows=zeros, calibration=replace(c, v_mean=c.v_mean * 0)),
        changed("constant channel", k_rows=constant, v_rows=constant, salient_tokens=1),
        changed("one channel", k_rows=spikes, v_rows=spikes),
        # Several bases at the same distance: the first one wins.
        changed("equal tokens", k_rows=np.tile(plain.k_rows[:1], (tokens, 1)), salient_tokens=most),
        changed("saturated", k_rows=signs, v_rows=-1 - signs, salient_tokens=most),
        changed("differences of full range", k_rows=k_ends, v_rows=v_ends, calibration=far, salient_tokens=1),
        changed("ramp: bases on both sides at the same distance", k_rows=ramp, v_rows=ramp),
        changed("equal masses", mass=np.full(tokens, 77, np.uint32), salient_tokens=most),
        changed("equal masses, sinks", mass=np.zeros(tokens, np.uint32), salient_tokens=most, first_group=True),
        changed("differences equal to steps", k_rows=few, v_rows=few, calibration=unit),
        changed("group scales underflow, steps below one unit", k_rows=bits, v_rows=zeros, calibration=least),
        changed("group scales overflow", v_rows=signs, calibration=replace(far, k_norm=1, v_norm=1)),
        changed("all salient behind others", salient_tokens=tokens, first_group=True),
    ]


def layout(config: DsqConfig, salient_tokens: int) -> RecordLayout:
    """The layout of a record with so many salient tokens."""
    return RecordLayout(
        head_dim=config.head_dim,
        group_tokens=config.group_tokens,
        salient_tokens=salient_tokens,
        delta_bits=config.delta_bits,
        bus_bits=config.bus_bits,
    )


def record_words(record: NDArray[np.uint8], bus_bits: int) -> list[int]:
    """Payloads of the stream that carries the record: data, then the bits ``first`` and ``last``."""
    rows = record.reshape(-1, bus_bits // 8)
    words = [int.from_bytes(row.tobytes(), "little") for row in rows]
    words[0] |= 1 << bus_bits
    words[-1] |= 2 << bus_bits
    return words


def calibration_words(calibration: Calibration) -> list[int]:
    """Payloads of the stream that carries a calibration."""
    channels = zip(calibration.k_shape, calibration.v_shape, calibration.v_mean, strict=True)
    return [int(k) | int(v) << 12 | (int(mean) & 0xFFFF) << 24 for k, v, mean in channels]


def beats(rows: Iterable[Sequence[int]] | NDArray[np.integer], lanes: int, element_bits: int) -> list[int]:
    """Rows as beats of ``lanes`` elements, channel 0 first."""
    kind = {8: "<i1", 16: "<i2"}[element_bits]
    return [int.from_bytes(beat.tobytes(), "little") for beat in np.asarray(rows).astype(kind).reshape(-1, lanes)]
