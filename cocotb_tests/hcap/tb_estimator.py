"""Coroutines of the Estimator tests."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cocotb

from cocotb_tests.lib import params, rng
from cocotb_tests.lib.bench import cycles, reset, start
from golden.mha.scores import SCORE_BITS
from rtl.config import AcceleratorConfig, DsqConfig, MhaConfig

CONFIG = AcceleratorConfig(dsq=DsqConfig(**params()["dsq"]), mha=MhaConfig(**params()["mha"]))
HEADS, ITEMS, BASES, TOKENS = (
    CONFIG.mha.q_heads,
    CONFIG.mha.tile_groups,
    CONFIG.dsq.max_salient,
    2 * CONFIG.dsq.group_tokens,
)
LOWEST, HIGHEST = -(1 << (SCORE_BITS - 1)), (1 << (SCORE_BITS - 1)) - 1

Scores = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A score row, with the names of the ports."""

    token: int = 0
    tile: int = 0
    item: int = 0
    index: int = 0
    scores: Scores = (0,) * HEADS
    base: tuple[int, int, int] = (0, 0, 0)  # tokens, k_scale, v_scale
    end: int = 0
    sound: int = 1
    k_group: int = 0
    v_group: int = 0


def packed(values: Sequence[int], bits: int) -> int:
    """Numbers as one vector, the first in its lowest bits."""
    return sum((value & ((1 << bits) - 1)) << bits * n for n, value in enumerate(values))


class Model:
    """What the ports show, and what is kept, by (tile, item, index), (tile, item) and (tile, index)."""

    def __init__(self) -> None:
        self.bases: dict[tuple[int, int, int], int] = {}
        self.items: dict[tuple[int, int], int] = {}
        self.tokens: dict[tuple[int, int], int] = {}
        self.peak, self.group = [0] * HEADS, [LOWEST] * HEADS
        self.top, self.sound_items = [[0] * HEADS, [0] * HEADS], [0, 0]

    def begin(self, tile: int) -> None:
        """The tile is filled anew."""
        self.top[tile], self.sound_items[tile] = [LOWEST] * HEADS, 0

    def clear(self) -> None:
        """The query is a new one."""
        self.peak = [LOWEST] * HEADS

    def write(self, row: Row) -> None:
        """A row comes."""
        estimates = packed(row.scores, SCORE_BITS)
        if row.token:
            self.tokens[row.tile, row.index] = estimates
            self.peak = [*map(max, self.peak, row.scores)]
            self.top[row.tile] = [*map(max, self.top[row.tile], row.scores)]
        else:
            self.bases[row.tile, row.item, row.index] = packed(row.base, 8) << HEADS * SCORE_BITS | estimates
            self.group = [*map(max, self.group, row.scores)]
        if not row.end:
            return
        self.items[row.tile, row.item] = packed((row.k_group, row.v_group, row.sound), 8)
        if not row.token:
            if row.sound:
                self.peak = [*map(max, self.peak, self.group)]
                self.sound_items[row.tile] += 1
            self.group = [LOWEST] * HEADS


