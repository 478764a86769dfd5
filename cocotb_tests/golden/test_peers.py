"""The peers of the evaluation: what they compute, and what they count, checked by hand on small examples."""

import numpy as np
import pytest

from cocotb_tests.lib.environment import seed
from golden.account import Account
from golden.errors import UserError
from golden.model import ModelConfig
from golden.model.attention import causal_attention
from golden.peers import METHODS, make_peer
from golden.peers.evicting import H2o, SnapKv, max_pool
from golden.peers.quantized import quantize_affine, quantize_symmetric
from golden.peers.quest import Quest
from golden.peers.rows import to_fp16

HEAD_DIM, KV_HEADS, SHARED, PROMPT = 16, 2, 2, 192


def geometry() -> ModelConfig:
    """Shape of the attention of the examples."""
    return ModelConfig(
        name="example",
        layers=1,
        hidden=64,
        q_heads=KV_HEADS * SHARED,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        ffn=64,
        vocab=256,
        rope_base=10000.0,
        norm_eps=1e-5,
        context_length=512,
    )


def rows(random: np.random.Generator, heads: int, tokens: int) -> np.ndarray:
    """Random float32 rows [heads, tokens, head_dim] that FP16 holds exactly."""
    return to_fp16(random.normal(size=(heads, tokens, HEAD_DIM)).astype(np.float32))


