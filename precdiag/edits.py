"""Align two long sequences that differ in few places: Myers' greedy algorithm (1986), a step's diagonals at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Beyond so many insertions and deletions the time (quadratic in them) is better spent otherwise.
MOST_EDITS = 2500
_BASE = 0x9E3779B97F4A7C15


def common_runs(left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Return the runs of one longest common subsequence of two int64 arrays, or None where it takes too many edits.

    One line a run, ascending: where it begins in `left`, where in `right`, its length (int64, shape (runs, 3)).
    """
    import numpy as np

    if _fewest_edits(left, right) > MOST_EDITS:
        return None
    reach = _Reach(left, right)
    size, other = len(left), len(right)
    # furthest[d][i]: how far into `left` the diagonal 2i - d (left minus right) is reached by d edits.
    furthest = [reach.extended(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))]
    goal = size - other
    while True:
        edits = len(furthest) - 1
        at = goal + edits
        if at % 2 == 0 and 0 <= at // 2 <= edits and furthest[-1][at // 2] >= size:
            return _traced(furthest, size, other)
        if edits == MOST_EDITS:
            return None
        furthest.append(_next(furthest[-1], edits + 1, size, other, reach))


class _Reach:
    """How far two sequences go on alike from pairs of positions, by binary search over hashes of prefixes."""

    def __init__(self, left: np.ndarray, right: np.ndarray) -> None:
        import numpy as np

        self.sizes = len(left), len(right)
        longest = max(self.sizes)
        rng = np.random.default_rng(1)
        symbols, codes = np.unique(np.concatenate([left, right]), return_inverse=True)
        values = rng.integers(1, 2**63, len(symbols), dtype=np.uint64)[codes]
        powers = np.cumprod(np.full(longest, _BASE, dtype=np.uint64), dtype=np.uint64)
        self.power = np.concatenate([np.ones(1, dtype=np.uint64), powers])
        # Σ value·base^i, each prefix; a window is compared after both are brought to one power.
        self.prefix = tuple(
            np.concatenate([[np.uint64(0)], np.cumsum(part * self.power[: len(part)], dtype=np.uint64)])
            for part in (values[: len(left)], values[len(left) :])
        )
        self.steps = [1 << bit for bit in range(max(longest.bit_length() - 1, 0), -1, -1)]

    def extended(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return x moved along its diagonal as far as the two sequences are equal from (x, y) on."""
        import numpy as np

        length = np.zeros(len(x), dtype=np.int64)
        room = np.minimum(self.sizes[0] - x, self.sizes[1] - y)
        for step in self.steps:
            longer = length + step
            fits = longer <= room
            if fits.any():
                length = np.where(fits & self._equal(x, y, np.where(fits, longer, 0)), longer, length)
        return x + length

    def _equal(self, x: np.ndarray, y: np.ndarray, length: np.ndarray) -> np.ndarray:
        import numpy as np

        left = (self.prefix[0][x + length] - self.prefix[0][x]) * self.power[y]
        right = (self.prefix[1][y + length] - self.prefix[1][y]) * self.power[x]
        return np.asarray(left == right)


def _fewest_edits(left: np.ndarray, right: np.ndarray) -> int:
    """Return a bound from below: keys that stand more often on one side."""
    import numpy as np

    keys, side = np.concatenate([left, right]), np.repeat([1, -1], [len(left), len(right)])
    _, codes = np.unique(keys, return_inverse=True)
    return int(np.abs(np.bincount(codes, weights=side)).sum())


def _next(before: np.ndarray, edits: int, size: int, other: int, reach: _Reach) -> np.ndarray:
    """One more edit on every diagonal, and from there as far as the two are equal; -1 where there is no way."""
    import numpy as np

    x = np.maximum(*_stepped(before, edits, size, other))
    inside = np.flatnonzero(x >= 0)
    y = x[inside] - (2 * inside - edits)
    x[inside] = reach.extended(x[inside], y)
    return x


def _stepped(before: np.ndarray, edits: int, size: int, other: int) -> tuple[np.ndarray, np.ndarray]:
    """Reach each diagonal past a call that only `left` has, and past one that only `right` has; -1 where outside."""
    import numpy as np

    nowhere = np.full(1, -1, dtype=np.int64)
    past_left = np.concatenate([nowhere, np.where(before >= 0, before + 1, -1)])
    past_right = np.concatenate([before, nowhere])
    diagonal = 2 * np.arange(edits + 1) - edits
    past_left[(past_left > size) | (past_left - diagonal < 0)] = -1
    past_right[past_right - diagonal > other] = -1
    return past_left, past_right


def _traced(furthest: list[np.ndarray], size: int, other: int) -> np.ndarray:
    import numpy as np

    runs: list[tuple[int, int, int]] = []
    x, y = size, other
    for edits in range(len(furthest) - 1, 0, -1):
        at = (x - y + edits) // 2
        past_left, past_right = (int(way[at]) for way in _stepped(furthest[edits - 1], edits, size, other))
        start = max(past_left, past_right)
        runs.append((start, start - (x - y), x - start))
        y = start - (x - y)
        x = start
        if past_right == start:
            y -= 1
        else:
            x -= 1
    runs.append((0, 0, x))
    found = np.array(runs[::-1], dtype=np.int64)
    return found[found[:, 2] > 0]