class Bench:
    """Drives all ports, one row a cycle at most, and compares all of them in every cycle."""

    def __init__(self, dut: Any, label: str) -> None:
        self.dut, self.draw, self.model = dut, rng(label, HEADS, ITEMS), Model()
        self._expected: dict[str, int] = {}  # of the entries that were addressed a cycle before
        self._known: dict[str, list[Any]] = {"base": [], "item": [], "token": []}
        self._wanted: dict[str, list[Any]] = {"base": [], "item": [], "token": []}

    async def start(self) -> None:
        """Start and reset the design, in a new query."""
        self.idle()
        await start(self.dut)
        await self.fresh()

    def idle(self) -> None:
        """Nothing comes."""
        for name in ("valid", "tile_begin", "clear"):
            self._drive(name, 0)

    async def reset(self) -> None:
        """Reset the design; its memories keep what they have."""
        self.idle()
        await reset(self.dut)
        kept, self.model, self._expected = self.model, Model(), {}
        self.model.bases, self.model.items, self.model.tokens = kept.bases, kept.items, kept.tokens
        await self.fresh()

    def _drive(self, name: str, value: int) -> None:
        getattr(self.dut, name).value = value

    def _compare(self, name: str, expected: int) -> None:
        got = getattr(self.dut, name).value
        assert got.is_resolvable and int(got) == expected, f"{name} is {got}, expected {expected:#x}"

    async def step(self, row: Row | None = None, *, begin: int | None = None, clear: bool = False) -> None:
        """One cycle: what comes in it, anything on the ports that do not count; all outputs are compared."""
        draw, model = self.draw, self.model
        anything = Row(
            token=draw.getrandbits(1),
            tile=draw.getrandbits(1),
            item=draw.randrange(ITEMS),
            index=draw.randrange(BASES),
            scores=tuple(draw.randint(LOWEST, HIGHEST) for _ in range(HEADS)),
            end=draw.getrandbits(1),
            sound=draw.getrandbits(1),
        )
        shown = anything if row is None else row
        for name in ("token", "tile", "item", "index", "sound", "k_group", "v_group"):
            self._drive(name, getattr(shown, name))
        self._drive("item_end", shown.end)
        self._drive("scores", packed(shown.scores, SCORE_BITS))
        self._drive("base", packed(shown.base, 8) << HEADS * SCORE_BITS | draw.getrandbits(HEADS * SCORE_BITS))
        self._drive("valid", int(row is not None))
        self._drive("tile_begin", int(begin is not None))
        self._drive("begin_tile", draw.getrandbits(1) if begin is None else begin)
        self._drive("clear", int(clear))
        base, item, token = self._addresses(shown)
        for prefix, at, names in (
            ("base", base, ("tile", "item", "index")),
            ("item", item, ("tile", "item")),
            ("token", token, ("tile", "index")),
        ):
            for name, value in zip(names, at or (0, 0, 0), strict=False):
                self._drive(f"{prefix}_{name}", value)
        await cycles(self.dut, 1)
        self._compare("peak", packed(model.peak, SCORE_BITS))
        self._compare("tile_top", packed([*model.top[0], *model.top[1]], SCORE_BITS))
        self._compare("sound_items", packed(model.sound_items, ITEMS.bit_length()))
        for name, expected in self._expected.items():
            self._compare(name, expected)
        self._expected = {}
        if item is not None:
            self._expected["o_item"] = model.items[item]
        if base is not None:
            self._expected["o_base"] = model.bases[base]
        if token is not None:
            self._expected["o_token"] = model.tokens[token]
        if row is not None:
            model.write(row)
        if begin is not None:
            model.begin(begin)
        if clear:
            model.clear()

    def _addresses(self, row: Row) -> tuple[Any, Any, Any]:
        """Entries to read: those that `read_back` wants first, none that may be written in this cycle."""
        model, made = self.model, []
        item = row.tile, row.item
        written = {"base": (*item, row.index), "item": item, "token": (row.tile, row.index)}
        for (name, at), kept in zip(written.items(), (model.bases, model.items, model.tokens), strict=True):
            known, wanted = self._known[name], self._wanted[name]
            if len(kept) > len(known):
                known += [*kept][len(known) :]
            key = wanted[-1] if wanted else self.draw.choice(known) if known else None
            if wanted and key != at:
                wanted.pop()
            made.append(None if key == at else key)
        return made[0], made[1], made[2]

    async def read_back(self) -> None:
        """Everything that is kept."""
        model = self.model
        self._wanted = {"base": [*model.bases], "item": [*model.items], "token": [*model.tokens]}
        while any(self._wanted.values()):
            await self.step()
        await self.step()

    async def fill(self, rows: Sequence[Row], gaps: float = 0.0) -> None:
        """Rows one after the other, with gaps between them."""
        for row in rows:
            while self.draw.random() < gaps:
                await self.step()
            await self.step(row)

    async def fresh(self) -> None:
        """A new query with both tiles anew."""
        await self.step(clear=True)
        await self.step(begin=0)
        await self.step(begin=1)


def some_scores(draw: random.Random, spread: int) -> Scores:
    """Scores of all heads, at times the same or at the ends of the range."""
    if draw.random() < 0.1:
        return (draw.choice([LOWEST, HIGHEST, 0, -1]),) * HEADS
    return tuple(min(max(int(draw.gauss(0, spread)), LOWEST), HIGHEST) for _ in range(HEADS))


def group_rows(draw: random.Random, tile: int, item: int, bases: int, sound: bool, spread: int = 1 << 18) -> list[Row]:
    """The rows of a record's scan; whether it is sound counts in the last one."""
    rows = [
        Row(
            tile=tile,
            item=item,
            index=index,
            scores=some_scores(draw, spread),
            base=(draw.getrandbits(8), draw.getrandbits(8), draw.getrandbits(8)),
            sound=draw.getrandbits(1),
            k_group=draw.getrandbits(8),
            v_group=draw.getrandbits(8),
        )
        for index in range(bases)
    ]
    return [*rows[:-1], replace(rows[-1], end=1, sound=int(sound))]


def token_rows(draw: random.Random, tile: int, first: int, count: int, spread: int = 1 << 18) -> list[Row]:
    """The rows of an INT8 block."""
    return [
        Row(
            token=1,
            tile=tile,
            item=first // (TOKENS // 2) if ITEMS > 1 else 0,
            index=first + n,
            scores=some_scores(draw, spread),
            end=int(n == count - 1),
        )
        for n in range(count)
    ]


