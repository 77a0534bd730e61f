"""From a curve to the call: what is wrong since which step, what the dumps of that step say, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from precdiag.cause import Cause
from precdiag.compare import DIVERGED, NO_DIVERGENCE, Comparison, compare
from precdiag.config import LocalizeSettings
from precdiag.curves import LossLog
from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND, UnreadableError, UsageError
from precdiag.finding import Row
from precdiag.findings import Signal, moment
from precdiag.iterations import Repeat, StepMap, repeats, step_map
from precdiag.judge import Policy
from precdiag.layout import open_run
from precdiag.loss import CurveVerdict, StepChoice, Verdict, judge_curves, steps_to_dump
from precdiag.losslog import read_curves
from precdiag.origin import Origin
from precdiag.parts import Selection
from precdiag.rounding import Beyond
from precdiag.sides import Side, Sides
from precdiag.source import Source
from precdiag.survey import Survey, survey

Progress = Callable[[str, int, int], None]

EXIT = {"healthy": EXIT_NOTHING_FOUND, "too-short": EXIT_CANNOT_LOOK, "no-data": EXIT_CANNOT_LOOK}

CARRIED_IN = frozenset({"parameter", "update", "gap"})
"""Kinds of cause that an earlier step may have left, where the step just before was not compared."""


@dataclass(frozen=True)
class Curves:
    """Both logs as they were read, and what they say."""

    candidate: LossLog
    baseline: LossLog | None
    found: CurveVerdict
    choice: StepChoice
    series: str
    mapping: StepMap
    repeat: Repeat | None = None

    @property
    def dump_steps(self) -> tuple[int, ...]:
        """The dump steps worth looking at; those before the process began are left out."""
        steps = (self.mapping.dump_step(step) for step in self.choice.steps)
        return tuple(step for step in steps if step >= 0)


@dataclass(frozen=True)
class Culprit:
    """The end of the chain: the row, the user's line, and why it is the one. `by` is what named it."""

    by: Literal["compare", "beyond rounding", "nan"]
    kind: str
    row: Row
    source: Source | None
    stack: tuple[str, ...]
    why: str
    next_step: str
    found: Cause | Beyond | Origin


@dataclass(frozen=True)
class Seen:
    """What the dumps say. `missing`: dump steps worth looking at that are not in them. `carried`: an earlier step may
    have left what was found.
    """

    comparison: Comparison | None = None
    survey: Survey | None = None
    culprit: Culprit | None = None
    missing: tuple[int, ...] = ()
    carried: bool = False
    notes: tuple[str, ...] = ()

    @property
    def looked(self) -> bool:
        """Whether any dump was read."""
        return self.comparison is not None or self.survey is not None


