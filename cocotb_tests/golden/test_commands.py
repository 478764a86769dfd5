"""Commands: their bytes by hand, the round trip, what they refuse."""

import random
import re

import pytest

from golden.control.commands import (
    COMMAND_BYTES,
    FIELDS,
    FIXED_QUEUES,
    OPCODES,
    Command,
    Error,
    Opcode,
    Queue,
    Wait,
    field_places,
    queue_names,
)


def words(command: Command) -> list[int]:
    """The command's words of 32 bits."""
    content = command.to_bytes()
    assert len(content) == COMMAND_BYTES
    return [int.from_bytes(content[n : n + 4], "little") for n in range(0, COMMAND_BYTES, 4)]


def any_operands(draw: random.Random, opcode: Opcode) -> dict[str, int]:
    """A value for each operand, often the least or the largest one."""
    values = {}
    for name, bits in FIELDS[opcode].items():
        low, high = (0, (1 << bits) - 1) if bits > 0 else (-(1 << -bits - 1), (1 << -bits - 1) - 1)
        values[name] = draw.choice([low, high, draw.randint(low, high)])
    return values


def test_bytes_by_hand():
    command = Command(
        opcode=Opcode.FILL,
        operands={"address": 0x12345678, "lines": 9},
        waits=(Wait(3, 65537), Wait(255, 65535)),
        signal=7,
        tag=0xABCD,
    )
    expected = [0xABCD08, 0x00010103, 0xFFFF01FF, 0x107, 0x12345678, 9, *[0] * 10]
    assert words(command) == expected
    assert words(Command(opcode=Opcode.NOP)) == [0] * 16


def test_signed_operands_are_twos_complements():
    bit, width = field_places(Opcode.ATTEND)["shift"]
    value = int.from_bytes(Command(opcode=Opcode.ATTEND, operands={"shift": -3}).to_bytes(), "little") >> 128
    assert value == ((1 << width) - 3) << bit


@pytest.mark.parametrize("opcode", Opcode)
def test_fields_have_places_of_their_own_within_words(opcode):
    used = 0
    for name, (bit, width) in field_places(opcode).items():
        assert width == abs(FIELDS[opcode][name])
        assert bit // 32 == (bit + width - 1) // 32
        mask = (1 << width) - 1 << bit
        assert used & mask == 0
        used |= mask
    assert used < 1 << 8 * COMMAND_BYTES - 128


@pytest.mark.parametrize("opcode", Opcode)
def test_round_trip(opcode):
    draw = random.Random(f"commands {opcode}")
    for _ in range(50):
        waits = tuple(Wait(draw.randrange(256), draw.randrange(65536)) for _ in range(draw.randint(0, 2)))
        command = Command(
            opcode=opcode,
            operands=any_operands(draw, opcode),
            waits=waits,
            signal=draw.choice([None, 0, draw.randrange(256)]),
            tag=draw.randrange(65536),
        )
        assert Command.from_bytes(command.to_bytes()) == command


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"waits": (Wait(0, 0),) * 3}, "waits must be at most two, not 3"),
        ({"waits": (Wait(256, 0),)}, "semaphore must be from 0 to 255, not 256"),
        ({"signal": -1}, "signal must be from 0 to 255, not -1"),
        ({"tag": 65536}, "tag must be from 0 to 65535, not 65536"),
        ({"operands": {"rows": 65536}}, "rows must be from 0 to 65535, not 65536"),
        (
            {"operands": {"columns": 1}},
            "operands of LOAD must be among address, rows, k, scratchpad, stride, magnitude",
        ),
    ],
)
def test_refuses_what_does_not_fit(fields, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Command(opcode=Opcode.LOAD, **fields).to_bytes()


@pytest.mark.parametrize("value", [-65, 64])
def test_refuses_signed_operands_that_do_not_fit(value):
    with pytest.raises(ValueError, match=f"^shift must be from -64 to 63, not {value}$"):
        Command(opcode=Opcode.ATTEND, operands={"shift": value}).to_bytes()


def test_refuses_opcodes_that_do_not_exist():
    with pytest.raises(ValueError, match="255"):
        Command.from_bytes(b"\xff" * COMMAND_BYTES)


def test_every_opcode_belongs_to_one_kind_of_queue():
    assert queue_names(2) == ["mha", "dsq", "dma", "gemm0", "gemm1"]
    assert len(Queue) == FIXED_QUEUES
    assert set(OPCODES) == {name.rstrip("0123456789") for name in queue_names(1)}
    for opcode in Opcode:
        owners = [kind for kind, opcodes in OPCODES.items() if opcode in opcodes]
        assert len(owners) == (len(OPCODES) if opcode is Opcode.NOP else 1)


def test_errors_fit_their_register():
    assert max(Error) < 16
    assert [error.value for error in Error] == list(range(len(Error)))