def tiles(draw: random.Random, tile: int) -> Iterator[list[Row]]:
    """Full tiles and the smallest ones, sound, faulty and mixed."""
    shapes = [(ITEMS, BASES, 1.0), (1, 1, 1.0), (ITEMS, BASES, 0.5), (1, BASES, 0.0), (ITEMS, 1, 0.7)]
    for items, bases, sound in shapes:
        groups = (group_rows(draw, tile, item, bases, draw.random() < sound) for item in range(items))
        yield [row for group in groups for row in group]
    for count in (1, TOKENS // 2, TOKENS):
        starts = range(0, count, TOKENS // 2)
        yield [row for first in starts for row in token_rows(draw, tile, first, min(count - first, TOKENS // 2))]


@cocotb.test()
@cocotb.parametrize(gaps=[0.0, 0.6])
async def keeps_what_golden_functions_gave(dut, gaps):
    """Tiles of all sizes, read while others are written."""
    bench = Bench(dut, f"tiles {gaps}")
    await bench.start()
    for number in range(params()["rounds"]):
        for tile in (0, 1):
            for rows in tiles(bench.draw, tile):
                await bench.step(begin=tile, clear=number == 0)
                await bench.fill(rows, gaps)
    await bench.read_back()


@cocotb.test()
async def peak_grows_with_tokens_at_once(dut):
    bench = Bench(dut, "tokens")
    await bench.start()
    for n in range(6):
        row = Row(token=1, index=n, scores=tuple(100 * n - 300 + h for h in range(HEADS)))
        await bench.step(row)
        assert bench.model.peak == list(row.scores)
    await bench.step(Row(token=1, index=6, scores=(-5000,) * HEADS, end=1))
    await bench.step()
    assert bench.model.peak == [200 + h for h in range(HEADS)]


@cocotb.test()
async def peak_grows_with_bases_at_the_end_of_a_sound_group(dut):
    """A faulty group leaves no trace, whatever its scores are: not in the peak, not in that of the group behind it."""
    bench = Bench(dut, "bases")
    await bench.start()
    draw, before = bench.draw, [LOWEST] * HEADS
    for item in range(ITEMS):
        faulty = [replace(row, scores=(HIGHEST,) * HEADS) for row in group_rows(draw, 0, item, BASES, False)]
        await bench.fill(faulty, gaps=0.2)
        await bench.step()
        assert bench.model.peak == before and bench.model.sound_items[0] == item
        rows = group_rows(draw, 0, item, BASES, True, spread=1000 << min(item, 8))
        rows = [replace(row, scores=tuple(min(s, HIGHEST - 1) for s in row.scores)) for row in rows]
        await bench.fill(rows[:-1], gaps=0.2)
        assert bench.model.peak == before
        await bench.step(rows[-1])
        before = [max(b, *(row.scores[h] for row in rows)) for h, b in enumerate(before)]
        assert bench.model.peak == before
    await bench.read_back()


@cocotb.test()
async def keeps_the_tiles_apart(dut):
    """Groups and blocks for both tiles in any order; one is begun anew while the other is filled."""
    bench = Bench(dut, "apart")
    draw = bench.draw
    await bench.start()
    for _ in range(20 * params()["rounds"]):
        tile = draw.getrandbits(1)
        if draw.random() < 0.3:
            rows = token_rows(draw, tile, 0, draw.randint(1, TOKENS // 2))
        elif bench.model.sound_items[tile] == ITEMS:
            rows = group_rows(draw, tile, 0, draw.randint(1, BASES), False)
        else:
            rows = group_rows(draw, tile, draw.randrange(ITEMS), draw.randint(1, BASES), draw.random() < 0.8)
        at = draw.randrange(len(rows))
        await bench.fill(rows[:at], gaps=0.1)
        event = draw.random()
        if event < 0.3:
            await bench.step(rows[at], begin=1 - tile)
        elif event < 0.4:
            await bench.step(clear=True)
            await bench.step(rows[at])
        else:
            await bench.step(rows[at])
        await bench.fill(rows[at + 1 :], gaps=0.1)
    await bench.read_back()


@cocotb.test()
async def works_after_reset_during_traffic(dut):
    """In the middle of a group and of a block; what is not written anew may still be read."""
    bench = Bench(dut, "reset")
    await bench.start()
    for rows in (
        group_rows(bench.draw, 0, 0, BASES, True)[: max(BASES // 2, 1)],
        token_rows(bench.draw, 1, 0, 5),
        group_rows(bench.draw, 1, ITEMS - 1, BASES, True),
    ):
        await bench.fill([replace(row, scores=(HIGHEST,) * HEADS) for row in rows])
        await bench.reset()
        await bench.fill(group_rows(bench.draw, 0, 0, BASES, True, spread=1000))
        await bench.fill(token_rows(bench.draw, 1, 0, TOKENS // 2, spread=1000))
        await bench.read_back()
