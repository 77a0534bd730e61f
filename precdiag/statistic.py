"""Compare the statistics that stand in dump.json: Max, Min, Mean and Norm, vectorised over rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from precdiag.dump import Dump
from precdiag.rows import STATISTICS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Mean and Norm are reductions: another device, thread count or layout sums the same bytes to another last digit.
# One thread against two differed by up to 2^-21 of the largest element on real dumps; twice that is allowed.
REDUCTION_ROUNDING = 2.0**-20
# Spacing of floating-point numbers at 1, by dtype.
EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}
# Measured on 340,000 rows: with so many at a time the temporaries of the four statistics stay in the cache.
BLOCK_ROWS = 1 << 14

_MAX, _MIN, _MEAN, _NORM = range(4)


@dataclass(frozen=True)
class StatisticDeltas:
    """What the statistics of paired rows say; every field is an array over the pairs.

    comparable: some statistic stands on both sides. lopsided: another stands on one side only, where no version
    explains it. shortened: Mean and Norm do, which newer versions leave out of int64 and float64. differ: one of
    them proves that values differ. rounding: only Mean or Norm differ, by no more than a reduction rounds, which
    proves nothing. narrowing: they differ by no more than rounding to the narrower of the two dtypes. constant: all
    elements are one finite number, the same on both sides, which proves that values are equal. nonfinite: bit 1
    where the baseline has NaN or Inf, 2 the candidate. max_abs: the largest |Δ| of an element that the statistics
    prove (|ΔMax|, |ΔMin|, |ΔMean|, |ΔNorm|/√n). max_rel: |Δ| / max(|Max|, |Min|) of the baseline for Max, Min and
    Mean, |Δ| / Norm for Norm; 0/0 is 0, x/0 is inf. Both are NaN where not comparable.
    """

    comparable: np.ndarray
    lopsided: np.ndarray
    shortened: np.ndarray
    differ: np.ndarray
    rounding: np.ndarray
    narrowing: np.ndarray
    constant: np.ndarray
    nonfinite: np.ndarray
    max_abs: np.ndarray
    max_rel: np.ndarray


def compare_statistics(baseline: Dump, candidate: Dump, b: np.ndarray, c: np.ndarray) -> StatisticDeltas:
    """Compare the rows `b` of the baseline with the rows `c` of the candidate (positions, equal lengths)."""
    sides = StatisticColumns(baseline), StatisticColumns(candidate)
    return StatisticDeltas(*by_block(lambda left, right: _compare(sides[0].at(left), sides[1].at(right)), b, c))


def by_block(
    work: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]], b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return what `work` makes of the pairs (b, c), some at a time: its temporaries stay in the cache, and small."""
    import numpy as np

    blocks = [slice(at, at + BLOCK_ROWS) for at in range(0, max(len(b), 1), BLOCK_ROWS)]
    return tuple(map(np.concatenate, zip(*(work(b[block], c[block]) for block in blocks), strict=True)))


def element_counts(shape: pd.Series[str]) -> np.ndarray:
    """Return the number of elements of each row from its shape text: int64, 1 for `[]`, -1 where it has no shape."""
    counts: np.ndarray = _element_table(shape)[shape.cat.codes.to_numpy()]
    return counts


def stands_in(known: np.ndarray) -> np.ndarray:
    """Which statistics stand in the file: bool (4, n)."""
    import numpy as np

    return np.asarray((known[None, :] >> np.arange(4, dtype=np.uint8)[:, None]) & 1, dtype=bool)


class StatisticColumns:
    """What is compared of one dump's rows, taken out once."""

    def __init__(self, dump: Dump) -> None:
        rows = dump.rows
        self._statistics = [rows[name].to_numpy() for name in STATISTICS]
        self._known, self._value = rows["known"].to_numpy(), rows["value"].to_numpy()
        self._dtype, self._epsilon = rows["dtype"].cat.codes.to_numpy(), _epsilon_table(rows["dtype"])
        self._shape, self._elements = rows["shape"].cat.codes.to_numpy(), _element_table(rows["shape"])

    def at(self, rows: np.ndarray) -> StatisticRows:
        """Take some rows out by their positions."""
        import numpy as np

        return StatisticRows(
            values=np.stack([column[rows] for column in self._statistics]),
            known=self._known[rows],
            text=self._value[rows],
            epsilon=self._epsilon[self._dtype[rows]],
            elements=self._elements[self._shape[rows]],
        )


@dataclass(frozen=True)
class StatisticRows:
    """Some rows of one side: statistics as (4, n), the others (n,)."""

    values: np.ndarray
    known: np.ndarray
    text: np.ndarray
    epsilon: np.ndarray
    elements: np.ndarray

    @property
    def nonfinite(self) -> np.ndarray:
        """1 where the data hold NaN or Inf (uint8). An infinite Norm alone is an overflow of the sum."""
        import numpy as np

        marked: np.ndarray = (stands_in(self.known) & ~np.isfinite(self.values))[:_NORM].any(axis=0).astype(np.uint8)
        return marked


