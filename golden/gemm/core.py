"""One command of a GEMM core: rows in, normalized, multiplied, finished, rows out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golden.fixed import saturate
from golden.gemm.array import multiply
from golden.gemm.epilogue import Columns, Function, rotate_pairs, scale_sums, swiglu_pairs
from golden.gemm.prologue import Norm, magnitude, prepare_rows

__all__ = ["Command", "output_columns", "project"]


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
