"""Compiled layers, carried out by golden functions in any order that their waits allow: the decoder's numbers."""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from cocotb_tests.golden.tiny_layer import tiny_layers
from golden.calibrate import calibration_for
from golden.control.commands import LINE_BYTES, Command, Opcode
from golden.control.memory import pack_projection
from golden.decoder import KV_MODES, DecoderLayer
from golden.gemm.core import Command as Projecting
from golden.gemm.core import Fault, command_fault
from golden.gemm.epilogue import Columns, Function
from golden.gemm.weights import Projection
from golden.integer_model import IntegerLayer, fixed_angles, fixed_residuals
from golden.model import ModelTokenizer, load_model, texts
from golden.settings import default_settings
from rtl.config import preset
from sim.compiler import SCHEDULES, compile_layer, expected_memory
from sim.compiler.program import KINDS
from sim.compiler.split import angle_rows, column_parts, limits, row_parts
from sim.interpreter import Interpreter, ProgramError, unpack_projection

#: tokens that sequences have before: none, a first group about to be full, a second one, compressed ones
LENGTHS = (0, 15, 47, 33, 64, 5, 31)


def config(*, control=None, gemm=None, cache=None):
    """The smallest preset with room for large batches, and changes."""
    base = preset("tiny")
    roomy = {"streams": 2, "max_sequences": 20, "record_pages": 256, "block_pages": 128, "addr_bits": 24}
    return replace(
        base,
        cache=replace(base.cache, **{**roomy, **(cache or {})}),
        control=replace(base.control, **{"scratch_words": 8192, **(control or {})}),
        gemm=replace(base.gemm, **{"cores": 4, **(gemm or {})}),
    )


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """Layers with groups of 16 tokens, as the preset has them."""
    return tiny_layers(
        tmp_path_factory.mktemp("compiler"),
        group_tokens=16,
        salient_tokens=4,
        sink_tokens=2,
        delta_bits=2,
        bus_bits=32,
        history_drop=0.25,
        tile_groups=4,
        keep_fraction=0.5,
    )


def batch(layers, lengths, **options):
    """A decoder with sequences of so many tokens."""
    decoder = layers.decoder(**options)
    for tokens in lengths:
        decoder.open(layers.heads(f"length{tokens}", tokens, dense=decoder.kv == "dense"))
    return decoder


def inputs(layers, steps, sequences):
    return layers.rows("compiler", steps * sequences).reshape(steps, sequences, -1)


def check(program, decoder, x, seed=0, positions=None):
    """Carry out a program; outputs and all of the cache in memory are those of the decoder, which goes on with it."""
    interpreter = Interpreter(program, decoder, seed=seed)
    out = interpreter.run()
    everyone = range(len(decoder.sequences))
    for step, rows in enumerate(x):
        given = None if positions is None else positions[step]
        np.testing.assert_array_equal(out[step], decoder.step(everyone, rows, given).out)
    for address, content in expected_memory(program, decoder):
        assert interpreter.memory[address : address + len(content)] == content
    return interpreter


@pytest.mark.parametrize("kv", KV_MODES)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 5, 6, 7, 20])
def test_queues_do_what_the_decoder_does(layers, kv, fused, schedule, sequences):
    """Batches of all sizes, of sequences of all kinds of lengths, through closes of groups."""
    decoder = batch(layers, [LENGTHS[i % len(LENGTHS)] for i in range(sequences)], kv=kv, fused=fused)
    x = inputs(layers, 3, sequences)
    check(compile_layer(config(), decoder, x, schedule=schedule), decoder, x, seed=sequences)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_decodes_from_nothing_through_many_groups(layers, schedule):
    decoder = batch(layers, [0, 7, 15])
    x = inputs(layers, 50, 3)
    interpreter = check(compile_layer(config(), decoder, x, schedule=schedule), decoder, x, seed=9)
    assert [len(states[0].closed) for states in interpreter.sequences] == [2, 2, 3]


@pytest.mark.parametrize("sub_batches", [1, 2, 3, 4, 5, 6])
def test_batches_are_divided_evenly(layers, sub_batches):
    decoder = batch(layers, LENGTHS[:5])
    x = inputs(layers, 3, 5)
    program = compile_layer(config(), decoder, x, sub_batches=sub_batches)
    sizes = [len(part) for part in program.sub_batches]
    assert len(sizes) == min(sub_batches, 5) and sum(sizes) == 5 and max(sizes) - min(sizes) <= 1
    assert program.semaphores == len(KINDS) * len(sizes)
    check(program, decoder, x, seed=sub_batches)


