"""Compare the statistics that stand in dump.json: Max, Min, Mean and Norm, vectorised over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    import numpy as np

    left = np.stack([baseline.rows[name].to_numpy()[b] for name in STATISTICS])
    right = np.stack([candidate.rows[name].to_numpy()[c] for name in STATISTICS])
    known = baseline.rows["known"].to_numpy()[b], candidate.rows["known"].to_numpy()[c]
    common = known[0] & known[1]
    shortened = (known[0] ^ known[1]) == (1 << _MEAN | 1 << _NORM)
    stands = ((common[None, :] >> np.arange(4, dtype=np.uint8)[:, None]) & 1).astype(bool)
    equal = (left == right) | (np.isnan(left) & np.isnan(right)) | ~stands
    delta = _deltas(left, right, equal)
    text_differs = baseline.rows["value"].to_numpy()[b] != candidate.rows["value"].to_numpy()[c]
    epsilon = np.maximum(_epsilons(baseline.rows["dtype"])[b], _epsilons(candidate.rows["dtype"])[c])
    reductions_only = equal[_MAX] & equal[_MIN] & ~text_differs
    allowed = _reduction_allowance(left, right, np.minimum(epsilon, EPSILON["bfloat16"]))
    within = (delta <= allowed) | equal
    unequal = ~equal.all(axis=0) | text_differs
    rounding = unequal & reductions_only & within.all(axis=0)
    finite = np.isfinite(left) & np.isfinite(right)
    elements = element_counts(baseline.rows["shape"])[b]
    one_element = elements == 1  # its Mean is the element: nothing was summed
    rounding &= ~one_element
    scale = np.maximum(_magnitude(left), _magnitude(right))
    narrowing = ((delta <= epsilon * np.where(np.arange(4)[:, None] == _NORM, _norm(left, right), scale)) | equal).all(
        0
    )
    comparable = stands[_MAX] | stands[_MEAN] | (common > 0)
    max_abs, max_rel = _largest(delta, left, elements)
    return StatisticDeltas(
        comparable=comparable | text_differs,
        lopsided=(known[0] != known[1]) & ~shortened,
        shortened=shortened,
        differ=unequal & ~rounding,
        rounding=rounding,
        narrowing=narrowing & ~text_differs,
        constant=stands[_MAX] & stands[_MIN] & equal[_MAX] & equal[_MIN] & finite[_MAX] & (left[_MAX] == left[_MIN]),
        nonfinite=_nonfinite(baseline)[b] | (_nonfinite(candidate)[c] << 1),
        max_abs=np.where(comparable, max_abs, np.nan),
        max_rel=np.where(comparable, max_rel, np.nan),
    )


def element_counts(shape: pd.Series[str]) -> np.ndarray:
    """Return the number of elements of each row from its shape text: int64, 1 for `[]`, -1 where it has no shape."""
    import numpy as np

    counts = []
    for text in shape.cat.categories:
        sizes = [size for size in text.strip("[]()").replace(" ", "").split(",") if size]
        known = text != "" and all(size.isdecimal() for size in sizes)
        counts.append(int(np.prod([int(size) for size in sizes], dtype=object)) if known else -1)
    return np.array([min(count, 2**62) for count in counts], dtype=np.int64)[shape.cat.codes.to_numpy()]


def _deltas(left: np.ndarray, right: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """|right - left|, 0 where equal, inf where one side is not finite."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.abs(right - left)
    return np.where(equal, 0.0, np.where(np.isnan(delta), np.inf, delta))


def _epsilons(dtype: pd.Series[str]) -> np.ndarray:
    import numpy as np

    # Integers and what is not listed: their Mean and Norm are taken in float32.
    table = [EPSILON.get(name.rpartition(".")[2].lower(), EPSILON["float32"]) for name in dtype.cat.categories]
    return np.array(table)[dtype.cat.codes.to_numpy()]


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


def _nonfinite(dump: Dump) -> np.ndarray:
    """Return uint8: 1 where a row's data hold NaN or Inf. An infinite Norm alone is an overflow of the sum."""
    import numpy as np

    known = dump.rows["known"].to_numpy()
    marked = np.zeros(len(known), dtype=np.uint8)
    for bit, name in enumerate(STATISTICS[:_NORM]):
        marked |= (((known >> bit) & 1).astype(bool) & ~np.isfinite(dump.rows[name].to_numpy())).astype(np.uint8)
    return marked
