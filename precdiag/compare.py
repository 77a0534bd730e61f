"""The pipeline of `precdiag compare`: two paths → parts paired, read, aligned, judged → one Comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from precdiag.align import pair
from precdiag.collected import notes_on_collection
from precdiag.comparison import Comparison, PartResult
from precdiag.conclude import _unless_mispaired, behind, conclude, conclude_part
from precdiag.errors import UnreadableError, UsageError
from precdiag.evidence import NOT_LOOKED_AT_REASON, Effort
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part, open_run
from precdiag.mapping import CallMap
from precdiag.parts import Selection, pair_parts, selected
from precdiag.reading import read_pair, tensor_bytes
from precdiag.renumber import renumbered
from precdiag.view import View
from precdiag.workers import Resources, each

Progress = Callable[[str, int, int], None]
# Judges one pair of parts, in place of the native engine.
Judging = Callable[[Part, Part], Judged]
PARTS = "steps and ranks"
# A step of one rank with so much in tensor files is cut into slices for a cluster, instead of being one task.
SLICED_BYTES = 64 << 20


@dataclass(frozen=True)
class Calls:
    """What the user says of calls: `names`, what is called what; `view`, which of them are compared."""

    names: CallMap = field(default_factory=CallMap)
    view: View = field(default_factory=View)


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
        work = partial(_compare_pair, policy=policy, limit=limit, calls=calls, first=first)
        outcomes = _spread(work, pairs, resources, progress)
    else:
        outcomes = (_judged_by(judging, left, right, policy, limit) for left, right in pairs)
    found = zip(pairs, outcomes, strict=True)
    results: list[PartResult] = []
    for _, of_step in groupby(found, lambda one: (one[0][0].stage, one[0][0].step)):
        decided = any(result.cause is not None for result in results)
        here: list[PartResult] = []
        for _, result in of_step:  # fitted to those before it only here: parts are compared in any order
            room = max(limit - sum(len(result.symptoms) for result in (*results, *here)), 0)
            result = replace(result, symptoms=result.symptoms[:room], hidden=result.hidden[:room])
            here.append(behind(results, result))
        if decided or all(result.cause is None for result in here):  # no order of ranks to be told at this step
            here = [replace(result, communications=()) for result in here]
        results += here
        if first and any(result.cause is not None for result in here):
            break
    if len(results) < len(pairs):
        notes = (*notes, f"{len(pairs) - len(results)} later steps and ranks were not looked at: --first")
    return _unless_mispaired(conclude(baseline, candidate, policy, limit, tuple(results), one_sided, notes))


def _spread(
    work: Callable[..., PartResult], pairs: Sequence[tuple[Part, Part]], resources: Resources, progress: Progress
) -> Iterable[PartResult]:
    """Compare the pairs, one a task; where a cluster is given a single large one, its tensor files are the tasks."""
    if resources.scheduler is not None and len(pairs) == 1 and tensor_bytes(pairs[0][0]) >= SLICED_BYTES:
        return [work(pairs[0], resources, progress=progress)]
    of_tensors = None if resources.spread(len(pairs)) else progress
    return each(partial(work, progress=of_tensors), pairs, resources, partial(progress, PARTS))


def _compare_pair(
    parts: tuple[Part, Part],
    resources: Resources,
    *,
    policy: Policy,
    limit: int,
    progress: Progress | None,
    calls: Calls,
    first: bool,
) -> PartResult:
    """Read, align and judge one pair of parts, and keep what the report needs. Parts that cannot be read or have
    nothing in common are an `error` in the result, so that the others are still compared.
    """
    baseline, candidate = parts
    try:
        left, right = (renumbered(dump, dict(dump.part.peers)) for dump in read_pair(baseline, candidate, resources))
        pairing = pair(left, right, calls.names, calls.view)
    except UnreadableError as error:
        return PartResult(baseline, candidate, error=str(error))
    told = (lambda done, total: None) if progress is None else partial(progress, baseline.label)
    replays = policy.scrutiny.arbiter
    judged = judge(left, right, pairing, policy, told, Effort(resources, first, replays))
    result = conclude_part(judged, policy, limit)
    if result.cause is None and NOT_LOOKED_AT_REASON in dict(result.reasons):  # what stopped it was explained away
        judged = judge(left, right, pairing, policy, told, Effort(resources, replays=replays))
        result = conclude_part(judged, policy, limit)
    return result


def _judged_by(judging: Judging, baseline: Part, candidate: Part, policy: Policy, limit: int) -> PartResult:
    try:
        judged = judging(baseline, candidate)
    except UnreadableError as error:
        return PartResult(baseline, candidate, error=str(error))
    return conclude_part(judged, policy, limit)
