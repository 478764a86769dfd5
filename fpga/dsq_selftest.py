"""Test of a board with a DSQ unit: rows of real heads to INT8 codes and scales, compared with golden."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpga.client import LinkError
from fpga.dsq_unit import CODES, K_ROWS, LANES, RESET, V_ROWS, unit_crc
from fpga.host import INFORMATION, MAGIC, BoardInformation
from fpga.selftest_data import real_heads, settings_for
from fpga.selftest_run import Row
from golden.dsq.row_quantizer import quantize_token_rows
from golden.errors import UserError
from rtl.config import AcceleratorConfig, DsqConfig

__all__ = ["Head", "Plan", "prepare", "row_words", "run"]


@dataclass(frozen=True, kw_only=True)
class Head:
    """Rows ``[tokens, head_dim]`` of a KV head."""

    name: str
    k_rows: NDArray[np.int16]
    v_rows: NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes through the unit."""

    config: DsqConfig
    heads: list[Head]


def prepare(config: AcceleratorConfig, *, groups: int, heads: int, progress: bool = False, **_: Any) -> Plan:
    """Rows of so many groups of so many heads; other options are of other boards."""
    for name, value in (("groups", groups), ("heads", heads)):
        if value < 1:
            raise UserError(f"--{name} must be at least 1, not {value}")
    real = real_heads(config, settings_for(config), heads, groups, 1, progress=progress)
    tokens = groups * config.dsq.group_tokens
    made = [Head(name=head.name, k_rows=head.k_rows[:tokens], v_rows=head.v_rows[:tokens]) for head in real]
    return Plan(config=config.dsq, heads=made)


def row_words(codes: NDArray[np.int8], scale: int) -> NDArray[np.uint32]:
    """What the unit gives for a row with these codes: with each beat the scale."""
    beats = np.ascontiguousarray(codes, np.int8).view("<u4").astype(np.uint32)
    return np.stack([beats, np.full_like(beats, scale)], axis=1).ravel()


def _identify(link: Any, config: DsqConfig) -> BoardInformation:
    magic, clock_hz, dram_bytes, crc = map(int, link.read(INFORMATION, 4))
    if magic != MAGIC:
        raise UserError(f"the port must lead to a KVO board, not to one that answers {magic:#010x}")
    if crc != unit_crc(config):
        raise UserError(
            f"the board must have a DSQ unit for {config.head_dim} channels, with CRC {unit_crc(config):#010x}, not "
            f"something with {crc:#010x}: name the board that it is, or load its bitstream again"
        )
    return BoardInformation(clock_hz=clock_hz, dram_bytes=dram_bytes, config_crc=crc)


def _token(link: Any, k_row: NDArray[np.int16], v_row: NDArray[np.int16]) -> str | None:
    """What is wrong with a token's rows when they come back."""
    for window, row in ((K_ROWS, k_row), (V_ROWS, v_row)):
        link.write(window, row.astype("<i2").view("<u4"), fixed=True)
    got = link.read(CODES, len(k_row), fixed=True)  # of both rows
    k_codes, k_scale, v_codes, v_scale = quantize_token_rows(k_row, v_row)
    expected = np.concatenate([row_words(k_codes, int(k_scale)), row_words(v_codes, int(v_scale))])
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return None
    at = int(wrong[0])
    kind, beat = "KV"[at >= len(k_row) // 2], at % (len(k_row) // 2) // 2
    what = "scale" if at % 2 else f"codes of channels {LANES * beat} to {LANES * beat + LANES - 1}"
    return (
        f"{kind} row: {len(wrong)} of {len(got)} words differ, the first is {what}: {got[at]:#x}, not {expected[at]:#x}"
    )


def run(link: Any, plan: Plan, *, passed: Callable[[Row], None], **_: Any) -> tuple[BoardInformation, str | None]:
    """All rows, as `fpga.selftest_run.run` does with its parts; further options are of other boards.

    link : `fpga.client.Client`, or what has its ``read`` and ``write``.
    """
    board = _identify(link, plan.config)
    link.write(RESET, [0])
    words = plan.config.head_dim
    for head in plan.heads:
        began = time.perf_counter()
        for token, (k_row, v_row) in enumerate(zip(head.k_rows, head.v_rows, strict=True)):
            try:
                fault = _token(link, k_row, v_row)
            except LinkError as error:
                fault = str(error)
            if fault:
                return board, f"dsq: head {head.name}, token {token}, {fault}"
        passed(
            Row(
                part="dsq",
                what=f"K and V rows of {len(head.k_rows)} tokens of head {head.name} to INT8",
                words=len(head.k_rows) * words,
                mismatches=0,
                cycles=0,
                link_bytes=8 * len(head.k_rows) * words,
                seconds=time.perf_counter() - began,
            )
        )
    return board, None
