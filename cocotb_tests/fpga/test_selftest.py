"""The self test of boards: on a board without hardware, with and without faults, and on the RTL of the accelerator."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from cocotb_tests.cache.system import System
from cocotb_tests.control.plans import dram_for
from cocotb_tests.control.system import LoggedAccelerator
from cocotb_tests.fpga.fake_board import FakeBoard
from cocotb_tests.lib import launch
from cocotb_tests.lib.dram import DRAM_SOURCES
from fpga import selftest
from fpga.client import Errors
from fpga.host import describe
from fpga.selftest_data import settings_for
from fpga.selftest_run import Plan, Row, prepare, run
from golden.control.commands import LINE_BYTES, Command, Error, Opcode
from golden.errors import UserError
from rtl.config import PRESETS, preset

DRAM_BYTES = 1 << 20
TINY = preset("tiny")
PARTS = ["board", "memory", "dsq", "heads", "gemm", "faults", "step"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return prepare(TINY, groups=2, heads=2, steps=2)


@pytest.fixture
def board(plan: Plan) -> FakeBoard:
    return FakeBoard(TINY, plan.heads, DRAM_BYTES)


def carry_out(board: FakeBoard, plan: Plan) -> tuple[list[Row], str | None]:
    ready: list[Any] = []
    rows: list[Row] = []
    information, fault = run(
        board,
        plan,
        initialize=lambda link, information: ready.append(link),
        random_words=64,
        passed=rows.append,
        patience=0.1,
    )
    assert ready == [board]
    assert information.dram_bytes == DRAM_BYTES
    return rows, fault


def names(rows: list[Row]) -> list[str]:
    return [row.part for row in rows]


def after(opcode: Opcode, number: int, change: Callable[[Command], Any]) -> Callable[[str, Command], None]:
    """Carries out ``change`` after the command with that number of all with an opcode."""
    seen = 0

    def spoil(queue: str, command: Command) -> None:
        nonlocal seen
        if command.opcode is opcode:
            if seen == number:
                change(command)
            seen += 1

    return spoil


def flip(board: FakeBoard, address: int) -> None:
    board.memory[address] ^= 0x10


def test_good_board_passes(board, plan):
    rows, fault = carry_out(board, plan)
    assert fault is None
    assert names(rows) == PARTS
    assert all(row.words > 0 and row.mismatches == 0 and row.link_bytes > 0 for row in rows)
    assert all(row.cycles > 0 for row in rows if row.part in ("dsq", "heads", "gemm", "step"))


def test_all_kinds_of_results_are_compared(plan):
    labels = " ".join(piece.label for part in plan.parts for piece in part.expected)
    for kind in ("record of head 0.0, group 1", "INT8 tokens of head 29.1, group 2", "state of head 0.0 when group 0"):
        assert kind in labels
    for kind in ("output of head 29.1, token 49, query head 1", "after attention", "projection gate_up, row 1"):
        assert kind in labels


def test_attention_leaves_records_out(plan):
    attends = [c.operands for part in plan.parts for c in part.commands["mha"]]
    assert {own["records"] for own in attends} == {2}
    assert all(own["drop_count"] == 1 and own["prune"] == 1 and own["use_state"] == 1 for own in attends)


def test_projections_are_split_over_the_cores(plan):
    for queue in ("gemm0", "gemm1"):
        assert [c.opcode for c in plan.parts[2].commands[queue]] == [Opcode.PROJECT] * 2


@pytest.mark.parametrize("name", PRESETS)
def test_plan_fits_the_presets(name):
    config = preset(name)
    made = prepare(config, groups=1, heads=1, steps=1)
    assert made.size <= 1 << config.cache.addr_bits
    assert made.heads[0].k_rows.shape == (2 * config.dsq.group_tokens + 1, config.dsq.head_dim)
    assert made.heads[0].q_rows.shape[0] == config.mha.q_heads
    assert settings_for(config).salient_tokens <= config.dsq.max_salient


def test_other_config_is_refused(board, plan):
    board.information[3] ^= 1
    with pytest.raises(UserError, match=r"^the board has an accelerator of another config, with CRC 0x\w{8}, not 0x"):
        carry_out(board, plan)


def test_something_else_is_refused(board, plan):
    board.information[0] = 0x12345678
    with pytest.raises(UserError, match=r"^the port must lead to a KVO board, not to one that answers 0x12345678$"):
        carry_out(board, plan)


def test_small_memory_is_refused(board, plan):
    board.information[2] = 4096
    with pytest.raises(UserError, match=r"^--groups and --heads must be fewer: [\d,]+ bytes are needed, 4,096"):
        carry_out(board, plan)


def test_bad_data_bit_is_found(board, plan):
    board.flips = [(31 * 4 + 1, 3)]
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board"]
    assert fault == (
        "memory, a one walking over data bits: 1 of 32 words differ, the first at address 0x0000007c: "
        "0x80000800 instead of 0x80000000"
    )


def test_missing_address_line_is_found(board, plan):
    write = board.write

    def without_a_bit(address: int, words: Any) -> None:
        write(address & ~0x800 if address < DRAM_BYTES else address, words)

    board.write = without_a_bit
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board"]
    assert fault.startswith("memory, a word of its own at each address bit: 1 of 1 words differ, the first at address ")


def test_flipped_bit_of_a_record_is_found(board, plan):
    record = next(piece for piece in plan.parts[0].expected if piece.label == "record of head 29.1, group 1")
    board.spoils = after(Opcode.CLOSE, 5, lambda command: flip(board, record.address + 9))
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory"]
    got = int.from_bytes(record.content[8:12], "little")
    assert fault == (
        f"record of head 29.1, group 1: 1 of {len(record.content) // 4} words differ, the first at address "
        f"{record.address + 8:#010x}: {got ^ 0x1000:#010x} instead of {got:#010x}"
    )


def test_wrong_output_is_found(board, plan):
    def spoil(command: Command) -> None:
        flip(board, command.operands["address"] * LINE_BYTES)

    board.spoils = after(Opcode.STORE, 3, spoil)
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory", "dsq"]
    assert fault.startswith("output of head 29.1, token 49, query head 0: 1 of 16 words differ")


def test_wrong_state_of_attention_is_found(board, plan):
    board.spoils = after(Opcode.ATTEND, 3, lambda command: flip(board, command.operands["state"] * LINE_BYTES))
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory", "dsq"]
    assert fault.startswith("state of head 29.1 after attention: 1 of ")


def test_wrong_projection_is_found(board, plan):
    def spoil(command: Command) -> None:
        flip(board, command.operands["address"] * LINE_BYTES + 4)

    board.spoils = after(Opcode.STORE, 4, spoil)
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory", "dsq", "heads"]
    assert fault.startswith("projection qkv, row 0: 1 of 32 words differ")


def test_hanging_queue_is_named(board, plan):
    board.hangs = {"dma"}
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory"]
    assert fault.startswith("nothing has gone on for 0.1 s: dsq has done 3 of ")
    assert "commands, APPEND waits for semaphore 2 to count 1; dma has done 0 of " in fault


def test_fault_that_is_not_reported_is_found(board, plan):
    board.deaf = True
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory", "dsq", "heads", "gemm"]
    expected = "faults: queue dma must stop with OPCODE: the queue has no opcode 2, but has carried out the command"
    assert fault == expected


def test_stopped_queue_is_named(board, plan):
    board.spoils = after(Opcode.APPEND, 7, lambda command: board.errors.update(dsq=(Error.WRITE, 1, 10)))
    rows, fault = carry_out(board, plan)
    assert names(rows) == ["board", "memory"]
    assert fault == "queue dsq stopped at command 10 (APPEND): WRITE: CLOSED"


def test_details_of_errors_are_told():
    assert describe(Error.TIMEOUT, 7 | 12 << 8) == "TIMEOUT: semaphore 7 has not counted 12 signals in time"
    assert describe(Error.GEMM, 7) == "GEMM: WEIGHTS"
    assert describe(Error.PAGE, 99) == "PAGE: detail 0x63"
    assert describe(Error.MEMORY, 0) == "MEMORY"


class Connection:
    """In the place of `fpga.client.Client`."""

    def __init__(self, board: FakeBoard) -> None:
        self.board, self.errors = board, Errors(retries=3)

    def __call__(self, port: str, **options: Any) -> "Connection":
        assert port == "socket://localhost:1" and options == {"baud": 3_000_000, "timeout": 1.0}
        return self

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.board, name)


def call(board: FakeBoard, plan: Plan, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command, with that board at its port; returns the exit code."""
    monkeypatch.setattr(selftest, "Client", Connection(board))
    monkeypatch.setattr(selftest.selftest_run, "prepare", lambda config, **sizes: plan)
    monkeypatch.setattr(selftest.dram, "initialize", lambda link, controller: None)
    with pytest.raises(SystemExit) as ended:
        selftest.main(["--port", "socket://localhost:1", "--preset", "tiny", *arguments])
    return int(ended.value.code)


