"""The packed record: layout, packing and unpacking over geometries, faults, the documented example."""

import re
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.golden.draws import generator
from golden.dsq.compressor import CompressedGroup
from golden.dsq.record import HEADER_BYTES, RecordError, RecordLayout, pack, unpack
from golden.dsq.scale import MAX_EXPONENT


@st.composite
def layouts(draw) -> RecordLayout:
    """Any geometry that a preset could have."""
    tokens = draw(st.sampled_from([16, 20, 32, 64, 128]))
    return RecordLayout(
        head_dim=draw(st.sampled_from(range(16, 129, 16))),
        group_tokens=tokens,
        salient_tokens=draw(st.one_of(st.integers(1, tokens), st.just(tokens), st.just(1))),
        delta_bits=draw(st.sampled_from([2, 4])),
        bus_bits=draw(st.sampled_from([32, 64, 128, 256, 512])),
    )


def sections(layout: RecordLayout) -> list:
    """In the order of their addresses."""
    return [layout.upper, layout.lower, layout.k_delta, layout.k_fine, layout.v_salient, layout.v_delta]


def random_group(layout: RecordLayout, seed: int) -> CompressedGroup:
    """Any field values that a record can hold, -128 included."""
    draw = np.random.default_rng(seed)
    s, rest, dim = layout.salient_tokens, layout.group_tokens - layout.salient_tokens, layout.head_dim
    return CompressedGroup(
        k_base=draw.integers(-128, 128, (s, dim), dtype=np.int8),
        k_base_scale=draw.integers(0, (MAX_EXPONENT + 1) * 8, s, dtype=np.uint8),
        v_salient=draw.integers(-128, 128, (s, dim), dtype=np.int8),
        v_salient_scale=draw.integers(0, (MAX_EXPONENT + 1) * 8, s, dtype=np.uint8),
        run_length=np.bincount(draw.integers(s, size=rest), minlength=s),
        k_group_scale=int(draw.integers(256)),
        v_group_scale=int(draw.integers(256)),
        k_delta=draw.integers(0, 1 << layout.delta_bits, (rest, dim), dtype=np.uint8),
        v_delta=draw.integers(0, 4, (rest, dim), dtype=np.uint8),
        order=np.zeros(0, np.int64),
    )


def unpack_as(record, layout: RecordLayout) -> CompressedGroup:
    """Unpack with the geometry of a layout."""
    return unpack(
        record,
        head_dim=layout.head_dim,
        group_tokens=layout.group_tokens,
        delta_bits=layout.delta_bits,
        bus_bits=layout.bus_bits,
    )


@given(layouts(), st.integers(0, 2**32))
def test_unpack_gives_back_what_was_packed(layout, seed):
    group = random_group(layout, seed)
    record = pack(group, layout)
    assert len(record) == layout.record_bytes
    back = unpack_as(record, layout)
    for field in fields(CompressedGroup):
        np.testing.assert_array_equal(getattr(back, field.name), getattr(group, field.name), err_msg=field.name)
    np.testing.assert_array_equal(pack(back, layout), record)


@given(layouts())
def test_sections_start_on_bus_words_and_never_overlap(layout):
    word = layout.bus_bits // 8
    parts = sections(layout)
    assert layout.header_bytes == HEADER_BYTES + 3 * layout.salient_tokens <= parts[0].offset
    for part in parts:
        assert part.offset % word == 0
        row_bytes = layout.head_dim * part.code_bits / 8
        assert row_bytes <= part.stride
        assert part.stride % word == 0 or word % part.stride == 0  # a row never crosses into a word that it need not
    for before, after in pairwise(parts):
        assert before.end <= after.offset < before.end + word
    assert parts[-1].end <= layout.record_bytes < parts[-1].end + word
    assert layout.record_bytes % word == 0


@given(layouts(), st.integers(0, 2**32))
def test_rows_lie_where_the_layout_says(layout, seed):
    """Each element alone, read bit by bit."""
    group = random_group(layout, seed)
    record = pack(group, layout)
    bits = np.unpackbits(record, bitorder="little")
    draw = np.random.default_rng(seed)
    coarse = group.k_delta >> (layout.delta_bits - 2)
    codes = [group.k_base >> 4, group.k_base, coarse, group.k_delta, group.v_salient, group.v_delta]
    used = np.zeros(len(bits), bool)
    used[: 8 * layout.header_bytes] = True
    for part, values in zip(sections(layout), codes, strict=True):
        for row in range(part.rows):
            start = 8 * (part.offset + row * part.stride)
            used[start : start + layout.head_dim * part.code_bits] = True
        if part.rows:
            row, channel = int(draw.integers(part.rows)), int(draw.integers(layout.head_dim))
            at = 8 * (part.offset + row * part.stride) + channel * part.code_bits
            code = sum(int(bits[at + i]) << i for i in range(part.code_bits))
            assert code == int(values[row, channel]) % (1 << part.code_bits)
    assert not bits[~used].any()


