"""Bits and bursts of a fetch by hand on a tiny layout, and sums over a whole layer."""

from types import SimpleNamespace

import numpy as np
import pytest

from cocotb_tests.golden.draws import generator
from golden.account import Account
from golden.calibrate import ModelCalibration
from golden.dsq.record import RecordLayout
from golden.kvo_method import KvoLayer, KvoMethod
from golden.mha.core import Fetch
from golden.settings import KvoSettings
from golden.traffic import add_fetch, add_int8_tokens, record_bits

#: header 0..12, upper 16..39 (8 bytes a row), lower 48..71, K delta 80..131 (4 bytes a row), K fine 144..195,
#: V salient 208..255 (16 bytes a row), V delta 256..307; 320 bytes
LAYOUT = RecordLayout(head_dim=16, group_tokens=16, salient_tokens=3, delta_bits=4, bus_bits=128)
SCAN_BITS = 8 * 40


def fetched(scanned=(), lower=(), k_delta=(), v_salient=(), v_delta=(), v_int8=(), queries=1, tokens=0) -> Fetch:
    """A fetch of the listed ``(query, group, row)``, and of ``(query, token)`` of so many INT8 tokens."""
    groups = len(scanned)

    def mask(rows, *shape):
        made = np.zeros((queries, *shape), bool)
        for at in rows:
            made[at] = True
        return made

    return Fetch(
        scanned=np.array(scanned, bool),
        lower=mask(lower, groups, 3),
        k_delta=mask(k_delta, groups, 13),
        v_salient=mask(v_salient, groups, 3),
        v_delta=mask(v_delta, groups, 13),
        v_int8=mask(v_int8, tokens),
    )


def account_of(fetch: Fetch, layout: RecordLayout = LAYOUT) -> Account:
    """What one fetch adds."""
    account = Account(bursts=(32, 64))
    add_fetch(account, fetch, layout)
    return account


def test_layout_is_the_one_of_the_hand_made_cases():
    sections = (LAYOUT.upper, LAYOUT.lower, LAYOUT.k_delta, LAYOUT.k_fine, LAYOUT.v_salient, LAYOUT.v_delta)
    assert [(s.offset, s.stride, s.rows) for s in sections] == [
        (16, 8, 3), (48, 8, 3), (80, 4, 13), (144, 4, 13), (208, 16, 3), (256, 4, 13)
    ]  # fmt: skip
    assert LAYOUT.record_bytes == 320


def test_record_bits_by_hand():
    """Codes: 3 rows of 16 + 16 bits a channel... in all 16 channels x (3 x 16 + 13 x 6)."""
    codes = 16 * (3 * 16 + 13 * 6)
    assert record_bits(LAYOUT) == (320 * 8, 320 * 8 - codes)
    assert record_bits(RecordLayout()) == (3392 * 8, 3392 * 8 - 64 * (13 * 16 + 51 * 4))  # 3344 bytes, aligned to 64


def test_scan_is_the_header_and_the_upper_nibbles_of_every_scanned_group():
    account = account_of(fetched([True, False, True], queries=5))
    assert account.read_bits == 2 * 5 * SCAN_BITS
    assert account.metadata_bits_read == 2 * 5 * (SCAN_BITS - 3 * 16 * 4)
    assert account.burst_bytes == {32: 2 * 5 * 64, 64: 2 * 5 * 64}  # 40 bytes


