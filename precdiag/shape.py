"""The shape of a loss curve: a spike, a gradient that does not move, a loss that does not fall."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from precdiag.curves import Floats, LossLog, Series, joined
from precdiag.findings import Finding, Signal, moment
from precdiag.settings import Thresholds

MAD_TO_SIGMA = 1.4826  # of a normal distribution
SHORT_WINDOW, LONG_WINDOW = 5, 20
"""Points before a point that say what was to be expected: the short median follows a falling curve, the long one is
not led astray by a slow climb. The lower of the two counts."""

NOISE_WINDOW = 50
"""Points whose steps up and down measure the noise."""

FEWEST_BEFORE = 5
"""Points before a spike can be called one."""

MOST_SLOPES = 200
"""Points to which a curve is thinned (by medians) for Theil and Sen's slope, which looks at every pair."""

_POLICY_LOSS = re.compile(r"(pg|policy|actor)[_ /].*loss|reward", re.IGNORECASE)


def find_spikes(log: LossLog, loss: Series, thresholds: Thresholds) -> list[Finding]:
    """Find where the loss jumps above what the points before it led to expect.

    A spike stands `spike_sigmas` above the noise of the steps before, `spike_share` above the level, and
    `spike_dips` times as high as the deepest dip of the whole curve. Only rises are judged: a staircase at epoch
    borders falls. Shares are of the expected value, of a curve that is not positive throughout (a policy loss)
    of its median magnitude.
    """
    expected, noise, level = _expectation(loss.values)
    height = (loss.values - expected) / level
    limit = np.maximum(thresholds.spike_sigmas * noise, thresholds.spike_share)
    limit = np.maximum(limit, thresholds.spike_dips * _deepest_dip(loss.values, level))
    norm = log.find("grad_norm")
    found, end = [], 0
    for peak in np.flatnonzero(height > limit):
        if peak < end:
            continue
        near = np.maximum(3 * noise, thresholds.spike_share / 3)
        calm = np.flatnonzero(~(height[:peak] > near[:peak]))
        onset = int(calm[-1]) + 1 if len(calm) else 0
        ceiling = expected[onset] + near[onset] * level[onset]
        back = np.flatnonzero(loss.values[peak:] <= ceiling)
        end = int(peak + back[0]) if len(back) else len(loss.values)
        found.append(Finding("spike", int(loss.steps[onset]), _spike_signals(loss, norm, onset, end, expected[onset])))
    return found


def find_broken_grad(log: LossLog, loss: Series, thresholds: Thresholds) -> list[Finding]:
    """Find where gradient norm and loss both stay the same to the last digit.

    A constant norm with a loss that moves is nothing. Neither is a loss that came to rest smoothly: it has reached
    what its digits resolve.
    """
    norm = log.find("grad_norm")
    if norm is None:
        return []
    steps, values, norms = joined(loss, norm)
    run = _longest_run((values[1:] == values[:-1]) & (norms[1:] == norms[:-1]))
    if run is None or run[1] < thresholds.constant_points or _came_to_rest(values, run[0], thresholds):
        return []
    start, length = run
    step = int(steps[start])
    return [
        Finding(
            "broken-grad",
            step,
            (
                Signal(norm.name, step, f"exactly {float(norms[start])} for {length} points"),
                Signal(loss.name, step, f"exactly {float(values[start])} for the same points"),
            ),
        )
    ]


def find_plateau(log: LossLog, loss: Series, thresholds: Thresholds) -> list[Finding]:
    """Find a loss that does not fall: constant to the end, or without a trend over the whole run.

    No trend means shown to be flat: Theil and Sen's slope leaves, at two standard errors, a fall of less than
    `flat_share` over the run; a learning rate of 0 throughout needs only that no fall is certain at four. Not judged: a
    policy loss (it has no trend), a log that begins in the middle of a run, and a warm-up that has not ended.
    """
    policy = any(_POLICY_LOSS.search(name) for name in (loss.name, *log.series))
    stride = int(np.median(np.diff(loss.steps)))
    if policy or loss.steps[0] > max(10, 2 * stride):
        return []
    run = _longest_run(loss.values[1:] == loss.values[:-1])
    if run and run[1] >= thresholds.constant_points and sum(run) == len(loss.steps):
        if _came_to_rest(loss.values, run[0], thresholds):
            return []
        step = int(loss.steps[run[0]])
        said = f"exactly {float(loss.values[run[0]])} for the last {run[1]} points"
        return [Finding("non-convergence", step, (Signal(loss.name, step, said),))]
    return _flat(log, loss, thresholds)


