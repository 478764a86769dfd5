"""Properties of AXI4 channels and streams, and what a fair peer does, for proofs."""

from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value, ValueLike

from golden.cache.axi import BOUNDARY_BYTES
from rtl.cache.axi import AxiConfig

__all__ = [
    "PLACE_BITS",
    "address_of",
    "assert_holds",
    "assert_legal",
    "assume_holds",
    "assume_in_block",
    "assume_soon",
    "block",
    "is_bad",
    "place_of",
]

#: bits of a word's place; one half of the places lies before a 4 KiB boundary, the other one behind it
PLACE_BITS = 4
#: places are counted in blocks of 4, one of which lies across the boundary
_SHIFT = 2


def address_of(place: Value, bits: int) -> Value:
    """The address of a place; the boundary is the end of memory, where addresses wrap."""
    low, behind = place[: PLACE_BITS - 1], place[PLACE_BITS - 1]
    return Cat(low, (~behind).replicate(bits - len(low)))


def place_of(address: Value, config: AxiConfig) -> Value:
    """The place of a word, from its byte address."""
    word = address[config.word_bytes.bit_length() - 1 :]
    return Cat(word[: PLACE_BITS - 1], ~word[-1])


def block(place: Value) -> Value:
    """Lower two bits: where in its block a place lies; above them the block."""
    return (place + _SHIFT)[:PLACE_BITS]


def is_bad(place: Value) -> Value:
    """Requests in every other block are bad."""
    return block(place)[2]


def assume_in_block(m: Module, place: Value, count: Value) -> None:
    """A request is of one block, and does not go from the last place to the first one."""
    m.d.comb += [
        Assume((count != 0) & (block(place)[:2] + count <= 4)),
        Assume(place + count <= 1 << PLACE_BITS),
    ]


def _held(m: Module, valid: Value, ready: Value, payload: ValueLike) -> Value:
    """A valid word that was not taken is still there, unchanged."""
    payload = Value.cast(payload)
    waited, before = Signal(), Signal(len(payload))
    m.d.sync += [waited.eq(valid & ~ready), before.eq(payload)]
    return ~waited | (valid & (payload == before))


def assert_holds(m: Module, valid: Value, ready: Value, payload: ValueLike) -> None:
    """Valid and payload hold until the transfer."""
    m.d.comb += Assert(_held(m, valid, ready, payload))


def assume_holds(m: Module, valid: Value, ready: Value, payload: ValueLike) -> None:
    """The peer's valid and payload hold until the transfer."""
    m.d.comb += Assume(_held(m, valid, ready, payload))


def assume_soon(m: Module, waiting: ValueLike, done: ValueLike, cycles: int) -> None:
    """What waits is done after at most ``cycles`` cycles in which it is not."""
    count = Signal(range(cycles + 1))
    stalled = Value.cast(waiting) & ~Value.cast(done)
    m.d.sync += count.eq(Mux(stalled, count + 1, 0))
    m.d.comb += Assume(~stalled | (count != cycles))


def assert_legal(m: Module, valid: Value, address: Value, length: Value, *, max_burst: int, word_bytes: int) -> None:
    """An address of a burst: aligned, not too long, not across 4 KiB."""
    last = address % BOUNDARY_BYTES + length * word_bytes
    with m.If(valid):
        m.d.comb += [
            Assert(address % word_bytes == 0),
            Assert(length < max_burst),
            Assert(last < BOUNDARY_BYTES),
        ]
