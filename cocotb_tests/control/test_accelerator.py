"""The whole accelerator on a DRAM model: compiled decoder layers, bad commands, resets."""

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cocotb_tests.cache.system import System
from cocotb_tests.control.plans import Plan, dram_for, plan_for
from cocotb_tests.control.system import LoggedAccelerator
from cocotb_tests.golden.tiny_layer import TinyLayers, tiny_layers
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from golden.decoder import DecoderLayer
from golden.model import load_model
from rtl.config import AcceleratorConfig, preset
from sim.batches import BatchMaker
from sim.compiler import compile_layer

BASE = preset("tiny")
TINY = replace(
    BASE,
    cache=replace(BASE.cache, streams=2, max_sequences=4, addr_bits=24),
    control=replace(BASE.control, scratch_words=2048),
)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> TinyLayers:
    return tiny_layers(
        tmp_path_factory.mktemp("tiny"),
        group_tokens=16,
        salient_tokens=4,
        sink_tokens=2,
        bus_bits=32,
        history_drop=0.25,
        tile_groups=4,
        keep_fraction=0.5,
    )


def plans_of(
    layers: TinyLayers, lengths: Sequence[int], steps: int, kinds: Sequence[dict[str, str]]
) -> tuple[list[Plan], int]:
    """A plan for each kind of run, and the lines of memory that they need."""
    plans, lines = [], 0
    x = layers.rows("rows", steps * len(lengths)).reshape(steps, len(lengths), -1)
    for kind in kinds:
        options = {"kv": kind.get("kv", "dsq+hcap"), "fused": kind.get("fusion") != "off"}
        decoder: DecoderLayer = layers.decoder(**options)
        for tokens in lengths:
            decoder.open(layers.heads(f"length{tokens}", tokens, dense=options["kv"] == "dense"))
        after = copy.deepcopy(decoder)
        program = compile_layer(TINY, decoder, x, schedule=kind.get("schedule", "interleaved"))
        outputs = [after.step(range(len(lengths)), rows).out for rows in x]
        name = ", ".join(f"{key} {value}" for key, value in kind.items())
        plans.append(plan_for(name, program, after, outputs, padded=kind.get("padded") == "yes"))
        lines = max(lines, program.lines)
    return plans, lines


def with_room(plan: Plan, lines: int) -> tuple[Plan, int]:
    """A plan whose window has 64 more lines at its end, for other rings."""
    return replace(plan, settings={**plan.settings, "window_end": lines + 64}), lines + 128


def run(
    config: AcceleratorConfig,
    plans: list[Plan],
    lines: int,
    simulator: str,
    folder: Path,
    tests: str,
    part: str = "ideal",
    **dram: float,
) -> None:
    memory = dram_for(config, lines, part, **dram)
    (folder / "plans.pkl").write_bytes(pickle.dumps({"config": config, "dram": memory, "plans": plans}))
    launch.run(
        System(LoggedAccelerator(config), memory),
        name="accelerator",
        tb="cocotb_tests.control.tb_accelerator",
        parameters={"folder": str(folder), "resets": 12},
        simulators=simulator,
        tests=tests,
        sources=DRAM_SOURCES,
    )


KINDS = [
    {"schedule": "interleaved"},
    {"schedule": "serial", "kv": "dsq"},
    {"schedule": "serial", "kv": "dense", "fusion": "off"},
    {"schedule": "interleaved", "kv": "dense", "padded": "yes"},
]


@launch.simulators("verilator")
def test_decodes_a_random_layer(layers, simulator, tmp_path):
    """Sequences of all kinds of lengths, through closes of groups, in all modes, one after the other with resets."""
    plans, lines = plans_of(layers, (0, 15, 47), 20, KINDS)
    run(TINY, plans, lines, simulator, tmp_path, "decodes", latency=5)


@pytest.mark.nightly
@launch.simulators("icarus")
def test_decodes_on_icarus(layers, simulator, tmp_path):
    """A group becomes full, the one before is compressed."""
    plans, lines = plans_of(layers, (31,), 1, KINDS[:1])
    run(TINY, plans, lines, simulator, tmp_path, "decodes", latency=5)


@launch.simulators("verilator")
def test_reports_faults_and_recovers(layers, simulator, tmp_path):
    """Bad commands of all kinds, a watchdog, errors of memory, resets in traffic, memory that stalls."""
    plans, lines = plans_of(layers, (0, 15), 2, KINDS[:1])
    plan, lines = with_room(plans[0], lines)
    tests = "reports_faults|recovers_from_resets|memory_may_stall"
    run(TINY, [plan], lines, simulator, tmp_path, tests, part="sdr-133")


def real_plan(contexts: Sequence[int], steps: int) -> tuple[AcceleratorConfig, Plan, int]:
    """Layer 0 of SmolLM2 on its preset, and the lines of memory that it needs."""
    base = preset("smollm2")
    pages = {"streams": 3, "max_sequences": len(contexts), "record_pages": 64, "block_pages": 32}
    config = replace(base, cache=replace(base.cache, **pages))
    batch = BatchMaker(config, load_model(), 0).make(contexts, steps, kv="dsq+hcap", fused=True)
    after = copy.deepcopy(batch.decoder)
    program = compile_layer(config, batch.decoder, batch.x, positions=batch.positions, schedule="serial")
    everyone = range(len(contexts))
    outputs = [after.step(everyone, *given).out for given in zip(batch.x, batch.positions, strict=True)]
    return config, plan_for("smollm2", program, after, outputs, limit=60_000_000), program.lines


@pytest.mark.nightly
@launch.simulators("verilator")
def test_decodes_a_real_layer(simulator, tmp_path):
    """130 tokens of each of five sequences of different lengths, through closes of groups."""
    config, plan, lines = real_plan((0, 30, 63, 100, 127), 130)
    run(config, [plan], lines, simulator, tmp_path, "decodes", part="ddr4-2400", latency=20)
