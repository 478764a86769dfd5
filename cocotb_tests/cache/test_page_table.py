"""PageTable: golden by hand and at random, geometries, bad configs, and the start of the simulations."""

import pickle
import re
from dataclasses import asdict

import pytest

from cocotb_tests.cache.page_traffic import OUTCOMES, Command, apply, check, lookups, random_step
from cocotb_tests.lib import launch, rng
from golden.cache.page_table import MAX_USERS, PageOp, PageStatus, PageTable, Reply
from rtl.cache.page_table import PageConfig
from rtl.cache.page_table import PageTable as Hardware

OK, BUSY, ORDER, FULL = PageStatus.OK, PageStatus.BUSY, PageStatus.ORDER, PageStatus.FULL
SMALL = {"max_sequences": 3, "streams": 5, "max_groups": 7, "record_pages": 11, "block_pages": 9}
SMALLEST = dict.fromkeys(SMALL, 1)


def run(simulator: str, config: PageConfig, *, steps: int, sweep: int = 10, every_outcome: bool = False) -> None:
    launch.run(
        Hardware(config),
        name="cache_page_table",
        tb="cocotb_tests.cache.tb_page_table",
        parameters={"config": asdict(config), "steps": steps, "sweep": sweep, "every_outcome": every_outcome},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("sizes", [SMALLEST, SMALL], ids=["smallest", "odd"])
def test_matches_golden_in_small_geometries(simulator, sizes):
    run(simulator, PageConfig(**sizes), steps=40)


@launch.simulators("verilator")
def test_matches_golden(simulator):
    """Many forks; pools that are often full, so that every outcome is seen."""
    config = PageConfig(max_sequences=6, streams=7, max_groups=20, record_pages=30, block_pages=40)
    run(simulator, config, steps=250, sweep=40, every_outcome=True)


@launch.simulators("verilator")
def test_matches_golden_in_the_default_geometry(simulator):
    run(simulator, PageConfig(), steps=60, sweep=30)


@pytest.mark.nightly
@launch.simulators("verilator")
@pytest.mark.parametrize(
    "config",
    [
        PageConfig(),
        PageConfig(max_sequences=2, streams=1, max_groups=4, record_pages=3, block_pages=4),
        PageConfig(max_sequences=32, streams=3, max_groups=33, record_pages=100, block_pages=90),
    ],
    ids=["default", "few", "many"],
)
def test_matches_golden_in_further_geometries(simulator, config):
    run(simulator, config, steps=500, sweep=100)


def test_golden_by_hand():
    """The life of two sequences, step by step."""
    table = PageTable(max_sequences=2, streams=2, max_groups=3, record_pages=2, block_pages=4)
    assert table.block(0) == Reply(PageStatus.CLOSED)
    assert table.open(0) == Reply(OK)
    assert table.open(0) == Reply(PageStatus.OPENED)
    assert table.record(0) == Reply(ORDER)  # there is nothing to compress
    assert table.block(0) == Reply(OK, group=0, page=0)
    assert table.block(0) == Reply(OK, group=1, page=1)
    assert table.release(0) == Reply(ORDER)  # nothing has been compressed
    assert table.record(0) == Reply(OK, group=0, page=0)
    assert table.record(0) == Reply(ORDER)  # one at a time
    assert table.fork(0, 1) == Reply(BUSY)
    assert table.commit(0, 1) == Reply(OK)
    assert table.commit(0, 1) == Reply(PageStatus.REPEATED)
    assert table.count(0, 0) == Reply(OK, group=0, blocks_end=2)  # stream 0 still reads its block
    assert table.count(0, 1) == Reply(OK, group=1, blocks_end=2)
    assert table.release(0) == Reply(BUSY)  # stream 0 has not committed
    assert table.commit(0, 0) == Reply(OK)
    assert table.hold(0) == Reply(OK)
    assert table.release(0) == Reply(BUSY)  # a job reads
    assert table.end(0) == Reply(BUSY)
    assert table.drop(0) == Reply(OK)
    assert table.drop(0) == Reply(ORDER)
    assert [table.lookup(0, 1, group) for group in range(3)] == [0, 1, None]
    assert table.release(0) == Reply(OK, group=0, other=0)
    assert [table.lookup(0, 1, group) for group in range(3)] == [None, 1, None]
    assert table.commit(0, 0) == Reply(PageStatus.REPEATED)
    assert table.block(0) == Reply(OK, group=2, page=2)
    assert table.block(0) == Reply(PageStatus.RANGE)  # no more groups
    assert table.fork(0, 1) == Reply(OK, group=2, page=3, other=2)
    assert table.blocks.free == 1  # page 0; the fork shares page 1 and has one of its own
    assert [table.lookup(1, 1, group) for group in range(4)] == [None, 1, 3, None]
    assert table.lookup(1, 0, 0) == table.lookup(0, 0, 0) == 0
    assert table.end(0) == Reply(OK)
    assert (table.records.free, table.blocks.free) == (1, 2)  # the fork keeps pages 1 and 3, and the record
    assert table.lookup(0, 1, 2) is None
    assert table.record(1) == Reply(OK, group=1, page=1)
    assert table.open(0) == Reply(OK)
    assert [table.block(0).page for _ in range(2)] == [2, 0]  # the one that came back last comes first
    assert table.record(0) == Reply(FULL)
    assert table.block(0) == Reply(FULL)
    assert table.end(1) == Reply(OK)
    assert [table.hold(0).status for _ in range(MAX_USERS + 1)] == [OK] * MAX_USERS + [FULL]
    check(table)


def test_fork_of_a_sequence_without_blocks_copies_nothing():
    table = PageTable(max_sequences=3, streams=1, max_groups=3, record_pages=2, block_pages=1)
    table.open(0)
    assert table.fork(0, 1) == Reply(OK)
    for command in (table.block(0), table.record(0), table.commit(0, 0), table.release(0), table.fork(0, 2)):
        assert command.status == OK
    assert table.lookup(2, 0, 0) == 0 and table.count(2, 0) == Reply(OK, group=1, blocks_end=1)
    assert (table.records.free, table.blocks.free) == (1, 1)


def test_pages_of_an_ended_sequence_are_handed_out_in_its_order():
    table = PageTable(max_sequences=2, streams=1, max_groups=8, record_pages=4, block_pages=4)
    for _ in range(3):
        table.open(0)
        assert [table.block(0).page for _ in range(4)] == [0, 1, 2, 3]
        table.end(0)


def test_invariants_hold_in_every_state_of_a_tiny_table():
    """All states that any commands lead to, with at most one job a sequence."""
    pending = [PageTable(max_sequences=2, streams=1, max_groups=2, record_pages=2, block_pages=2)]
    seen = set()
    commands = [Command(op, sequence, 1 - sequence) for op in PageOp for sequence in (0, 1)]
    while pending:
        table = pickle.dumps(pending.pop())
        for command in commands:
            after = pickle.loads(table)
            reply = apply(after, command)
            check(after)
            state = repr((vars(after.records), vars(after.blocks), after.sequences))
            assert reply.status == OK or pickle.dumps(after) == table
            if state not in seen and all(sequence is None or sequence.users < 2 for sequence in after.sequences):
                seen.add(state)
                pending.append(after)
    assert len(seen) > 1000


@pytest.mark.parametrize("sizes", [SMALLEST, SMALL, {**SMALL, "max_sequences": 6, "block_pages": 20}])
def test_invariants_hold_in_random_traffic(sizes):
    """References are table entries, free and used pages are all pages, no lookup gives a free page."""
    draw = rng("invariants", *sizes.values())
    table = PageTable(**sizes)
    seen = {op: set() for op in PageOp}
    for step in range(1500):
        for command in random_step(draw, table):
            reply = apply(table, command)
            check(table)
            if command.op in seen:
                seen[command.op].add(reply.status)
        if step % 20 == 0:
            for sequence, dense, group in lookups(table):
                page = table.lookup(sequence, dense, group)
                pool = table.blocks if dense else table.records
                assert page is None or pool.references[page] > 0
    for op, statuses in seen.items():
        assert statuses <= OUTCOMES[op]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("max_sequences", 256),
        ("streams", 65536),
        *((n, 1 << 20) for n in ("max_groups", "record_pages", "block_pages")),
    ],
)
def test_rejects_bad_configs(name, most):
    for value in (0, most + 1):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{name} must be from 1 to {most}, not {value}')}$"):
            PageConfig(**{name: value})