@dataclass(frozen=True)
class Localization:
    """The answer: verdict and step (the log's number), the chain to the culprit, and what to type next."""

    verdict: Verdict
    step: int | None
    signals: tuple[Signal, ...]
    curves: Curves
    seen: Seen
    sides: Sides
    next: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 looked and found nothing, 1 found, 2 could not look."""
        return EXIT.get(self.verdict, EXIT_FOUND)


def read_both(sides: Sides, settings: LocalizeSettings) -> Curves:
    """Read the logs, judge them, and map what they say to dump steps.

    Raises UnreadableError where a log cannot be read, UsageError where the series asked for is in none.
    """
    candidate, baseline = _log(sides.candidate, settings), _log(sides.baseline, settings)
    if candidate is None:
        raise UsageError("no log of the candidate to judge", hint="precdiag localize DIR, or --candidate-log FILE")
    _require(candidate, settings.series)
    found = judge_curves(candidate, settings, baseline=baseline, series=settings.series)
    own = _run_log(sides.candidate, settings) or candidate
    receipts = (*sides.candidate.receipts, *(sides.baseline.receipts if sides.baseline else ()))
    mapping = step_map(own, receipts, settings.step_offset, settings.series)
    repeat = None
    if own is not candidate and found.step is not None:
        series = next((each.series for each in found.signals if each.step == found.step), settings.series)
        repeat = repeats(candidate, own, found.step, series, settings.max_relative)
    return Curves(candidate, baseline, found, steps_to_dump(found, candidate), settings.series, mapping, repeat)


def logs_of(sides: Sides, settings: LocalizeSettings) -> dict[str, LossLog]:
    """Read the logs there are, by side."""
    logs = {"baseline": _log(sides.baseline, settings), "candidate": _log(sides.candidate, settings)}
    return {side: log for side, log in logs.items() if log is not None}


def localize(
    sides: Sides, settings: LocalizeSettings, progress: Progress = lambda label, done, total: None
) -> Localization:
    """Judge the curves, look into the dumps that cover the step, and put the one cause at the end of the chain.

    Curves that show nothing while dumps of one device differ are `diverged` all the same: the first logged step whose
    dump differs. Raises as `read_both`.
    """
    curves = read_both(sides, settings)
    seen = look(sides, curves, progress)
    return conclude(sides, curves, seen)


def conclude(sides: Sides, curves: Curves, seen: Seen) -> Localization:
    """Draw the verdict from curves and dumps."""
    found = curves.found
    verdict, step, signals = found.verdict, found.step, found.signals
    if verdict in EXIT and seen.culprit is not None:
        row = seen.culprit.row
        step = None if row.step is None else curves.mapping.iteration(row.step)
        verdict = "diverged"
        told = Signal("dump", step, f"the dumps differ although the curves do not show it: {row.name}")
        signals = tuple(sorted([*signals, told], key=moment))
    notes = [*found.notes]
    if step is not None:
        notes.append(curves.mapping.why)
    if curves.repeat is not None:
        notes.append(curves.repeat.said)
    for name, side in (("baseline", sides.baseline), ("candidate", sides.candidate)):
        if side is not None and side.unfinished is not None:
            notes.append(f"the {name}'s evidence is not whole: {side.unfinished}")
    return Localization(verdict, step, signals, curves, seen, sides, notes=(*notes, *seen.notes))


def look(sides: Sides, curves: Curves, progress: Progress = lambda label, done, total: None) -> Seen:
    """Look into the dumps, up to the last step worth looking at: the earliest difference wins.

    With no step from the curves every dumped step is looked at.
    """
    wanted = curves.dump_steps
    if curves.found.step is not None and not wanted:
        early = f"before dump step 0: {curves.mapping.why}" if curves.choice.steps else curves.choice.why
        return Seen(notes=(f"no dump step to look at: {early}",))
    if sides.candidate.dump is None:
        return Seen(missing=wanted)
    dumped = _dumped(sides.candidate.dump)
    both = sides.baseline is not None and sides.baseline.dump is not None
    if sides.baseline is not None and sides.baseline.dump is not None:
        dumped &= _dumped(sides.baseline.dump)
    upto = tuple(step for step in sorted(dumped) if not wanted or step <= max(wanted))
    missing = tuple(step for step in wanted if step not in dumped)
    if not upto or not (both or curves.found.verdict == "nan"):
        return Seen(missing=missing)
    compared = examine(sides, upto, progress) if both else Seen()
    surveyed = _survey(sides.candidate.dump, upto) if curves.found.verdict == "nan" else Seen()
    return replace(_joined(compared, surveyed, sides.cross_device), missing=missing)


def examine(sides: Sides, steps: tuple[int, ...], progress: Progress = lambda label, done, total: None) -> Seen:
    """Compare these dump steps of both sides and name the culprit."""
    assert sides.baseline is not None and sides.baseline.dump is not None and sides.candidate.dump is not None
    try:
        comparison = compare(
            sides.baseline.dump, sides.candidate.dump, Policy(), Selection(steps=steps), progress=progress
        )
    except (UnreadableError, UsageError) as error:
        return Seen(notes=(str(error),))
    culprit, notes = _culprit(comparison, sides.cross_device)
    if comparison.verdict not in (DIVERGED, NO_DIVERGENCE):
        notes += ["the dumps could be compared only in part", *comparison.notes]
    return Seen(comparison, None, culprit, carried=_is_carried(culprit, equal_steps(comparison)), notes=tuple(notes))


def equal_steps(comparison: Comparison) -> tuple[int, ...]:
    """Return the dump steps in which every rank was compared and nothing differs, in order."""
    parts: dict[int, bool] = {}
    for part in comparison.parts:
        if part.place.step is not None:
            equal = part.error is None and part.cause is None and not part.blocking
            parts[part.place.step] = parts.get(part.place.step, True) and equal
    return tuple(sorted(step for step, equal in parts.items() if equal))


def of_cause(cause: Cause) -> Culprit:
    """Put compare's first cause at the end of the chain."""
    return Culprit("compare", cause.row.kind, cause.row, cause.source, cause.stack, cause.why, cause.next_step, cause)


