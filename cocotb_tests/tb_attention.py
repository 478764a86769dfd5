"""Driver of `sim.attention`: queries of real heads through MhaCore, every output against golden, cycles counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

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
    real_heads,
    received_rows,
)
from golden.dsq.record import RecordLayout
from golden.state import HeadState
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig
from rtl.mha._requests import Piece, block_words
from rtl.mha.core import MhaCore

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["config"]["dsq"]), mha=MhaConfig(**params()["config"]["mha"]))
FOLDER = Path(params()["folder"])


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

    async def check(self, queries: list[Query]) -> dict[str, Any]:
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
        marks = []
        beats_of_row = CONFIG.mha.q_heads * CONFIG.dsq.row_beats
        for number, query in enumerate(self.queries):
            words = await self.o.recv(beats_of_row, timeout=2_000_000)
            np.testing.assert_array_equal(received_rows(words, CONFIG), query.out, err_msg=f"query {number}")
            assert await self.status.recv(1) == [0]
            await self.check_mass(query)
            marks.append((self.o.transfers[-1], dict(self.memory.cycles), self.memory.words))
        (begin, before, _), (end, after, _) = marks[0], marks[-2]
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
        }

    async def check_mass(self, query: Query) -> None:
        """The masses of INT8 tokens and groups."""
        tokens, groups = np.zeros_like(query.token_mass), np.zeros_like(query.group_mass)
        last = False
        while not last:
            (entry,) = await self.mass.recv(1)
            last = bool(entry["last"])
            (groups if entry["group"] else tokens)[int(entry["index"])] += int(entry["mass"])
        np.testing.assert_array_equal(tokens, query.token_mass)
        np.testing.assert_array_equal(groups, query.group_mass)


@cocotb.test()
async def attends(dut):
    bench = Bench(dut)
    await start(dut)
    results = []
    for context, layer, kv_head, modes in params()["runs"]:
        (head,) = real_heads(CONFIG, [(layer, kv_head)], context=context, count=params()["queries"])
        for mode in modes:
            cache, make = head.state, queries_of
            if mode == "dense":
                cache, make = HeadState(head.state.settings, head.state.calibration), dense_queries
                cache.append(head.k_rows, head.v_rows)
            outcome = await bench.check(list(make(cache, head.q_rows, CONFIG, shift=head.shift)))
            results.append({"context": context, "layer": layer, "kv_head": kv_head, "mode": mode, **outcome})
            (FOLDER / "results.json").write_text(json.dumps(results))
            (FOLDER / "progress").write_text(str(len(results)))
