"""One dumped step of one rank: read, classified, and its origin, events and exclusions described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from precdiag.communication import Communication, communications_of
from precdiag.dump import Dump
from precdiag.elements import with_elements
from precdiag.errors import UnreadableError
from precdiag.finding import Row
from precdiag.layout import Part
from precdiag.masks import Masks, describe, find_masks
from precdiag.nonfinite import Classes, classify, events_of, flow_of, norm_overflows, value_of
from precdiag.origin import Origin, find_origin, row_at
from precdiag.overflow import loss_scale, saturated, under_scale
from precdiag.reading import read
from precdiag.rows import CHECKSUM_XOR


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
class Tally:
    """How many rows of one part are what, and the first of them."""

    count: int
    what: str
    first: str


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
    tallies: tuple[Tally, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    xor: bool = False

    @property
    def at(self) -> tuple[str, int]:
        """The stage and step, for telling which parts precede which."""
        return self.part.at


def survey_part(part: Part, limit: int = 1000, *, cache: bool = False) -> PartSurvey:
    """Read and classify one part; one that cannot be read is an `error` in the result, so the others are still seen."""
    try:
        dump = read(part, cache=cache)
    except UnreadableError as error:
        return PartSurvey(part, error=str(error))
    classes = classify(dump)
    whole = flow_of(dump, classes.found, classes.looked)
    masks = find_masks(dump, classes, whole)
    found = classes.found.copy()
    found[masks.harmless] = 0
    flow = flow_of(dump, found, classes.looked)
    xor = _is_xor(dump, classes)
    origin = None if xor else find_origin(dump, classes, masks, found, flow)
    notes = [*dump.notes, *(_bare_values(dump, found) if xor else [])]
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
                describe(dump, source, classes, whole),
            )
            for source in masks.sources
            if source.harmless
        ),
        scale=scale,
        tallies=_tallies(dump, classes),
        notes=tuple(notes),
        xor=xor,
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


def _tallies(dump: Dump, classes: Classes) -> tuple[Tally, ...]:
    """Count what is worth a note."""
    counted = (
        ("rows hold uninitialised memory and prove nothing: excluded", np.flatnonzero(classes.undefined)),
        ("rows have a Norm that overflowed, and finite data", np.flatnonzero(norm_overflows(dump))),
        ("outputs end exactly at the limit of their dtype: hardware that saturates shows overflow so", saturated(dump)),
    )
    return tuple(Tally(len(at), what, dump.name(int(at[0]))) for what, at in counted if len(at))
