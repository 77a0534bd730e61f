"""Hold the ranks of one dump against each other where they should agree: parameters, and what collectives returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from precdiag.align import Pairing
from precdiag.cause import Cause
from precdiag.communication import Communication, communications_of, members_of
from precdiag.compare import Progress
from precdiag.comparison import Comparison, PartResult
from precdiag.conclude import conclude, summary
from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError, UsageError
from precdiag.evidence import DIFFERENT
from precdiag.finding import row_of
from precdiag.judge import Judged, Policy, judge
from precdiag.layout import Part, open_run
from precdiag.match import NAME
from precdiag.operations import WEIGHT_SLOTS
from precdiag.overview import listed_numbers
from precdiag.parallelism import Parallelism
from precdiag.parts import Selection, selected
from precdiag.ranks import Meeting, meetings_of
from precdiag.rows import INPUT, OUTPUT, PARAMETER
from precdiag.source import source_of, stack_of

if TYPE_CHECKING:
    import numpy as np

# Collectives that give every member of the group the same, and where they return it.
_AGREEING = ("all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "broadcast")
_RETURNED = "output.0"
_PARAMETER_NEXT = "look at what these ranks loaded or initialised, and at what broadcasts or updates it on them"
_COLLECTIVE_NEXT = "look at the device and the link of this rank: its members must receive the same bytes"
_UNDECIDED_NEXT = "compare this step with a trusted dump, or collect more replicas"


@dataclass(frozen=True)
class _Member:
    """The rows of one rank that others should agree with.

    `dump` holds these rows alone; `keys`: what each is called on every rank. `groups`: for each row the group that it
    was exchanged in, "" for a parameter.
    """

    rank: int
    dump: Dump
    keys: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class _Dispute:
    """The first row on which ranks that should agree do not: the classes of ranks of equal value, largest first."""

    order: int
    classes: tuple[tuple[int, ...], ...]

    @property
    def is_settled(self) -> bool:
        """Tell whether more than half of the ranks agree."""
        return 2 * len(self.classes[0]) > sum(map(len, self.classes))


def compare_replicas(
    path: Path,
    policy: Policy,
    selection: Selection | None = None,
    layout: Parallelism | None = None,
    limit: int = 1000,
    progress: Progress = lambda label, done, total: None,
) -> Comparison:
    """Say which rank of one dump holds other parameters, or got something else from a collective, than its replicas.

    Both sides of the comparison are the dump: the baseline of each rank is the first of the ranks that agree. `layout`
    says which ranks hold the same parameters; without one, all do. Raises UsageError where no step has two ranks.
    """
    run = selected(open_run(path), selection)
    layout = layout or Parallelism()
    results: list[PartResult] = []
    cause: Cause | None = None
    for _, parts in groupby(run.parts, lambda part: (part.stage, part.step)):
        members, unreadable = _read(list(parts))
        found = [_compared(each, policy, limit, progress) for each in _sets(members, layout)]
        results += [result for of_set, _ in found for result in of_set] + unreadable
        if cause is None and (named := [each for _, each in found if each is not None]):
            cause = min(named, key=lambda each: each[0])[1]
    if not results:
        raise UsageError(f"{path}: --replicas needs two ranks of a step that should agree", hint=_hint(layout))
    said = ("ranks of one dump were held against each other: their parameters, and what collectives returned",)
    comparison = conclude(path, path, policy, limit, tuple(results), (), said)
    return comparison if comparison.cause is None else replace(comparison, cause=cause)


def _hint(layout: Parallelism) -> str:
    if layout == Parallelism():
        return "give a step folder of a run of several ranks"
    return f"with the layout {layout} no two of these ranks hold the same parameters or share a group"


def _read(parts: Sequence[Part]) -> tuple[list[_Member], list[PartResult]]:
    dumps: list[tuple[int, Dump]] = []
    unreadable = []
    for part in parts:
        if part.rank is None:
            continue
        try:
            dumps.append((part.rank, read_dump(part)))
        except UnreadableError as error:
            unreadable.append(PartResult(part, part, error=str(error)))
    exchanged = meetings_of({rank: communications_of(dump, dump.rows["order"].to_numpy()) for rank, dump in dumps})
    return [_member(rank, dump, exchanged[rank]) for rank, dump in dumps], unreadable


def _member(rank: int, dump: Dump, exchanged: Sequence[tuple[Meeting, Communication]]) -> _Member:
    """Keep of a rank the rows that others should agree with, in the order in which work began.

    `exchanged`: its communications, each with what it meets on the other ranks.
    """
    import numpy as np

    rows, calls = dump.rows, dump.calls
    call = rows["call"].cat.codes.to_numpy()
    slots = rows["slot"].cat.categories
    slot = rows["slot"].astype(str).to_numpy()
    forward = (calls["phase"] == "forward").to_numpy()[call]
    operation = calls["operation"].to_numpy()
    met = {communication.call: meeting for meeting, communication in exchanged if communication.peers is None}
    group = np.array([met[name][0] if name in met else "" for name in calls["name"]], dtype=object)
    parameter = (rows["io"] == PARAMETER).to_numpy().copy()
    for name, weights in WEIGHT_SLOTS.items():
        if (operation == name).any():
            parameter |= (operation == name)[call] & np.isin(slot, weights) & (rows["io"] == INPUT).to_numpy()
    agreeing = calls["operation"].isin(_AGREEING).to_numpy() & (group != "")
    first_output = np.asarray((slots == _RETURNED) | slots.str.startswith(f"{_RETURNED}."))
    returned = agreeing[call] & first_output[rows["slot"].cat.codes]
    keep = np.flatnonzero((parameter | returned) & forward & rows["tensor"].to_numpy())
    keep = keep[np.argsort(rows["order"].to_numpy()[keep])]
    names = np.array([str(met.get(name, name)) for name in calls["name"]], dtype=object)[call]
    return _Member(
        rank=rank,
        dump=replace(dump, rows=rows.iloc[keep].reset_index(drop=True)),
        keys=np.array([f"{name} {at}" for name, at in zip(names[keep], slot[keep], strict=True)], dtype=object),
        groups=np.where(returned, group[call], "")[keep],
    )


def _sets(members: Sequence[_Member], layout: Parallelism) -> list[list[_Member]]:
    """Return the sets of ranks that should agree, each with the rows that they should agree on.

    Replicas agree on parameters, the members of a group on what its collectives returned.
    """
    import numpy as np

    by_rank = {member.rank: member for member in members}
    shared: dict[tuple[int, ...], set[str]] = {}
    for ranks in layout.replicas(by_rank):
        shared.setdefault(tuple(ranks), set()).add("")
    groups = dict.fromkeys(group for member in members for group in member.groups.tolist() if group)
    for group in groups:
        there = tuple(rank for rank in members_of(group) if rank in by_rank)
        shared.setdefault(there, set()).add(group)
    return [
        [_kept(by_rank[rank], np.isin(by_rank[rank].groups, list(groups_of_set))) for rank in ranks]
        for ranks, groups_of_set in shared.items()
        if len(ranks) > 1
    ]


def _kept(member: _Member, keep: np.ndarray) -> _Member:
    """Return a rank with some of its rows: bool of len(keys)."""
    dump = replace(member.dump, rows=member.dump.rows[keep].reset_index(drop=True))
    return replace(member, dump=dump, keys=member.keys[keep], groups=member.groups[keep])


def _compared(
    members: Sequence[_Member], policy: Policy, limit: int, progress: Progress
) -> tuple[list[PartResult], tuple[int, Cause] | None]:
    """Hold a set of ranks against the first of those that agree on the row that is disputed first.

    Returns what became of each other rank, and the cause with its place in the order.
    """
    reference = members[0]
    for _ in members:
        judged = {m.rank: _judged(reference, m, policy, progress) for m in members if m.rank != reference.rank}
        dispute = _dispute(reference, members, judged)
        if dispute is None or reference.rank in dispute.classes[0] or not dispute.is_settled:
            break
        reference = _by_rank(members, dispute.classes[0][0])
    causes = {rank: _cause(each) for rank, each in judged.items()}
    results = [_result(each, causes[rank], reference.rank, policy, limit) for rank, each in judged.items()]
    if dispute is None:
        return results, None
    others = (rank for ranks in dispute.classes if reference.rank not in ranks for rank in ranks)
    first = [cause for rank in others if (cause := causes[rank]) is not None]
    return results, (dispute.order, _named(first, dispute))


def _result(judged: Judged, cause: Cause | None, reference: int, policy: Policy, limit: int) -> PartResult:
    result = summary(judged, {}, cause, None, policy, limit)
    return replace(result, communications=(), notes=(*result.notes, f"rank {reference} stands for those that agree"))


def _judged(reference: _Member, other: _Member, policy: Policy, progress: Progress) -> Judged:
    """Judge the rows that two ranks share; the line of the other rank speaks, so the reference goes without its own."""
    import numpy as np
    import pandas as pd

    partner = pd.Index(other.keys).get_indexer(pd.Index(reference.keys))
    at = np.flatnonzero(partner >= 0)
    call = reference.dump.rows["call"].cat.codes.to_numpy()[at]
    their_call = other.dump.rows["call"].cat.codes.to_numpy()[partner[at]]
    calls = pd.DataFrame({"baseline": call, "candidate": their_call, "how": NAME, "moved": False})
    calls = calls.drop_duplicates("baseline").reset_index(drop=True)
    line = pd.Series(calls.index, index=calls["baseline"])
    rows = pd.DataFrame({"baseline": at, "candidate": partner[at], "call": line[call].to_numpy()})
    unnumbered = replace(reference.dump, part=replace(reference.dump.part, rank=None))
    return judge(unnumbered, other.dump, Pairing(calls, rows), policy, partial(progress, other.dump.part.label))


def _dispute(reference: _Member, members: Sequence[_Member], judged: Mapping[int, Judged]) -> _Dispute | None:
    """Find the first row, in the reference's order, on which a rank differs, and which ranks agree on it."""
    lines = {rank: line for rank, each in judged.items() if (line := _first_line(each)) is not None}
    firsts = {rank: int(judged[rank].rows["baseline"].iat[line]) for rank, line in lines.items()}
    if not firsts:
        return None
    row = min(firsts.values())
    classes = [[member.rank for member in members if firsts.get(member.rank) != row and _has(member, reference, row)]]
    for member in members:
        if firsts.get(member.rank) == row:
            alike = (each for each in classes[1:] if _agree(_by_rank(members, each[0]), member, reference.keys[row]))
            known = next(alike, None)
            if known is None:
                classes.append([member.rank])
            else:
                known.append(member.rank)
    ordered = sorted((tuple(each) for each in classes), key=lambda each: (-len(each), each))
    return _Dispute(int(reference.dump.rows["order"].iat[row]), tuple(ordered))