def test_command_tells_all_figures(board, plan, tmp_path, monkeypatch, capsys):
    path = tmp_path / "figures.json"
    assert call(board, plan, monkeypatch, "--json", str(path)) == 0
    printed = capsys.readouterr().out.splitlines()
    record = json.loads(path.read_text())
    parts = record["parts"]
    assert record["config"] == TINY.to_dict() and record["fault"] is None and record["link"]["retries"] == 3
    assert printed[0] == selftest.HEADING
    for text, part in zip(printed[1 : 1 + len(parts)], parts, strict=True):
        figures = text.split()
        assert figures[0] == part["part"] and figures[1] == f"{part['words']:,}" and figures[2] == "0"
    assert printed[-3:] == [
        "board at 25 MHz with 1,048,576 bytes of DRAM",
        "put right on the line: 3 retries",
        f"all {sum(part['words'] for part in parts):,} words equal golden",
    ]


def test_command_tells_the_first_difference(board, plan, tmp_path, monkeypatch, capsys):
    board.flips = [(4, 0)]
    path = tmp_path / "figures.json"
    assert call(board, plan, monkeypatch, "--json", str(path)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: memory, a one walking over data bits: 1 of 32 words differ")
    assert json.loads(path.read_text())["fault"] in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --port --simulate is required (see --help)"),
        (["--port", "loop://"], "one of --board, --preset, --config must tell what accelerator the board has"),
        (["--port", "loop://", "--board", "x"], "board must be one of "),
        (["--port", "loop://", "--preset", "tiny", "--json", "none/x"], "cannot write none/x: there is no directory "),
    ],
)
def test_rejects_impossible_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        selftest.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"groups": 63}, "--groups must be from 1 to 62 with this config, not 63"),
        ({"heads": 4}, "--heads must be from 1 to 3 with this config, not 4"),
        ({"steps": 17}, "--steps must be from 1 to 16 with this config, not 17"),
    ],
)
def test_rejects_what_has_no_room(sizes, message):
    with pytest.raises(UserError) as raised:
        prepare(TINY, **{"groups": 1, "heads": 1, "steps": 1, **sizes})
    assert str(raised.value) == message


@launch.simulators("verilator")
def test_rtl_passes(plan, simulator, tmp_path):
    """The same programs on the RTL of the accelerator, with a memory of its timing beside it."""
    memory = dram_for(TINY, DRAM_BYTES // LINE_BYTES, latency=5)
    (tmp_path / "plan.pkl").write_bytes(pickle.dumps({"plan": plan, "dram": memory}))
    launch.run(
        System(LoggedAccelerator(TINY), memory),
        name="selftest",
        tb="cocotb_tests.fpga.tb_selftest",
        parameters={"folder": str(tmp_path)},
        simulators=simulator,
        sources=DRAM_SOURCES,
    )


@pytest.mark.nightly
def test_simulated_board_passes(tmp_path, capsys):
    """Down to the pins of serial line and SDRAM."""
    path = tmp_path / "figures.json"
    with pytest.raises(SystemExit) as ended:
        selftest.main(["--simulate", "--preset", "tiny", "--groups", "1", "--steps", "1", "--json", str(path)])
    assert ended.value.code == 0, capsys.readouterr().err
    record = json.loads(path.read_text())
    assert [part["part"] for part in record["parts"]] == PARTS
    assert not any(record["link"].values())
