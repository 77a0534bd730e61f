"""Judge a training by its curves: one verdict, the step it begins at, what it rests on, and which step to dump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from precdiag.acceptance import Against, against_baseline
from precdiag.curves import LossLog, Series
from precdiag.findings import Finding, Signal, find_nan, moment, side_signals
from precdiag.settings import Thresholds
from precdiag.shape import find_broken_grad, find_plateau, find_spikes

Verdict = Literal["nan", "spike", "non-convergence", "broken-grad", "diverged", "healthy", "too-short", "no-data"]

SEVERITY = ("nan", "broken-grad", "diverged", "spike", "non-convergence")
"""Which of several faults that begin at one step gives the verdict."""

FEW_POINTS = 10
"""Under so many only NaN and jumps of the last points can be seen, and the reader is told."""

FEWEST_COMMON = 2
"""Points, and steps in common with a baseline, below which nothing is judged."""

NO_LOSS = ("grad_norm", "learning_rate", "loss_scale")
"""Curves that need not fall: of these only NaN, spikes and a baseline's are judged."""

MOST_STEPS = 16
"""Steps worth dumping at once; where a log is coarser it has to be made finer first."""


@dataclass(frozen=True)
class Curve:
    """The curve that was judged."""

    path: str
    format: str | None
    series: str | None
    points: int
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True)
class CurveVerdict:
    """What the curves say. `step` is the log's own number, None where there is no fault or the log says no step."""

    verdict: Verdict
    step: int | None
    signals: tuple[Signal, ...]
    curve: Curve
    against_baseline: Against | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class StepChoice:
    """The logged steps worth a dump (none, when the log has to be made finer first), and why these."""

    steps: tuple[int, ...]
    why: str


def judge_curves(
    log: LossLog,
    thresholds: Thresholds | None = None,
    *,
    baseline: LossLog | None = None,
    series: str = "loss",
) -> CurveVerdict:
    """Give the verdict of the earliest fault; the others stand in `signals`.

    With a baseline a spike or a plateau that it shows as well is no fault of the candidate, and leaving it by more
    than `max_relative` is one. Never healthy without looking: no loss at all is no-data, fewer than two points (or
    two steps in common with the baseline) too-short.
    """
    limits = thresholds or Thresholds()
    loss = log.find(series)
    faults = _faults(log, loss, limits)
    signals = [signal for fault in faults for signal in fault.signals] + side_signals(log)
    against = None
    if baseline is not None:
        against = against_baseline(baseline, log, limits, series)
        signals += against.signals
        of_baseline = _faults(baseline, baseline.find(series), limits)
        faults = [each for each in faults if not _shared(each, of_baseline)]
        if against.first_outside is not None and against.steps_compared >= FEWEST_COMMON:
            faults.append(Finding("diverged", against.first_outside, against.signals))
    first = min(faults, key=_precedence, default=None)
    verdict: Verdict = first.verdict if first else _without_fault(loss, baseline, against, series)
    return CurveVerdict(
        verdict=verdict,
        step=first.step if first else None,
        signals=tuple(sorted(dict.fromkeys(signals), key=moment)),
        curve=_curve(log, loss),
        against_baseline=against,
        notes=(*log.notes, *_notes(loss, against, series)),
    )


def steps_to_dump(found: CurveVerdict, log: LossLog) -> StepChoice:
    """Choose the steps at which the cause can be seen, in the log's own numbers.

    Curves that part at the first step: its forward, data or weights. Equal until then: the backward and update of
    the step before. A gradient that is NaN first: its backward; a loss: its forward on what the update before left.
    """
    if found.step is None:
        return StepChoice((), "no step to look at" if found.verdict == "healthy" else "the log names no step")
    at, first, why = _reason(found, log)
    series = log.find(found.curve.series or "loss")
    logged = series.steps if series is not None else np.array([at])
    earlier = logged[logged < at]
    before = int(earlier[-1]) if len(earlier) else None
    if before is None or at - before == 1:
        return StepChoice(tuple(sorted({at - 1 if first and before is not None else at, at})), why)
    coarse = f"the log shows a step in {at - before}: it happened between {before} and {at}"
    if at - before > MOST_STEPS:
        return StepChoice((), f"{coarse}. Log every step from {before} on first. {why}")
    return StepChoice(tuple(range(before + (not first), at + 1)), f"{coarse}. {why}")


