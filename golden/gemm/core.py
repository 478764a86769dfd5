"""One command of a GEMM core: rows in, normalized, multiplied, finished, rows out."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from golden.fixed import saturate
from golden.gemm.array import multiply
from golden.gemm.epilogue import Columns, Function, rotate_pairs, scale_sums, swiglu_pairs
from golden.gemm.prologue import Norm, magnitude, prepare_rows

__all__ = ["ROTARY_TILES", "ROW_TILES", "Command", "Fault", "Limits", "command_fault", "output_columns", "project"]

#: row tiles of a command at most, and of one with rotary embedding
ROW_TILES = 32
ROTARY_TILES = 8


class Fault(IntEnum):
    """Why a core refuses a command; of several reasons the first one counts."""

    NONE = 0
    #: no rows, or more than `ROW_TILES` tiles of them
    ROWS = 1
    #: none, or more than the array can sum
    K = 2
    #: none, or an odd number with `Function.SWIGLU`
    COLUMNS = 3
    #: no such function or norm, or a residual with `Function.ROTARY`
    FUNCTION = 4
    #: no multiple of head_dim, more than there are columns, or more than `ROTARY_TILES` row tiles
    ROTARY = 5
    #: the codes of the rows have no room
    ACTIVATIONS = 6
    #: several row tiles, and a column tile's weights have no room
    WEIGHTS = 7


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a core does with its rows.

    Parameters
    ----------
    norm, epsilon: see `prepare_rows`.
    function: of pairs of columns.
    rotary_columns: with `Function.ROTARY`, so many columns, a multiple of head_dim, are turned; the others are linear.
    head_dim: channels of a head, even.
    half_pairs: an embedding's pair is (i, i + head_dim / 2) of a head, not (2i, 2i + 1).
    narrow: outputs are saturated to 16 bits instead of 32.
    """

    norm: Norm = Norm.NONE
    epsilon: int = 0
    function: Function = Function.LINEAR
    rotary_columns: int = 0
    head_dim: int = 2
    half_pairs: bool = False
    narrow: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes of a core that decide what it refuses; see ``GemmConfig`` in `rtl.config`."""

    rows: int
    max_k: int
    act_words: int
    weight_words: int
    row_lanes: int
    head_dim: int


def command_fault(
    rows: int,
    k: int,
    columns: int,
    *,
    function: int,
    norm: int,
    rotary_columns: int,
    add_residual: bool,
    limits: Limits,
) -> Fault:
    """Whether a core takes a command of ``rows`` rows of ``k`` elements for so many ``columns``.

    Codes lie in words of ``row_lanes``, so a row takes the room of a whole number of them.
    """
    tiles, row_words = -(-rows // limits.rows), -(-k // limits.row_lanes)
    turns = function == Function.ROTARY
    uneven = rotary_columns % limits.head_dim != 0 or rotary_columns > columns
    reasons = {
        Fault.ROWS: not 1 <= tiles <= ROW_TILES,
        Fault.K: not 1 <= k <= limits.max_k,
        Fault.COLUMNS: columns < 1 or (function == Function.SWIGLU and columns % 2 != 0),
        Fault.FUNCTION: function not in list(Function) or norm not in list(Norm) or (turns and add_residual),
        Fault.ROTARY: turns and (uneven or tiles > ROTARY_TILES),
        Fault.ACTIVATIONS: tiles * row_words > -(-limits.act_words // limits.row_lanes),
        Fault.WEIGHTS: tiles > 1 and k > limits.weight_words,
    }
    return next((fault for fault, applies in reasons.items() if applies), Fault.NONE)


def output_columns(n: int, command: Command) -> NDArray[np.int64]:
    """Where the output of each of n columns (of each of n / 2 pairs with `Function.SWIGLU`) belongs.

    Columns come in the order of the array, in which the two of a pair are neighbours.
    """
    if command.function is Function.SWIGLU:
        return np.arange(n // 2)
    places = np.arange(n)
    if command.function is Function.ROTARY and command.half_pairs:
        channel = places % command.head_dim
        halves = places - channel + channel % 2 * (command.head_dim // 2) + channel // 2
        places = np.where(places < command.rotary_columns, halves, places)
    return places


def project(
    x: NDArray[np.integer],
    weights: NDArray[np.int8],
    columns: Columns,
    command: Command,
    *,
    act_bits: int,
    rotary: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    residual: NDArray[np.integer] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Rows ``x[M, K]`` through ``weights[N, K]`` to rows ``[M, N]`` (``[M, N / 2]`` with SwiGLU) and their magnitudes.

    rotary: cosines and sines ``[M, head_dim / 2]`` of 14 fraction bits. residual: added to the outputs, saturating,
    shaped like them.
    """
    rows = prepare_rows(x, act_bits=act_bits, norm=command.norm, epsilon=command.epsilon)
    y = scale_sums(multiply(rows.codes, weights), rows.factor, rows.exponent, columns)
    if command.function is Function.ROTARY:
        assert rotary is not None
        turned = command.rotary_columns
        pairs = y[:, :turned].reshape(len(y), turned // command.head_dim, command.head_dim // 2, 2)
        y[:, :turned] = rotate_pairs(pairs, *(table[:, None] for table in rotary)).reshape(len(y), turned)
    elif command.function is Function.SWIGLU:
        y = swiglu_pairs(y.reshape(len(y), -1, 2))
    out = np.empty_like(y)
    out[:, output_columns(len(weights), command)] = y
    if residual is not None:
        out = out + residual
    out = saturate(out, 16 if command.narrow else 32)
    return out.astype(np.int32), magnitude(out)