def _first_line(judged: Judged) -> int | None:
    """Return the line of the first row in which a rank differs from the reference, None where there is none."""
    differ = judged.rows.index[judged.rows["state"] == DIFFERENT]
    return int(differ[0]) if len(differ) else None


def _has(member: _Member, reference: _Member, row: int) -> bool:
    return bool((member.keys == reference.keys[row]).any())


def _by_rank(members: Sequence[_Member], rank: int) -> _Member:
    return next(member for member in members if member.rank == rank)


def _agree(left: _Member, right: _Member, key: str) -> bool:
    """Tell whether two ranks hold the same in the row of this key."""
    one, other = (_kept(member, member.keys == key) for member in (left, right))
    return _first_line(_judged(one, other, Policy(), lambda label, done, total: None)) is None


def _cause(judged: Judged) -> Cause | None:
    """Describe the first row in which a rank differs from the ranks that agree."""
    line = _first_line(judged)
    if line is None:
        return None
    at = int(judged.rows["candidate"].iat[line])
    call = str(judged.candidate.rows["call"].iat[at])
    stack = stack_of(judged.candidate, call)
    returned = int(judged.candidate.rows["io"].iat[at]) == OUTPUT
    kind, next_step = ("introduced", _COLLECTIVE_NEXT) if returned else ("parameter", _PARAMETER_NEXT)
    row = replace(row_of(judged, line), kind=kind)
    return Cause(row, source_of(stack), stack, "", next_step)


def _named(causes: Sequence[Cause], dispute: _Dispute) -> Cause:
    """Name the ranks that are outvoted; where no class of ranks has more than half, none of them."""
    what = "this parameter" if causes[0].row.kind == "parameter" else "what the collective returned"
    if dispute.is_settled:
        agreeing = dispute.classes[0]
        wrong = _ranks([cause.row.rank for cause in causes])
        why = f"outvoted on {what}: {wrong} against {_ranks(agreeing)}, which agree with each other"
        return replace(causes[0], why=why, also=tuple(cause.row for cause in causes[1:]))
    sides = " against ".join(map(_ranks, dispute.classes))
    why = f"the ranks disagree on {what}, {sides}: without a majority the dump cannot say which of them is wrong"
    everyone = (replace(causes[0].row, rank=rank) for ranks in dispute.classes for rank in ranks)
    row = replace(causes[0].row, rank=None)
    return replace(causes[0], row=row, why=why, next_step=_UNDECIDED_NEXT, also=tuple(everyone))


def _ranks(ranks: Sequence[int | None]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed_numbers(ranks)}"
