"""What the dumps of some steps say: the first difference, what rounding does not explain, or where a NaN was made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from precdiag.cause import Cause
from precdiag.compare import compare
from precdiag.comparison import DIVERGED, NO_DIVERGENCE, Comparison
from precdiag.errors import UnreadableError, UsageError
from precdiag.finding import Row
from precdiag.judge import Policy
from precdiag.layout import open_run
from precdiag.origin import Origin
from precdiag.parts import Selection
from precdiag.rounding import Beyond
from precdiag.sides import Sides
from precdiag.source import Source
from precdiag.survey import NOT_READABLE, Survey, survey

Progress = Callable[[str, int, int], None]

FLOAT32_ROUNDOFF = 2.0**-24

CARRIED_IN = frozenset({"parameter", "update", "gap"})
"""Kinds of cause that an earlier step may have left, where the step just before was not compared."""


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
    """What the dumps say.

    `missing`: dump steps worth looking at that are not in them. `clean`: steps in which nothing was found, though
    every rank was looked at. `carried`: a step before, not among those, may have left what was found. `whole`: nothing
    that was dumped stays unseen, so that nothing found means that nothing is there.
    """

    comparison: Comparison | None = None
    survey: Survey | None = None
    culprit: Culprit | None = None
    missing: tuple[int, ...] = ()
    clean: tuple[int, ...] = ()
    carried: bool = False
    notes: tuple[str, ...] = ()
    whole: bool = True

    @property
    def looked(self) -> bool:
        """Whether any dump was read."""
        return self.comparison is not None or self.survey is not None


def inspect(
    sides: Sides, steps: Sequence[int], *, nan: bool, progress: Progress = lambda label, done, total: None
) -> Seen:
    """Look into these dump steps: compare both sides where there are two, and where `nan` look for its origin."""
    has_baseline = sides.baseline is not None and sides.baseline.dump is not None
    compared = _compare(sides, tuple(steps), progress) if has_baseline else None
    surveyed = _survey(sides.candidate.dump, tuple(steps)) if nan and sides.candidate.dump else None
    if compared is not None and surveyed is not None:
        return _joined(compared, surveyed, sides.cross_device)
    return compared or surveyed or Seen()


def dumped_steps(sides: Sides) -> tuple[int, ...]:
    """Return the dump steps that every side which has a dump holds."""
    held = _held(sides)
    return tuple(sorted(held[0].intersection(*held))) if held else ()


def one_sided_steps(sides: Sides) -> tuple[int, ...]:
    """Return the dump steps that one side has and the other one's dump does not."""
    held = _held(sides)
    return tuple(sorted(held[0].union(*held) - held[0].intersection(*held))) if held else ()


def _compare(sides: Sides, steps: tuple[int, ...], progress: Progress) -> Seen:
    assert sides.baseline is not None and sides.baseline.dump is not None and sides.candidate.dump is not None
    try:
        comparison = compare(
            sides.baseline.dump, sides.candidate.dump, Policy(), Selection(steps=steps), progress=progress
        )
    except (UnreadableError, UsageError) as error:
        return Seen(notes=(str(error),), whole=False)
    culprit, notes = _culprit(comparison, sides.cross_device)
    whole = comparison.verdict in (DIVERGED, NO_DIVERGENCE)
    if not whole:
        notes += ["the dumps could be compared only in part", *comparison.notes]
    clean = equal_steps(comparison)
    return Seen(comparison, None, culprit, (), clean, _is_carried(culprit, clean), tuple(notes), whole)


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
        return Seen(notes=(str(error),), whole=False)
    culprit = None if found.origin is None else of_origin(found.origin)
    whole = found.verdict != NOT_READABLE
    said = "no NaN or Inf in the dumps" if whole else "the dumps could be looked at for NaN and Inf only in part"
    notes = () if culprit is not None else (said, *found.notes)
    dirty = {
        part.part.step
        for part in found.parts
        if part.origin is not None or part.error is not None or part.coverage.unknown
    }
    clean = tuple(step for step in steps if step not in dirty)
    return Seen(None, found, culprit, (), clean, _is_carried(culprit, clean), notes, whole)


def _joined(compared: Seen, surveyed: Seen, cross_device: bool | None) -> Seen:
    """Of the two culprits the first difference; but the origin where that difference is the NaN, or on two devices."""
    notes = (*compared.notes, *surveyed.notes)
    origin, difference = surveyed.culprit, compared.culprit
    if origin is not None and (cross_device or difference is None or _is_that_nan(difference.row, origin.row)):
        return replace(surveyed, comparison=compared.comparison, notes=notes)
    if origin is not None and difference is not None and origin.row.name != difference.row.name:
        notes = (*notes, f"the first NaN or Inf of the candidate is {origin.row.name}, {origin.why}")
    return replace(compared, survey=surveyed.survey, notes=notes)


def _is_that_nan(difference: Row, origin: Row) -> bool:
    """Whether a first difference is the NaN or Inf whose origin is known: same step and rank, not finite."""
    apart = (difference.metrics or {}).get("max_abs")
    here = (difference.step, difference.rank) == (origin.step, origin.rank)
    return here and apart is not None and not math.isfinite(apart)


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
    told = f"the dumps differ from {cause.row.name} on by no more than rounding: smaller faults cannot be seen"
    coarse = rounding is not None and rounding.u > FLOAT32_ROUNDOFF
    return None, [f"{told}, repeat the step in float32" if coarse else told]


def _is_carried(culprit: Culprit | None, clean: Sequence[int]) -> bool:
    """Whether a step before it, which is not among those known to be clean, may have left what was found."""
    if culprit is None or not culprit.row.step or culprit.kind not in CARRIED_IN:
        return False
    return culprit.row.step - 1 not in clean


def _held(sides: Sides) -> list[set[int]]:
    return [_dumped(side.dump) for side in (sides.baseline, sides.candidate) if side is not None and side.dump]


def _dumped(dump: Path) -> set[int]:
    return {part.step for part in open_run(dump).parts if part.step is not None}
