"""The log's iterations and the dump's steps: which is which, and whether a re-run repeats the log before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from precdiag.curves import LossLog, Series

Receipt = Mapping[str, Any]


@dataclass(frozen=True)
class StepMap:
    """The log's number minus the dump's step, how that is known, and what to tell the reader."""

    offset: int
    basis: Literal["option", "receipts", "assumed"]
    why: str

    def dump_step(self, iteration: int) -> int:
        """Return the dump step of a logged iteration; negative where it is before the process began."""
        return iteration - self.offset

    def iteration(self, step: int) -> int:
        """Return the logged iteration of a dump step."""
        return step + self.offset


@dataclass(frozen=True)
class Repeat:
    """Whether a side's re-run says at `step` what its log before said. `same` is None where it does not say."""

    side: str
    step: int
    series: str
    before: float | None
    again: float | None
    same: bool | None

    @property
    def said(self) -> str:
        """One sentence for the reader."""
        if self.same is None:
            return (
                f"the {self.side}'s dumped run does not show {self.series} at {self.step}: unknown whether it repeats"
            )
        if self.same:
            return f"the {self.side}'s dumped run repeats {self.series} at {self.step}: {_text(self.before)}"
        return (
            f"the {self.side}'s {self.series} at {self.step} was {_text(self.before)}, and is {_text(self.again)} in "
            "the dumped run; what its dumps show may be another fault"
        )


def step_map(log: LossLog, receipts: Iterable[Receipt] = (), given: int | None = None, series: str = "loss") -> StepMap:
    """Map a log's iterations to the steps of a dump, which counts from 0 where the process starts.

    `given` (--step-offset) decides, then the receipts of the dumped run, where its framework counts iterations. Else
    the process is taken to have written the log from its start: the first step logged, less what a log that shows
    every k-th leaves out before it, is dump step 0.
    """
    if given is not None:
        return StepMap(given, "option", f"--step-offset {given}: iteration {given} is dump step 0")
    known = _known_offset(receipts)
    if known is not None:
        return StepMap(known, "receipts", f"by the receipts iteration {known} is dump step 0")
    curve = log.find(series)
    first = 1 if curve is None or not len(curve.steps) else _first_iteration(curve)
    told = f"assumed: the log begins with its process, iteration {first} is dump step 0 (--step-offset says otherwise)"
    return StepMap(first, "assumed", told)


def repeats(side: str, before: LossLog, again: LossLog, step: int, series: str, max_relative: float) -> Repeat:
    """Compare one iteration of two logs: both NaN or Inf alike, or within `max_relative` of the first."""
    one, other = _at(before.find(series), step), _at(again.find(series), step)
    same = None if one is None or other is None else _alike(one, other, max_relative)
    return Repeat(side, step, series, one, other, same)


def _known_offset(receipts: Iterable[Receipt]) -> int | None:
    for receipt in receipts:
        for entry in receipt.get("steps", ()):
            if entry.get("iteration") is not None:
                return int(entry["iteration"]) - int(entry["step"])
        if receipt.get("offset") is not None:
            return int(receipt["offset"])
    return None


def _first_iteration(curve: Series) -> int:
    first = int(curve.steps[0])
    stride = int(np.median(np.diff(curve.steps))) if len(curve.steps) > 1 else 1
    return first if first % stride else max(first - stride + 1, 0)


def _at(curve: Series | None, step: int) -> float | None:
    if curve is None:
        return None
    place = int(np.searchsorted(curve.steps, step))
    found = place < len(curve.steps) and curve.steps[place] == step
    return float(curve.values[place]) if found else None


def _alike(one: float, other: float, max_relative: float) -> bool:
    if not (np.isfinite(one) and np.isfinite(other)):
        return not (np.isfinite(one) or np.isfinite(other))
    return abs(one - other) <= max_relative * abs(one)


def _text(value: float | None) -> str:
    return "not there" if value is None else f"{value:.6g}"
