"""Attention on the compressed cache in loops over Python integers, token by token in the hardware's order."""

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from golden.dsq.compressor import Calibration
from golden.mha.query import Query, prepare_query
from golden.settings import KvoSettings
from golden.state import HeadState

__all__ = ["Attention", "Token", "plain_attention", "plain_selection"]

Scores = list[int]  # one for each query head


def plain_half_up(x: Fraction | int) -> int:
    """The definition."""
    return floor(Fraction(x) + Fraction(1, 2))


def plain_scale(code: int) -> Fraction:
    """What a scale code stands for."""
    return Fraction(8 + code % 8) * Fraction(2) ** (code // 8 - 11)


def plain_score(q: list[int], q_scale: int, k: list[int], k_scale: int, shift: int) -> int:
    """One score of 24 bits with 8 fraction bits."""
    dot = sum(a * b for a, b in zip(q, k, strict=True))
    value = plain_half_up(dot * plain_scale(q_scale) * plain_scale(k_scale) / Fraction(2) ** shift)
    return min(max(value, -(1 << 23)), (1 << 23) - 1)


def plain_weight(below: int) -> int:
    """The weight of a score ``below < 0`` under the maximum, in units of 2**-16."""
    return floor(2 ** (15 + below % 256 / 256) + 0.5) >> (-(below // 256) - 1)


def two_planes(level: int, bits: int) -> tuple[int, int]:
    """An odd delta level as its first two code bits show it, and what the other bits add."""
    if bits == 2:
        return level, 0
    upper, lower = divmod((level + 15) // 2, 4)
    return 4 * (2 * upper - 3), 2 * lower - 3


@dataclass(kw_only=True)
class Token:
    """A token whose V row a query reads: a final score of each head, scale and codes of V."""

    score: Scores
    is_delta: bool
    scale: int
    codes: list[int]  # of a delta 0..3
    place: int | None = None  # of an INT8 token
    group: int | None = None


class _Planes:
    """Scores of one query against single rows of planes."""

    def __init__(self, made: HeadState, query: Query, i: int, shift: int) -> None:
        self.groups, self.bits, self.shift = made.groups, made.settings.delta_bits, shift
        self.made, self.query, self.i = made, query, i
        self.heads = range(len(query.codes))

    def _against(self, codes: list[int], scale: int, shaped: bool) -> Scores:
        q = self.query
        forms = (q.shaped_codes, q.shaped_scale) if shaped else (q.codes, q.scale)
        rows = [(forms[0][h, self.i].tolist(), int(forms[1][h, self.i])) for h in self.heads]
        return [plain_score(*row, codes, int(scale), self.shift + shaped) for row in rows]

    def int8(self, token: int) -> Scores:
        return self._against(self.made.k_codes[token].tolist(), self.made.k_scale[token], False)

    def upper(self, g: int, b: int) -> Scores:
        codes = [c // 16 * 16 + 8 for c in self.groups.k_base[g, b].tolist()]
        return self._against(codes, self.groups.k_base_scale[g, b], False)

    def lower(self, g: int, b: int) -> Scores:
        codes = [c % 16 - 8 for c in self.groups.k_base[g, b].tolist()]
        return self._against(codes, self.groups.k_base_scale[g, b], False)

    def delta(self, g: int, row: int, plane: int) -> Scores:
        codes = [two_planes(level, self.bits)[plane] for level in self.groups.k_level[g, row].tolist()]
        return self._against(codes, self.groups.k_group_scale[g], True)


def plus(a: Scores, b: Scores) -> Scores:
    """Sums, head by head."""
    return [x + y for x, y in zip(a, b, strict=True)]


def highest(*several: Scores) -> Scores:
    """The largest score of each head."""
    return [max(of_head) for of_head in zip(*several, strict=True)]


def _kept(distance: dict, run_length: np.ndarray, s: KvoSettings, tokens: int) -> set:
    """Bases of a tile whose run is kept: whole bins, the nearest first; everything from 32 units on is one bin."""
    limit = floor(Fraction(round(256 * s.keep_fraction), 256) * tokens)
    kept, total = set(), 0
    for bin_ in range(129):
        inside = [at for at, d in distance.items() if min(d // 64, 128) == bin_]
        total += sum(int(run_length[at]) for at in inside)
        if total > limit:
            break
        kept |= {at for at in inside if distance[at] <= KvoSettings.fixed_point(s.run_margin)}
    return kept


def plain_selection(
    made: HeadState,
    query: Query,
    i: int,
    newest: int,
    shift: int,
    scanned: list[int],
    faulty: Collection[int] = (),
) -> tuple[dict[str, set], list[Token]]:
    """What query ``i``, which sees ``newest`` INT8 tokens, fetches: sets of (group, base), (group, row), (token,).

    Also the tokens whose V is read, in order: INT8 tokens, then group by group bases and delta tokens. ``faulty`` ones
    among the ``scanned`` groups take up room in a tile and nothing else.
    """
    s, groups, planes = made.settings, made.groups, _Planes(made, query, i, shift)
    fetched: dict[str, set] = {"lower": set(), "k_delta": set(), "v_salient": set(), "v_delta": set(), "v_int8": set()}
    tokens: list[Token] = []
    int8 = [planes.int8(t) for t in range(newest)]
    peak = top = highest(*int8)

    def near(score: Scores) -> bool:
        """Whether V is read."""
        below = min(t - x for t, x in zip(top, score, strict=True))
        return not s.prune or below <= KvoSettings.fixed_point(s.value_margin)

    for t, score in enumerate(int8):
        if near(score):
            fetched["v_int8"].add((t,))
            scale, codes = int(made.v_scale[t]), made.v_codes[t].tolist()
            tokens.append(Token(score=score, is_delta=False, scale=scale, codes=codes, place=t))
    for start in range(0, len(scanned), s.tile_groups):
        tile = [g for g in scanned[start : start + s.tile_groups] if g not in faulty]
        if not tile:
            continue
        estimate = {(g, b): planes.upper(g, b) for g in tile for b in range(s.salient_tokens)}
        peak = highest(peak, *estimate.values())
        distance = {at: min(p - e for p, e in zip(peak, score, strict=True)) for at, score in estimate.items()}
        lower = {at for at, d in distance.items() if d <= KvoSettings.fixed_point(s.estimate_margin) or not s.prune}
        kept = _kept(distance, groups.run_length, s, len(tile) * s.group_tokens) if s.prune else set(distance)
        known = {at: plus(score, planes.lower(*at)) if at in lower else score for at, score in estimate.items()}
        fetched["lower"] |= lower
        for g in tile:
            base = {b: known[g, b] for b in range(s.salient_tokens) if (g, b) in lower}
            rough = {
                row: plus(known[g, b], planes.delta(g, row, 0))
                for row, b in enumerate(groups.base_of[g].tolist())
                if (g, b) in kept
            }
            fetched["k_delta"] |= {(g, row) for row in rough}
            top = highest(top, *base.values(), *rough.values())
            for b, score in base.items():
                if near(score):
                    fetched["v_salient"].add((g, b))
                    scale, codes = int(groups.v_salient_scale[g, b]), groups.v_salient[g, b].tolist()
                    tokens.append(Token(score=score, is_delta=False, scale=scale, codes=codes, group=g))
            for row, score in rough.items():
                if near(score):
                    fetched["v_delta"].add((g, row))
                    scale, codes = int(groups.v_group_scale[g]), [(x + 3) // 2 for x in groups.v_level[g, row].tolist()]
                    score = plus(score, planes.delta(g, row, 1))
                    tokens.append(Token(score=score, is_delta=True, scale=scale, codes=codes, group=g))
    return fetched, tokens


class _Row:
    """The accumulators of one query of one head, and the weights of the entries that the mass goes to."""

    def __init__(self, head_dim: int) -> None:
        self.maximum: int | None = None
        self.exact, self.delta = [0] * head_dim, [0] * head_dim
        self.scaled = self.rest = self.total = 0
        self.entries: dict[object, list[int]] = {}  # weight, and the maximum that it is against
        self.rises = 0  # of the maximum while a group was being added

    def _raise(self, maximum: int, entry: object) -> None:
        rise = 0 if self.maximum is None else maximum - self.maximum
        self.exact, self.delta = [x >> rise for x in self.exact], [x >> rise for x in self.delta]
        self.scaled, self.rest, self.total = self.scaled >> rise, self.rest >> rise, self.total >> rise
        if entry in self.entries:
            self.entries[entry] = [self.entries[entry][0] >> rise, maximum]
            self.rises += 1
        self.maximum = maximum

    def add(self, score: int, token: Token, entry: object) -> None:
        """One token of an entry, which follow each other."""
        if self.maximum is None or score // 256 + 1 > self.maximum:
            self._raise(score // 256 + 1, entry)
        weight = plain_weight(score - 256 * self.maximum)
        scaled = min(plain_half_up(weight * plain_scale(token.scale)), (1 << 32) - 1)
        if token.is_delta:
            self.delta = [x + scaled * c for x, c in zip(self.delta, token.codes, strict=True)]
            self.scaled += scaled
            self.rest += weight
        else:
            self.exact = [x + scaled * c for x, c in zip(self.exact, token.codes, strict=True)]
        self.total += weight
        self.entries.setdefault(entry, [0, self.maximum])[0] += weight

    @property
    def _inverse(self) -> tuple[int, int, int]:
        """The inverse of the total, its bit length, and how many bits numerators are cut by."""
        length = self.total.bit_length()
        return plain_half_up(Fraction(1 << (length - 1 + 18), self.total)), length, max(length - 20, 0)

    def output(self, c: Calibration) -> list[int]:
        """The output row."""
        inverse, length, cut = self._inverse
        out, columns = [], zip(self.exact, self.delta, c.v_shape.tolist(), c.v_mean.tolist(), strict=True)
        for exact, delta, shape, mean in columns:
            spread = plain_half_up(Fraction((2 * delta - 3 * self.scaled) * shape, 512))
            numerator = (exact + spread + self.rest * mean) >> cut
            value = plain_half_up(Fraction(numerator * inverse, 1 << (length - 1 + 18 - cut)))
            out.append(min(max(value, -32768), 32767))
        return out

    def mass(self) -> dict[object, int]:
        """The mass of each entry, units of 2**-16."""
        inverse, length, cut = self._inverse
        made, upto, before = {}, 0, 0
        for entry, (weight, maximum) in self.entries.items():
            upto += weight >> (self.maximum - maximum)
            reached = plain_half_up(Fraction((upto >> cut) * inverse, 1 << (length - 1 + 18 - 16 - cut)))
            made[entry], before = reached - before, reached
        return made


@dataclass(kw_only=True)
class Attention:
    """Output rows ``[query][head]``, what each query fetches, the mass of INT8 tokens and of groups over all rows."""

    out: list[list[list[int]]]
    fetched: list[dict[str, set]]
    token_mass: list[int]
    group_mass: list[int]
    rises: int  # of a maximum while a group was being added


def plain_attention(
    made: HeadState, q: np.ndarray, shift: int, scanned: list[int], faulty: Collection[int] = ()
) -> Attention:
    """All of it, query by query and head by head."""
    query, (heads, count, dim) = prepare_query(q, made.calibration.k_shape), q.shape
    whole = Attention(
        out=[], fetched=[], token_mass=[0] * len(made.k_codes), group_mass=[0] * len(made.closed), rises=0
    )
    for i in range(count):
        newest = len(made.k_codes) - count + i + 1
        sets, tokens = plain_selection(made, query, i, newest, shift, scanned, faulty)
        whole.fetched.append(sets)
        whole.out.append([])
        for head in range(heads):
            row = _Row(dim)
            for token in tokens:
                row.add(token.score[head], token, token.place if token.group is None else ("group", token.group))
            for entry, amount in row.mass().items():
                of_group = isinstance(entry, tuple)
                (whole.group_mass if of_group else whole.token_mass)[entry[1] if of_group else entry] += amount
            whole.rises += row.rises
            whole.out[-1].append(row.output(made.calibration))
    return whole