def _faults(log: LossLog, loss: Series | None, thresholds: Thresholds) -> list[Finding]:
    """Find every fault. Behind the first NaN nothing else is looked for."""
    found = find_nan(log, loss, thresholds)
    if loss is None:
        return found
    keep = np.isfinite(loss.values)
    if found and found[0].step is not None:
        keep &= loss.steps < found[0].step
    curve = Series(loss.name, loss.steps[keep], loss.values[keep])
    if len(curve.steps) < 2:
        return found
    found = found + find_spikes(log, curve, thresholds)
    if loss.name in [each.name for role in NO_LOSS if (each := log.find(role))]:
        return found
    return found + (find_broken_grad(log, curve, thresholds) or find_plateau(log, curve, thresholds))


def _precedence(fault: Finding) -> tuple[int, int]:
    return -1 if fault.step is None else fault.step, SEVERITY.index(fault.verdict)


def _shared(fault: Finding, of_baseline: list[Finding]) -> bool:
    """Whether the baseline spikes at the same step, or does not fall either."""
    return fault.verdict in ("spike", "non-convergence") and any(
        each.verdict == fault.verdict and each.step == fault.step for each in of_baseline
    )


def _without_fault(loss: Series | None, baseline: LossLog | None, against: Against | None, series: str) -> Verdict:
    if loss is None or (baseline is not None and baseline.find(series) is None):
        return "no-data"
    if len(loss.steps) < FEWEST_COMMON or (against is not None and against.steps_compared < FEWEST_COMMON):
        return "too-short"
    return "healthy"


def _curve(log: LossLog, loss: Series | None) -> Curve:
    if loss is None or not len(loss.steps):
        return Curve(log.path, log.format, None, 0, None, None)
    return Curve(log.path, log.format, loss.name, len(loss.steps), int(loss.steps[0]), int(loss.steps[-1]))


def _notes(loss: Series | None, against: Against | None, series: str) -> list[str]:
    notes = []
    if loss is None:
        notes.append(f"no {series} value in this log at all")
    elif len(loss.steps) < FEW_POINTS:
        notes.append(f"only {len(loss.steps)} points: a NaN can be seen, a spike or a plateau hardly")
    if against is not None and against.steps_compared < FEWEST_COMMON:
        notes.append(against.why)
    return notes


def _reason(found: CurveVerdict, log: LossLog) -> tuple[int, bool, str]:
    """Say from which step on to look, whether the step before it is needed too, and why."""
    step = found.step or 0
    if found.verdict == "diverged" and found.against_baseline:
        at = found.against_baseline.onset or step
        if at == found.against_baseline.first_step:
            return at, False, "apart at the first step: the forward, the data or the initial weights of that step"
        return at, True, "together until then: the backward and the update of the step before"
    if found.verdict == "nan":
        norm = log.find("grad_norm")
        moved = {signal.series for signal in found.signals if signal.step == step}
        if norm is not None and norm.name in moved and (found.curve.series not in moved):
            return step, False, "the gradient is NaN while the loss is finite: the backward of that step"
        return step, True, "the loss is NaN: the forward of that step, on what the update before it left"
    if found.verdict == "spike":
        return step, True, "the update of the step before, or the data of the step itself"
    if found.verdict == "broken-grad":
        return step, False, "the gradient does not depend on the data: the backward of that step"
    return step, False, "nothing is learned: the gradients and the update of that step"
