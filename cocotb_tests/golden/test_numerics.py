"""docs/numerics.md: its example record, its constants and the tests that it names."""

import re
from pathlib import Path

import numpy as np
import pytest

from cocotb_tests.test_mirror import REFERENCE, functions
from golden.dsq.compressor import SHAPE_FRACTION_BITS, STEP_BITS, VALUE_BITS, Calibration
from golden.dsq.quantizer import quantize
from golden.dsq.record import HEADER_BYTES, RecordLayout
from golden.dsq.row_quantizer import RECIPROCAL
from golden.dsq.scale import MAX_EXPONENT, SCALE_BIAS
from golden.gemm.epilogue import GATE_BITS, GATE_FRACTION_BITS, ROTARY_BITS, ROTARY_FRACTION_BITS
from golden.gemm.prologue import EPSILON_BITS, FACTOR_FRACTION_BITS
from golden.hcap.history import HISTORY_BITS
from golden.hcap.selector import BIN_SHIFT, BINS
from golden.mha.scores import SCORE_BITS, SCORE_FRACTION_BITS
from golden.mha.softmax import INVERSE_BITS, MASKED, NO_MAXIMUM, NORMAL_BITS, PROBABILITY_BITS
from golden.mha.value_sum import SCALED_BITS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
LAYOUT = RecordLayout(salient_tokens=10, delta_bits=4)


def example() -> np.ndarray:
    """The record that the page shows."""
    token, channel = np.arange(64)[:, None], np.arange(64)
    return quantize(
        ((97 * token + 31 * channel + token * channel) % 251 * 40 - 5000).astype(np.int16),
        ((61 * token + 17 * channel) % 127 * 50 - 3000).astype(np.int16),
        (29 * np.arange(64) % 64 * 1000).astype(np.uint32),
        True,
        Calibration(
            k_shape=256 + 2 * channel,
            v_shape=np.full(64, 256),
            v_mean=10 * channel - 300,
            k_norm=50000,
            v_norm=13000,
        ),
        salient_tokens=10,
        delta_bits=4,
    )


def test_example_is_the_record():
    """Every row ``| `offset` | `bytes` |``."""
    record = example()
    shown = re.findall(r"^\| `(\d+)` \| `([0-9a-f ]+)` \|", PAGE, re.MULTILINE)
    assert len(shown) >= 10 and len(record) == LAYOUT.record_bytes
    for offset, text in shown:
        content = bytes.fromhex(text)
        assert record[int(offset) : int(offset) + len(content)].tobytes() == content, offset


@pytest.mark.parametrize("section", ["upper", "lower", "k_delta", "k_fine", "v_salient", "v_delta"])
def test_layout_table_is_the_layout(section):
    """Rows ``| `name` | ... | offset | stride | rows | bits |``."""
    part = getattr(LAYOUT, section)
    row = re.search(rf"^\| `{section}` \|.*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert row is not None
    assert [int(x) for x in row.groups()] == [part.offset, part.stride, part.rows, part.code_bits]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCALE_BIAS", SCALE_BIAS),
        ("MAX_EXPONENT", MAX_EXPONENT),
        ("SHAPE_FRACTION_BITS", SHAPE_FRACTION_BITS),
        ("STEP_BITS", STEP_BITS),
        ("VALUE_BITS", VALUE_BITS),
        ("HEADER_BYTES", HEADER_BYTES),
        ("HISTORY_BITS", HISTORY_BITS),
        ("BIN_SHIFT", BIN_SHIFT),
        ("BINS", BINS),
        ("SCORE_BITS", SCORE_BITS),
        ("SCORE_FRACTION_BITS", SCORE_FRACTION_BITS),
        ("PROBABILITY_BITS", PROBABILITY_BITS),
        ("MASKED", MASKED),
        ("NO_MAXIMUM", NO_MAXIMUM),
        ("INVERSE_BITS", INVERSE_BITS),
        ("NORMAL_BITS", NORMAL_BITS),
        ("SCALED_BITS", SCALED_BITS),
        ("FACTOR_FRACTION_BITS", FACTOR_FRACTION_BITS),
        ("EPSILON_BITS", EPSILON_BITS),
        ("ROTARY_BITS", ROTARY_BITS),
        ("ROTARY_FRACTION_BITS", ROTARY_FRACTION_BITS),
        ("GATE_BITS", GATE_BITS),
        ("GATE_FRACTION_BITS", GATE_FRACTION_BITS),
        ("RECIPROCAL", ", ".join(map(str, RECIPROCAL.tolist()))),
    ],
)
def test_constants_are_those_of_golden(name, value):
    assert re.search(rf"^\| `{name}` \| {value} \|", PAGE, re.MULTILINE), name


def test_names_existing_tests():
    named = REFERENCE.findall(PAGE)
    assert len(named) > 30
    for file, name in named:
        path = ROOT / "cocotb_tests" / file
        assert path.is_file() and name in functions(path), f"{file}::{name}"
