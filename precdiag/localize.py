"""From a curve to the call: what is wrong since which step, what the dumps of that step say, and what to type next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from precdiag.culprit import Progress, Seen, dumped_steps, inspect, one_sided_steps
from precdiag.curves import LossLog
from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND, UsageError
from precdiag.findings import Signal, moment
from precdiag.iterations import Repeat, StepMap, repeats, step_map
from precdiag.loss import CurveVerdict, StepChoice, Verdict, judge_curves, steps_to_dump
from precdiag.losslog import read_curves
from precdiag.settings import LocalizeSettings
from precdiag.sides import Side, Sides

Outcome = Verdict | Literal["incomplete"]
"""`incomplete`: healthy curves, and a log or dumps that could not be looked at whole."""

EXIT: dict[str, int] = {
    "healthy": EXIT_NOTHING_FOUND,
    "too-short": EXIT_CANNOT_LOOK,
    "no-data": EXIT_CANNOT_LOOK,
    "incomplete": EXIT_CANNOT_LOOK,
}

UNUSED = "no dump was looked at: no step is dumped on both sides, or none of the candidate's"


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
    def whole(self) -> bool:
        """Whether both logs were read to their ends."""
        return not self.candidate.cut and not (self.baseline is not None and self.baseline.cut)

    @property
    def dump_steps(self) -> tuple[int, ...]:
        """The dump steps worth looking at; those before the process began are left out."""
        steps = (self.mapping.dump_step(step) for step in self.choice.steps)
        return tuple(step for step in steps if step >= 0)


@dataclass(frozen=True)
class Localization:
    """The answer: verdict and step (the log's number), the chain to the culprit, and what to type next.

    `stages`: name and reason of each collection that a search ran to get there.
    """

    verdict: Outcome
    step: int | None
    signals: tuple[Signal, ...]
    curves: Curves
    seen: Seen
    sides: Sides
    next: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stages: tuple[tuple[str, str], ...] = ()

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
    mapping = step_map(candidate, (), settings.step_offset, settings.series)
    curves = Curves(candidate, baseline, found, steps_to_dump(found, candidate), settings.series, mapping)
    return of_run(curves, sides, settings)


def of_run(curves: Curves, sides: Sides, settings: LocalizeSettings) -> Curves:
    """Map the curves to the steps of the run that was dumped, and hold its log against theirs."""
    run = _run_log(sides.candidate, settings)
    receipts = (*sides.candidate.receipts, *(sides.baseline.receipts if sides.baseline else ()))
    mapping = step_map(run or curves.candidate, receipts, settings.step_offset, settings.series)
    again = {"candidate": run, "baseline": _run_log(sides.baseline, settings)}
    before = {"candidate": curves.candidate, "baseline": curves.baseline}
    found, checked = curves.found, []
    for name, log in again.items():
        if log is not None and (old := before[name]) is not None and found.step is not None:
            moved = (each.series for each in found.signals if each.step == found.step and old.find(each.series))
            checked.append(repeats(name, old, log, found.step, next(moved, settings.series), settings.max_relative))
    unlike = next((each for each in checked if each.same is False), None)
    return replace(curves, mapping=mapping, repeat=unlike or next(iter(checked), None))


def logs_of(sides: Sides, settings: LocalizeSettings) -> dict[str, LossLog]:
    """Read the logs there are, by side."""
    logs = {"baseline": _log(sides.baseline, settings), "candidate": _log(sides.candidate, settings)}
    return {side: log for side, log in logs.items() if log is not None}


def localize(
    sides: Sides, settings: LocalizeSettings, progress: Progress = lambda label, done, total: None
) -> Localization:
    """Judge the curves, look into the dumps that cover the step, and put the one cause at the end of the chain.

    Curves that show nothing while dumps of one device differ are `diverged` all the same (`nan` where one alone holds
    NaN or Inf): the first logged step whose dump does. Raises as `read_both`.
    """
    curves = read_both(sides, settings)
    seen = look(sides, curves, progress)
    return conclude(sides, curves, seen)


def conclude(sides: Sides, curves: Curves, seen: Seen) -> Localization:
    """Draw the verdict from curves and dumps."""
    found = curves.found
    verdict: Outcome = found.verdict
    step, signals = found.step, found.signals
    if verdict in EXIT and seen.culprit is not None:
        row = seen.culprit.row
        step = None if row.step is None else curves.mapping.iteration(row.step)
        verdict = "nan" if seen.culprit.by == "nan" else "diverged"
        does = "the dump is not finite" if verdict == "nan" else "the dumps differ"
        told = Signal("dump", step, f"{does} although the curves do not show it: {row.name}")
        signals = tuple(sorted([*signals, told], key=moment))
    elif verdict == "healthy" and not (seen.whole and curves.whole and _finished(sides)):
        verdict = "incomplete"
    notes = [*found.notes]
    if step is not None:
        notes.append(curves.mapping.why)
    if curves.repeat is not None and curves.repeat.same is not False:  # that stands above everything
        notes.append(curves.repeat.said)
    for name, side in (("baseline", sides.baseline), ("candidate", sides.candidate)):
        if side is not None and side.unfinished is not None:
            notes.append(f"the {name}'s evidence is not whole: {side.unfinished}")
    return Localization(verdict, step, signals, curves, seen, sides, notes=(*notes, *seen.notes))


def look(sides: Sides, curves: Curves, progress: Progress = lambda label, done, total: None) -> Seen:
    """Look into the dumps, up to the last step worth looking at: the earliest difference wins.

    With no step from the curves every dumped step is looked at, those of one side alone for NaN and Inf.
    """
    wanted = curves.dump_steps
    if curves.found.step is not None and not wanted:
        early = f"before dump step 0: {curves.mapping.why}" if curves.choice.steps else curves.choice.why
        return Seen(notes=(f"no dump step to look at: {early}",))
    dumped = dumped_steps(sides)
    upto = tuple(step for step in dumped if not wanted or step <= max(wanted))
    missing = tuple(step for step in wanted if step not in dumped)
    if not upto or sides.candidate.dump is None:
        dumps = sides.candidate.dump is not None or (sides.baseline is not None and sides.baseline.dump is not None)
        return Seen(missing=missing, notes=(UNUSED,) if dumps and not wanted else (), whole=not dumps)
    alone = sides.baseline is None or sides.baseline.dump is None
    nan = curves.found.verdict == "nan" or (alone and not wanted)
    seen = replace(inspect(sides, upto, nan=nan, progress=progress), missing=missing)
    if unpaired := () if wanted else one_sided_steps(sides):
        said = f"dumped on one side alone, and not looked at: step {', '.join(map(str, unpaired))}"
        return replace(seen, notes=(*seen.notes, said), whole=False)
    return seen


def _finished(sides: Sides) -> bool:
    return all(side is None or side.unfinished is None for side in (sides.candidate, sides.baseline))


def _log(side: Side | None, settings: LocalizeSettings) -> LossLog | None:
    return None if side is None or side.log is None else read_curves(side.log, pattern=settings.pattern)


def _run_log(side: Side | None, settings: LocalizeSettings) -> LossLog | None:
    return None if side is None or side.run_log is None else read_curves(side.run_log, pattern=settings.pattern)


def _require(log: LossLog, series: str) -> None:
    """A series asked for by name must be there; that a log has no loss is a verdict of its own."""
    if series != "loss" and log.find(series) is None:
        there = ", ".join(log.series) or "none"
        raise UsageError(f"{log.path}: no series {series!r}", hint=f"it has: {there}")