@pytest.mark.parametrize(
    ("rows", "bits", "bursts_32", "bursts_64"),
    [
        ({"lower": [(0, 0, 0)]}, 64, {1}, {0}),
        ({"lower": [(0, 0, 0), (0, 0, 1)]}, 128, {1}, {0}),
        ({"lower": [(0, 0, 0), (0, 0, 2)]}, 128, {1, 2}, {0, 1}),
        ({"k_delta": [(0, 0, 0)]}, 32, {2}, {1}),
        ({"k_delta": [(0, 0, 3), (0, 0, 4), (0, 0, 12)]}, 96, {2, 3, 4}, {1, 2}),
        ({"lower": [(0, 0, 2)], "k_delta": [(0, 0, 0)]}, 96, {2}, {1}),  # one phase: the burst is read once
        ({"v_salient": [(0, 0, 0), (0, 0, 2)]}, 256, {6, 7}, {3}),
        ({"v_delta": [(0, 0, 0)]}, 64, {4, 8}, {2, 4}),  # with its fine bits at 144
        ({"v_delta": [(0, 0, 12)]}, 64, {6, 9}, {3, 4}),
        ({"v_delta": [(0, 0, 12)], "v_salient": [(0, 0, 0)]}, 192, {6, 9}, {3, 4}),
    ],
)
def test_rows_by_hand(rows, bits, bursts_32, bursts_64):
    account = account_of(fetched([False], **rows))
    assert account.read_bits == bits and account.metadata_bits_read == 0
    assert account.burst_bytes == {32: 32 * len(bursts_32), 64: 64 * len(bursts_64)}


def test_phases_read_a_shared_burst_twice():
    """K delta row 12 (128..131) and the fine bits of row 0 (144..147) share burst 4 of 32 bytes."""
    account = account_of(fetched([False], k_delta=[(0, 0, 12)], v_delta=[(0, 0, 0)]))
    assert account.burst_bytes[32] == 32 * (1 + 2)


def test_queries_and_groups_share_nothing():
    rows = [(q, g, 1) for q in range(2) for g in range(3)]
    account = account_of(fetched([False] * 3, lower=rows, queries=2))
    assert account.read_bits == 6 * 64 and account.burst_bytes == {32: 6 * 32, 64: 6 * 64}


def test_two_bit_deltas_have_no_fine_rows():
    layout = RecordLayout(head_dim=16, group_tokens=16, salient_tokens=3, delta_bits=2, bus_bits=128)
    account = account_of(fetched([False], v_delta=[(0, 0, 5)]), layout)
    assert account.read_bits == 32 and account.burst_bytes == {32: 32, 64: 64}


def test_all_salient_records_have_no_delta_rows():
    layout = RecordLayout(head_dim=16, group_tokens=16, salient_tokens=16, delta_bits=4, bus_bits=128)
    nothing, rows = np.zeros((1, 1, 0), bool), np.ones((1, 1, 16), bool)
    none = np.zeros((1, 0), bool)
    fetch = Fetch(scanned=np.array([True]), lower=rows, k_delta=nothing, v_salient=rows, v_delta=nothing, v_int8=none)
    account = account_of(fetch, layout)
    assert account.read_bits == 8 * (64 + 128) + 16 * 16 * 4 + 16 * 16 * 8  # scan: 52 bytes header, from 64 on 16 rows


def test_no_groups_cost_nothing():
    assert account_of(Fetch.nothing(4)).read_bits == 0


def test_a_fetch_of_nothing_costs_nothing():
    nothing = Fetch.nothing(4, 2, 3, 13, 20)
    parts = (nothing.scanned, nothing.lower, nothing.k_delta, nothing.v_salient, nothing.v_delta, nothing.v_int8)
    assert [part.shape for part in parts] == [(2,), (4, 2, 3), (4, 2, 13), (4, 2, 3), (4, 2, 13), (4, 20)]
    assert account_of(nothing).read_bits == 0
    for changed in parts:
        changed[...] = True
        assert sum(part.all() for part in parts) == 1  # none shares its memory with another
        changed[...] = False


def test_int8_tokens_by_hand():
    """Waiting group of 16 tokens, 5 open before, 2 queries: K of 16 + 6 and 16 + 7 tokens, three V rows of 16 bytes."""
    account = Account(bursts=(32, 64))
    add_int8_tokens(account, fetched(v_int8=[(0, 0), (0, 21), (1, 3)], queries=2, tokens=23), 16, 16)
    assert account.read_bits == 8 * ((17 + 1) * ((16 + 6) + (16 + 7)) + 3 * 16)
    assert account.metadata_bits_read == 2 * 8 * ((16 + 6) + (16 + 7))
    # K with scales: 272 bytes a query, 102, 119; scales of V: 16 bytes a query, 6, 7; V rows.
    assert account.burst_bytes == {32: 2 * 288 + 128 + 128 + (4 + 3) * 32, 64: 2 * 320 + 128 + 128 + (4 + 3) * 64}


