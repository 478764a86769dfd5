"""Arbiter: golden's own properties, geometries, bad configs, and the start of the simulations."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocotb_tests.lib import launch
from golden.cache.arbiter import ATTENTION, GEMM, SHARES, Arbitration, attention_wait, gemm_wait, grant, rotate
from rtl.cache.arbiter import Arbiter, ArbiterConfig


def run(simulator: str, ports: int, max_burst: int) -> None:
    launch.run(
        Arbiter(ArbiterConfig(ports=ports, max_burst=max_burst)),
        name="cache_arbiter",
        tb="cocotb_tests.cache.tb_arbiter",
        parameters={"ports": ports, "max_burst": max_burst, "shares": [128] if max_burst > 16 else [16, 128, 240]},
        simulators=simulator,
    )


@launch.simulators("icarus")
@pytest.mark.parametrize("ports, max_burst", [(3, 1), (5, 6)])
def test_matches_golden_in_small_geometries(simulator, ports, max_burst):
    run(simulator, ports, max_burst)


@launch.simulators("verilator")
@pytest.mark.parametrize("ports, max_burst", [(6, 16), (4, 256)])
def test_matches_golden(simulator, ports, max_burst):
    run(simulator, ports, max_burst)


MAX_BURST = 8
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, MAX_BURST), min_size=5, max_size=5), st.booleans()), min_size=1, max_size=60
)


@given(share=st.integers(0, SHARES - 1), steps=STEPS)
def test_credit_and_grants_stay_within_their_bounds(share, steps):
    """Whatever is asked: a port that asks is granted, attention goes first unless GEMM is owed, waits are bounded."""
    state = Arbitration()
    waited = dict.fromkeys((ATTENTION, *range(GEMM, 5)), 0)
    for beats, throttled in steps:
        ask = [count > 0 for count in beats]
        owed = state.credit > 0 and any(ask[GEMM:])
        port, state = grant(state, ask, beats, share=share, throttled=throttled)
        assert -(SHARES - share) * MAX_BURST < state.credit <= share * MAX_BURST
        assert port is None or ask[port]
        if owed:
            assert port >= GEMM
        elif ask[ATTENTION]:
            assert port == ATTENTION
        elif port is None:
            assert not any(ask[:GEMM]) and (throttled or not any(ask))
        for k, wait in waited.items():
            waited[k] = 0 if not ask[k] or port == k else wait + (beats[port] if port is not None else 0)
        assert waited[ATTENTION] <= attention_wait(share=share, max_burst=MAX_BURST)
        if share:
            bound = gemm_wait(share=share, max_burst=MAX_BURST, gemm_ports=3)
            assert all(waited[k] <= bound for k in range(GEMM, 5))


def test_rotation_goes_round():
    order, last = [], -1
    for ask in ([1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 0]):
        port = rotate(ask, last)
        order.append(port)
        last = last if port is None else port
    assert order == [0, 1, 2, 0, 2, 1, None, 1]


@pytest.mark.parametrize(
    "values, message",
    [
        ({"ports": 0}, "ports must be at least 3, attention, prefetch and a GEMM port, not 0"),
        ({"ports": 2}, "ports must be at least 3, attention, prefetch and a GEMM port, not 2"),
        ({"max_burst": 0}, "max_burst must be at least 1, not 0"),
    ],
    ids=str,
)
def test_rejects_bad_configs(values, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ArbiterConfig(**values)