@pytest.mark.parametrize(
    "gemm",
    [
        {"cores": 1},
        {"cores": 3, "rows": 1, "columns": 2, "row_lanes": 1},
        {"cores": 8, "columns": 8, "row_lanes": 4},
        {"cores": 2, "rows": 4, "columns": 16, "row_lanes": 16, "pairs": 2},
        {"cores": 4, "weight_words": 16},  # too few for a further tile of rows
    ],
    ids=str,
)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_geometries(layers, gemm, fused):
    decoder = batch(layers, LENGTHS, fused=fused)
    x = inputs(layers, 2, len(LENGTHS))
    small = config(gemm=gemm)
    words = 2048 * 8 // small.gemm.row_lanes
    check(compile_layer(replace(small, control=replace(small.control, scratch_words=words)), decoder, x), decoder, x)


def test_other_positions(layers):
    decoder = batch(layers, [20, 3])
    x, positions = inputs(layers, 4, 2), generator("positions").integers(0, 200, (4, 2))
    check(compile_layer(config(), decoder, x, positions=positions), decoder, x, positions=positions)


def test_smollm2():
    """Layer 0 on a text, three sequences around the ends of groups, on the preset made for it."""
    model, settings = load_model(), default_settings()
    calibration = calibration_for(model, settings, progress=False)
    tokens = ModelTokenizer(model.file).encode(texts.read("prose"))
    rows = fixed_residuals(model.embed(tokens[:140]))
    given = model.config, IntegerLayer(model, calibration, 0), calibration, 0, settings
    decoders = [DecoderLayer(*given, rotary=partial(fixed_angles, model), fused=fused) for fused in (True, False)]
    for length in (0, 62, 127):
        index = decoders[0].open()
        for row in rows[:length]:
            decoders[0].step([index], row[None])
    for heads in decoders[0].sequences:
        decoders[1].open(heads)
    base = preset("smollm2")
    hardware = replace(base, cache=replace(base.cache, streams=3))
    x = np.stack([rows[length : length + 3] for length in (0, 62, 127)], axis=1)
    for decoder, schedule in zip(decoders, ("interleaved", "serial"), strict=True):
        check(compile_layer(hardware, decoder, x, schedule=schedule), decoder, x)


def test_compiling_leaves_the_decoder_alone(layers):
    decoder = batch(layers, LENGTHS)
    before = [[(s.tokens, len(s.closed), s.mass.tolist(), s.recent.tolist()) for s in h] for h in decoder.sequences]
    compile_layer(config(), decoder, inputs(layers, 3, len(LENGTHS)))
    after = [[(s.tokens, len(s.closed), s.mass.tolist(), s.recent.tolist()) for s in h] for h in decoder.sequences]
    assert before == after


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_missing_waits_are_noticed(layers, fused):
    """Without the waits of any stage some order gives other numbers, or is refused."""
    decoder = batch(layers, [0, 15, 47, 31], fused=fused)
    x = inputs(layers, 3, 4)
    program = compile_layer(config(), decoder, x)
    waiting = {program.tags[c.tag].stage for commands in program.queues.values() for c in commands if c.waits}
    expected = {"load", "qkv", "append", "attend", "close", "attention_output", "gate_up", "down", "store"}
    assert expected <= waiting
    reference = batch(layers, [0, 15, 47, 31], fused=fused)
    want = np.stack([reference.step(range(4), rows).out for rows in x])
    memory = list(expected_memory(program, reference))
    for stage in sorted(waiting - {"page"}):
        queues = {
            name: [replace(c, waits=()) if program.tags[c.tag].stage == stage else c for c in commands]
            for name, commands in program.queues.items()
        }
        broken = replace(program, queues=queues)
        assert any(differs(broken, decoder, want, memory, seed) for seed in range(20)), stage


def differs(program, decoder, want, memory, seed):
    interpreter = Interpreter(program, decoder, seed=seed)
    try:
        return (interpreter.run() != want).any() or any(interpreter.memory[a : a + len(c)] != c for a, c in memory)
    except ProgramError:
        return True


def test_waits_for_ever_are_noticed(layers):
    decoder = batch(layers, [3])
    program = compile_layer(config(), decoder, inputs(layers, 1, 1))
    mha = [replace(program.queues["mha"][0], signal=None), *program.queues["mha"][1:]]
    with pytest.raises(ProgramError, match=r"all queues wait: dma for .*gemm0 for "):
        Interpreter(replace(program, queues={**program.queues, "mha": mha}), decoder).run()


