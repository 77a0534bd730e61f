"""The non-finite side of a training curve, and the words of every finding: signals and verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from precdiag.curves import Event, LossLog, Series
from precdiag.settings import Thresholds

LOWEST_SCALE = 1.0
"""Megatron-LM's --min-loss-scale and DeepSpeed's min_loss_scale: by default the scale goes no lower."""

_METRIC = re.compile(
    r"reward|score|accura|(^|[\W_])acc([\W_]|$)|length|completions|(^|[\W_])std([\W_]|$)", re.IGNORECASE
)


@dataclass(frozen=True)
class Signal:
    """One thing seen: in which series, from which step on (None: no step), and what, with its numbers."""

    series: str
    step: int | None
    what: str


@dataclass(frozen=True)
class Finding:
    """A fault, the step it begins at (None where the log says no step), and what it rests on."""

    verdict: Literal["nan", "broken-grad", "diverged", "spike", "non-convergence"]
    step: int | None
    signals: tuple[Signal, ...]


def find_nan(log: LossLog, loss: Series | None, thresholds: Thresholds) -> list[Finding]:
    """Find the first step at which a training series is NaN or Inf, and which series moved first.

    A gradient norm that overflowed on a step that was skipped for it is fp16 at work, and no finding; a loss scale
    that cannot go lower and still overflows is one. A loss of exactly 0.0 is a filtered NaN where the gradient norm
    is NaN or absent and the loss had not come near 0.
    """
    skipped = _skipped_steps(log)
    signals = [
        signal
        for each in log.series.values()
        if not each.validation and not _METRIC.search(each.name)
        for signal in _non_finite(each, skipped if "norm" in each.name else None)
    ]
    signals += [*_zero_loss(log, loss, thresholds), *_counted_nans(log), *_stuck_scale(log)]
    signals += [Signal("log", _next(each), each.text) for each in log.events if each.kind == "message"]
    vanished = {each.text: each.after for each in reversed(log.events) if each.kind == "vanished"}
    signals += [
        Signal(name, step, "the row has no loss: Megatron-LM leaves out one that is not above 0, as NaN is not")
        for name, step in vanished.items()
    ]
    if not signals:
        return []
    signals.sort(key=moment)
    return [Finding("nan", signals[0].step, tuple(signals))]


def side_signals(log: LossLog) -> list[Signal]:
    """Say what is worth knowing and no fault: skipped steps, NaN in a metric that is not of the training itself."""
    signals: list[Signal] = []
    for each in log.series.values():
        if each.validation or _METRIC.search(each.name):
            signals += _non_finite(each, None)
    scales = [each.value for each in log.events if each.kind == "overflow" and each.value is not None]
    skips = sum(each.kind == "overflow" for each in log.events)
    if skips:
        lowest = f", the loss scale goes down to {min(scales):,.0f}" if scales else ""
        said = f"{skips} steps skipped for an overflow{lowest}: normal where fp16 starts, now and then later"
        signals.append(Signal("loss scale", _next(next(e for e in log.events if e.kind == "overflow")), said))
    counter = log.series.get("number of skipped iterations")
    if counter is not None and np.any(counter.values > 0):
        first = int(counter.steps[counter.values > 0][0])
        signals.append(Signal(counter.name, first, f"{counter.values.sum():g} steps skipped for an overflow"))
    return signals


def moment(signal: Signal) -> int:
    """Order signals by their steps, those without one first."""
    return -1 if signal.step is None else signal.step


def _next(event: Event) -> int | None:
    return None if event.after is None else event.after + 1


def _skipped_steps(log: LossLog) -> set[int]:
    """Collect the logged steps on which, or before which, a step was skipped for an overflow."""
    skipped: set[int] = set()
    counter, nans = (log.series.get(f"number of {kind} iterations") for kind in ("skipped", "nan"))
    if counter is not None:
        skipped.update(counter.steps[counter.values > 0].tolist())
    if nans is not None:
        skipped.difference_update(nans.steps[nans.values > 0].tolist())
    rows = log.find("loss") or log.find("grad_norm")
    for event in log.events if rows is not None else ():
        if event.kind == "overflow" and rows is not None:
            at = 0 if event.after is None else int(np.searchsorted(rows.steps, event.after, side="right"))
            skipped.update(rows.steps[at : at + 1].tolist())
    return skipped


def _non_finite(series: Series, excused: set[int] | None) -> Iterator[Signal]:
    bad = ~np.isfinite(series.values)
    if excused:
        bad &= ~np.isin(series.steps, list(excused))
    if not bad.any():
        return
    first = int(np.argmax(bad))
    what = "NaN" if np.isnan(series.values[first]) else "Inf"
    well = np.flatnonzero(~bad[first:])
    until = f"finite again at {series.steps[first + well[0]]}" if len(well) else "to the end"
    yield Signal(series.name, int(series.steps[first]), f"{what}, {until}")


def _zero_loss(log: LossLog, loss: Series | None, thresholds: Thresholds) -> Iterator[Signal]:
    if loss is None or np.any(loss.values < 0):
        return
    norm = log.find("grad_norm")
    healthy = norm.steps[np.isfinite(norm.values)] if norm else np.empty(0, np.int64)
    zero = (loss.values == 0) & ~np.isin(loss.steps, healthy)
    fell = np.flatnonzero(zero[1:] & (loss.values[:-1] > thresholds.zero_fall)) + 1
    if len(fell):
        said = f"exactly 0.0 after {loss.values[fell[0] - 1]:g}: a NaN that was filtered (logging_nan_inf_filter)"
        yield Signal(loss.name, int(loss.steps[fell[0]]), said)


def _counted_nans(log: LossLog) -> Iterator[Signal]:
    counter = log.series.get("number of nan iterations")
    if counter is not None and np.any(counter.values > 0):
        yield Signal(counter.name, int(counter.steps[counter.values > 0][0]), "the framework counts a NaN")


def _stuck_scale(log: LossLog) -> Iterator[Signal]:
    """Find an overflow at the lowest loss scale: not the scale overflows but the gradient."""
    said = "an overflow although the loss scale is at its minimum: the gradient itself is NaN or Inf"
    lowest = [
        each
        for each in log.events
        if each.kind == "minimum" or (each.kind == "overflow" and each.value is not None and each.value <= LOWEST_SCALE)
    ]
    if lowest:
        yield Signal("loss scale", _next(lowest[0]), said)
    scale, skips = log.find("loss_scale"), log.series.get("number of skipped iterations")
    if scale is not None and skips is not None:
        stuck = np.intersect1d(scale.steps[scale.values <= LOWEST_SCALE], skips.steps[skips.values > 0])
        if len(stuck):
            yield Signal(scale.name, int(stuck[0]), said)