def test_no_waiting_group_costs_nothing():
    account = Account(bursts=(32, 64))
    add_int8_tokens(account, fetched(v_int8=[(0, 0)], tokens=1), 0, 16)
    assert account.read_bits == 2 * 8 * 17 and account.burst_bytes == {32: 3 * 32, 64: 3 * 64}


def test_int8_tokens_whose_v_is_not_read_cost_k_and_scales():
    account = Account(bursts=(32, 64))
    add_int8_tokens(account, fetched(queries=3, tokens=16 + 3), 16, 16)
    assert account.read_bits == 8 * 18 * (17 + 18 + 19)


def layer(prune: bool, tokens: int, **changes) -> tuple[KvoLayer, np.random.Generator]:
    """One layer of two KV heads of 16 channels with a random prompt."""
    draw = generator("layer", prune)
    settings = KvoSettings(salient_tokens=8, delta_bits=4, prune=prune, **changes)
    numbers = {"q_fraction": 10, "k_fraction": 12, "v_fraction": 12, "k_norm": 4800, "v_norm": 4800}
    rows = {"k_shape": 256, "v_shape": 256, "v_mean": 0}
    constants = ModelCalibration(
        **{name: np.full((1, 2), value) for name, value in numbers.items()},
        **{name: np.full((1, 2, 16), value) for name, value in rows.items()},
        delta_bits=4,
    )
    geometry = SimpleNamespace(head_dim=16, kv_heads=2)
    k, v = draw.normal(size=(2, 2, tokens, 16)).astype(np.float32)
    mass = draw.gamma(0.3, 1, (2, tokens // 64, tokens))
    return KvoMethod(settings, constants).open(geometry, 0, k, v, mass), draw


@pytest.mark.parametrize("prune", [False, True])
def test_layer_accounts_for_all_heads_and_queries(prune):
    """Without pruning a query reads every code and scale but the record's padding once."""
    made, draw = layer(prune, 256)
    account = Account(bursts=(32, 64))
    q, k, v = (draw.normal(size=(heads, 3, 16)).astype(np.float32) for heads in (4, 2, 2))
    out = made.attend(q, k, v, account)
    assert out.shape == (4, 3, 16) and np.isfinite(out).all()
    layout = made.layout
    compressed = 8 * layout.upper.end + 16 * (8 * 4 + 56 * 4 + 8 * 8 + 56 * 2)
    int8 = [2 * 8 * 17 * (64 + seen) for seen in (1, 2, 3)]
    whole = 2 * (3 * 3 * compressed + sum(int8))
    assert account.read_bits == whole if not prune else account.read_bits < whole
    assert account.burst_bytes[64] >= account.burst_bytes[32] >= account.read_bits / 8


def test_layer_reads_k_of_all_int8_tokens_and_v_of_the_nearest():
    """Two heads with a margin of 0 leave one or two V rows a query and KV head. 64 tokens wait, none is compressed."""
    made, draw = layer(True, 64, value_margin=0.0)
    account = Account(bursts=(32, 64))
    made.attend(*(draw.normal(size=(heads, 3, 16)).astype(np.float32) for heads in (4, 2, 2)), account)
    rows, rest = divmod(account.read_bits - 2 * 8 * 18 * (65 + 66 + 67), 8 * 16)
    assert rest == 0 and 2 * 3 <= rows <= 2 * 2 * 3


def test_layer_stores_records_and_int8_tokens():
    made, draw = layer(True, 256)
    account = Account(bursts=(32, 64))
    made.attend(*(draw.normal(size=(heads, 3, 16)).astype(np.float32) for heads in (4, 2, 2)), Account())
    made.stored(account)
    record = -(-made.layout.record_bytes // 64) * 64 * 8
    assert account.stored_bits == 2 * (3 * record + 67 * 2 * (16 * 8 + 8))
    codes = 2 * (3 * 16 * (8 * 16 + 56 * 6) + 67 * 2 * 16 * 8)
    assert account.stored_metadata_bits == account.stored_bits - codes