def test_cores_keep_step(layers):
    """Every core has as many commands in a stage as the others, which is what makes their common semaphore exact."""
    decoder = batch(layers, LENGTHS, fused=False)
    program = compile_layer(config(gemm={"cores": 8}), decoder, inputs(layers, 2, len(LENGTHS)))
    cores = [program.queues[f"gemm{n}"] for n in range(8)]
    assert len({len(commands) for commands in cores}) == 1
    for same in zip(*cores, strict=True):
        assert len({(c.tag, c.waits, c.signal) for c in same}) == 1
    assert Counter(c.opcode for commands in cores for c in commands)[Opcode.NOP] > 0


def timing(program, cost):
    """When each queue is busy, if commands took so many cycles each: begin, end and tag of all commands."""
    clock, done, spans = dict.fromkeys(program.queues, 0), defaultdict(list), defaultdict(list)
    left = {queue: list(commands) for queue, commands in program.queues.items()}
    while any(left.values()):
        for queue, commands in left.items():
            while commands and all(len(done[w.semaphore]) >= w.count for w in commands[0].waits):
                command = commands.pop(0)
                begin = max([clock[queue], *(sorted(done[w.semaphore])[w.count - 1] for w in command.waits)])
                clock[queue] = begin + cost(command)
                done[command.signal].append(clock[queue])
                spans[queue].append((begin, clock[queue], program.tags[command.tag]))
    return spans


def test_projections_of_one_sub_batch_overlap_attention_of_another(layers):
    """Attention takes as long as all projections: serially half of the time is lost, interleaved hardly any."""
    decoder = batch(layers, [40] * 4)
    x = inputs(layers, 6, 4)
    busy = {}
    for schedule in SCHEDULES:
        program = compile_layer(config(gemm={"act_words": 384}), decoder, x, schedule=schedule)
        size = len(program.sub_batches[0])
        costs = {Opcode.ATTEND: 100, Opcode.PROJECT: 50 * size}
        spans = timing(program, lambda command, costs=costs: costs.get(command.opcode, 1))
        end = max(last for own in spans.values() for _, last, _ in own)
        busy[schedule] = sum(last - begin for begin, last, _ in spans["mha"]) / end
        projecting = [(begin, last) for begin, last, _ in spans["gemm0"] if last - begin > 1]
        overlap = any(b < last and begin < e for b, e in projecting for begin, last, _ in spans["mha"])
        assert overlap == (schedule == "interleaved")
    assert 0.45 < busy["serial"] < 0.5 and busy["interleaved"] > 0.85


@pytest.mark.parametrize("columns", [4, 8, 12, 96, 128, 1000, 3072])
@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8])
def test_parts_of_columns(columns, cores):
    """They cover all columns, in whole tiles whose results begin a word; the largest one is at most a tile above its
    share."""
    hardware = config(gemm={"cores": cores})
    for function in (Function.LINEAR, Function.SWIGLU):
        parts = column_parts(hardware, columns, Projecting(function=function))
        assert [p.begin for p in parts] == [0, *(p.end for p in parts[:-1])] and parts[-1].end == columns
        assert len(parts) <= cores and all(p.begin % 4 == 0 for p in parts)
        halves = 2 if function is Function.SWIGLU else 1
        assert all(p.target == p.begin // halves and p.target % 2 == 0 for p in parts)
        assert max(p.columns for p in parts) < columns / cores + 4


def test_parts_of_turned_columns_are_whole_heads():
    hardware = config(gemm={"cores": 4, "columns": 4})
    command = Projecting(function=Function.ROTARY, head_dim=16, rotary_columns=96)
    parts = column_parts(hardware, 128, command)
    assert [(p.begin, p.end, p.rotary) for p in parts] == [(0, 32, 32), (32, 64, 32), (64, 96, 32), (96, 128, 0)]
    parts = column_parts(config(gemm={"cores": 3}), 128, command)
    assert [(p.begin, p.end, p.rotary) for p in parts] == [(0, 48, 48), (48, 96, 48), (96, 128, 0)]


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 40])
@pytest.mark.parametrize("function", [Function.LINEAR, Function.ROTARY])
def test_parts_of_rows_are_as_large_as_a_core_takes(rows, function):
    hardware = config()
    turned = 16 if function is Function.ROTARY else 0
    command = Projecting(function=function, head_dim=16, rotary_columns=turned)
    parts = row_parts(hardware, rows, 32, 64, command)
    assert [first for first, _ in parts] == np.cumsum([0, *(count for _, count in parts[:-1])]).tolist()
    assert sum(count for _, count in parts) == rows

    def fault(count):
        options = {"function": function, "norm": 0, "rotary_columns": turned, "add_residual": False}
        return command_fault(count, 32, 64, **options, limits=limits(hardware))

    assert all(fault(count) is Fault.NONE for _, count in parts)
    assert len(parts) == 1 or fault(parts[0][1] + 1) is not Fault.NONE
    assert all(first * 32 % LINE_BYTES == 0 for first, _ in parts) or function is Function.LINEAR


