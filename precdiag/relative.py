"""How far apart the two sides of each row are, relative to the baseline's norm, and what rounding its dtype allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dtypes import COMPLEX
from precdiag.evidence import BYTES, CHECKSUM, DIFFERENT, EQUAL, SHAPE, UNKNOWN, VALUE
from precdiag.judge import Judged
from precdiag.statistic import EPSILON, REDUCTION_ROUNDING, StatisticColumns, StatisticRows, by_block, stands_in

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# What one call may add, in units of u (DESIGN, "Beyond rounding"): half precision rounds each result once or twice; in
# float32 what counts is the order in which a device sums.
FLOOR_HALF, FLOOR_SINGLE = 2.0, 8.0
HALF = 2.0**-11
# How much a call may magnify the error of what it takes in.
GAIN = 2.0

_MAX, _MIN, _MEAN, _NORM = range(4)


@dataclass(frozen=True)
class Errors:
    """The error of each line of `judged.rows`; every field is an array over the lines.

    e: ‖c-b‖₂ / ‖b‖₂ from tensors; from statistics the largest of |ΔNorm| / Norm, |ΔMax| and |ΔMin| over absmax, and
    |ΔMean|·√n / Norm, which may be less than that; 0 where the values are equal, inf where an integer or a bool differs
    or NaN or Inf stands on one side only; NaN where it cannot be told (one-sided, shapes differ, no statistics) and for
    arguments. u: unit roundoff of the row's dtype, of two the coarser; NaN for integers. norm: ‖b‖₂ (NaN where not
    known). exact: e is no estimate from statistics.
    """

    e: np.ndarray
    u: np.ndarray
    norm: np.ndarray
    exact: np.ndarray


def errors_of(judged: Judged) -> Errors:
    """Return the error of each line of a judged pair of dumps."""
    import numpy as np

    rows = judged.rows
    lines = np.flatnonzero(judged.pairing.paired)
    b, c = rows["baseline"].to_numpy()[lines], rows["candidate"].to_numpy()[lines]
    left, right = judged.baseline, judged.candidate
    tensor = left.rows["tensor"].to_numpy()[b] & right.rows["tensor"].to_numpy()[c]
    u = np.fmax(roundoff(left.rows["dtype"])[b], roundoff(right.rows["dtype"])[c])
    state, aspects = rows["state"].to_numpy()[lines], rows["aspects"].to_numpy()[lines]
    evidence = rows["evidence"].to_numpy()[lines]
    e = np.zeros(len(lines))
    unequal = np.flatnonzero(state != EQUAL)
    sides = StatisticColumns(left), StatisticColumns(right)
    (e[unequal],) = by_block(lambda x, y: (_from_statistics(sides[0].at(x), sides[1].at(y)),), b[unequal], c[unequal])
    exact = np.isin(evidence, (BYTES, CHECKSUM)) & ((state == EQUAL) | (evidence == BYTES))
    same = (state == EQUAL) | ((state == DIFFERENT) & ((aspects & (VALUE | SHAPE)) == 0) & (evidence == BYTES))
    e[same] = 0.0
    e[np.isnan(u) & (state == DIFFERENT) & ((aspects & VALUE) != 0)] = np.inf
    e[np.isin(rows["nonfinite"].to_numpy()[lines], (1, 2)) & (state == DIFFERENT)] = np.inf
    for line, found in judged.tensors.items():
        at = int(np.searchsorted(lines, line))
        if found.metrics is not None and not np.isnan(u[at]):
            e[at] = found.metrics.relative_norm
    comparable = tensor & ((aspects & SHAPE) == 0) & np.isin(state, (EQUAL, DIFFERENT, UNKNOWN))
    e[~comparable] = np.nan
    marked = np.zeros(len(rows), dtype=bool)
    marked[lines] = exact
    columns = np.full((3, len(rows)), np.nan)
    columns[:, lines] = e, u, left.rows["norm"].to_numpy()[b]
    return Errors(columns[0], columns[1], columns[2], marked)


def roundoff(dtype: pd.Series[str]) -> np.ndarray:
    """Return the unit roundoff of each row's dtype (half of its spacing at 1): bfloat16 2^-8; NaN for integers."""
    import numpy as np

    names = [name.rpartition(".")[2].lower() for name in dtype.cat.categories]
    table = [EPSILON.get(COMPLEX.get(name, name), np.nan) / 2 for name in names]
    return np.array([*table, np.nan])[dtype.cat.codes.to_numpy()]


def floor_of(u: np.ndarray | float) -> np.ndarray:
    """Return the error that one call's rounding alone may leave, relative: 2u for half precision, 8u for float32."""
    import numpy as np

    return np.asarray(np.where(np.asarray(u) >= HALF, FLOOR_HALF, FLOOR_SINGLE) * u)


def explained(e_out: np.ndarray, e_in: np.ndarray, u: np.ndarray, calls: np.ndarray | int = 1) -> np.ndarray:
    """Tell whether rounding explains an error: e_out <= calls·floor + 2·e_in, all relative. Unknown (NaN) is explained.

    `calls` is the number of calls between the rows of `e_in` and those of `e_out`: more than one across a region that
    one side computes in other calls than the other.
    """
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(~(e_out > calls * floor_of(u) + GAIN * e_in))


def _from_statistics(left: StatisticRows, right: StatisticRows) -> np.ndarray:
    """The largest relative error that the statistics show; NaN where they stand on neither or one side only."""
    import numpy as np

    x, y = left.values, right.values
    absmax = np.fmax(np.abs(x[_MAX]), np.abs(x[_MIN]))
    root = np.sqrt(np.maximum(left.elements, 1))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        delta = np.abs(y - x)
        delta[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
        # Equal bytes may differ this much in what was summed (statistic.py).
        delta[_MEAN][delta[_MEAN] <= REDUCTION_ROUNDING * absmax] = 0.0
        delta[_NORM][delta[_NORM] <= REDUCTION_ROUNDING * np.abs(x[_NORM])] = 0.0
        of = np.stack([absmax, absmax, x[_NORM] / root, x[_NORM]])
        share = np.where(delta == 0, 0.0, delta / of)
    e: np.ndarray = np.fmax.reduce(np.where(stands_in(left.known & right.known), share, np.nan), axis=0)
    return e
