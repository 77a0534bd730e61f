"""The curves of one log: rows gathered in any order become series with ascending steps, and events between them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd, isfinite, nan
from typing import Literal

import numpy as np
import numpy.typing as npt

from precdiag.logformats import NUMBER, Record

Floats = npt.NDArray[np.float64]

ROLES: dict[str, tuple[str, ...]] = {
    "loss": (r"(^|[/ .-])(lm )?loss$", r"(^|[/ .])(train|training|total)[_ ]loss(_step)?$", r"(pg|policy)_loss$",
             r"loss(?!.?scale)", r"^value$"),
    "grad_norm": (r"(^|[/ ._])(global_)?grad(ient)?[-_ ]?norm$", r"grad.*norm"),
    "learning_rate": (r"learning[-_ ]rate$", r"(^|[/ ._-])lr($|[-_(/])"),
    "loss_scale": (r"loss[-_ ]?scale$",),
}  # fmt: skip
"""Role: patterns of the names that frameworks give it, the likeliest first."""

_VALIDATION = re.compile(r"(^|[\W_])(val|valid|validation|eval|test|dev|predict)([\W_]|$)", re.IGNORECASE)
_LOSS_NAME = re.compile(r"loss(?!.?scale)", re.IGNORECASE)
_BAR = re.compile(r"(?:^|[^:\s\d])\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[")  # tqdm; a bar with a title is another loop's
_EVENT_CUES = ("overflow", "already at minimum", " in local", "returned nan", "loss is ")
_EVENT = re.compile(
    rf"""(?P<overflow>overflow.*?skipping\ step(?:.*?reducing\ (?:loss\ scale\ )?to\ (?P<scale>{NUMBER}))?)
    |(?P<minimum>loss\ scale\ already\ at\ minimum)
    |(?P<message>found\ (?:nan|inf)\ in\ local|returned\ nan\ values\ in\ its|\bloss\ is\ (?:nan|inf)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
"""What frameworks print when a value overflows: DeepSpeed's loss_scaler.py and Apex's scaler.py; then Megatron-LM,
autograd's anomaly mode, timm and MAE."""

LONGEST_QUOTE = 200
"""Characters kept of a line that is quoted."""


@dataclass(frozen=True)
class Series:
    """One curve: int64 steps in ascending order, each once, and its float64 values (NaN and Inf included)."""

    name: str
    steps: npt.NDArray[np.int64]
    values: Floats

    @property
    def validation(self) -> bool:
        """Whether it was measured on held-out data."""
        return bool(_VALIDATION.search(self.name))


@dataclass(frozen=True)
class Event:
    """Something a log says besides its rows. `after` is the last step logged before it, None before the first.

    overflow: a step was skipped, `value` is the loss scale it goes on with. minimum: the scale cannot go lower.
    message: the framework itself found NaN. vanished: the row of step `after` has no loss, as those after it.
    """

    kind: Literal["overflow", "minimum", "message", "vanished"]
    after: int | None
    value: float | None = None
    text: str = ""


@dataclass(frozen=True)
class LossLog:
    """What a log holds. `format` is None where none was recognised; notes say what was left out and why.

    `counted`: the log says no steps, its rows are counted. `cut`: damage ended the reading, what follows is unseen.
    """

    path: str
    format: str | None
    series: dict[str, Series]
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    counted: bool = False
    cut: bool = False

    def find(self, name: str) -> Series | None:
        """Look a curve up by its own name, or by its role (`loss`, `grad_norm`, `learning_rate`, `loss_scale`).

        Of several with the likeliest name for the role, the one with the most points.
        """
        if name in self.series:
            return self.series[name]
        for pattern in ROLES.get(name, ()):
            found = [
                each
                for each in self.series.values()
                if re.search(pattern, each.name, re.IGNORECASE) and not each.validation
            ]
            if found:
                return max(found, key=lambda each: len(each.steps))
        return None


def joined(one: Series, other: Series) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Return the steps that two curves share, and the values of each there."""
    steps, i, j = np.intersect1d(one.steps, other.steps, assume_unique=True, return_indices=True)
    return steps, one.values[i], other.values[j]


def find_event(line: str) -> re.Match[str] | None:
    """Find an event that a line tells of. The cues are looked for first: that is ten times as quick."""
    lowered = line.lower()
    return _EVENT.search(line) if any(cue in lowered for cue in _EVENT_CUES) else None


class Gatherer:
    """Takes the rows and events of a log as they come, and is closed with `log`."""

    def __init__(self, bars: ProgressBars | None = None, *, loss_vanishes: bool = False) -> None:
        self.rows = 0
        self._counter = _Counter(bars or ProgressBars())
        self._loss_vanishes = loss_vanishes
        self._loss: str | None = None
        self._vanished = False
        self._last: int | None = None
        self._counting: bool | None = None
        self._epochs = _Epochs()
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self._rank: str | None = None
        self._other_ranks: dict[str, dict[int, float]] = {}
        self._events: dict[Event, None] = {}
        self._notes: dict[str, None] = {}

    def add(self, record: Record, line: str = "", rank: str | None = None) -> None:
        """Take a row. Of several ranks that print, the first is the curve; of the others only NaN and Inf count.

        The first row decides whether the log says its steps; if so, rows that do not are left out.
        """
        values = record.values
        if self._counting is None and values:
            self._counting = record.step is None
        if not values or (record.step is None and not self._counting):
            return
        if self._counting:
            step = self._counter.step((rank, ">>" in line), values, "train_runtime" not in line)
        else:
            step = self._epochs.step(record)
        if self._loss_vanishes:
            self._watch_loss(step, values, line)
        self._rank = self._rank or rank
        if rank is not None and rank != self._rank:
            self._add_other_rank(step, values)
            return
        self.rows, self._last = self.rows + 1, step
        for name, value in values.items():
            steps, column = self._columns.setdefault(name, (array("q"), array("d")))
            steps.append(step)
            column.append(value)

    def add_event(self, found: re.Match[str]) -> None:
        """Take what `find_event` found in a line that is no row."""
        if found["overflow"]:
            event = Event("overflow", self._last, float(found["scale"]) if found["scale"] else None)
        elif found["minimum"]:
            event = Event("minimum", self._last)
        else:
            event = Event("message", self._last, text=found.string.strip()[:LONGEST_QUOTE])
        self._events.setdefault(event)

    def log(self, path: str, name: str | None, notes: list[str]) -> LossLog:
        """Close the log: columns in the order of their steps, of a step that occurs twice the last value."""
        numbers = self._counter.numbers() if self._counting else None
        series = {name: self._series(name, numbers) for name in self._columns}
        events = tuple(self._events)
        if numbers is not None:
            events = tuple(replace(e, after=int(numbers[e.after - 1]) if e.after else None) for e in events)
        said = [*notes, *self._notes, *self._epochs.notes(), *(self._counter.notes() if self._counting else ())]
        return LossLog(
            path, name, series, events, tuple(said), counted=numbers is not None and not self._counter.by_bars
        )

    def _add_other_rank(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            seen = self._other_ranks.setdefault(name, {})
            if isfinite(value):
                seen.pop(step, None)
            else:
                seen[step] = value

    def _watch_loss(self, step: int, values: dict[str, float], line: str) -> None:
        """Put NaN where a finished row has no loss, unless its step was skipped for an overflow."""
        self._loss = self._loss or next(filter(_LOSS_NAME.search, values), None)
        finished = line.rstrip().endswith("|") or "number of nan iterations" in values
        skipped = values.get("number of skipped iterations") and not values.get("number of nan iterations")
        missing = self._loss is not None and self._loss not in values and finished and not skipped
        if missing and self._loss:
            values[self._loss] = nan
            if not self._vanished:
                self._events.setdefault(Event("vanished", step, text=self._loss))
        self._vanished = missing

    def _series(self, name: str, numbers: npt.NDArray[np.int64] | None) -> Series:
        steps = np.frombuffer(self._columns[name][0], dtype=np.int64)
        values = np.frombuffer(self._columns[name][1], dtype=np.float64)
        if numbers is not None:
            steps = numbers[steps - 1]
        if not np.all(steps[1:] > steps[:-1]):
            if np.any(steps[1:] < steps[:-1]):
                self._notes.setdefault("steps go back (a restart): where one occurs twice the last value counts")
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
            last = np.append(steps[1:] != steps[:-1], True)
            lost = steps[~last & ~np.isfinite(values)]
            steps, values = steps[last], values[last]
            lost = lost[np.isfinite(values[np.searchsorted(steps, lost)])]
            if len(lost):
                self._notes.setdefault(f"{name} was NaN or Inf at step {lost[0]}, but not where the step comes again")
        return self._with_other_ranks(Series(name, steps, values))

    def _with_other_ranks(self, series: Series) -> Series:
        """Put in the NaN and Inf that only another rank printed."""
        added = self._other_ranks.get(series.name)
        if not added:
            return series
        self._notes.setdefault(
            f"{series.name}: NaN or Inf at step {min(added)} on another rank than the first that prints"
        )
        at = np.fromiter(added, dtype=np.int64)
        steps = np.union1d(series.steps, at)
        values = np.full(len(steps), nan)
        values[np.searchsorted(steps, series.steps)] = series.values
        values[np.searchsorted(steps, at)] = np.fromiter(added.values(), dtype=np.float64)
        return Series(series.name, steps, values)


class ProgressBars:
    """Where the bars drawn between the rows stand, by their totals."""

    def __init__(self) -> None:
        self.latest = ""
        self.positions: dict[str, int] = {}

    def see(self, line: str) -> None:
        """Take a line with a bar in it."""
        for bar in _BAR.finditer(line):
            self.latest = bar[2]
            self.positions[bar[2]] = int(bar[1])


class _Counter:
    """Numbers the rows of a log that says no steps: as its progress bar does where there is one, else from 1."""

    def __init__(self, bars: ProgressBars) -> None:
        self._bars = bars
        self._total = ""
        self._counts: dict[Hashable, int] = {}
        self._digests = array("q")
        self._positions = array("q")
        self._note = ""
        self.by_bars = False

    def step(self, emitter: Hashable, values: dict[str, float], advances: bool) -> int:
        """Count a row. Two emitters print the same rows (LLaMA-Factory's callback does), each is counted by itself.

        Validation and the summary at the end belong to the row before them. The bar that was drawn last when the
        first row came is the training's.
        """
        self._total = self._total or self._bars.latest
        count = self._counts.get(emitter, 0)
        if advances and not all(map(_VALIDATION.search, values)):
            count += 1
            self._counts[emitter] = count
        count = max(count, 1)
        if count > len(self._digests):
            self._digests.append(hash(str(values)))
            self._positions.append(self._bars.positions.get(self._total, -1))
        return count

    def numbers(self) -> npt.NDArray[np.int64]:
        """Give the step of each count.

        A bar counts only if it moved between any two rows: with stdout buffered rows come in bursts, away from their
        bars. Where every row comes k times in a row, k printers wrote it.
        """
        digests, positions = (np.frombuffer(each, dtype=np.int64) for each in (self._digests, self._positions))
        new = digests[1:] != digests[:-1]
        if np.all(positions >= 0) and np.all((positions[1:] != positions[:-1])[new]):
            self._note, self.by_bars = "steps are those of the progress bar", True
            return positions
        runs = [len(list(run)) for _, run in groupby(digests.tolist())]
        times = gcd(*runs[:-1]) if len(runs) > 2 else 1
        self._note = "the log says no steps: its rows are counted from 1"
        if times > 1:
            self._note += f", each once though it is printed {times} times"
        return np.arange(len(digests)) // times + 1

    def notes(self) -> list[str]:
        """Say how rows were numbered, once they are."""
        return [self._note]


class _Epochs:
    """Numbers on where a log counts the steps of each epoch anew: the step goes back just as the epoch goes on."""

    def __init__(self) -> None:
        self._bases: dict[int, int] = {}
        self._last = (0, -1)
        self._used = False

    def step(self, record: Record) -> int:
        """Give the step of a row over all epochs."""
        step, epoch = record.step or 0, record.epoch
        if epoch is None:
            return step
        if epoch not in self._bases:
            last_epoch, last_step = self._last
            base = self._bases.get(last_epoch, 0)
            if epoch > last_epoch and step < last_step:
                base, self._used = base + last_step + (step == 0), True
            self._bases[epoch] = base
        self._last = (epoch, step)
        return step + self._bases[epoch]

    def notes(self) -> list[str]:
        """Say that steps were numbered on, if they were."""
        return ["steps begin anew in each epoch: they are numbered on"] if self._used else []
