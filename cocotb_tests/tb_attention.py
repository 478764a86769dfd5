"""Driver of `sim.attention`: queries of real heads through MhaCore, every output against golden, cycles counted.

The folder that the parameters name holds the heads with their modes, `heads.pkl`, and perhaps records that memory holds
in place of golden's, `records.npz`. The rows go to `results.json` there, the first difference as a sentence to
`difference`.
"""

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from cocotb_tests.lib import params
from cocotb_tests.lib.bench import start
from cocotb_tests.lib.stream import StreamSink, StreamSource
from cocotb_tests.lib.word_memory import WordMemory
from cocotb_tests.mha.attention import (
    Query,
    beats,
    calibration_words,
    dense_queries,
    job_fields,
    queries_of,
    received_rows,
    words_of,
)
from golden.dsq.record import RecordLayout
from golden.heads import Head
from golden.state import HeadState
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.mha._requests import Fault, Piece, block_words
from rtl.mha.core import MhaCore

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["config"]["dsq"]), mha=MhaConfig(**params()["config"]["mha"]))
FOLDER = Path(params()["folder"])


class DifferenceError(AssertionError):
    """Hardware and golden differ; the message says where."""


def compare(names: Sequence[str], got: NDArray[Any], expected: NDArray[Any]) -> None:
    """`DifferenceError` with the place of the first element that differs, its indices called `names`."""
    places = np.argwhere(got != expected)
    if len(places):
        at = tuple(int(place) for place in places[0])
        where = ", ".join(f"{name} {place}" for name, place in zip(names, at, strict=True))
        raise DifferenceError(f"{where} is {got[at]}, golden {expected[at]}")


def records_from_file(head: Head) -> dict[int, list[int]] | None:
    """The records of a head in `records.npz`, as words by group; None when there is no such file."""
    file = FOLDER / "records.npz"
    if not file.exists():
        return None
    with np.load(file) as arrays:
        records = arrays[f"{head.layer}.{head.kv_head}"]
    return {number: words_of(record, CONFIG.dsq.bus_bits) for number, record in enumerate(records)}