def _compare(left: StatisticRows, right: StatisticRows) -> tuple[np.ndarray, ...]:
    """Return the fields of StatisticDeltas for some pairs: distances are taken only where a statistic differs."""
    import numpy as np

    x, y, common = left.values, right.values, left.known & right.known
    shortened = (left.known ^ right.known) == (1 << _MEAN | 1 << _NORM)
    stands = stands_in(common)
    equal = (x == y) | (np.isnan(x) & np.isnan(y)) | ~stands
    text_differs = np.asarray(left.text != right.text, dtype=bool)
    unequal = ~equal.all(axis=0) | text_differs
    comparable = common > 0
    rounding, narrowing = np.zeros(len(common), dtype=bool), ~text_differs
    max_abs, max_rel = (np.where(comparable, 0.0, np.nan) for _ in range(2))
    at = np.flatnonzero(unequal)
    if len(at):
        epsilon = np.maximum(left.epsilon, right.epsilon)[at]
        found = _distances(x[:, at], y[:, at], equal[:, at], epsilon, left.elements[at])
        rounding[at] = found.rounding & ~text_differs[at]
        narrowing[at] &= found.narrowing
        for column, largest in ((max_abs, found.max_abs), (max_rel, found.max_rel)):
            column[at] = np.where(comparable[at], largest, np.nan)
    finite = np.isfinite(x[_MAX]) & np.isfinite(y[_MAX])
    constant = stands[_MAX] & stands[_MIN] & equal[_MAX] & equal[_MIN] & finite & (x[_MAX] == x[_MIN])
    return (
        comparable | text_differs,
        (left.known != right.known) & ~shortened,
        shortened,
        unequal & ~rounding,
        rounding,
        narrowing,
        constant,
        left.nonfinite | (right.nonfinite << 1),
        max_abs,
        max_rel,
    )


class _Distances(NamedTuple):
    """Fields of StatisticDeltas of the same names."""

    rounding: np.ndarray
    narrowing: np.ndarray
    max_abs: np.ndarray
    max_rel: np.ndarray


def _distances(
    left: np.ndarray, right: np.ndarray, equal: np.ndarray, epsilon: np.ndarray, elements: np.ndarray
) -> _Distances:
    """How far statistics (4, n) are apart, of which `equal` are alike or stand on one side only."""
    import numpy as np

    delta = _deltas(left, right, equal)
    allowed = _reduction_allowance(left, right, np.minimum(epsilon, EPSILON["bfloat16"]))
    within = ((delta <= allowed) | equal).all(axis=0)
    one_element = elements == 1  # its Mean is the element: nothing was summed
    scale = np.maximum(_magnitude(left), _magnitude(right))
    of = np.where(np.arange(4)[:, None] == _NORM, _norm(left, right), scale)
    narrowing = ((delta <= epsilon * of) | equal).all(axis=0)
    return _Distances(within & equal[_MAX] & equal[_MIN] & ~one_element, narrowing, *_largest(delta, left, elements))


def _element_table(shape: pd.Series[str]) -> np.ndarray:
    import numpy as np

    counts = []
    for text in shape.cat.categories:
        sizes = [size for size in text.strip("[]()").replace(" ", "").split(",") if size]
        known = text != "" and all(size.isdecimal() for size in sizes)
        counts.append(int(np.prod([int(size) for size in sizes], dtype=object)) if known else -1)
    return np.array([min(count, 2**62) for count in counts], dtype=np.int64)


def _deltas(left: np.ndarray, right: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """|right - left|, 0 where equal, inf where one side is not finite."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.abs(right - left)
    return np.where(equal, 0.0, np.where(np.isnan(delta), np.inf, delta))


def _epsilon_table(dtype: pd.Series[str]) -> np.ndarray:
    import numpy as np

    # Integers and what is not listed: their Mean and Norm are taken in float32.
    return np.array([EPSILON.get(name.rpartition(".")[2].lower(), EPSILON["float32"]) for name in dtype.cat.categories])


def _reduction_allowance(left: np.ndarray, right: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """How far Mean and Norm may differ for equal bytes; 0 for Max and Min. Shape (4, pairs)."""
    import numpy as np

    reduced = np.maximum(np.abs(left), np.abs(right))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ulp = epsilon * np.exp2(np.floor(np.log2(reduced)))
        of = np.stack([np.zeros(left.shape[1])] * 2 + [_magnitude(left), reduced[_NORM]])
        allowed = np.maximum(REDUCTION_ROUNDING * of, np.where(np.isfinite(ulp), ulp, 0.0))
    allowed[:_MEAN] = 0.0
    return np.where(np.isfinite(allowed), allowed, 0.0)


def _magnitude(statistics: np.ndarray) -> np.ndarray:
    """max(|Max|, |Min|) of each row, 0 where not known."""
    import numpy as np

    return np.fmax(np.nan_to_num(np.abs(statistics[_MAX]), nan=0.0), np.nan_to_num(np.abs(statistics[_MIN]), nan=0.0))


def _norm(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.nan_to_num(np.fmax(left[_NORM], right[_NORM]), nan=0.0)


def _largest(delta: np.ndarray, left: np.ndarray, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    root = np.sqrt(np.maximum(elements, 1))
    absolute = np.maximum(delta[:_NORM].max(axis=0), delta[_NORM] / root)
    of = np.stack([_magnitude(left)] * 3 + [np.nan_to_num(np.abs(left[_NORM]), nan=0.0)])
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(delta == 0, 0.0, np.where(np.isinf(delta) | (of == 0), np.inf, delta / of))
    return absolute, relative.max(axis=0)
