"""Attention part of the demonstration: heads of the model on the attention core, on the Quantizer's records."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.dsq.record import RecordLayout, pack
from golden.heads import Head
from golden.mha.core import Fetch, attend
from rtl.config import AcceleratorConfig
from sim.attention import MODES, DifferenceError, simulate
from sim.demo_groups import Group, word_difference
from sim.demo_rtl import HardwareError
from sim.simulators import SimulationError

__all__ = [
    "KINDS",
    "LATENCY",
    "QUERIES",
    "Attended",
    "attend_heads",
    "attention_of_newest",
    "attention_table",
    "check_caches",
    "fetched_by_newest",
    "kinds_of_tokens",
]

#: newest tokens of a text whose queries the core gets; cycles are counted from the first's end to the second's
QUERIES = 3
#: cycles from a request to its first word
LATENCY = 40

#: what is read of a token, by the number that `kinds_of_tokens` gives it
KINDS = (
    "group not scanned",
    "delta, not read",
    "base, upper nibbles of K",
    "base, all of K",
    "base, K and V",
    "delta, upper two bits of K",
    "delta, K and V",
    "INT8, K",
    "INT8, K and V",
)


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Rows of `sim.attention`, one for each mode of each head; how many outputs (of a query head) are in them."""

    rows: list[dict[str, Any]]
    outputs: int
    seconds: float

    @property
    def speedups(self) -> list[float]:
        """Cycles of the dense mode over those of the other one, head by head."""
        cycles = {mode: [row["cycles"] for row in self.rows if row["mode"] == mode] for mode in MODES}
        return [dense / own for dense, own in zip(cycles["dense"], cycles["kvo"], strict=True)]


def check_caches(
    heads: Sequence[Head], groups: Sequence[Group], records: Sequence[NDArray[np.uint8]], layout: RecordLayout
) -> None:
    """Raise `DifferenceError` unless the caches of ``heads`` hold the same ``records`` as the Quantizer gave."""
    expected = [pack(group, layout) for head in heads for group in head.state.closed]
    if difference := word_difference(groups, records, expected, layout.bus_bits):
        raise DifferenceError(f"the quantizer differs from the cache that golden attends to in {difference}")


def attend_heads(
    heads: Sequence[Head],
    records: Mapping[tuple[int, int], NDArray[np.uint8]],
    config: AcceleratorConfig,
    folder: Path,
    advance: Callable[[int], object],
) -> Attended:
    """The queries of ``heads`` on the simulated core, dense and on ``records[layer, kv_head]``, compared with golden.

    ``advance(1)`` is called for each mode of each head. Raises `DifferenceError` at the first difference.
    """
    began = time.perf_counter()
    try:
        rows = simulate(config, heads, MODES, records=records, latency=LATENCY, folder=folder, advance=advance)
    except SimulationError as error:
        raise HardwareError(f"the attention core could not be simulated: {error}") from error
    except DifferenceError as error:
        raise DifferenceError(f"the attention core differs from golden in {error}") from None
    except AssertionError as error:
        raise HardwareError(f"the attention core did not finish: {error}") from error
    outputs = sum(row["queries"] for row in rows) * config.mha.q_heads
    return Attended(rows=rows, outputs=outputs, seconds=time.perf_counter() - began)


def attention_table(outcome: Attended) -> list[str]:
    """Lines: each mode of each head."""
    lines = ["head  mode    cycles    bytes  of FP16  utilization   error  cycles/dense"]
    dense = {(row["layer"], row["kv_head"]): row["cycles"] for row in outcome.rows if row["mode"] == "dense"}
    for row in outcome.rows:
        head = f"{row['layer']}.{row['kv_head']}"
        ratio = row["cycles"] / dense[row["layer"], row["kv_head"]]
        lines.append(
            f"{head:4}  {row['mode']:5}  {row['cycles']:7,.0f}  {row['bytes']:7,.0f}  "
            f"{100 * row['read_fraction']:6.2f}%  {100 * row['utilization']:10.1f}%  {100 * row['error']:5.2f}%  "
            f"{ratio:12.3f}"
        )
    return lines


def fetched_by_newest(head: Head) -> Fetch:
    """What golden, and so the hardware, fetches for the newest query of a head."""
    _, fetch = attend(deepcopy(head.state), head.q_rows[:, -1:], shift=head.shift)
    return fetch


def kinds_of_tokens(head: Head, fetch: Fetch) -> NDArray[np.int64]:
    """For every token the index in `KINDS` of what the first query of ``fetch`` has read of it."""
    state = head.state
    kinds = np.empty(state.tokens, np.int64)
    kind = {name: number for number, name in enumerate(KINDS)}
    for number, group in enumerate(state.closed):
        bases = np.where(fetch.lower[0, number], kind["base, all of K"], kind["base, upper nibbles of K"])
        bases[fetch.v_salient[0, number]] = kind["base, K and V"]
        others = np.where(fetch.k_delta[0, number], kind["delta, upper two bits of K"], kind["delta, not read"])
        others[fetch.v_delta[0, number]] = kind["delta, K and V"]
        rows = np.concatenate([bases, others])  # in the order of the record
        first = number * len(rows)
        kinds[first + group.order] = rows if fetch.scanned[number] else kind["group not scanned"]
    kinds[state.compressed_tokens :] = np.where(fetch.v_int8[0], kind["INT8, K and V"], kind["INT8, K"])
    return kinds


def attention_of_newest(head: Head) -> NDArray[np.float64]:
    """For every token the attention that the model's newest query gives it, the largest of the query heads that share K
    and V."""
    score = head.q[:, -1].astype(np.float64) @ head.k.T.astype(np.float64) / np.sqrt(head.k.shape[1])
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return (weight / weight.sum(axis=1, keepdims=True)).max(axis=0)
