"""Judge msprobe's result tables: the two sides' columns as dumps are judged, and every metric that msprobe printed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from precdiag import cells as cell
from precdiag.errors import UsageError
from precdiag.evidence import (
    DTYPE,
    EQUAL,
    EXCLUDED,
    NOTHING,
    ROUNDING_REASON,
    SHAPE,
    TABLE,
    UNKNOWN,
    VALUE,
    Pairs,
    judge_pairs,
)
from precdiag.judge import Judged, Policy, pairs_of, settle
from precdiag.statistic import EPSILON, element_counts
from precdiag.table import LOST_ORDER_NOTE, STATISTIC_DIFFERENCES, STATISTIC_RATIOS, TENSOR_METRICS, Table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# msprobe rounds a cosine above 0.9999 to 6 decimals, and sums it in the tensor's own precision.
COSINE_ROUNDING = 1.5e-6
# Tensor metrics are printed with 12 decimals; EucDist and statistics are not rounded.
LAST_DECIMAL = 5e-13
NO_FILE_REASON = "msprobe could not read its tensor file, so its metrics say nothing"
NO_METRIC_REASON = "msprobe gives no metric for it"

_SEES = {
    "tensor": "a table of tensor metrics: printed with 12 decimals, and inf against -inf counts as 0",
    "statistics": "a table of statistics: equal statistics are not proof; compare md5 or tensor dumps to be sure",
    "md5": "a table of CRC-32 checksums",
    "xor": "a table of xor checksums: blind to constants and to order",
}
_NO_BASELINE_ROWS = "a call that only the baseline made has no row in msprobe's table: compare the dumps to see those"
_NO_PARTNER = "rows have no partner in the table: msprobe leaves them so where types differ, too"


def judge_table(table: Table, policy: Policy) -> Judged:
    """Judge every line of a table. A row is equal only if all of its metrics say so.

    Where they say nothing, dtype, shape and the two sides' statistics decide. msprobe's own Result is kept in the rows,
    column `result`, and decides nothing. Raises UsageError where the band asks for what the table does not hold.
    """
    import numpy as np

    pairs = pairs_of(table.baseline, table.candidate, table.pairing)
    cells = table.cells[table.pairing.paired].reset_index(drop=True)
    _require_metrics(table, policy)
    notes = judge_pairs(pairs, lambda done, total: None)
    max_abs, max_rel = pairs.deltas.max_abs.copy(), pairs.deltas.max_rel.copy()
    cosine = np.full(len(cells), np.nan)
    tensors = np.asarray(pairs.of("tensor")[0] & pairs.of("tensor")[1])
    valued = tensors & (element_counts(table.baseline.rows["shape"])[pairs.b] != 0) & (pairs.state != EXCLUDED)
    if table.task == "tensor":
        metrics = {name: cell.metrics(cells[name]) for name in TENSOR_METRICS if name in cells}
        _judge_tensor_metrics(pairs, cells, metrics, valued)
        max_abs, max_rel, cosine = _tensor_numbers(pairs, metrics, valued)
    elif table.task == "statistics":
        _judge_statistic_metrics(pairs, cells, valued)
    pairs.evidence[pairs.evidence != NOTHING] = TABLE
    columns = {"max_abs": max_abs, "max_rel": max_rel, "cosine": cosine, "max_ulp": np.full(len(cells), np.nan)}
    judged = settle(pairs, table.pairing, policy, columns, (*notes, f"read from {_SEES[table.task]}"))
    results = table.results()
    return judged if results is None else replace(judged, rows=judged.rows.assign(result=results))


def _require_metrics(table: Table, policy: Policy) -> None:
    if policy.max_ulp is not None or (policy.cosine_min is not None and table.task != "tensor"):
        raise UsageError(
            "a result table holds no ulp, and a cosine only where tensors were compared",
            hint="use --max-rel or --max-abs, or compare the dumps themselves",
        )
    if policy.mode == "band" and table.task in ("md5", "xor"):
        raise UsageError("a band needs numbers; this table holds checksums, which know only equal or not")


def _judge_tensor_metrics(
    pairs: Pairs, cells: pd.DataFrame, metrics: dict[str, np.ndarray], valued: np.ndarray
) -> None:
    """Overlay what msprobe measured on the tensors: it can show more than statistics do, and settles Mean and Norm."""
    import numpy as np

    same_shape = valued & ((pairs.aspects & SHAPE) == 0)
    said, unlike = np.zeros(len(cells), dtype=bool), np.zeros(len(cells), dtype=bool)
    for name, values in metrics.items():
        if name == "cosine":
            unlike |= np.abs(values - 1) > COSINE_ROUNDING
        elif name.endswith("err ratio"):
            unlike |= values < 1
        else:
            said |= ~np.isnan(values)
            unlike |= values > 0
    # Nothing but a cosine: then it has to be 1, for nothing else speaks for equality.
    unlike |= ~said & (metrics.get("cosine", np.ones(len(cells))) != 1) & ~np.isnan(metrics.get("cosine", np.nan))
    rounded = ((pairs.aspects & DTYPE) != 0) & pairs.deltas.narrowing & ~_beyond_narrowing(pairs, metrics)
    pairs.differ(same_shape & unlike & ~rounded, VALUE)
    pairs.evidence[same_shape & (said | unlike)] = TABLE
    settled = same_shape & said & ~unlike & (pairs.state == UNKNOWN) & (pairs.reason == ROUNDING_REASON)
    pairs.state[settled], pairs.reason[settled] = EQUAL, None
    _judge_unmeasured(pairs, cells, same_shape & ~said & ~unlike)


def _judge_unmeasured(pairs: Pairs, cells: pd.DataFrame, silent: np.ndarray) -> None:
    """Rows without a single metric: NaN or Inf at other places, or a file that msprobe could not read."""
    first = next(cells[name] for name in TENSOR_METRICS if name in cells)
    apart = silent & cell.matches(first, r"\AN/A\Z")
    nonfinite = pairs.deltas.nonfinite != 0
    pairs.differ(apart & nonfinite, VALUE)
    pairs.unknown(apart & ~nonfinite, NO_METRIC_REASON)
    if "data_name" in cells:
        files = cell.matches(cells["data_name"], r"\.(?:pt|npy)\b")
        pairs.unknown(silent & ~apart & files, NO_FILE_REASON)


def _judge_statistic_metrics(pairs: Pairs, cells: pd.DataFrame, valued: np.ndarray) -> None:
    """Overlay the printed differences of Max, Min, Mean and Norm; Mean and Norm round, see statistic.py."""
    import numpy as np

    told = np.zeros(len(cells), dtype=bool)
    for at, (difference, ratio) in enumerate(zip(STATISTIC_DIFFERENCES, STATISTIC_RATIOS, strict=True)):
        silent = np.full(len(cells), np.nan)
        delta = cell.metrics(cells[difference]) if difference in cells else silent
        relative = cell.metrics(cells[ratio]) if ratio in cells else silent
        # -0.0 against 0.0 has a difference of 0 and a ratio of inf
        unlike = np.where(delta == 0, np.isfinite(relative) & (relative != 0), ~np.isnan(delta) & (delta != 0))
        unlike |= np.isnan(delta) & ~np.isnan(relative) & (relative != 0)
        if at >= 2:
            unlike &= ~pairs.deltas.rounding
        widened = ((pairs.aspects & DTYPE) != 0) & pairs.deltas.narrowing
        pairs.differ(valued & unlike & ~widened, VALUE)
        told |= ~np.isnan(delta) | ~np.isnan(relative)
    equal = valued & told & ~pairs.deltas.comparable & (pairs.state == UNKNOWN)
    pairs.state[equal], pairs.reason[equal], pairs.evidence[equal] = EQUAL, None, TABLE


def _beyond_narrowing(pairs: Pairs, metrics: dict[str, np.ndarray]) -> np.ndarray:
    """Mark pairs whose largest relative error is more than rounding to the narrower of the two dtypes."""
    import numpy as np

    sides = [
        dump.rows["dtype"].map(lambda name: EPSILON.get(name.rpartition(".")[2].lower(), EPSILON["float32"]))
        for dump in (pairs.baseline, pairs.candidate)
    ]
    epsilon = np.maximum(sides[0].to_numpy(dtype=float)[pairs.b], sides[1].to_numpy(dtype=float)[pairs.c])
    relative = metrics.get("maxrelativeerr", np.zeros(len(pairs.b)))
    return np.asarray(np.nan_to_num(relative, nan=0.0) > epsilon)


def _tensor_numbers(
    pairs: Pairs, metrics: dict[str, np.ndarray], valued: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return max_abs, max_rel and cosine: msprobe's where it printed them, bounds where its decimals do not reach."""
    import numpy as np

    silent = np.full(len(pairs.b), np.nan)
    absolute, relative = metrics.get("maxabserr", silent), metrics.get("maxrelativeerr", silent)
    differ = (pairs.aspects & VALUE) != 0
    hidden = np.fmin(metrics.get("eucdist", silent), LAST_DECIMAL)
    absolute = np.where(differ & (absolute == 0), hidden, absolute)
    relative = np.where(
        differ & (relative == 0), np.where(pairs.deltas.max_rel > 0, pairs.deltas.max_rel, np.nan), relative
    )
    # Statistics see what msprobe sets to 0: inf against -inf.
    absolute, relative = (
        np.fmax(absolute, pairs.deltas.max_abs),
        np.where(np.isnan(relative) | np.isinf(pairs.deltas.max_rel), pairs.deltas.max_rel, relative),
    )
    cosine = np.where(valued, metrics.get("cosine", silent), np.nan)
    return absolute, relative, cosine


def limits_of(table: Table) -> tuple[str, ...]:
    """Say what a table cannot show where the dumps that it was made of are not at hand."""
    notes = [_NO_BASELINE_ROWS]
    if not table.ordered:
        notes.append(LOST_ORDER_NOTE)
    alone = int((table.pairing.rows[["baseline", "candidate"]] < 0).any(axis=1).sum())
    return (*notes, f"{alone} {_NO_PARTNER}") if alone else tuple(notes)
