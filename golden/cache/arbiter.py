"""Which port's burst is asked for next: attention, prefetch, or a GEMM port, with a share that GEMM is guaranteed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["ATTENTION", "PREFETCH", "GEMM", "SHARES", "Arbitration", "attention_wait", "gemm_wait", "grant", "rotate"]

#: the ports in the order of their rights; GEMM ports begin at the last one
ATTENTION, PREFETCH, GEMM = range(3)
#: a share is counted in so many parts
SHARES = 256


@dataclass(frozen=True)
class Arbitration:
    """What the arbiter remembers.

    ``credit`` is what GEMM is owed, in beats / `SHARES`; ``last`` the GEMM port that was granted last, counted from 0.
    """

    credit: int = 0
    last: int = -1


def rotate(ask: Sequence[bool], last: int) -> int | None:
    """The next one that asks after ``last``, round and round; none if nobody asks."""
    return next((k % len(ask) for k in range(last + 1, last + 1 + len(ask)) if ask[k % len(ask)]), None)


def grant(
    state: Arbitration, ask: Sequence[bool], beats: Sequence[int], *, share: int, throttled: bool
) -> tuple[int | None, Arbitration]:
    """Choose the port whose burst is asked for next; returns it, or None, and the state after it.

    GEMM comes first while it is owed (``credit`` above 0), else attention, prefetch, GEMM in this order; while
    ``throttled`` GEMM has nothing but what it is owed. Beats that others are granted while a GEMM port asks raise the
    credit by ``share`` each. Those that GEMM is granted while it is owed lower it by ``SHARES - share``. What GEMM
    takes because nobody else asks costs nothing.

    Parameters
    ----------
    state : of the arbiter before
    ask, beats : per port: it has a burst, of so many beats
    share : that GEMM is guaranteed, in 1 / `SHARES` of the beats, below `SHARES`
    throttled : too many beats of attention are under way
    """
    gemm = rotate(ask[GEMM:], state.last)
    owed = state.credit > 0
    for port in (ATTENTION, PREFETCH):
        if ask[port] and not (owed and gemm is not None):
            gain = share * beats[port] if gemm is not None else 0
            return port, replace(state, credit=state.credit + gain)
    if gemm is None or (throttled and not owed):
        return None, state
    cost = (SHARES - share) * beats[GEMM + gemm] if owed else 0
    return GEMM + gemm, Arbitration(state.credit - cost, gemm)


def gemm_wait(*, share: int, max_burst: int, gemm_ports: int) -> int:
    """The most beats that others are granted while one GEMM port asks; ``share`` is at least 1.

    The credit is never below ``1 - (SHARES - share) * max_burst``; as soon as the beats of attention and prefetch have
    raised it above 0, GEMM is next. Each other GEMM port is granted once at most before it is this one's turn.
    """
    until_owed = ((SHARES - share) * max_burst - 1) // share + max_burst
    return gemm_ports * until_owed + (gemm_ports - 1) * max_burst


def attention_wait(*, share: int, max_burst: int) -> int:
    """The most beats that others are granted while attention asks.

    The credit is never above ``share * max_burst``, and each beat of GEMM takes ``SHARES - share`` of it.
    """
    return -(-share * max_burst // (SHARES - share)) + max_burst - 1
