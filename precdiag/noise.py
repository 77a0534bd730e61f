"""Measured noise: how far a run that differs by rounding alone is from the baseline, row by row; a band made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precdiag.align import pair
from precdiag.dump import read_dump
from precdiag.errors import UnreadableError
from precdiag.evidence import ARGUMENT, DIFFERENT, GRAD, SHAPE, UNKNOWN
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part, open_run
from precdiag.relative import errors_of

if TYPE_CHECKING:
    import numpy as np

NO_NOISE_REASON = "no noise was measured for this row, so no band is known"


def noise_of(judged: Judged, run: Path) -> np.ndarray:
    """Return the relative error of a second run against the baseline, for each line of `judged.rows`; NaN where the run
    lacks the row.

    `run` is a repetition of the baseline, or the baseline with its embedding moved by one ulp. Raises UnreadableError
    where it holds no dump of the baseline's step and rank.
    """
    import numpy as np

    dump = read_dump(_part_of(run, judged.baseline.part))
    measured = judge(judged.baseline, dump, pair(judged.baseline, dump), Policy())
    errors = errors_of(measured)
    at = measured.rows["baseline"].to_numpy()
    by_row = np.full(len(judged.baseline.rows), np.nan)
    by_row[at[at >= 0]] = errors.e[at >= 0]
    mine = judged.rows["baseline"].to_numpy()
    return np.where(mine >= 0, by_row[np.maximum(mine, 0)], np.nan)


def limit_of(noise: np.ndarray, u: np.ndarray, k: float) -> np.ndarray:
    """Return up to which relative error noise explains a row: k·max(noise, u); NaN where none was measured."""
    import numpy as np

    return np.where(np.isnan(noise), np.nan, k * np.maximum(noise, np.nan_to_num(u)))


def in_band_of_noise(judged: Judged, policy: Policy) -> Judged:
    """Lay the band k·max(noise, u) of policy.band_from on a judged pair: what exceeds it is outside.

    A row that differs and has no noise is unknown: never inside. What is compared exactly (shape, argument,
    requires_grad) stays outside, and so does what is outside another bound of the policy.
    """
    import numpy as np

    if policy.band_from is None:
        return judged
    errors = errors_of(judged)
    limit = limit_of(noise_of(judged, policy.band_from), errors.u, policy.scrutiny.k)
    rows = judged.rows.copy()
    differs = (rows["state"] == DIFFERENT).to_numpy()
    exact = (rows["aspects"].to_numpy() & (SHAPE | ARGUMENT | GRAD)) != 0
    # An integer that differs has an infinite error: outside whatever the noise, but for noise that differs there too.
    over = (errors.e > limit) | (np.isinf(errors.e) & ~np.isinf(limit) & ~np.isnan(limit))
    unmeasured = differs & ~exact & (np.isnan(limit) | np.isnan(errors.e))
    rows["outside"] = (rows["outside"].to_numpy() | (differs & (exact | over))) & ~unmeasured
    rows.loc[unmeasured, "state"] = UNKNOWN
    rows.loc[unmeasured, "reason"] = NO_NOISE_REASON
    rows["blocking"] = rows["blocking"].to_numpy() | unmeasured
    return replace(judged, rows=rows)


def _part_of(run: Path, part: Part) -> Part:
    """The part of a run that stands where `part` does; the only one where the run has no other."""
    parts = open_run(run).parts
    here = [each for each in parts if (each.step, each.rank) == (part.step, part.rank)]
    if not here and len(parts) == 1 and parts[0].step in (None, part.step):
        here = list(parts)
    if not here:
        raise UnreadableError(
            f"{run}: holds no {part.label} to measure noise from",
            hint="dump the same steps and ranks of the second run",
        )
    return here[0]