def array_of(request: dict[str, int], salient: int) -> list[str]:
    """For each word of a request: header and scales (``none``), the array of K or that of V."""
    first, count = request["word"], request["count"]
    if request["dense"]:
        pieces = {piece: block_words(CONFIG)[piece][0] for piece in (Piece.K_ROWS, Piece.V_SCALES, Piece.V_ROWS)}
        limits = [("none", pieces[Piece.K_ROWS]), ("k", pieces[Piece.V_SCALES]), ("none", pieces[Piece.V_ROWS])]
    else:
        c, word = CONFIG.dsq, CONFIG.dsq.bus_bits // 8
        layout = RecordLayout(
            head_dim=c.head_dim,
            group_tokens=c.group_tokens,
            salient_tokens=salient,
            delta_bits=c.delta_bits,
            bus_bits=c.bus_bits,
        )
        limits = [("none", layout.upper.offset // word), ("k", layout.v_salient.offset // word)]
    return [next((name for name, limit in limits if at < limit), "v") for at in range(first, first + count)]


class Bench:
    """The core's streams with a memory behind it."""

    def __init__(self, dut: Any) -> None:
        core = MhaCore(CONFIG)
        shapes = {name: member.signature.members["payload"].shape for name, member in core.signature.members.items()}
        self.queries: list[Query] = []
        self.job = StreamSource(dut, "i_job", shape=shapes["i_job"])
        self.calibration = StreamSource(dut, "i_calibration")
        self.rows = StreamSource(dut, "i_query")
        self.scan = StreamSource(dut, "i_scan", shape=shapes["i_scan"])
        self.o, self.status = StreamSink(dut, "o"), StreamSink(dut, "o_status")
        self.mass = StreamSink(dut, "o_mass", shape=shapes["o_mass"])
        self.arrays: Counter[str] = Counter()
        self.memory = WordMemory(dut, shapes["o_request"], self.read, latency=params()["latency"])

    def read(self, request: Any) -> list[int]:
        """Words of a request, counted by what takes them."""
        fields = {name: int(request[name]) for name in ("dense", "group", "word", "count")}
        self.arrays.update(array_of(fields, self.queries[0].settings.salient_tokens))
        return self.queries[-1].memory.read(fields)

    async def check(self, head: Head, queries: list[Query]) -> dict[str, Any]:
        """Run the queries of one head in one mode; cycles between the ends of the first and the last but one."""
        self.queries = queries
        self.arrays.clear()
        start_cycle = self.memory.engine.cycle
        for number, query in enumerate(queries):
            self.job.send_nowait([job_fields(query, load_calibration=number == 0)])
            if number == 0:
                self.calibration.send_nowait(calibration_words(query.state.calibration))
            self.rows.send_nowait(beats(query.rows, CONFIG.dsq.lanes))
            self.scan.send_nowait(query.scan)
        marks, outputs = [], []
        beats_of_row = CONFIG.mha.q_heads * CONFIG.dsq.row_beats
        for number, query in enumerate(self.queries):
            words = await self.o.recv(beats_of_row, timeout=2_000_000)
            outputs.append(received_rows(words, CONFIG))
            try:
                await self.compare(query, outputs[-1])
            except DifferenceError as error:
                raise DifferenceError(f"query {number}: {error}") from None
            marks.append((self.o.transfers[-1], dict(self.memory.cycles)))
        (begin, before), (end, after) = marks[0], marks[-2]
        spans = len(marks) - 2
        kinds = ("busy", "stalled", "waiting", "idle")
        counted = {kind: (after.get(kind, 0) - before.get(kind, 0)) / spans for kind in kinds}
        total = sum(self.arrays.values())
        return {
            "queries": len(self.queries),
            "cycles": (end - begin) / spans,
            "first_cycles": begin - start_cycle,
            **counted,
            "words": total / len(self.queries),
            "bytes": total / len(self.queries) * CONFIG.dsq.bus_bits // 8,
            **{f"{name}_words": self.arrays[name] / len(self.queries) for name in ("k", "v", "none")},
            "error": head.error(np.stack(outputs, axis=1)),
        }

    async def compare(self, query: Query, out: NDArray[np.int16]) -> None:
        """The status, the output, and the masses of INT8 tokens and groups."""
        (status,) = await self.status.recv(1)
        if status:
            raise DifferenceError(f"the core reports {Fault(status & 7).name} in group {status >> 3}")
        compare(["query head", "output channel"], out, query.out)
        tokens, groups = np.zeros_like(query.token_mass), np.zeros_like(query.group_mass)
        last = False
        while not last:
            (entry,) = await self.mass.recv(1)
            last = bool(entry["last"])
            (groups if entry["group"] else tokens)[int(entry["index"])] += int(entry["mass"])
        compare(["mass of INT8 token"], tokens, query.token_mass)
        compare(["mass of group"], groups, query.group_mass)


@cocotb.test()
async def attends(dut):
    bench = Bench(dut)
    await start(dut)
    results = []
    for head, modes in pickle.loads((FOLDER / "heads.pkl").read_bytes()):
        for mode in modes:
            if mode == "dense":
                cache = HeadState(head.state.settings, head.state.calibration)
                cache.append(head.k_rows, head.v_rows)
                queries = dense_queries(cache, head.q_rows, CONFIG, shift=head.shift)
            else:
                records = records_from_file(head)
                queries = queries_of(head.state, head.q_rows, CONFIG, shift=head.shift, records=records)
            try:
                outcome = await bench.check(head, list(queries))
            except DifferenceError as error:
                sentence = f"layer {head.layer}, KV head {head.kv_head}, mode {mode}, {error}"
                (FOLDER / "difference").write_text(sentence)
                raise
            which = {"context": head.state.tokens, "layer": head.layer, "kv_head": head.kv_head, "mode": mode}
            results.append({**which, **outcome})
            (FOLDER / "results.json").write_text(json.dumps(results))
            (FOLDER / "progress").write_text(str(len(results)))
