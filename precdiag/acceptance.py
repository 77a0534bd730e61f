"""Two loss curves of one training: where they part, in what way, and whether the acceptance rule is met."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precdiag.curves import Floats, LossLog, Series, joined
from precdiag.findings import Signal
from precdiag.settings import Thresholds

RATIO_POINTS = 5
"""Fewest common points that can show a constant ratio, or noise before a drift."""

RATIO_SPREAD = 0.1
"""A ratio is constant if its middle nine tenths lie within this share of its distance from 1."""

DRIFT_NOISE = 3.0
"""Times the median difference before, from which on a difference is no longer noise."""


@dataclass(frozen=True)
class Against:
    """A candidate's loss against a baseline's, joined on the step.

    first_different: first common step where the printed values differ at all. first_outside: where they differ by
    more than `max_relative` of the baseline, or one is NaN or Inf and the other is not. onset: where a difference
    that ends up outside leaves the noise before it. The means are over the first `accept_steps` common steps.
    accepted: None under that many.
    """

    steps_compared: int
    first_step: int | None
    first_different: int | None
    first_outside: int | None
    onset: int | None
    mean_abs_error: float | None
    mean_rel_error: float | None
    accepted: bool | None
    why: str
    signals: tuple[Signal, ...] = ()


def against_baseline(baseline: LossLog, candidate: LossLog, thresholds: Thresholds, series: str = "loss") -> Against:
    """Compare two curves at the steps they share.

    Relative differences are of the baseline's value; where the baseline changes sign (a policy loss) of its median
    magnitude, as a value near 0 would make any difference large. Two NaN are the same.
    """
    one, other = baseline.find(series), candidate.find(series)
    if one is None or other is None:
        return _nothing(f"the {'baseline' if one is None else 'candidate'} has no {series}")
    steps, b, c = joined(one, other)
    if not len(steps):
        return _nothing(f"no step in common: baseline {_extent(one)}, candidate {_extent(other)}")
    relative = _relative(b, c)
    outside = _first(steps, relative > thresholds.max_relative)
    window = slice(0, thresholds.accept_steps)
    with np.errstate(invalid="ignore"):
        absolute = np.where(relative == 0, 0.0, np.abs(c - b))
    absolute[np.isnan(absolute)] = np.inf
    mean_abs, mean_rel = float(np.mean(absolute[window])), float(np.mean(relative[window]))
    onset = _onset(steps, relative, outside)
    checks = [
        _mean_check(mean_abs, mean_rel, thresholds),
        _first_check(absolute[0], relative[0], thresholds),
        _norm_check(baseline, candidate, thresholds),
        _finite_check(steps[window], b[window], c[window]),
    ]
    accepted, why = _decide(checks, len(steps), thresholds)
    return Against(
        steps_compared=len(steps),
        first_step=int(steps[0]),
        first_different=_first(steps, relative > 0),
        first_outside=outside,
        onset=onset,
        mean_abs_error=mean_abs,
        mean_rel_error=mean_rel,
        accepted=accepted,
        why=why,
        signals=(
            *_signals(one, other, steps, relative, onset, outside),
            *_other_series(baseline, candidate, thresholds),
        ),
    )


def _nothing(why: str) -> Against:
    return Against(0, None, None, None, None, None, None, None, why)


def _relative(b: Floats, c: Floats) -> Floats:
    """Give |c - b| / |b|, 0 where both are the same (also NaN or Inf), inf where only one is finite or b is 0."""
    finite = np.abs(b[np.isfinite(b)])
    changes_sign = bool(np.any(b < 0) and np.any(b > 0))
    scale = np.full(len(b), np.median(finite)) if changes_sign else np.abs(b)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.abs(c - b) / scale
    relative[~(np.isfinite(b) & np.isfinite(c)) | np.isnan(relative)] = np.inf
    relative[(b == c) | (np.isnan(b) & np.isnan(c))] = 0.0
    return relative


def _first(steps: npt.NDArray[np.int64], where: npt.NDArray[np.bool_]) -> int | None:
    return int(steps[np.argmax(where)]) if where.any() else None


def _onset(steps: npt.NDArray[np.int64], relative: Floats, outside: int | None) -> int | None:
    """Go back from the first step outside to where the difference left the noise of the steps before."""
    if outside is None:
        return None
    at = int(np.searchsorted(steps, outside))
    if at < RATIO_POINTS:
        return outside
    noise = float(np.median(relative[:at]))
    quiet = np.flatnonzero(relative[:at] <= DRIFT_NOISE * noise)
    return int(steps[quiet[-1] + 1]) if len(quiet) else outside


def _mean_check(absolute: float, relative: float, thresholds: Thresholds) -> tuple[bool, str]:
    met = absolute <= thresholds.mean_absolute_error or relative <= thresholds.mean_relative_error
    bounds = f"{thresholds.mean_absolute_error:g} or {100 * thresholds.mean_relative_error:g} %"
    return met, f"mean absolute error {absolute:.3g}, mean relative error {100 * relative:.3g} % (at most {bounds})"


def _first_check(absolute: float, relative: float, thresholds: Thresholds) -> tuple[bool, str]:
    met = absolute <= thresholds.first_absolute or relative <= thresholds.first_relative
    bounds = f"{thresholds.first_absolute:g} or {100 * thresholds.first_relative:g} %"
    return met, f"first step {absolute:.3g} or {100 * relative:.3g} % apart (at most {bounds})"


def _norm_check(baseline: LossLog, candidate: LossLog, thresholds: Thresholds) -> tuple[bool, str]:
    one, other = baseline.find("grad_norm"), candidate.find("grad_norm")
    if one is None or other is None:
        return True, "no gradient norm on both sides to check"
    steps, b, c = joined(one, other)
    if not len(steps):
        return True, "no gradient norm at a common step to check"
    mean = float(np.mean(_relative(b, c)[: thresholds.accept_steps]))
    bound = f"at most {100 * thresholds.norm_relative:g} %"
    return mean <= thresholds.norm_relative, f"gradient norm {100 * mean:.3g} % apart in the mean ({bound})"


def _finite_check(steps: npt.NDArray[np.int64], b: Floats, c: Floats) -> tuple[bool, str]:
    bad = _first(steps, ~(np.isfinite(b) & np.isfinite(c)))
    return bad is None, "all finite" if bad is None else f"NaN or Inf at step {bad}"


def _decide(checks: list[tuple[bool, str]], common: int, thresholds: Thresholds) -> tuple[bool | None, str]:
    failed = [said for met, said in checks if not met]
    measured = "; ".join(failed or [said for _, said in checks])
    if common < thresholds.accept_steps:
        so_far = "so far it fails" if failed else "so far it holds"
        return None, f"{common} of {thresholds.accept_steps} common steps; {so_far}: {measured}"
    return not failed, measured


def _extent(series: Series) -> str:
    return f"{series.steps[0]} to {series.steps[-1]}" if len(series.steps) else "empty"


def _signals(
    one: Series,
    other: Series,
    steps: npt.NDArray[np.int64],
    relative: Floats,
    onset: int | None,
    outside: int | None,
) -> list[Signal]:
    """Say how the curves part: by a constant ratio (a normalisation), or from some step on."""
    signals = []
    ratio = _constant_ratio(*joined(one, other)[1:])
    if ratio is not None:
        said = (
            f"{ratio:.6g} times the baseline throughout: a normalisation (mean or sum, ranks, accumulation), no drift"
        )
        signals.append(Signal(other.name, int(steps[0]), said))
    elif outside is not None:
        at = int(np.searchsorted(steps, outside))
        before = f", a median of {100 * float(np.median(relative[:at])):.2g} % before" if at else ""
        said = f"{_percent(relative[at])} from the baseline{before}, {_percent(relative[-1])} at step {steps[-1]}"
        signals.append(Signal(other.name, outside, said))
        if onset is not None and onset < outside:
            signals.append(Signal(other.name, onset, "the difference begins to leave the noise of the steps before"))
    ends = sorted([(int(each.steps[-1]), side) for each, side in ((one, "baseline"), (other, "candidate"))])
    if ends[0][0] < ends[1][0]:
        signals.append(Signal(other.name, ends[0][0], f"the {ends[0][1]} ends here: compared only so far"))
    return signals


def _other_series(baseline: LossLog, candidate: LossLog, thresholds: Thresholds) -> list[Signal]:
    """Say where another signal parts: a learning rate or a loss scale often moves before the loss does."""
    signals = []
    for role in ("learning_rate", "loss_scale", "grad_norm"):
        one, other = baseline.find(role), candidate.find(role)
        if one is None or other is None:
            continue
        steps, b, c = joined(one, other)
        relative = _relative(b, c)
        bound = thresholds.norm_relative if role == "grad_norm" else thresholds.max_relative
        at = _first(steps, relative > bound)
        i = int(np.searchsorted(steps, at)) if at is not None else 0
        if at is not None and np.isfinite(c[i]):
            signals.append(Signal(other.name, at, f"{c[i]:.6g} where the baseline has {b[i]:.6g}"))
    return signals


def _percent(relative: float) -> str:
    return f"{100 * relative:.3g} %" if np.isfinite(relative) else "infinitely far"


def _constant_ratio(b: Floats, c: Floats) -> float | None:
    usable = np.isfinite(b) & np.isfinite(c) & (b != 0)
    if np.count_nonzero(usable) < RATIO_POINTS:
        return None
    ratios = c[usable] / b[usable]
    low, middle, high = np.quantile(ratios, (0.05, 0.5, 0.95))
    if middle == 1 or high - low > RATIO_SPREAD * abs(middle - 1):
        return None
    return float(middle)