class Example:
    """A random prompt of 192 tokens, its attention mass, and the block of 64 that follows."""

    def __init__(self) -> None:
        random = np.random.default_rng(seed())
        self.k, self.v = rows(random, KV_HEADS, PROMPT), rows(random, KV_HEADS, PROMPT)
        self.q, self.new_k, self.new_v = (rows(random, heads, 64) for heads in (KV_HEADS * SHARED, KV_HEADS, KV_HEADS))
        self.mass = np.zeros((KV_HEADS, PROMPT // 64, PROMPT), np.float32)
        causal_attention(rows(random, KV_HEADS * SHARED, PROMPT), self.k, self.v, mass=self.mass)

    def run(self, method, pieces=(64,), count_bursts=(32, 64)):
        """Feed the block in `pieces`; return the outputs, the account and the cache."""
        account = Account(bursts=count_bursts)
        cache = method.open(geometry(), 0, self.k, self.v, self.mass)
        outputs, first = [], 0
        for piece in pieces:
            part = slice(first, first + piece)
            outputs.append(cache.attend(self.q[:, part], self.new_k[:, part], self.new_v[:, part], account))
            first += piece
        cache.stored(account)
        return np.concatenate(outputs, axis=1), account, cache

    def exact(self):
        """Exact attention of the block."""
        k, v = np.concatenate([self.k, self.new_k], axis=1), np.concatenate([self.v, self.new_v], axis=1)
        return causal_attention(self.q, k, v)


@pytest.fixture
def example() -> Example:
    """One example a test."""
    return Example()


# Bits of one KV head's row of 16 elements, and the number of (query, token) pairs of 64 causal queries in one block.
FP16_ROW = 16 * HEAD_DIM
OPEN_PAIRS = 64 * 65 // 2


def test_fp16_is_exact_attention(example):
    output, account, _ = example.run(make_peer("fp16"))
    assert np.array_equal(output, example.exact())
    assert account.read_bits == KV_HEADS * 2 * FP16_ROW * (64 * PROMPT + OPEN_PAIRS)
    assert account.metadata_bits_read == account.stored_metadata_bits == 0
    assert account.stored_bits == KV_HEADS * 2 * FP16_ROW * (PROMPT + 64)
    account.offer(PROMPT, 64, 2 * KV_HEADS * HEAD_DIM)
    assert account.read_fraction == account.burst_fraction(32) == 1


def test_queries_keep_bytes_in_whole_bursts(example):
    """A query's K and V of n tokens are one piece each of n rows of 32 bytes."""
    _, account, _ = example.run(make_peer("fp16"))
    rounded = sum(-(-tokens // 2) * 64 for tokens in range(PROMPT + 1, PROMPT + 65))
    assert account.burst_bytes == {32: account.read_bits // 8, 64: KV_HEADS * 2 * rounded}


def test_int8_account(example):
    output, account, _ = example.run(make_peer("int8"))
    assert np.abs(output - example.exact()).max() < 0.05
    tokens = 64 * PROMPT + OPEN_PAIRS
    assert account.read_bits == KV_HEADS * 2 * tokens * (8 * HEAD_DIM + 16)
    assert account.metadata_bits_read == KV_HEADS * 2 * tokens * 16
    assert account.stored_bits == KV_HEADS * 2 * (PROMPT + 64) * (8 * HEAD_DIM + 16)


def test_int4_account(example):
    output, account, _ = example.run(make_peer("int4"))
    assert np.abs(output - example.exact()).max() < 0.3
    # K: 192 tokens in 3 groups, a scale and a zero point for each of 16 channels; V: a scale and a zero point a token.
    packed, metadata = 2 * PROMPT * HEAD_DIM * 4, 3 * HEAD_DIM * 32 + PROMPT * 32
    assert account.read_bits == KV_HEADS * (64 * (packed + metadata) + 2 * FP16_ROW * OPEN_PAIRS)
    assert account.metadata_bits_read == KV_HEADS * 64 * metadata
    assert account.stored_bits == KV_HEADS * (packed + metadata) * 4 // 3  # the open block has closed
    assert account.stored_metadata_bits == KV_HEADS * metadata * 4 // 3


def test_kivi2_account(example):
    output, account, _ = example.run(make_peer("kivi2"))
    assert np.abs(output - example.exact()).max() < 1
    # 128 tokens packed: 4 K groups of 32 tokens, one V group a token; 64 tokens wait in FP16 beside the open block.
    packed, metadata = 2 * 128 * HEAD_DIM * 2, 4 * HEAD_DIM * 32 + 128 * 32
    assert account.read_bits == KV_HEADS * (64 * (packed + metadata + 64 * 2 * FP16_ROW) + 2 * FP16_ROW * OPEN_PAIRS)
    assert account.metadata_bits_read == KV_HEADS * 64 * metadata
    assert account.stored_bits == KV_HEADS * ((packed + metadata) * 3 // 2 + 64 * 2 * FP16_ROW)


def test_h2o_account(example):
    _, account, cache = example.run(H2o(heavy=0.25, recent=0.5))
    # 192 tokens: 96 recent and 48 heavy ones; then 64 more before the next eviction.
    pairs = 64 * 144 + OPEN_PAIRS
    assert account.read_bits == KV_HEADS * pairs * (2 * FP16_ROW + 16)
    assert account.metadata_bits_read == KV_HEADS * pairs * 16
    assert cache.k.length == 128 + 64
    assert account.stored_bits == KV_HEADS * 192 * (2 * FP16_ROW + 16)


def test_h2o_keeps_heavy_and_recent_tokens(example):
    example.mass[:] = 0
    example.mass[0, 1, [3, 40]], example.mass[1, 2, [7, 90]] = 5, 5
    cache = H2o(heavy=2 / PROMPT, recent=1 / 3).open(geometry(), 0, example.k, example.v, example.mass)
    for head, heavy in enumerate(([3, 40], [7, 90])):
        assert np.array_equal(cache.k.valid[head], example.k[head][[*heavy, *range(128, 192)]])
        assert np.array_equal(cache.v.valid[head], example.v[head][[*heavy, *range(128, 192)]])


def test_h2o_that_keeps_everything_is_exact(example):
    output, _, _ = example.run(H2o(heavy=0.5, recent=0.5))
    assert np.allclose(output, example.exact(), atol=1e-6)


def test_snapkv_account(example):
    _, account, cache = example.run(SnapKv(fraction=0.25))
    # Of 128 tokens before the window 32 stay, then 16 of the window's 64 once it is one block old.
    assert account.read_bits == KV_HEADS * 2 * FP16_ROW * (64 * (32 + 64) + OPEN_PAIRS)
    assert account.metadata_bits_read == 0
    assert cache.k.length == 32 + 16 + 64
    assert account.stored_bits == KV_HEADS * 2 * FP16_ROW * (32 + 16 + 64)


def test_snapkv_votes_with_the_last_queries_and_their_neighbours(example):
    example.mass[:] = 0
    example.mass[:, 0, 100] = 9
    example.mass[:, 2, 50] = 1
    cache = SnapKv(fraction=7 / 128).open(geometry(), 0, example.k, example.v, example.mass)
    assert np.array_equal(cache.k.valid, example.k[:, [*range(47, 54), *range(128, 192)]])


def test_max_pool():
    x = np.array([[0.0, 0, 3, 0, 0, 0, 2]], np.float32)
    assert max_pool(x, 3).tolist() == [[0, 3, 3, 3, 0, 2, 2]]
    assert max_pool(x, 1).tolist() == x.tolist()


def test_quest_account(example):
    _, account, _ = example.run(Quest(fraction=0.25))
    # 12 pages: all ranges and 3 pages a query, and the open block.
    per_query = 12 * 2 * FP16_ROW + 3 * 16 * 2 * FP16_ROW
    assert account.read_bits == KV_HEADS * (64 * per_query + 2 * FP16_ROW * OPEN_PAIRS)
    assert account.metadata_bits_read == KV_HEADS * 64 * 12 * 2 * FP16_ROW
    assert account.stored_bits == KV_HEADS * 2 * FP16_ROW * (256 + 16)
    assert account.stored_metadata_bits == KV_HEADS * 2 * FP16_ROW * 16


@pytest.mark.parametrize("method", [Quest(fraction=1), Quest(dense_layers=1)])
def test_quest_that_fetches_everything_is_exact(example, method):
    output, _, _ = example.run(method)
    assert np.allclose(output, example.exact(), atol=1e-6)


def test_quest_fetches_the_page_of_the_best_key(example):
    example.q[:] = example.q[0, 0]
    example.k[:, 77] = 4 * example.q[0, 0]
    example.v[:, 77] = 1000
    output, _, _ = example.run(Quest(fraction=1 / 12))
    assert output.min() > 500


def test_quest_takes_the_pages_with_the_highest_bounds(example):
    """Per query: exact attention over the open block and the 3 pages of 16 whose ranges allow the highest score."""
    output, _, _ = example.run(Quest(fraction=0.25))
    for head in range(KV_HEADS):
        pages = example.k[head].reshape(-1, 16, HEAD_DIM)
        k = np.concatenate([example.k[head], example.new_k[head]])
        v = np.concatenate([example.v[head], example.new_v[head]])
        for i in range(64):
            queries = example.q[SHARED * head : SHARED * (head + 1), i] / np.sqrt(HEAD_DIM)
            products = [np.maximum(q * pages.min(axis=1), q * pages.max(axis=1)).sum(axis=1) for q in queries]
            best = np.max([bound - bound.max() for bound in products], axis=0).argsort()[-3:]
            seen = [*(16 * page + token for page in best for token in range(16)), *range(PROMPT, PROMPT + i + 1)]
            scores = np.exp(queries @ k[seen].T)
            expected = scores @ v[seen] / scores.sum(axis=1, keepdims=True)
            assert np.allclose(output[SHARED * head : SHARED * (head + 1), i], expected, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_a_block_in_parts_is_the_block_as_a_whole(example, name):
    whole, account, _ = example.run(make_peer(name))
    parts, part_account, _ = example.run(make_peer(name), pieces=(1, 20, 43))
    assert np.allclose(whole, parts, atol=1e-5)
    assert account == part_account


@pytest.mark.parametrize("name", METHODS)
def test_output_is_finite_for_zero_and_constant_rows(name):
    example = Example()
    for array in (example.k, example.v, example.q, example.new_k, example.new_v):
        array[:] = 0
    example.v[:], example.new_v[:] = 2, 2
    output, _, _ = example.run(make_peer(name))
    assert np.allclose(output, 2, atol=1e-2)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("quantize", [quantize_affine, quantize_symmetric])
def test_quantization_error_is_at_most_half_a_step(quantize, bits):
    random = np.random.default_rng(seed())
    x = (random.normal(size=(3, 50, 32)) * random.lognormal(0, 1, size=(3, 50, 1))).astype(np.float32)
    got = quantize(x, 2, bits)
    low, high = x.min(axis=2, keepdims=True), x.max(axis=2, keepdims=True)
    peak = np.abs(x).max(axis=2, keepdims=True)
    step = (high - low) / (2**bits - 1) if quantize is quantize_affine else peak / (2 ** (bits - 1) - 1)
    assert (np.abs(got - x) <= step / 2 + 2e-3 * peak + 1e-7).all()
    assert all(len(np.unique(row)) <= 2**bits for row in got.reshape(-1, 32))


def test_constant_slices_are_kept():
    x = np.array([[1.5, 1.5], [0, 0], [-3, -3]], np.float32)
    assert np.array_equal(quantize_affine(x, 1, 2), x)
    assert np.allclose(quantize_symmetric(x, 1, 8), x, rtol=1e-3)


def test_parameters_in_a_name():
    assert make_peer("quest:fraction=0.1:dense_layers=2") == Quest(
        name="quest:fraction=0.1:dense_layers=2", fraction=0.1, dense_layers=2
    )


@pytest.mark.parametrize(
    "spec, message",
    [
        ("nothing", "unknown method 'nothing': the peers are fp16, int8, int4, kivi2, h2o, snapkv, quest"),
        ("quest:size=3", "method 'quest' has no parameter 'size': it has page, fraction, dense_layers"),
        ("fp16:bits=3", "method 'fp16' has no parameter 'bits': it has none"),
        ("quest:page=x", "page of method 'quest' must be a value of type int, not 'x'"),
        ("quest:page=7", "method 'quest:page=7' is not possible: page must be a divisor of 64, not 7"),
        (
            "quest:fraction=0",
            "method 'quest:fraction=0' is not possible: fraction must be above 0 and at most 1, not 0.0",
        ),
        (
            "quest:dense_layers=-1",
            "method 'quest:dense_layers=-1' is not possible: dense_layers must be 0 or more, not -1",
        ),
        ("int4:group=48", "method 'int4:group=48' is not possible: group must be a divisor of 64, not 48"),
        ("kivi2:waiting=-1", "method 'kivi2:waiting=-1' is not possible: waiting must be 0 or more, not -1"),
        (
            "snapkv:pooling=4",
            "method 'snapkv:pooling=4' is not possible: pooling must be an odd number of tokens, not 4",
        ),
        (
            "h2o:heavy=1",
            "method 'h2o:heavy=1' is not possible: the shares heavy and recent must add up to 1 at most, not 1.0, 0.1",
        ),
    ],
)
def test_impossible_peers_are_refused(spec, message):
    with pytest.raises(UserError) as caught:
        make_peer(spec)
    assert str(caught.value) == message
