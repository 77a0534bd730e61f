"""Name the one first cause of a judged pair of dumps: which row, of what kind, where in the code, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precdiag.evidence import ARGUMENT, DIFFERENT, DTYPE, EQUAL, SHAPE
from precdiag.finding import Row, call_at, is_beyond, row_of
from precdiag.judge import Judged
from precdiag.kinds import PARAMETER_KIND, UPDATE, explain, is_parameter
from precdiag.onesided import unexplained
from precdiag.replaced import Replaced
from precdiag.rows import INPUT, OUTPUT, PARAMETER
from precdiag.source import Source, source_of, stack_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Cause:
    """The first cause: its row, the user's source line, the stack, and one sentence of reasons.

    `also` names rows of other ranks that cannot be told to be later; `behind` is the next independent difference
    where the cause is one that explains itself (random).
    """

    row: Row
    source: Source | None
    stack: tuple[str, ...]
    why: str
    next_step: str
    also: tuple[Row, ...] = ()
    behind: Row | None = None


def find_cause(
    judged: Judged,
    recognised: Mapping[int, str],
    *,
    replaced: tuple[Replaced, ...] = (),
) -> Cause | None:
    """Name the first cause among the lines of one step and rank, None where nothing differs.

    `recognised`: one-sided calls that are no divergence (onesided.recognise). Rows that are unknown are never a cause.
    `replaced`: the regions (replaced.judge_regions), for their reasons.
    """
    one_sided = unexplained(judged, recognised)
    line = _first_line(judged, one_sided)
    if line is None:
        return None
    kind, why, following = explain(judged, line, replaced)
    row = replace(row_of(judged, line), kind=kind)
    if kind == "structure" and judged.pairing.calls["how"].iat[int(judged.rows["call"].iat[line])] == "":
        row = replace(row, name=row.call, slot=None)
    stack = stack_at(judged, line)
    behind = _independent(judged, line) if kind == "random" else None
    return Cause(row, source_of(stack), stack, why, following, behind=behind)


def as_update(cause: Cause) -> Cause:
    """Return the cause as it is where the gradients of an earlier step were equal: a parameter's is then an update."""
    if cause.row.kind != PARAMETER_KIND:
        return cause
    kind, why, following = UPDATE
    return replace(cause, row=replace(cause.row, kind=kind), why=why, next_step=following)


def _first_line(judged: Judged, one_sided: np.ndarray) -> int | None:
    """Return the line of the first cause.

    A one-sided call counts where the values right behind it differ, or where nothing else differs; where the rows
    behind it are equal again, the two sides have resynchronised and a later difference of values is the cause.
    """
    import numpy as np

    state, call = judged.rows["state"].to_numpy(), judged.rows["call"].to_numpy()
    alone = np.flatnonzero(one_sided)
    differing = np.flatnonzero(state == DIFFERENT)
    if not len(differing):
        behind = [line for line in alone.tolist() if is_beyond(judged, line)]
        return next(iter((*behind, *alone.tolist())), None)
    first = int(differing[0])
    before = alone[alone < first]
    if not len(before):
        return first
    last = int(before[-1])
    between = np.arange(last + 1, first)
    if ((state[between] == EQUAL) & (call[between] != call[first])).any():
        return first
    start = last
    while start > 0 and one_sided[start - 1]:
        start -= 1
    return start


def stack_at(judged: Judged, line: int) -> tuple[str, ...]:
    """Return the candidate's stack, whose code is under suspicion; the baseline's where the candidate has none."""
    for dump, column in ((judged.candidate, "candidate"), (judged.baseline, "baseline")):
        at = int(judged.rows[column].iat[line])
        if at >= 0 and (stack := stack_of(dump, str(dump.rows["call"].iat[at]))):
            return stack
    return ()


def _independent(judged: Judged, line: int) -> Row | None:
    """Return the next line that differs and is not fed by what differs before it: an exact aspect, a parameter, or an
    output all of whose call's inputs are equal (of a forward call: going backward its forward values count too).
    """
    rows = judged.rows
    later = rows[(rows.index > line) & (rows["state"] == DIFFERENT)]
    at = later["baseline"].to_numpy()
    io = judged.baseline.rows["io"].to_numpy()[at]
    tainted = set(later.loc[io == INPUT, "call"]) | {rows["call"].iat[line]}
    for here, place in zip(later.index.tolist(), io.tolist(), strict=True):
        exact = int(rows["aspects"].iat[here]) & (SHAPE | DTYPE | ARGUMENT)
        fresh = place == OUTPUT and rows["call"].iat[here] not in tainted and _is_forward_leaf(judged, here)
        if exact or place == PARAMETER or fresh or (place == INPUT and is_parameter(judged, here)):
            return row_of(judged, here)
    return None


def _is_forward_leaf(judged: Judged, line: int) -> bool:
    dump, position = call_at(judged, line)
    return dump.calls["phase"].iat[position] == "forward" and not bool((dump.calls["parent"] == position).any())
