"""The pipeline of `precdiag nan`: one path → its parts read and classified → the one origin among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND
from precdiag.inspection import Coverage, Event, Excluded, PartSurvey, survey_part
from precdiag.layout import open_run
from precdiag.lossnan import LossFinding, own_log, read_loss
from precdiag.nonfinite import KILLED, PROPAGATED
from precdiag.origin import Origin
from precdiag.parts import Selection, selected
from precdiag.precedence import earliest_origin

NON_FINITE, FINITE, NOT_READABLE = "non-finite", "finite", "not-readable"

XOR_REASON = "xor checksums cannot show NaN or Inf: collect with --summary statistics or md5, or --task tensor"


@dataclass(frozen=True)
class Survey:
    """The answer of `nan`, and what it rests on.

    `loss`: what a training log says of NaN, if one was read; `against_log`: what it means that the dump shows none.
    """

    verdict: str
    path: Path
    parts: tuple[PartSurvey, ...]
    coverage: Coverage
    origin: Origin | None = None
    events: tuple[Event, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[Excluded, ...] = ()
    loss: LossFinding | None = None
    against_log: str = ""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 looked and found nothing, 1 found, 2 could not look."""
        return {FINITE: EXIT_NOTHING_FOUND, NON_FINITE: EXIT_FOUND}.get(self.verdict, EXIT_CANNOT_LOOK)


def survey(
    path: Path,
    selection: Selection | None = None,
    limit: int = 1000,
    log: Path | None = None,
    pattern: str | None = None,
    cache: bool = False,
) -> Survey:
    """Find where the first NaN or Inf of a dump came from, over its steps and ranks.

    `limit`: how many events are described. `log`: a training log to hold against the dump (`pattern`: its format, as in
    losslog.read_curves); without one that of the collection is read, unless steps were chosen. `cache`: use the index
    beside a large dump, and leave one. Raises UnreadableError where the path holds no dump or the log cannot be read,
    UsageError where the selection asks for what is not there.
    """
    run = selected(open_run(path), selection)
    parts = tuple(survey_part(part, limit, cache=cache) for part in run.parts)
    chosen = selection is not None and selection.steps is not None
    loss = read_loss(log, pattern) if log is not None else None if chosen else own_log(path)
    return _concluded(path, limit, _without_recovered(parts), loss)


def _without_recovered(parts: tuple[PartSurvey, ...]) -> tuple[PartSurvey, ...]:
    """Turn the overflow of a loss scale into an exclusion where a later step of the same rank is finite."""
    result = []
    for part in parts:
        later = (
            other
            for other in parts
            if (other.part.stage, other.part.rank) == (part.part.stage, part.part.rank)
            and other.at > part.at
            and other.error is None
            and other.origin is None
            and other.coverage.finite
        )
        healthy = next(later, None)
        if part.origin is None or part.scale is None or healthy is None:
            result.append(part)
            continue
        why = (
            f"the gradient overflowed float16 under a loss scale of {part.scale:.0f}, and {healthy.part.label} is"
            " finite: the scaler skipped the step and recovered"
        )
        result.append(
            replace(part, origin=None, events=(), counts={}, excluded=(*part.excluded, Excluded(part.origin.row, why)))
        )
    return tuple(result)


def _concluded(path: Path, limit: int, parts: tuple[PartSurvey, ...], loss: LossFinding | None) -> Survey:
    """Draw the verdict from all parts: the earliest step decides, and what could not be looked at is never a pass."""
    coverage = sum((part.coverage for part in parts), Coverage())
    origin = earliest_origin(parts)
    unreadable = [part for part in parts if part.error is not None]
    notes = [f"{part.part.label}: {part.error}" for part in unreadable]
    if any(part.xor for part in parts):
        notes.append(XOR_REASON)
    elif coverage.unknown:
        notes.append(f"{coverage.unknown} rows of floating-point tensors have no statistics: not looked at")
    verdict = FINITE if origin is None else NON_FINITE
    if origin is None and (unreadable or coverage.unknown or not coverage.finite + coverage.masked):
        verdict = NOT_READABLE
        notes += [] if coverage.rows else ["no tensor was looked at"]
    first = next((part.at for part in parts if part.origin is not None), None)
    order = list(dict.fromkeys(part.at for part in parts))
    if first is not None and any(order.index(part.at) < order.index(first) for part in unreadable):
        verdict = NOT_READABLE
        notes.append("an earlier step could not be read, so the origin may lie there")
    against_log = ""
    if loss is not None:
        notes += loss.notes
        verdict = NOT_READABLE if loss.silent and verdict == FINITE else verdict
        if loss.found and verdict == FINITE:
            verdict = NON_FINITE
            against_log = _clean_but_nan(loss, parts)
            notes.append(against_log)
        elif loss.found:
            notes.append(f"the log agrees: {loss.what}")
    notes += [*_kept_inside(parts, origin), *_tallied(parts)]
    notes += list(dict.fromkeys(note for part in parts for note in part.notes))
    return Survey(
        verdict=verdict,
        path=path,
        parts=parts,
        coverage=coverage,
        origin=origin,
        events=_ordered_events(parts, origin)[:limit],
        counts=sum((Counter(part.counts) for part in parts), Counter()),
        excluded=tuple(each for part in parts for each in part.excluded),
        loss=loss,
        against_log=against_log,
        notes=tuple(notes),
    )


def _kept_inside(parts: tuple[PartSurvey, ...], origin: Origin | None) -> list[str]:
    """Say where what was generated goes nowhere: every call that took it in gave out finite values."""
    here = next((part for part in parts if origin and part.origin and part.origin.row == origin.row), None)
    if here is None or here.counts.get(PROPAGATED) or not here.counts.get(KILLED):
        return []
    by = next(event.row.call for event in here.events if event.what == KILLED)
    return [f"{by} turns it finite again, and nothing else in {here.part.label} passes it on"]


def _tallied(parts: tuple[PartSurvey, ...]) -> list[str]:
    """Add up what was counted in each part; the first row of all stands for them."""
    totals: dict[str, tuple[int, str]] = {}
    for tally in (tally for part in parts for tally in part.tallies):
        count, first = totals.get(tally.what, (0, tally.first))
        totals[tally.what] = count + tally.count, first
    return [f"{count} {what} (first {first})" for what, (count, first) in totals.items()]


def _ordered_events(parts: tuple[PartSurvey, ...], origin: Origin | None) -> tuple[Event, ...]:
    """The events of the origin's rank and step first, then those of the others in order."""
    here = [part for part in parts if origin is not None and part.origin is not None and part.origin.row == origin.row]
    return tuple(event for part in (*here, *(p for p in parts if p not in here)) for event in part.events)


def _clean_but_nan(loss: LossFinding, parts: tuple[PartSurvey, ...]) -> str:
    steps = ", ".join(dict.fromkeys(str(part.part.step) for part in parts if part.part.step is not None))
    return (
        f"the dump holds no NaN but the loss does: {loss.what}. The dumped steps ({steps or '-'}) may not be the"
        f" log's: collect that one (precdiag collect --step iter:{loss.step}). If it is among them, the NaN is gone"
        " once every call is waited for (timing, another stream), or arises in work that no hook sees"
    )