def test_rows_of_angles_fill_lines():
    assert [angle_rows(dim) for dim in (16, 24, 32, 64, 80, 128)] == [2, 4, 1, 1, 2, 1]
    with pytest.raises(ValueError, match="a GEMM core must take 2 rows of 200 elements, not K"):
        row_parts(config(), 3, 200, 8, Projecting())


def test_memory_is_divided(layers):
    """Regions follow each other; what they hold lies in them; rings have the size that the hardware wants."""
    decoder = batch(layers, LENGTHS)
    program = compile_layer(config(), decoder, inputs(layers, 2, len(LENGTHS)))
    end = 0
    for region in program.regions.values():
        assert region.line == end
        end += region.lines
    assert program.lines == end
    assert all(address + len(content) <= end * LINE_BYTES for address, content in program.image)
    spans = sorted((address, address + len(content)) for address, content in program.image)
    assert all(last <= begin for (_, last), (begin, _) in pairwise(spans))
    for queue, commands in program.queues.items():
        line, log2, content = program.ring(queue)
        assert (line, 1 << log2) == program.regions[f"ring.{queue}"] and len(commands) <= 1 << log2
        words = [content[n : n + LINE_BYTES] for n in range(0, len(content), LINE_BYTES)]
        assert [Command.from_bytes(word).tag for word in words] == [command.tag for command in commands]
    assert program.setup["dsq"] > 0 and program.setup["mha"] == program.setup["gemm0"] == 0
    assert program.setup["dma"] == 1  # one sequence is new


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"schedule": "random"}, "schedule must be one of serial, interleaved, not 'random'"),
        ({}, {"sub_batches": 0}, "sub_batches must be at least 1, not 0"),
        ({"control": {"scratch_words": 99}}, {}, "control.scratch_words must be at least 336 for a batch of 3, not 99"),
        ({"control": {"scratch_rows": 5}}, {}, "control.scratch_rows must be at least 6 for a batch of 3, not 5"),
        ({"control": {"semaphores": 7}}, {}, "control.semaphores must be at least 8, not 7"),
        ({"cache": {"streams": 3}}, {}, "cache.streams must be 2 for this model, not 3"),
        ({"cache": {"max_sequences": 2}}, {}, "sequences must be from 1 to cache.max_sequences=2, not 3"),
        ({"cache": {"block_pages": 4}}, {}, "pages must be enough for sequence 2: BLOCK gives FULL"),
        ({"cache": {"record_pages": 16, "block_pages": 32, "addr_bits": 16}}, {}, "cache.addr_bits must be enough for"),
        ({"gemm": {"act_bits": 10}}, {}, "gemm.act_bits must be 12 for this model, not 10"),
        ({"gemm": {"row_lanes": 32}}, {}, "head_dim must be a multiple of gemm.row_lanes=32, not 16"),
    ],
)
def test_refuses_hardware_that_is_too_small(layers, change, options, message):
    decoder = batch(layers, [15, 47, 40])
    with pytest.raises(ValueError, match=re.escape(message)):
        compile_layer(config(**change), decoder, inputs(layers, 1, 3), **options)


def test_refuses_what_does_not_fit_together(layers):
    decoder = batch(layers, [1, 2])
    with pytest.raises(ValueError, match=re.escape("x must have the shape [steps, 2, 32], not [1, 3, 32]")):
        compile_layer(config(), decoder, inputs(layers, 1, 3))
    decoder = batch(layers, [1, 2], fused=False)
    with pytest.raises(ValueError, match=r"control\.scratch_rows must leave 2 rows for passes of their own, not 1"):
        compile_layer(config(control={"scratch_rows": 6}), decoder, inputs(layers, 1, 2))


def test_unpacks_what_was_packed():
    draw = generator("unpack")
    for columns, k, tile, bus in ((8, 5, 4, 32), (10, 7, 4, 128), (3, 1, 16, 64)):
        given = Projection(
            weights=draw.integers(-127, 128, (columns, k)).astype(np.int8),
            columns=Columns(
                scale=draw.integers(1 << 15, 1 << 16, columns),
                shift=draw.integers(-64, 64, columns),
                bias=draw.integers(-(2**31), 2**31, columns),
            ),
        )
        content = pack_projection(given.weights, given.columns, tile, bus)
        got = unpack_projection(content, columns, k, tile, bus)
        assert (got.weights == given.weights).all()
        for name in ("scale", "shift", "bias"):
            assert (getattr(got.columns, name) == getattr(given.columns, name)).all(), name
