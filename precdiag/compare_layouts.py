"""The pipeline of `precdiag compare` for two sides that split the model differently over their ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from precdiag.align import pair
from precdiag.cause import Cause
from precdiag.compare import Calls, Progress
from precdiag.comparison import Comparison, PartResult
from precdiag.conclude import behind, conclude, conclude_part
from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError, UsageError
from precdiag.evidence import ARGUMENT, SHAPE, UNKNOWN
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part, Run, open_run, part_order
from precdiag.parallelism import Parallelism, world_of
from precdiag.parts import Selection, pair_parts, selected
from precdiag.stages import join_stages

SHARDED = "sharded: the two sides split the model differently, so this rank holds another part of it"


def compare_layouts(
    baseline: Path,
    candidate: Path,
    policy: Policy,
    layouts: tuple[Parallelism, Parallelism],
    selection: Selection | None = None,
    limit: int = 1000,
    progress: Progress = lambda label, done, total: None,
    calls: Calls = Calls(),  # noqa: B008 - a frozen value
) -> Comparison:
    """Compare two dumps of one model, split over ranks as `layouts` say: several ranks against several.

    The pipeline stages of each data and tensor parallel coordinate are joined (stages.join_stages), and joined models
    of the same coordinates compared. Where the sides shard tensors differently, modules of the first tensor parallel
    rank are compared, in rows of equal shape; other rows are unknown. Ranks are named by that of a model's first stage.
    `calls`: what --map says of names, and which calls are compared. Raises UnreadableError where a path holds no dump,
    UsageError where ranks do not fit the layout.
    """
    selection = selection or Selection()
    sharded = layouts[0].shards != layouts[1].shards
    if selection.partners.ranks:
        raise UsageError("--pair-rank and two layouts exclude each other: the layouts say which ranks belong together")
    runs = [
        _joined(open_run(path), layout, sharded) for path, layout in zip((baseline, candidate), layouts, strict=True)
    ]
    partners = replace(selection.partners, ranks=_partners(runs, layouts))
    pairs, alone, _ = pair_parts(
        selected(runs[0], selection), selected(runs[1], selection, partners.place_of), partners
    )
    said = [f"the baseline is split as {layouts[0]}, the candidate as {layouts[1]}"]
    if sharded:
        said.append("the first rank of each tensor and context parallel group is compared: the others hold other parts")
    results: list[PartResult] = []
    for left, right in pairs:
        try:
            dumps = _read(left, layouts[0], sharded), _read(right, layouts[1], sharded)
            pairing = pair(*dumps, calls.names, calls.view)
        except UnreadableError as error:
            results.append(PartResult(left, right, error=str(error)))
            continue
        judged = judge(*dumps, pairing, policy, partial(progress, left.label))
        judged = unsharded(judged) if sharded else judged
        room = max(limit - sum(len(result.symptoms) for result in results), 0)
        result = behind(results, conclude_part(judged, policy, room))
        results.append(replace(result, notes=(*result.notes, *_whereabouts(judged, result.cause))))
    return conclude(baseline, candidate, policy, limit, tuple(results), alone, tuple(said))


def unsharded(judged: Judged) -> Judged:
    """Call rows unknown whose shapes, or sizes given as arguments, differ: the sides hold different parts of them."""
    import numpy as np

    rows = judged.rows.copy()
    apart = judged.differs_in(SHAPE | ARGUMENT)
    rows.loc[apart, "state"] = UNKNOWN
    rows.loc[apart, "aspects"] = 0
    rows.loc[apart, "reason"] = SHARDED
    rows.loc[apart, ["outside", "blocking"]] = [False, True]
    tensors = {line: found for line, found in judged.tensors.items() if not apart[line]}
    return replace(judged, rows=rows.astype({"state": np.int8, "aspects": np.uint8}), tensors=tensors)


def _whereabouts(judged: Judged, cause: Cause | None) -> list[str]:
    """Say which rank of each side holds the call of the first cause, and what it is called there."""
    if cause is None:
        return []
    said = []
    for side, dump in (("baseline", judged.baseline), ("candidate", judged.candidate)):
        at = int(judged.rows[side].iat[cause.row.order])
        if at >= 0:
            call = dump.calls.iloc[int(dump.rows["call"].cat.codes.iat[at])]
            said.append(f"rank {call['holder']} of the {side} ({call['old']})")
    return [f"the call of the first cause is on {' and '.join(said)}"]


def _joined(run: Run, layout: Parallelism, sharded: bool) -> Run:
    """Leave one part a model, that of its first stage, whose folder finds the others.

    Where the sides shard differently, the first tensor and context parallel rank alone.
    """
    world = world_of(part.rank or 0 for part in run.parts)
    places = {part: layout.place(part.rank or 0, world) for part in run.parts}
    firsts = [
        replace(part, rank=part.rank or 0)  # a single process has no rank number
        for part, (tensor, data, stage) in places.items()
        if stage == 0 and not (sharded and (tensor or data % layout.cp))
    ]
    if not firsts:
        raise UsageError(
            f"{run.path}: holds no rank of a first pipeline stage",
            hint=f"with {layout}, ranks from 0 are the first stage's",
        )
    return replace(run, parts=tuple(sorted(firsts, key=part_order)))


def _partners(runs: list[Run], layouts: tuple[Parallelism, Parallelism]) -> dict[int, int]:
    """Pair first-stage ranks of equal tensor, context and data parallel coordinates, baseline to candidate."""
    by_place: list[dict[tuple[int, ...], int]] = []
    for run, layout in zip(runs, layouts, strict=True):
        ranks = {part.rank or 0 for part in run.parts}
        data = {rank: divmod(rank // layout.tp, layout.cp) for rank in ranks}
        by_place.append({(rank % layout.tp, *data[rank]): rank for rank in ranks})
    return {rank: by_place[1][place] for place, rank in by_place[0].items() if place in by_place[1]}


def _read(first: Part, layout: Parallelism, sharded: bool) -> Dump:
    """Read and join the stages of the model whose first stage this is. Raises UnreadableError where one is missing."""
    dumps = [read_dump(part) for part in _stages(first, layout)]
    return join_stages(dumps, first, layout.vpp, modules_only=sharded)


def _stages(first: Part, layout: Parallelism) -> list[Part]:
    if layout.pp == 1:
        return [first]
    there = open_run(first.folder.parent).parts
    world = world_of(part.rank or 0 for part in there)
    tensor, data, _ = layout.place(first.rank or 0, world)
    by_rank = {part.rank: part for part in there}
    ranks = [layout.rank_at(tensor, data, stage, world) for stage in range(layout.pp)]
    return [
        replace(by_rank[rank], stage=first.stage, step=first.step)
        if rank in by_rank
        else replace(first, folder=first.folder.parent / f"rank{rank}", rank=rank)
        for rank in ranks
    ]