def of_beyond(found: Beyond) -> Culprit:
    """Put the first row that rounding does not explain there."""
    return Culprit("beyond rounding", found.row.kind, found.row, found.source, (), found.why, found.next_step, found)


def of_origin(found: Origin) -> Culprit:
    """Put the origin of NaN or Inf there."""
    return Culprit("nan", found.kind, found.row, found.source, found.stack, found.why, found.next_step, found)


def _survey(dump: Path, steps: tuple[int, ...]) -> Seen:
    try:
        found = survey(dump, Selection(steps=steps))
    except (UnreadableError, UsageError) as error:
        return Seen(notes=(str(error),))
    culprit = None if found.origin is None else of_origin(found.origin)
    notes = () if culprit is not None else ("no NaN or Inf in the dumps", *found.notes)
    return Seen(None, found, culprit, carried=_is_carried(culprit, steps), notes=notes)


def _joined(compared: Seen, surveyed: Seen, cross_device: bool | None) -> Seen:
    """Of the two culprits the first difference; but the origin where that difference is the NaN, or on two devices."""
    notes = (*compared.notes, *surveyed.notes)
    origin, difference = surveyed.culprit, compared.culprit
    if origin is not None and (cross_device or difference is None or _is_that_nan(difference.row, origin.row)):
        return Seen(compared.comparison, surveyed.survey, origin, carried=surveyed.carried, notes=notes)
    if origin is not None and difference is not None and origin.row.name != difference.row.name:
        notes = (*notes, f"the first NaN or Inf of the candidate is {origin.row.name}, {origin.why}")
    return Seen(compared.comparison, surveyed.survey, difference, carried=compared.carried, notes=notes)


def _is_that_nan(difference: Row, origin: Row) -> bool:
    """Whether a first difference is the NaN or Inf whose origin is known: same step and rank, not finite."""
    apart = (difference.metrics or {}).get("max_abs")
    here = (difference.step, difference.rank) == (origin.step, origin.rank)
    return here and apart is not None and not math.isfinite(apart)


def _log(side: Side | None, settings: LocalizeSettings) -> LossLog | None:
    return None if side is None or side.log is None else read_curves(side.log, pattern=settings.pattern)


def _run_log(side: Side, settings: LocalizeSettings) -> LossLog | None:
    return None if side.run_log is None else read_curves(side.run_log, pattern=settings.pattern)


def _require(log: LossLog, series: str) -> None:
    """A series asked for by name must be there; that a log has no loss is a verdict of its own."""
    if series != "loss" and log.find(series) is None:
        there = ", ".join(log.series) or "none"
        raise UsageError(f"{log.path}: no series {series!r}", hint=f"it has: {there}")


def _dumped(dump: Path) -> set[int]:
    return {part.step for part in open_run(dump).parts if part.step is not None}


def _culprit(comparison: Comparison, cross_device: bool | None) -> tuple[Culprit | None, list[str]]:
    """On one device the first difference is the culprit, on two the first row that rounding does not explain.

    Where nobody says on which devices they ran, a first difference that cannot be the onset of rounding is one.
    """
    cause, rounding = comparison.cause, comparison.rounding
    if cause is None:
        return None, []
    onset = rounding is not None and rounding.onset is not None
    if cross_device is False or (cross_device is None and not onset):
        return of_cause(cause), []
    if rounding is not None and rounding.beyond is not None:
        return of_beyond(rounding.beyond), [f"before it only rounding: the first difference is {cause.row.name}"]
    return None, [
        f"the dumps differ from {cause.row.name} on by no more than rounding at this dtype: smaller faults cannot be "
        "seen, repeat the step in float32"
    ]


def _is_carried(culprit: Culprit | None, clean: Sequence[int]) -> bool:
    """Whether a step before it, which is not among those known to be clean, may have left what was found."""
    if culprit is None or not culprit.row.step or culprit.kind not in CARRIED_IN:
        return False
    return culprit.row.step - 1 not in clean