def test_default_layout_by_hand():
    layout = RecordLayout()
    assert (layout.head_dim, layout.group_tokens, layout.salient_tokens) == (64, 64, 13)
    assert (layout.delta_bits, layout.bus_bits, layout.header_bytes) == (2, 128, 43)
    assert [(part.offset, part.stride, part.rows, part.code_bits) for part in sections(layout) if part.rows] == [
        (48, 32, 13, 4),
        (464, 32, 13, 4),
        (880, 16, 51, 2),
        (1696, 64, 13, 8),
        (2528, 16, 51, 2),
    ]
    assert layout.record_bytes == 3344 == 209 * 16


def test_two_planes_by_hand():
    layout = RecordLayout(salient_tokens=10, delta_bits=4)
    assert layout.header_bytes == 34
    assert [(part.offset, part.stride, part.rows, part.code_bits) for part in sections(layout)] == [
        (48, 32, 10, 4),
        (368, 32, 10, 4),
        (688, 16, 54, 2),
        (1552, 16, 54, 2),
        (2416, 64, 10, 8),
        (3056, 16, 54, 2),
    ]
    assert layout.record_bytes == 3920 == 245 * 16


@pytest.mark.parametrize(
    ("head_dim", "code_bits", "bus_bits", "stride"),
    [(64, 2, 128, 16), (16, 2, 128, 4), (48, 2, 128, 16), (48, 2, 64, 16), (80, 2, 128, 32), (80, 2, 512, 32),
     (96, 4, 128, 48), (16, 2, 32, 4), (16, 8, 512, 16), (80, 8, 512, 128)],
)  # fmt: skip
def test_row_strides_by_hand(head_dim, code_bits, bus_bits, stride):
    layout = RecordLayout(head_dim=head_dim, bus_bits=bus_bits)
    assert layout.row_stride(code_bits) == stride


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("salient_tokens", 0, "salient_tokens must be 1 to group_tokens=64, not 0"),
        ("salient_tokens", 65, "salient_tokens must be 1 to group_tokens=64, not 65"),
        ("delta_bits", 3, "delta_bits must be 2 or 4, not 3"),
        ("bus_bits", 16, "bus_bits must be a power of two of at least 32, not 16"),
        ("bus_bits", 96, "bus_bits must be a power of two of at least 32, not 96"),
    ],
)
def test_rejects_bad_layouts(field, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RecordLayout(**{field: value})


def faulty(change) -> tuple[np.ndarray, RecordLayout]:
    """A record of the default layout with some bytes changed."""
    layout = RecordLayout()
    record = pack(random_group(layout, 5), layout)
    return change(record, layout), layout


def put(at: int, value: int):
    """A change of one byte."""

    def change(record, layout):
        record = record.copy()
        record[at] = value
        return record

    return change


def first_run(change: int):
    """A change of the first run length."""
    return lambda record, layout: put(4, int(record[4]) + change)(record, layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, _: r[:0], "record must have at least 4 bytes, not 0"),
        (lambda r, _: r[:3], "record must have at least 4 bytes, not 3"),
        (put(0, 0), "salient count must be 1 to 64, not 0"),
        (put(0, 65), "salient count must be 1 to 64, not 65"),
        (put(1, 4), "delta bits must be 2, not 4"),
        (lambda r, _: r[:-16], "record must have 3344 bytes, not 3328"),
        (lambda r, _: np.concatenate([r, r[:16]]), "record must have 3344 bytes, not 3360"),
        (put(0, 14), "record must have 3440 bytes, not 3344"),
        (first_run(1), "run lengths must sum to 51, not 52"),
        (first_run(-1), "run lengths must sum to 51, not 50"),
        (put(4 + 13 + 2, 17 << 3), "row scales must have exponents of at most 16, not 17"),
        (put(4 + 26 + 12, 255), "row scales must have exponents of at most 16, not 31"),
    ],
)
def test_unpack_rejects_faulty_records(change, message):
    record, layout = faulty(change)
    with pytest.raises(RecordError, match=f"^{re.escape(message)}$"):
        unpack_as(record, layout)


def test_group_scales_pass_at_both_ends():
    layout = RecordLayout()
    group = replace(random_group(layout, 3), k_group_scale=0, v_group_scale=255)
    back = unpack_as(pack(group, layout), layout)
    assert (back.k_group_scale, back.v_group_scale) == (0, 255)


def test_one_run_of_all_other_tokens_fits_its_byte():
    layout = RecordLayout(group_tokens=128, salient_tokens=1)
    record = pack(random_group(layout, 1), layout)
    assert record[4] == 127 and unpack_as(record, layout).run_length.tolist() == [127]


def test_random_bytes_raise_nothing_but_record_errors():
    draw = generator("fuzz")
    layout = RecordLayout()
    good = pack(random_group(layout, 9), layout)
    for _ in range(300):
        record = good.copy()
        record[draw.integers(0, layout.header_bytes, 3)] = draw.integers(0, 256, 3)
        try:
            assert unpack_as(record, layout).run_length.sum() == 51
        except RecordError:
            continue
