"""Commands of the accelerator: 64 bytes each, in rings in DRAM, one ring for each core."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

__all__ = [
    "COMMAND_BYTES",
    "FIELDS",
    "FIXED_QUEUES",
    "LINE_BYTES",
    "OPCODES",
    "Command",
    "Error",
    "Opcode",
    "Queue",
    "Wait",
    "field_places",
    "queue_names",
]

#: addresses of memory are given in lines
LINE_BYTES = 64
COMMAND_BYTES = 64
#: words of 32 bits before the operands: opcode and tag, two waits, a signal
HEADER_WORDS = 4
OPERAND_WORDS = COMMAND_BYTES // 4 - HEADER_WORDS


class Queue(IntEnum):
    """The queues that there always are; GEMM core n has queue ``FIXED_QUEUES + n``."""

    MHA = 0
    DSQ = 1
    DMA = 2


FIXED_QUEUES = len(Queue)


def queue_names(cores: int) -> list[str]:
    """Names of all queues, with so many GEMM cores."""
    return [*(queue.name.lower() for queue in Queue), *(f"gemm{n}" for n in range(cores))]


class Opcode(IntEnum):
    """What a command does."""

    #: nothing but wait and signal
    NOP = 0
    #: GEMM: rows of the scratchpad through a projection
    PROJECT = 1
    #: MHA: a token's attention, of the query heads of a KV head
    ATTEND = 2
    #: DSQ: a token's K and V rows into the open block
    APPEND = 3
    #: DSQ: a group is full: history moves on, the waiting group is compressed
    CLOSE = 4
    #: DSQ: a command of the page table
    PAGE = 5
    #: DMA: rows from memory into the scratchpad
    LOAD = 6
    #: DMA: rows from the scratchpad to memory
    STORE = 7
    #: DMA: zeros to memory
    FILL = 8


#: what each kind of queue takes
OPCODES: dict[str, tuple[Opcode, ...]] = {
    "mha": (Opcode.NOP, Opcode.ATTEND),
    "dsq": (Opcode.NOP, Opcode.APPEND, Opcode.CLOSE, Opcode.PAGE),
    "dma": (Opcode.NOP, Opcode.LOAD, Opcode.STORE, Opcode.FILL),
    "gemm": (Opcode.NOP, Opcode.PROJECT),
}


class Error(IntEnum):
    """Why a queue has stopped. ``detail`` says more, where it is said."""

    NONE = 0
    #: no such opcode in this queue; detail: the opcode
    OPCODE = 1
    #: a semaphore that does not exist; detail: its number
    SEMAPHORE = 2
    #: waited for a semaphore longer than the watchdog allows; detail: its number, above it the awaited count (16 bits)
    TIMEOUT = 3
    #: an address outside the window
    ADDRESS = 4
    #: memory refused a word
    MEMORY = 5
    #: a word behind the end of the scratchpad
    SCRATCHPAD = 6
    #: nothing to do, or more than the hardware can hold
    LENGTH = 7
    #: refused by the GEMM core; detail: golden's `golden.gemm.core.Fault`
    GEMM = 8
    #: fault of the attention core; detail: its fault, above it the group (20 bits)
    ATTENTION = 9
    #: refused by the page table; detail: golden's `PageStatus`
    PAGE = 10
    #: a write to a page that the sequence does not have, or that memory refused; detail: `PageStatus` of the commit
    WRITE = 11


#: operands by opcode: name and bits, negative for signed ones
FIELDS: dict[Opcode, dict[str, int]] = {
    Opcode.NOP: {},
    Opcode.PROJECT: {
        "stream": 32,  # line of the columns' parameters and weights, tile by tile
        "angles": 32,  # line of the rows' cosines and sines, with ROTARY
        "epsilon_low": 32,
        "epsilon_high": 16,
        "rows": 16,
        "k": 17,
        "norm": 2,
        "function": 2,
        "half_pairs": 1,
        "narrow": 1,
        "add_residual": 1,
        "parts": 8,  # who wrote the source rows: whose magnitudes count
        "columns": 17,
        "rotary_columns": 17,
        "source": 20,  # words of the scratchpad from here on
        "source_stride": 12,
        "target": 20,
        "target_stride": 12,
        "residual": 20,
        "residual_stride": 12,
        "source_magnitude": 16,  # of the first row
        "target_magnitude": 16,
    },
    Opcode.ATTEND: {
        "calibration": 32,  # line
        "state": 32,  # line of history, recent mass and votes
        "sequence": 8,
        "stream": 16,
        "salient": 8,
        "records": 20,  # compressed groups
        "tokens": 21,  # tokens in the INT8 blocks behind them
        "drop_count": 20,
        "shift": -7,
        "prune": 1,
        "load_calibration": 1,
        "use_state": 1,  # else all records are scanned, and masses are dropped
        "keep": 9,
        "run_margin": 15,
        "estimate_margin": 15,
        "value_margin": 15,
        "source": 20,
        "out_shift": 4,  # outputs are shifted right by it, half up
        "first": 1,  # of the heads of this row: its magnitude begins anew
        "target": 20,
        "target_magnitude": 16,
    },
    Opcode.APPEND: {
        "sequence": 8,
        "stream": 16,
        "token": 8,  # in its block
        "group": 20,
        "source_k": 20,
        "source_v": 20,
    },
    Opcode.CLOSE: {
        "state": 32,
        "calibration": 32,
        "sequence": 8,
        "stream": 16,
        "salient": 8,
        "groups": 20,  # whose history moves on
        "sinks": 8,
        "compress": 1,
        "group": 20,  # that is compressed
        "k_norm": 20,
        "v_norm": 20,
    },
    Opcode.PAGE: {"op": 4, "sequence": 8, "source": 8, "stream": 16},
    Opcode.LOAD: {"address": 32, "rows": 16, "k": 16, "scratchpad": 20, "stride": 12, "magnitude": 16},
    Opcode.STORE: {"address": 32, "rows": 16, "k": 16, "scratchpad": 20, "stride": 12},
    Opcode.FILL: {"address": 32, "lines": 32},
}


def field_places(opcode: Opcode) -> dict[str, tuple[int, int]]:
    """First bit, from the first operand word on, and width of each operand; none crosses a word of 32 bits."""
    places: dict[str, tuple[int, int]] = {}
    bit = 0
    for name, bits in FIELDS[opcode].items():
        width = abs(bits)
        if bit // 32 != (bit + width - 1) // 32:
            bit = -(-bit // 32) * 32
        places[name] = bit, width
        bit += width
    assert bit <= 32 * OPERAND_WORDS, opcode
    return places


@dataclass(frozen=True)
class Wait:
    """Until ``semaphore`` has counted ``count`` signals since reset, modulo 2**16."""

    semaphore: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, as the host writes it.

    Parameters
    ----------
    opcode, operands: see `FIELDS`; operands that are not given are 0.
    waits: at most two, both before the command begins.
    signal: the semaphore that counts one more when the command is done.
    tag: 16 bits that events carry.
    """

    opcode: Opcode
    operands: Mapping[str, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    signal: int | None = None
    tag: int = 0

    def to_bytes(self) -> bytes:
        """The 64 bytes.

        Raises `ValueError` when an operand does not exist or does not fit, or there are more than two waits.
        """
        if len(self.waits) > 2:
            raise ValueError(f"waits must be at most two, not {len(self.waits)}")
        header = [_checked("opcode", int(self.opcode), 8) | _checked("tag", self.tag, 16) << 8]
        for wait in (*self.waits, None, None)[:2]:
            word = 0 if wait is None else _checked("semaphore", wait.semaphore, 8) | 1 << 8 | wait.count % 65536 << 16
            header.append(word)
        header.append(0 if self.signal is None else _checked("signal", self.signal, 8) | 1 << 8)
        places = field_places(self.opcode)
        unknown = set(self.operands) - set(places)
        if unknown:
            raise ValueError(f"operands of {self.opcode.name} must be among {', '.join(places)}, not {min(unknown)!r}")
        value = 0
        for name, given in self.operands.items():
            bit, _ = places[name]
            value |= _checked(name, given, FIELDS[self.opcode][name]) << bit
        words = sum(word << 32 * n for n, word in enumerate(header))
        return (words | value << 32 * HEADER_WORDS).to_bytes(COMMAND_BYTES, "little")

    @staticmethod
    def from_bytes(content: bytes) -> "Command":
        """What `to_bytes` gave. Raises `ValueError` for an opcode that does not exist."""
        words = [int.from_bytes(content[n : n + 4], "little") for n in range(0, COMMAND_BYTES, 4)]
        opcode = Opcode(words[0] & 0xFF)
        operands: dict[str, Any] = {}
        value = sum(word << 32 * n for n, word in enumerate(words[HEADER_WORDS:]))
        for name, (bit, width) in field_places(opcode).items():
            got = value >> bit & (1 << width) - 1
            operands[name] = got - (1 << width) if FIELDS[opcode][name] < 0 and got >> width - 1 else got
        waits = tuple(Wait(word & 0xFF, word >> 16) for word in words[1:3] if word >> 8 & 1)
        signal = words[3] & 0xFF if words[3] >> 8 & 1 else None
        return Command(opcode=opcode, operands=operands, waits=waits, signal=signal, tag=words[0] >> 8 & 0xFFFF)


def _checked(name: str, value: int, bits: int) -> int:
    """The bits of a field of ``bits`` bits, negative for a signed one."""
    width = abs(bits)
    low, high = (0, (1 << width) - 1) if bits > 0 else (-(1 << width - 1), (1 << width - 1) - 1)
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")
    return int(value) & (1 << width) - 1
