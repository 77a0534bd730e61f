"""Align two sequences: the longest common subsequence of keys, among the longest ones the one whose values agree."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.edits import common_runs

if TYPE_CHECKING:
    import numpy as np

# A gap of up to so many cells is solved exactly and at once (8 bytes a cell, twice).
EXACT_CELLS = 1 << 21
# Below this an exact solution costs less than a search for anchors.
_SMALL_CELLS = 1 << 12
# How much of a long run of equal keys stays open at either end.
_OPEN_ENDS = 8
# Rows of a call that are compared when one pair is preferred to another.
ROWS_COMPARED = 8
# Priorities as digits of one number, none of which can carry: pairs, rows of equal value, rows of equal shape, names.
_PAIR, _VALUE, _SHAPE, _NAME = 1 << 46, 1 << 30, 1 << 14, 1


@dataclass(frozen=True)
class Sequence:
    """The calls of one side in order, as numbers that agree between the two sides.

    `key` (int64 of n): only equal keys may pair. `whole` (uint64 of n): everything known of a call but its counter.
    `name` (int64 of n): its name. `values`, `shapes` (uint64 of n x ROWS_COMPARED): its first rows, 0 for none.
    """

    key: np.ndarray
    whole: np.ndarray
    name: np.ndarray
    values: np.ndarray
    shapes: np.ndarray

    def part(self, begin: int, end: int) -> Sequence:
        """Return the calls from `begin` up to `end`."""
        return self.chosen(slice(begin, end))

    def chosen(self, at: np.ndarray | slice) -> Sequence:
        """Return the calls at some positions."""
        return Sequence(self.key[at], self.whole[at], self.name[at], self.values[at], self.shapes[at])


_Gap = tuple[int, int, int, int]


def align_sequences(left: Sequence, right: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions that pair, ascending on both sides.

    Among the longest alignments the one with most rows of equal value, then of equal shape and dtype, then of equal
    names. Near-linear where values agree: equal heads and tails are trimmed, what stands equally often on both sides
    anchors, and only the gaps between are solved exactly. A gap too large for that is first cut at long runs of
    equal keys (Myers), else halved along a longest alignment of its keys (Hirschberg, on bit vectors); there only the
    choice among equally long alignments is not exact.
    """
    import numpy as np

    found: list[tuple[np.ndarray, np.ndarray]] = []
    gaps: list[_Gap] = [(0, len(left.key), 0, len(right.key))]
    while gaps:
        begin, end, other, other_end = gaps.pop()
        head, tail = _trimmed(left.whole[begin:end], right.whole[other:other_end])
        found.append((np.arange(begin, begin + head), np.arange(other, other + head)))
        found.append((np.arange(end - tail, end), np.arange(other_end - tail, other_end)))
        gap = (begin + head, end - tail, other + head, other_end - tail)
        if gap[0] == gap[1] or gap[2] == gap[3]:
            continue
        pairs, inside = _solve(left, right, gap)
        found.append(pairs)
        gaps += inside
    at, against = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(at, kind="stable")
    return at[order], against[order]


def longest_increasing(numbers: np.ndarray) -> np.ndarray:
    """Return the positions of one longest strictly increasing subsequence (patience sorting)."""
    import numpy as np

    if len(numbers) < 2 or bool((np.diff(numbers) > 0).all()):
        return np.arange(len(numbers))
    tails: list[int] = []
    tops: list[int] = []
    before = [-1] * len(numbers)
    for at, number in enumerate(numbers.tolist()):
        pile = bisect_left(tails, number)
        if pile:
            before[at] = tops[pile - 1]
        if pile == len(tails):
            tails.append(number)
            tops.append(at)
        else:
            tails[pile], tops[pile] = number, at
    chain = [tops[-1]]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return np.array(chain[::-1], dtype=np.int64)


