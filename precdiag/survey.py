"""The pipeline of `precdiag nan`: one path → its parts read and classified → the one origin among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from precdiag.communication import Communication, communications_of
from precdiag.dump import Dump, read_dump
from precdiag.elements import with_elements
from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND, UnreadableError
from precdiag.finding import Row
from precdiag.layout import Part, open_run
from precdiag.lossnan import LossFinding, own_log, read_loss
from precdiag.masks import Masks, describe, find_masks
from precdiag.nonfinite import Classes, classify, events_of, flow_of, norm_overflows, value_of
from precdiag.origin import Origin, find_origin, row_at
from precdiag.overflow import loss_scale, saturated, under_scale
from precdiag.parts import Selection, selected
from precdiag.precedence import Located, earliest_origin
from precdiag.rows import CHECKSUM_XOR

if TYPE_CHECKING:
    import numpy as np

NON_FINITE, FINITE, NOT_READABLE = "non-finite", "finite", "not-readable"

XOR_REASON = "xor checksums cannot show NaN or Inf: collect with --summary statistics or md5, or --task tensor"


@dataclass(frozen=True)
class Coverage:
    """How many rows of tensors there are, and what became of them: each is in one of the others."""

    rows: int = 0
    finite: int = 0
    non_finite: int = 0
    masked: int = 0
    uninitialised: int = 0
    unknown: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Event:
    """What one call did to NaN or Inf: the row that shows it, and generated, propagated or killed."""

    row: Row
    what: str


@dataclass(frozen=True)
class Excluded:
    """Something non-finite that is no fault, with the reason."""

    row: Row
    why: str


@dataclass(frozen=True)
class PartSurvey:
    """What one dumped step of one rank came to, without its frames. `error` stands where it could not be read.

    `counts`: events by what; `events` are the first of them. `scale`: the loss scale its backward began with.
    """

    part: Part
    coverage: Coverage = field(default_factory=Coverage)
    origin: Origin | None = None
    communications: tuple[Communication, ...] = ()
    events: tuple[Event, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[Excluded, ...] = ()
    scale: float | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None
    xor: bool = False

    @property
    def at(self) -> tuple[str, int]:
        """The stage and step, for telling which parts precede which."""
        return self.part.stage, -1 if self.part.step is None else self.part.step


@dataclass(frozen=True)
class Survey:
    """The answer of `nan`, and what it rests on. `loss`: what a training log says of NaN, if one was read."""

    verdict: str
    path: Path
    parts: tuple[PartSurvey, ...]
    coverage: Coverage
    origin: Origin | None = None
    events: tuple[Event, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    excluded: tuple[Excluded, ...] = ()
    loss: LossFinding | None = None
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
) -> Survey:
    """Find where the first NaN or Inf of a dump came from, over its steps and ranks.

    `limit`: how many events are described. `log`: a training log to hold against the dump (`pattern`: its format, as in
    losslog.read_curves); without one that of the collection is read, unless steps were chosen. Raises UnreadableError
    where the path holds no dump or the log cannot be read, UsageError where the selection asks for what is not there.
    """
    run = selected(open_run(path), selection)
    parts = tuple(survey_part(part, limit) for part in run.parts)
    chosen = selection is not None and selection.steps is not None
    loss = read_loss(log, pattern) if log is not None else None if chosen else own_log(path)
    return _concluded(path, limit, _without_recovered(parts), loss)


def survey_part(part: Part, limit: int = 1000) -> PartSurvey:
    """Read and classify one part; one that cannot be read is an `error` in the result, so the others are still seen."""
    try:
        dump = read_dump(part)
    except UnreadableError as error:
        return PartSurvey(part, error=str(error))
    classes = classify(dump)
    masks = find_masks(dump, classes, flow_of(dump, classes.found, classes.looked))
    found = classes.found.copy()
    found[masks.harmless] = 0
    flow = flow_of(dump, found, classes.looked)
    xor = _is_xor(dump, classes)
    origin = None if xor else find_origin(dump, classes, masks, found, flow)
    notes = [*dump.notes, *_notes(dump, classes), *(_bare_values(dump, found) if xor else [])]
    scale = None
    if origin is not None:
        origin, said = with_elements(dump, origin)
        notes += said
        scale = loss_scale(dump, origin)
        origin = origin if scale is None else under_scale(origin, scale)
    events = events_of(dump, found, flow)
    return PartSurvey(
        part=part,
        coverage=_coverage(dump, classes, masks),
        origin=origin,
        communications=communications_of(dump, dump.rows["order"].to_numpy()),
        events=tuple(
            Event(row_at(dump, int(row), value_of(int(found[row]))), str(what))
            for row, what in zip(events["row"].iloc[:limit], events["what"].iloc[:limit], strict=True)
        ),
        counts={str(what): int(count) for what, count in events["what"].value_counts().items()},
        excluded=tuple(
            Excluded(
                row_at(dump, source.row, value_of(int(classes.found[source.row]))),
                describe(dump, source, classes.found),
            )
            for source in masks.sources
            if source.harmless
        ),
        scale=scale,
        notes=tuple(notes),
        xor=xor,
    )


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
    origin = earliest_origin([Located(part.part, part.origin, part.communications, part.error) for part in parts])
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
    if loss is not None:
        notes += loss.notes
        verdict = NOT_READABLE if loss.silent and verdict == FINITE else verdict
        if loss.found and verdict == FINITE:
            verdict = NON_FINITE
            notes.append(_clean_but_nan(loss, parts))
        elif loss.found:
            notes.append(f"the log agrees: {loss.what}")
    notes += list(dict.fromkeys(note for part in parts for note in part.notes))
    counts: dict[str, int] = {}
    for part in parts:
        for what, count in part.counts.items():
            counts[what] = counts.get(what, 0) + count
    return Survey(
        verdict=verdict,
        path=path,
        parts=parts,
        coverage=coverage,
        origin=origin,
        events=_ordered_events(parts, origin)[:limit],
        counts=counts,
        excluded=tuple(each for part in parts for each in part.excluded),
        loss=loss,
        notes=tuple(notes),
    )


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


def _coverage(dump: Dump, classes: Classes, masks: Masks) -> Coverage:
    tensor = dump.rows["tensor"].to_numpy()
    held = tensor & (classes.found != 0)
    return Coverage(
        rows=int(tensor.sum()),
        finite=int((classes.looked & (classes.found == 0)).sum()),
        non_finite=int((held & ~masks.harmless).sum()),
        masked=int((held & masks.harmless).sum()),
        uninitialised=int((classes.undefined & tensor).sum()),
        unknown=int(classes.unknown.sum()),
    )


def _is_xor(dump: Dump, classes: Classes) -> bool:
    kinds = dump.rows["checksum_kind"].to_numpy()[classes.unknown]
    return bool(len(kinds) and (kinds == CHECKSUM_XOR).all())


def _bare_values(dump: Dump, found: np.ndarray) -> list[str]:
    """What xor still shows: the values of tensors without a dimension."""
    held = (dump.rows["tensor"].to_numpy() & (found != 0)).nonzero()[0]
    return [f"{dump.part.label}: {dump.name(int(at))} is {value_of(int(found[at]))}" for at in held[:1]]


def _notes(dump: Dump, classes: Classes) -> list[str]:
    label, notes = dump.part.label, []
    if classes.undefined.any():
        notes.append(f"{label}: {classes.undefined.sum()} rows hold uninitialised memory and prove nothing: excluded")
    norms = norm_overflows(dump)
    if norms.any():
        first = dump.name(int(norms.argmax()))
        notes.append(f"{label}: the Norm of {norms.sum()} rows overflowed, not their data (first {first})")
    full = saturated(dump)
    if len(full):
        notes.append(
            f"{label}: {len(full)} outputs end exactly at the limit of their dtype (first {dump.name(int(full[0]))}):"
            " hardware that saturates shows overflow so"
        )
    return notes
