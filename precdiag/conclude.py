"""Conclude: what was judged of each pair of parts → its first cause and what the report needs → one Comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precdiag.alignment import Alignment, alignment_of
from precdiag.batches import given_to, option_of, proposed_partners
from precdiag.cause import Cause, as_update, find_cause
from precdiag.collected import on_two_devices
from precdiag.comparison import DIVERGED, NO_DIVERGENCE, NOT_COMPARABLE, Bound, Comparison, Coverage, PartResult
from precdiag.evidence import BASELINE_ONLY, CANDIDATE_ONLY, DIFFERENT, EQUAL, EXCLUDED, NOTHING, UNKNOWN
from precdiag.finding import Row, row_of
from precdiag.judge import Judged, Policy
from precdiag.noise import in_band_of_noise
from precdiag.onesided import notes_on, recognise, unexplained
from precdiag.parts import Alone, listed
from precdiag.ranks import communications_in, earliest
from precdiag.replaced import explained_calls, judge_regions
from precdiag.rounding import Rounding, explained_cause, find_rounding, note_on_replays
from precdiag.updates import explained_update

if TYPE_CHECKING:
    import numpy as np

# How many rows of context the report shows around the first cause.
_ROWS_BEFORE, _ROWS_BEHIND = 2, 3


def conclude_part(judged: Judged, policy: Policy, limit: int) -> PartResult:
    """Name the first cause of one judged pair of parts, and keep what the report needs of it."""
    replaced = judge_regions(judged)
    recognised = explained_calls(replaced, recognise(judged))
    cause = find_cause(judged, recognised, replaced=replaced)
    fresh = judged.baseline.part.step in (None, 0)
    rounding = find_rounding(judged, cause, fresh=fresh, scrutiny=policy.scrutiny)
    if cause is not None:
        cause = explained_cause(cause, rounding)
    result = summary(in_band_of_noise(judged, policy), recognised, cause, rounding, policy, limit)
    said = () if rounding is None else note_on_replays(judged, policy.scrutiny)
    return replace(result, rounding=rounding, replaced=replaced, notes=(*result.notes, *said))


def behind(earlier: Iterable[PartResult], result: PartResult) -> PartResult:
    """Return a part's result as it is behind earlier steps: where nothing differed at one of its rank, and gradients
    were among it, a parameter that differs is an update.
    """
    equal = any(
        each.has_gradients and each.cause is None for each in earlier if each.baseline.rank == result.baseline.rank
    )
    return replace(result, cause=as_update(result.cause)) if equal and result.cause is not None else result


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
    one_sided = unexplained(judged, recognised)
    line = len(rows) if cause is None else cause.row.order
    nowhere = np.array([], dtype=np.int64)
    own = np.zeros(len(rows), dtype=bool)
    if cause is not None:
        whole_call = cause.row.slot is None
        own = (rows["call"] == rows["call"].iat[line]).to_numpy() if whole_call else np.arange(len(rows)) == line
    symptoms = np.flatnonzero(((state == DIFFERENT) | one_sided) & ~own) if cause is not None else nowhere
    outside = np.flatnonzero(rows["outside"].to_numpy() | one_sided)
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
    first = next((part.at for part in parts if _finds(part, policy)), None)
    unreadable = [part for part in parts if part.error is not None]
    said = list(notes)
    said += [f"{part.baseline.label}: {part.error}" for part in unreadable]
    if one_sided:
        said.append(f"compared only in part: {listed(map(str, one_sided))}")
    for reason, count in _blocking_reasons(parts):
        said.append(f"{count} rows could not be judged: {reason}")
    said += _merged(note for part in parts for note in part.notes)
    deciding = next((part for part in parts if part.cause and cause and part.cause.row == cause.row), None)
    lost = [None if part is deciding else part.cause for part in parts]
    symptoms = [row for part, loser in zip(parts, lost, strict=True) for row in _in_order(part, loser)]
    if cause is not None and deciding is not None:
        cause, told = explained_update(cause, deciding.baseline, deciding.candidate)
        said += told
    verdict = NO_DIVERGENCE if first is None else DIVERGED
    if first is not None and any(_stands_before(part, first, parts) for part in unreadable):
        verdict = NOT_COMPARABLE
        said.append("an earlier step could not be read, so the first cause may lie there")
    beside = [part for part in unreadable if part.at == first]
    if verdict == DIVERGED and beside:
        said.append(f"{listed(part.place.label for part in beside)} could not be read: the first cause may lie there")
    if first is None and (unreadable or one_sided or not coverage.compared or any(part.blocking for part in parts)):
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
        around=() if deciding is None else deciding.around,
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


def _stands_before(part: PartResult, at: tuple[str, int], parts: tuple[PartResult, ...]) -> bool:
    order = [other.at for other in parts]
    return order.index(part.at) < order.index(at)


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
