"""The pipeline of `precdiag compare`: two paths → parts paired, read, aligned, judged → one Comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from precdiag.align import pair
from precdiag.alignment import Alignment, alignment_of
from precdiag.batches import Given, given_to, option_of, proposed_partners
from precdiag.cause import Cause, as_update, find_cause
from precdiag.collected import notes_on_collection
from precdiag.communication import Communication
from precdiag.devices import on_two_devices
from precdiag.errors import EXIT_CANNOT_LOOK, EXIT_FOUND, EXIT_NOTHING_FOUND, UnreadableError, UsageError
from precdiag.evidence import (
    BASELINE_ONLY,
    CANDIDATE_ONLY,
    DIFFERENT,
    EQUAL,
    EXCLUDED,
    NOT_LOOKED_AT_REASON,
    NOTHING,
    UNKNOWN,
    Effort,
)
from precdiag.finding import Row, row_of
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part, open_run
from precdiag.mapping import CallMap
from precdiag.noise import in_band_of_noise
from precdiag.onesided import notes_on, recognise, unexplained
from precdiag.parts import Alone, Selection, listed, pair_parts, selected
from precdiag.ranks import communications_in, earliest
from precdiag.reading import read_pair
from precdiag.renumber import renumbered
from precdiag.replaced import Replaced, explained_calls, judge_regions
from precdiag.rounding import Rounding, explained_cause, find_rounding
from precdiag.updates import explained_update
from precdiag.view import View
from precdiag.workers import Resources, each

if TYPE_CHECKING:
    import numpy as np

DIVERGED, NO_DIVERGENCE, NOT_COMPARABLE = "diverged", "no-divergence", "not-comparable"
# How many rows of context the report shows around the first cause.
_ROWS_BEFORE, _ROWS_BEHIND = 2, 3

Progress = Callable[[str, int, int], None]
# Judges one pair of parts, in place of the native engine.
Judging = Callable[[Part, Part], Judged]
PARTS = "steps and ranks"


@dataclass(frozen=True)
class Calls:
    """What the user says of calls: `names`, what is called what; `view`, which of them are compared."""

    names: CallMap = field(default_factory=CallMap)
    view: View = field(default_factory=View)


@dataclass(frozen=True)
class Coverage:
    """How many rows were looked at, and what became of them. `compared` = `equal` + `different`."""

    compared: int = 0
    equal: int = 0
    different: int = 0
    unknown: int = 0
    uninitialised: int = 0
    baseline_only: int = 0
    candidate_only: int = 0
    filtered: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Bound:
    """The smallest band that would have held every finite difference; None where no metric is known.

    `scaled` is the largest ‖c-b‖ / ‖b‖ of a row in units of its dtype's roundoff u.
    """

    max_abs: float | None = None
    max_rel: float | None = None
    max_ulp: float | None = None
    scaled: float | None = None


@dataclass(frozen=True)
class PartResult:
    """What one pair of parts came to, without their frames. `error` stands where they could not be read."""

    baseline: Part
    candidate: Part
    coverage: Coverage = field(default_factory=Coverage)
    cause: Cause | None = None
    communications: tuple[Communication, ...] = ()
    first_outside: Row | None = None
    hidden: tuple[Row, ...] = ()
    hidden_count: int = 0
    around: tuple[Row, ...] = ()
    symptoms: tuple[Row, ...] = ()
    symptom_count: int = 0
    blocking: int = 0
    unknown_before: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    evidence: int = NOTHING
    bound: Bound = field(default_factory=Bound)
    has_gradients: bool = False
    alignment: Alignment = field(default_factory=Alignment)
    rounding: Rounding | None = None
    given: Given | None = None
    replaced: tuple[Replaced, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def place(self) -> Part:
        """The part that speaks for both: the baseline's, with the candidate's step and rank where it names none."""
        step = self.baseline.step if self.baseline.step is not None else self.candidate.step
        rank = self.baseline.rank if self.baseline.rank is not None else self.candidate.rank
        return replace(self.baseline, step=step, rank=rank)

    @property
    def at(self) -> tuple[str, int]:
        """The stage and step, for telling which parts precede which."""
        return self.place.stage, -1 if self.place.step is None else self.place.step


@dataclass(frozen=True)
class Comparison:
    """The answer of a comparison, and what it rests on. `verdict` follows the policy, `cause` is always bitwise.

    `of_tables`: both paths are msprobe's result tables, not dumps. `reference`: where its Result comes from, or why it
    is blank; None where nobody asked.
    `proposal`: the option that pairs the ranks by the data they were given, where that is why they differ.
    """

    verdict: str
    policy: Policy
    baseline: Path
    candidate: Path
    parts: tuple[PartResult, ...]
    one_sided: tuple[Alone, ...]
    evidence: int
    coverage: Coverage
    cause: Cause | None = None
    first_outside: Row | None = None
    around: tuple[Row, ...] = ()
    symptoms: tuple[Row, ...] = ()
    symptom_count: int = 0
    smallest_band: Bound = field(default_factory=Bound)
    alignment: Alignment = field(default_factory=Alignment)
    rounding: Rounding | None = None
    proposal: str | None = None
    cross_device: bool = False
    notes: tuple[str, ...] = ()
    of_tables: bool = False
    reference: str | None = None

    @property
    def exit_code(self) -> int:
        """0 looked and found nothing, 1 found, 2 could not look."""
        return {NO_DIVERGENCE: EXIT_NOTHING_FOUND, DIVERGED: EXIT_FOUND}.get(self.verdict, EXIT_CANNOT_LOOK)


def compare(
    baseline: Path,
    candidate: Path,
    policy: Policy,
    selection: Selection | None = None,
    limit: int = 1000,
    progress: Progress = lambda label, done, total: None,
    resources: Resources = Resources(),  # noqa: B008 - a frozen value
    judging: Judging | None = None,
    calls: Calls = Calls(),
    first: bool = False,
) -> Comparison:
    """Compare two dumps and name the first cause; `resources` change how long it takes, never the result.

    `limit` is the number of symptom rows that are described. `progress(label, done, total)` is called as tensor
    files, and steps and ranks, are compared. `judging` judges in place of the native reading of the dumps, one pair
    after the other. `calls`: what --map says of names, and which calls are compared. `first`: stop at the first cause;
    tensors behind it, and later steps, are not looked at, which the result says. Raises UnreadableError where a path
    holds no dump, UsageError where the selection or the band asks for what is not there.
    """
    if first and policy.mode == "band":
        raise UsageError(
            "--first stops at the first difference, which a band may allow", hint="leave out --first, or the band"
        )
    if resources.scheduler is not None:  # its workers have working directories of their own
        baseline, candidate = baseline.absolute(), candidate.absolute()
    selection = selection or Selection()
    partners = selection.partners
    runs = open_run(baseline), open_run(candidate)
    partners.require(*runs)
    runs = selected(runs[0], selection), selected(runs[1], selection, partners.place_of)
    pairs, one_sided, notes = pair_parts(*runs, partners)
    notes = (*notes_on_collection(baseline, candidate), *notes)
    outcomes: Iterable[PartResult]
    if judging is None:
        of_tensors = None if resources.spread(len(pairs)) else progress
        work = partial(_compare_pair, policy=policy, limit=limit, progress=of_tensors, calls=calls, first=first)
        outcomes = each(work, pairs, resources, partial(progress, PARTS))
    else:
        outcomes = (_judged_by(judging, left, right, policy, limit) for left, right in pairs)
    found = zip(pairs, outcomes, strict=True)
    results: list[PartResult] = []
    for _, of_step in groupby(found, lambda one: (one[0][0].stage, one[0][0].step)):
        decided = any(result.cause is not None for result in results)
        here: list[PartResult] = []
        for (left, _), result in of_step:
            before = any(r.has_gradients and r.cause is None for r in results if r.baseline.rank == left.rank)
            room = max(limit - sum(len(result.symptoms) for result in (*results, *here)), 0)
            here.append(_settled(result, room, gradients_were_equal=before))
        if decided or all(result.cause is None for result in here):  # no order of ranks to be told at this step
            here = [replace(result, communications=()) for result in here]
        results += here
        if first and any(result.cause is not None for result in here):
            break
    if len(results) < len(pairs):
        notes = (*notes, f"{len(pairs) - len(results)} later steps and ranks were not looked at: --first")
    return _unless_mispaired(conclude(baseline, candidate, policy, limit, tuple(results), one_sided, notes))


def compare_part(
    baseline: Part,
    candidate: Part,
    policy: Policy,
    limit: int = 1000,
    progress: Progress | None = None,
    resources: Resources = Resources(),  # noqa: B008 - a frozen value
    calls: Calls = Calls(),
    first: bool = False,
) -> PartResult:
    """Read, align and judge one pair of parts, and keep what the report needs. Parts that cannot be read or have
    nothing in common are an `error` in the result, so that the others are still compared.
    """
    try:
        left, right = (renumbered(dump, dict(dump.part.peers)) for dump in read_pair(baseline, candidate, resources))
        pairing = pair(left, right, calls.names, calls.view)
    except UnreadableError as error:
        return PartResult(baseline, candidate, error=str(error))
    told = (lambda done, total: None) if progress is None else partial(progress, baseline.label)
    judged = judge(left, right, pairing, policy, told, Effort(resources.workers, first))
    result = conclude_part(judged, policy, limit, gradients_were_equal=False)
    if result.cause is None and NOT_LOOKED_AT_REASON in dict(result.reasons):  # what stopped it was explained away
        judged = judge(left, right, pairing, policy, told, Effort(resources.workers))
        result = conclude_part(judged, policy, limit, gradients_were_equal=False)
    return result


def _judged_by(judging: Judging, baseline: Part, candidate: Part, policy: Policy, limit: int) -> PartResult:
    try:
        judged = judging(baseline, candidate)
    except UnreadableError as error:
        return PartResult(baseline, candidate, error=str(error))
    return conclude_part(judged, policy, limit, gradients_were_equal=False)


def _compare_pair(
    pair_of_parts: tuple[Part, Part],
    resources: Resources,
    *,
    policy: Policy,
    limit: int,
    progress: Progress | None,
    calls: Calls,
    first: bool,
) -> PartResult:
    return compare_part(*pair_of_parts, policy, limit, progress, resources, calls, first)


def _settled(result: PartResult, room: int, *, gradients_were_equal: bool) -> PartResult:
    """Fit a part's own result to the parts before it: how many rows there is room for, and what made a weight differ.

    Parts are compared in any order, so neither can be known there.
    """
    cause = as_update(result.cause) if result.cause is not None and gradients_were_equal else result.cause
    return replace(result, cause=cause, symptoms=result.symptoms[:room], hidden=result.hidden[:room])


def conclude_part(judged: Judged, policy: Policy, limit: int, gradients_were_equal: bool) -> PartResult:
    """Name the first cause of one judged pair of parts, and keep what the report needs of it."""
    replaced = judge_regions(judged)
    recognised = explained_calls(replaced, recognise(judged))
    cause = find_cause(judged, recognised, gradients_were_equal=gradients_were_equal, replaced=replaced)
    fresh = judged.baseline.part.step in (None, 0)
    rounding = find_rounding(judged, cause, fresh=fresh, scrutiny=policy.scrutiny)
    if cause is not None:
        cause = explained_cause(cause, rounding)
    banded = in_band_of_noise(judged, policy)
    return replace(summary(banded, recognised, cause, rounding, policy, limit), rounding=rounding, replaced=replaced)


def summary(
    judged: Judged,
    recognised: Mapping[int, str],
    cause: Cause | None,
    rounding: Rounding | None,
    policy: Policy,
    limit: int,
) -> PartResult:
    """Keep of one judged pair of parts what the report needs; `cause` and `rounding` were found in it."""
    import numpy as np

    rows = judged.rows
    state = rows["state"].to_numpy()
    one_sided = (state == BASELINE_ONLY) | (state == CANDIDATE_ONLY)
    known = np.isin(rows["call"].to_numpy(), list(recognised))
    line = len(rows) if cause is None else cause.row.order
    nowhere = np.array([], dtype=np.int64)
    own = np.zeros(len(rows), dtype=bool)
    if cause is not None:
        whole_call = cause.row.slot is None
        own = (rows["call"] == rows["call"].iat[line]).to_numpy() if whole_call else np.arange(len(rows)) == line
    symptoms = np.flatnonzero(((state == DIFFERENT) | (one_sided & ~known)) & ~own) if cause is not None else nowhere
    outside = np.flatnonzero(rows["outside"].to_numpy() | unexplained(judged, recognised))
    hidden = np.flatnonzero((state == DIFFERENT) & ~rows["outside"].to_numpy()) if policy.mode == "band" else nowhere
    blocking = np.flatnonzero(rows["blocking"].to_numpy())
    evidence = rows["evidence"].to_numpy()[
        np.isin(state, (EQUAL, DIFFERENT)) & (rows["evidence"] != NOTHING).to_numpy()
    ]
    near = np.arange(max(line - _ROWS_BEFORE, 0), min(line + 1 + _ROWS_BEHIND, len(rows))) if cause else nowhere
    phases = judged.baseline.calls["phase"]
    return PartResult(
        baseline=judged.baseline.part,
        candidate=judged.candidate.part,
        coverage=_coverage(state, judged.pairing.filtered),
        cause=cause,
        communications=communications_in(judged, differs=cause is not None),
        first_outside=row_of(judged, int(outside[0])) if policy.mode == "band" and len(outside) else None,
        hidden=_rows(judged, hidden[:limit]),
        hidden_count=len(hidden),
        around=_rows(judged, near),
        symptoms=_rows(judged, symptoms[:limit]),
        symptom_count=len(symptoms),
        blocking=len(blocking),
        unknown_before=int((blocking < line).sum()),
        reasons=tuple(rows["reason"].iloc[blocking].value_counts().sort_index().items()),
        evidence=int(evidence.min()) if len(evidence) else NOTHING,
        bound=replace(_bound(judged), scaled=None if rounding is None else rounding.largest),
        has_gradients=bool(phases.isin(["backward", "parameters_grad"]).any()),
        alignment=alignment_of(judged, limit),
        given=given_to(judged.baseline, judged.candidate),
        notes=(
            *judged.baseline.notes,
            *judged.candidate.notes,
            *judged.pairing.notes,
            *judged.notes,
            *notes_on(judged, recognised),
        ),
    )


def conclude(
    baseline: Path,
    candidate: Path,
    policy: Policy,
    limit: int,
    parts: tuple[PartResult, ...],
    one_sided: tuple[Alone, ...],
    notes: tuple[str, ...],
) -> Comparison:
    """Draw the verdict from all parts: the earliest step decides, and what could not be looked at is never a pass."""
    coverage = sum((part.coverage for part in parts), Coverage())
    evidence = [part.evidence for part in parts if part.evidence != NOTHING]
    cause = _earliest_cause(parts)
    outside = next((part.first_outside for part in parts if part.first_outside is not None), None)
    found = cause is not None if policy.mode == "bitwise" else outside is not None
    unreadable = [part for part in parts if part.error is not None]
    said = list(notes)
    said += [f"{part.baseline.label}: {part.error}" for part in unreadable]
    if one_sided:
        said.append(f"compared only in part: {listed(map(str, one_sided))}")
    for reason, count in _blocking_reasons(parts):
        said.append(f"{count} rows could not be judged: {reason}")
    said += _merged(note for part in parts for note in part.notes)
    lost = [
        part.cause if part.cause is None or cause is None or part.cause.row != cause.row else None for part in parts
    ]
    symptoms = [row for part, loser in zip(parts, lost, strict=True) for row in _in_order(part, loser)]
    deciding = next((part for part in parts if part.cause and cause and part.cause.row == cause.row), None)
    if cause is not None and deciding is not None:
        cause, told = explained_update(cause, deciding.baseline, deciding.candidate)
        said += told
    verdict = DIVERGED if found else NO_DIVERGENCE
    first = next(part.at for part in parts if _finds(part, policy)) if found else None
    if found and any(_stands_before(part, first, parts) for part in unreadable):
        verdict = NOT_COMPARABLE
        said.append("an earlier step could not be read, so the first cause may lie there")
    beside = [part for part in unreadable if part.at == first]
    if verdict == DIVERGED and beside:
        said.append(f"{listed(part.place.label for part in beside)} could not be read: the first cause may lie there")
    if not found and (unreadable or one_sided or not coverage.compared or any(part.blocking for part in parts)):
        verdict = NOT_COMPARABLE
        if not coverage.compared:
            said.append("no row was compared")
    return Comparison(
        verdict=verdict,
        policy=policy,
        baseline=baseline,
        candidate=candidate,
        parts=parts,
        one_sided=one_sided,
        evidence=min(evidence, default=NOTHING),
        coverage=coverage,
        cause=cause,
        first_outside=outside,
        around=next((part.around for part in parts if part.cause and cause and part.cause.row == cause.row), ()),
        symptoms=tuple(symptoms[:limit]),
        symptom_count=sum(part.symptom_count for part in parts) + sum(loser is not None for loser in lost),
        smallest_band=_widest(part.bound for part in parts),
        alignment=sum((part.alignment for part in parts), Alignment()),
        rounding=_earliest_rounding(parts),
        cross_device=any(part.rounding is not None and part.rounding.ported for part in parts)
        or on_two_devices(baseline, candidate),
        notes=tuple(dict.fromkeys(said)),
    )


def _unless_mispaired(comparison: Comparison) -> Comparison:
    """Propose another pairing of ranks instead of a cause of kind `input`, where their data say that they are mixed up.

    Two ranks that were given each other's data compute different things rightly: nothing can be said of them so.
    """
    cause = comparison.cause
    if cause is None or cause.row.kind != "input":
        return comparison
    first = next(part.at for part in comparison.parts if part.cause is not None)
    partners = proposed_partners(part.given for part in comparison.parts if part.at == first and part.given is not None)
    if any(row.rank not in partners for row in (cause.row, *cause.also)):
        return comparison
    option = option_of(partners)
    said = f"the candidate's ranks were given each other's data: pair them with {option}"
    return replace(
        comparison,
        verdict=NOT_COMPARABLE,
        cause=None,
        around=(),
        rounding=None,
        proposal=option,
        notes=(said, *comparison.notes),
    )


def _earliest_cause(parts: tuple[PartResult, ...]) -> Cause | None:
    """The earliest step wins, among its ranks the order of communication; `also` names what cannot be told apart."""
    first = next((part.at for part in parts if part.cause is not None), None)
    if first is None:
        return None
    here = {at: part for at, part in enumerate(parts) if part.at == first}
    lines = {at: part.cause.row.order for at, part in here.items() if part.cause is not None}
    winners = earliest(lines, {at: part.communications for at, part in here.items()})
    causes = [cause for at in winners if (cause := parts[at].cause) is not None]
    return replace(causes[0], also=tuple(cause.row for cause in causes[1:]))


def _earliest_rounding(parts: tuple[PartResult, ...]) -> Rounding | None:
    """The finding of the first part, in order of step and rank, that has a row beyond rounding; else of the first."""
    found = [part.rounding for part in parts if part.rounding is not None]
    return next((each for each in found if each.beyond is not None), found[0] if found else None)


def _merged(notes: Iterable[str]) -> list[str]:
    """Add up notes of several parts that differ only in the number they begin with."""
    counts: dict[str, int] = {}
    for note in notes:
        number, _, rest = note.partition(" ")
        if number.isdecimal():
            counts[rest] = counts.get(rest, 0) + int(number)
        else:
            counts[note] = 0
    return [f"{count} {note}" if count else note for note, count in counts.items()]


def _finds(part: PartResult, policy: Policy) -> bool:
    return (part.cause if policy.mode == "bitwise" else part.first_outside) is not None


def _stands_before(part: PartResult, at: tuple[str, int] | None, parts: tuple[PartResult, ...]) -> bool:
    order = list(dict.fromkeys(other.at for other in parts))
    return at is not None and order.index(part.at) < order.index(at)


def _blocking_reasons(parts: tuple[PartResult, ...]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for part in parts:
        for reason, count in part.reasons:
            counts[reason] = counts.get(reason, 0) + count
    return sorted(counts.items())


def _coverage(state: np.ndarray, filtered: int) -> Coverage:
    count = {code: int((state == code).sum()) for code in range(6)}
    return Coverage(
        compared=count[EQUAL] + count[DIFFERENT],
        equal=count[EQUAL],
        different=count[DIFFERENT],
        unknown=count[UNKNOWN],
        uninitialised=count[EXCLUDED],
        baseline_only=count[BASELINE_ONLY],
        candidate_only=count[CANDIDATE_ONLY],
        filtered=filtered,
    )


def _in_order(part: PartResult, lost: Cause | None) -> list[Row]:
    """Return a part's symptoms; its own cause is one of them where another part's is the first."""
    rows = [*part.symptoms, *([] if lost is None else [lost.row])]
    return sorted(rows, key=lambda row: row.order)


def _widest(bounds: Iterable[Bound]) -> Bound:
    columns = zip(*((bound.max_abs, bound.max_rel, bound.max_ulp, bound.scaled) for bound in bounds), strict=True)
    return Bound(*(max((value for value in column if value is not None), default=None) for column in columns))


def _bound(judged: Judged) -> Bound:
    """Over rows that differ: the largest finite metrics. NaN and Inf are outside any band."""
    import numpy as np

    rows = judged.rows[judged.rows["state"] == DIFFERENT]
    finite = [rows[name][np.isfinite(rows[name])] for name in ("max_abs", "max_rel", "max_ulp")]
    return Bound(*(float(values.max()) if len(values) else None for values in finite))


def _rows(judged: Judged, lines: np.ndarray) -> tuple[Row, ...]:
    return tuple(row_of(judged, int(line)) for line in lines)