def _expectation(values: Floats) -> tuple[Floats, Floats, Floats]:
    """For each point: the value expected from those before it, their noise and the level, NaN where too few are.

    The noise is 1.4826 times the median step up or down, over sqrt(2): a trend hardly enters into it. As a share
    of the level.
    """
    import pandas as pd

    column = pd.Series(values)
    medians = [column.rolling(w, min_periods=FEWEST_BEFORE).median().shift(1) for w in (SHORT_WINDOW, LONG_WINDOW)]
    expected = np.fmin(*(each.to_numpy() for each in medians))
    jumps = column.diff().abs().rolling(NOISE_WINDOW, min_periods=FEWEST_BEFORE - 1).median().shift(1).to_numpy()
    positive = bool(np.all(values > 0))
    level = expected if positive else np.full(len(values), np.median(np.abs(values)) or np.inf)
    return expected, MAD_TO_SIGMA / np.sqrt(2) * jumps / level, level


def _deepest_dip(values: Floats, level: Floats) -> float:
    """Measure how far a point lies below both its sides, at most, as a share of the level."""
    import pandas as pd

    column = pd.Series(values)
    before = column.rolling(SHORT_WINDOW).median().shift(1).to_numpy()
    after = column[::-1].rolling(SHORT_WINDOW).median().shift(1)[::-1].to_numpy()
    dips = (np.minimum(before, after) - values) / level
    return float(max(0.0, np.nanmax(dips, initial=0.0)))


def _spike_signals(loss: Series, norm: Series | None, onset: int, end: int, expected: float) -> tuple[Signal, ...]:
    top = float(np.max(loss.values[onset:end]))
    recovered = f"back at step {loss.steps[end]}" if end < len(loss.steps) else "and does not come back"
    step = int(loss.steps[onset])
    signals = [Signal(loss.name, step, f"rises to {top:g} where {expected:.4g} was to be expected, {recovered}")]
    if norm is not None:
        at = int(np.searchsorted(norm.steps, step, side="right"))
        before, near = norm.values[max(0, at - LONG_WINDOW) : max(0, at - 3)], norm.values[max(0, at - 3) : at]
        usual = float(np.median(before)) if len(before) else np.nan
        high = np.flatnonzero(near > 3 * usual)
        if len(high):
            i = max(0, at - 3) + int(high[0])
            said = f"{norm.values[i]:g}, {norm.values[i] / usual:.0f} times its median before"
            signals.append(Signal(norm.name, int(norm.steps[i]), said))
    return tuple(sorted(signals, key=moment))


def _longest_run(same: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """Find the longest run of equal neighbours: the index of its first point and how many points it has."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(edges):
        return None
    starts, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest] - starts[longest]) + 1


def _came_to_rest(values: Floats, start: int, thresholds: Thresholds) -> bool:
    """Whether the curve went down to its constant value little by little."""
    if start < 2:
        return False
    return bool(abs(values[start - 1] - values[start]) <= thresholds.flat_share * np.ptp(values[: start + 1]))


def _flat(log: LossLog, loss: Series, thresholds: Thresholds) -> list[Finding]:
    values = loss.values
    rate = log.find("learning_rate")
    frozen = rate is not None and not np.any(rate.values)
    warming = rate is not None and len(rate.values) > 1 and bool(np.all(np.diff(rate.values) > 0))
    fewest = thresholds.constant_points if frozen else thresholds.flat_points
    level = abs(float(np.median(values)))
    if len(values) < fewest or warming or level == 0:
        return []
    noise = MAD_TO_SIGMA / np.sqrt(2) * float(np.median(np.abs(np.diff(values)))) / level
    doubt = 2 * noise * np.sqrt(12 / len(values))  # two standard errors of a slope, times the length of the run
    fall = -_slope(values) * (len(values) - 1) / level
    started = (float(np.median(values[:3])) - float(np.median(values))) / level
    tolerated = max(thresholds.flat_share, 3 * noise)
    certain = fall - 2 * doubt <= 0 if frozen else fall + doubt < thresholds.flat_share
    if not certain or started > tolerated:
        return []
    step = int(loss.steps[0])
    way = "rises" if fall < 0 else "falls"
    trend = "no trend" if abs(fall) <= thresholds.flat_share + doubt else "it does not fall"
    said = f"{way} by {100 * abs(fall):.2f} % over {len(values)} points (± {100 * doubt:.2f} %): {trend}"
    signals = [Signal(loss.name, step, said)]
    if frozen and rate is not None:
        signals.append(Signal(rate.name, int(rate.steps[0]), "0 throughout"))
    return [Finding("non-convergence", step, tuple(signals))]


def _slope(values: Floats) -> float:
    """Theil and Sen's slope a point: the median over all pairs (Sen 1968, J. Am. Stat. Assoc. 63)."""
    parts = np.array_split(values, min(len(values), MOST_SLOPES))
    y = np.array([np.median(part) for part in parts])
    x = np.cumsum([len(part) for part in parts]) - np.array([(len(part) + 1) / 2 for part in parts])
    i, j = np.triu_indices(len(y), k=1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))