def _solve(left: Sequence, right: Sequence, gap: _Gap) -> tuple[tuple[np.ndarray, np.ndarray], list[_Gap]]:
    """Return pairs of one gap, and the gaps that are left inside it."""
    import numpy as np

    begin, end, other, other_end = gap
    here, there = left.part(begin, end), right.part(other, other_end)
    cells = len(here.key) * len(there.key)
    if cells > _SMALL_CELLS:
        for search in (_by_whole, _by_rows, _by_runs):
            anchors = search(here, there)
            if len(anchors[0]):
                return (anchors[0] + begin, anchors[1] + other), list(_between(anchors, gap))
        here_at, there_at = (np.flatnonzero(np.isin(a.key, b.key)) for a, b in ((here, there), (there, here)))
        here, there = here.chosen(here_at), there.chosen(there_at)
        pairs = halved(here, there)
        return (here_at[pairs[0]] + begin, there_at[pairs[1]] + other), []
    pairs = exact(here, there)
    return (pairs[0] + begin, pairs[1] + other), []


def exact(left: Sequence, right: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Solve a gap by dynamic programming over every cell."""
    import numpy as np

    n, m = len(left.key), len(right.key)
    score = _scores(left, right)
    best = np.zeros((n + 1, m + 1), dtype=np.int64)
    for row in range(n):
        through = np.maximum(best[row, 1:], np.where(score[row] > 0, best[row, :-1] + score[row], 0))
        np.maximum.accumulate(through, out=best[row + 1, 1:])
    at, against = [], []
    row, column = n, m
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            at.append(row)
            against.append(column)
    return np.array(at[::-1], dtype=np.int64), np.array(against[::-1], dtype=np.int64)


def halved(left: Sequence, right: Sequence, cells: int = EXACT_CELLS) -> tuple[np.ndarray, np.ndarray]:
    """Halve the left side where a longest alignment of the keys crosses it, until the halves can be solved exactly."""
    import numpy as np

    if len(left.key) * len(right.key) <= cells or len(left.key) < 2:
        return exact(left, right)
    middle = len(left.key) // 2
    upper, lower = left.part(0, middle), left.part(middle, len(left.key))
    lengths = _lengths(upper.key, right.key) + _lengths(lower.key[::-1], right.key[::-1])[::-1]
    ties = np.flatnonzero(lengths == lengths.max())
    wanted = np.flatnonzero(right.name == left.name[middle])
    near = int(wanted[0]) if len(wanted) else middle * len(right.key) // len(left.key)
    split = int(ties[np.argmin(np.abs(ties - near))])
    first = halved(upper, right.part(0, split), cells)
    second = halved(lower, right.part(split, len(right.key)), cells)
    return np.concatenate([first[0], second[0] + middle]), np.concatenate([first[1], second[1] + split])


def _scores(left: Sequence, right: Sequence) -> np.ndarray:
    import numpy as np

    score = np.full((len(left.key), len(right.key)), _PAIR, dtype=np.int64)
    score += (left.name[:, None] == right.name[None, :]) * _NAME
    for weight, rows, others in ((_VALUE, left.values, right.values), (_SHAPE, left.shapes, right.shapes)):
        for place in range(rows.shape[1]):
            mine = rows[:, place, None]
            score += ((mine == others[None, :, place]) & (mine != 0)) * weight
    score[left.key[:, None] != right.key[None, :]] = 0
    return score


def _trimmed(left: np.ndarray, right: np.ndarray) -> tuple[int, int]:
    """Return the lengths of the equal head and of the equal tail behind it."""
    import numpy as np

    short = min(len(left), len(right))
    same = left[:short] == right[:short]
    head = short if same.all() else int(np.argmin(same))
    rest = short - head
    same = (left[len(left) - rest :] == right[len(right) - rest :])[::-1]
    tail = rest if same.all() else int(np.argmin(same))
    return head, tail


def _by_whole(left: Sequence, right: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Anchor the n-th occurrence of a call on that of the other side where both sides have it equally often."""
    return _anchors(left.whole, right.whole)


def _by_rows(left: Sequence, right: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Anchor on single rows, such as a weight, whose key and value stand equally often on both sides."""
    import numpy as np

    width = left.values.shape[1]
    owners, rows = [], []
    for side in (left, right):
        # The key goes in by a multiplication with an odd number, which loses nothing.
        mixed = side.values * np.uint64(0x9E3779B97F4A7C15) + side.key.astype(np.uint64)[:, None]
        stands = (side.values != 0).ravel()
        owners.append(np.repeat(np.arange(len(side.key)), width)[stands])
        rows.append(mixed.ravel()[stands])
    at, against = _anchors(rows[0], rows[1], strictly=False)
    at, against = owners[0][at], owners[1][against]
    keep = longest_increasing(against)
    at, against = at[keep], against[keep]
    fresh = np.diff(at, prepend=-1) > 0  # several rows of one call anchor it once
    return at[fresh], against[fresh]


def _by_runs(left: Sequence, right: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Anchor the inside of long runs of equal keys, where a gap is too large to be solved at once.

    Their ends are left open: there the choice among equally long alignments is made by values, shapes and names.
    """
    import numpy as np

    nowhere = np.array([], dtype=np.int64)
    runs = None if len(left.key) * len(right.key) <= EXACT_CELLS else common_runs(left.key, right.key)
    if runs is None:
        return nowhere, nowhere
    runs = runs[runs[:, 2] > 2 * _OPEN_ENDS] + np.array([_OPEN_ENDS, _OPEN_ENDS, -2 * _OPEN_ENDS])
    length = runs[:, 2]
    place = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    return np.repeat(runs[:, 0], length) + place, np.repeat(runs[:, 1], length) + place


def _anchors(left: np.ndarray, right: np.ndarray, *, strictly: bool = True) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    sides = []
    for prints in (left, right):
        order = np.argsort(prints, kind="stable")
        values, first, counts = np.unique(prints[order], return_index=True, return_counts=True)
        sides.append((order, values, first, counts))
    (order, values, first, counts), (order_r, values_r, first_r, counts_r) = sides
    _, here, there = np.intersect1d(values, values_r, assume_unique=True, return_indices=True)
    alike = counts[here] == counts_r[there]
    here, there = here[alike], there[alike]
    if not len(here):
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    times = counts[here]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    at = order[np.repeat(first[here], times) + nth]
    against = order_r[np.repeat(first_r[there], times) + nth]
    by_left = np.argsort(at, kind="stable")
    at, against = at[by_left], against[by_left]
    if not strictly:
        return at, against
    keep = longest_increasing(against)
    return at[keep], against[keep]


def _between(anchors: tuple[np.ndarray, np.ndarray], gap: _Gap) -> Iterator[_Gap]:
    """Yield what is not empty on both sides between the anchors of a gap."""
    import numpy as np

    begin, end, other, other_end = gap
    starts = np.concatenate([[begin], anchors[0] + begin + 1])
    ends = np.concatenate([anchors[0] + begin, [end]])
    others = np.concatenate([[other], anchors[1] + other + 1])
    other_ends = np.concatenate([anchors[1] + other, [other_end]])
    for at in np.flatnonzero((ends > starts) & (other_ends > others)).tolist():
        yield int(starts[at]), int(ends[at]), int(others[at]), int(other_ends[at])


def _lengths(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return, for every prefix of `right`, the length of its longest common subsequence with `left`: int64 of m + 1.

    Hyyrö's bit-parallel recurrence (2004): bit j is 0 where the length grows at j.
    """
    import numpy as np

    size = len(right)
    masks = {
        int(key): int.from_bytes(np.packbits(right == key, bitorder="little").tobytes(), "little")
        for key in np.unique(right).tolist()
    }
    everything = (1 << size) - 1
    vector = everything
    for key in left.tolist():
        mask = masks.get(key)
        if mask is not None:
            matched = vector & mask
            vector = ((vector + matched) | (vector ^ matched)) & everything
    raw = np.frombuffer(vector.to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    grows = np.unpackbits(raw, bitorder="little")[:size] == 0
    return np.concatenate([[0], np.cumsum(grows)])
