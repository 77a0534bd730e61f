"""Order first differences across ranks through the collectives that bind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.evidence import DIFFERENT
from precdiag.judge import Judged
from precdiag.rows import INPUT, OUTPUT

if TYPE_CHECKING:
    import pandas as pd

WORLD = "world"


@dataclass(frozen=True)
class Collective:
    """One Distributed call of one rank: its group, its number within the group, where it stands, what differs."""

    group: str
    number: int
    call: str
    first_line: int
    last_line: int
    input_differs: bool


@dataclass(frozen=True)
class Standing:
    """A rank's first difference (line and call), and its collectives in order."""

    line: int
    call: str
    is_output: bool
    collectives: tuple[Collective, ...]

    def before(self) -> dict[str, int]:
        """Count, per group, the collectives that had finished before the first difference."""
        counts: dict[str, int] = {}
        for collective in self.collectives:
            counts.setdefault(collective.group, 0)
            counts[collective.group] += collective.last_line < self.line
        return counts


def collectives_of(judged: Judged) -> tuple[Collective, ...]:
    """Return the Distributed forward calls of one rank in the order in which they began."""
    dump, side = judged.baseline, "baseline"
    distributed = ((dump.calls["kind"] == "Distributed") & (dump.calls["phase"] == "forward")).to_numpy()
    if not distributed.any():
        return ()
    lines = judged.rows[judged.rows[side] >= 0]
    position = dump.rows["call"].cat.codes.to_numpy()[lines[side].to_numpy()]
    lines = lines.assign(position=position, io=dump.rows["io"].to_numpy()[lines[side].to_numpy()])
    found: list[Collective] = []
    numbers: dict[str, int] = {}
    for at, group_lines in lines[distributed[position]].groupby("position", sort=False):
        group = _group_of(dump.rows.iloc[group_lines[side]])
        numbers[group] = numbers.get(group, -1) + 1
        differs = ((group_lines["io"] == INPUT) & (group_lines["state"] == DIFFERENT)).any()
        first, last = int(group_lines.index[0]), int(group_lines.index[-1])
        name = str(dump.calls["name"].iat[int(at)])
        found.append(Collective(group, numbers[group], name, first, last, bool(differs)))
    return tuple(found)


def standing_of(judged: Judged, line: int, call: str) -> Standing:
    """Describe where a rank's first difference stands among its collectives."""
    b = int(judged.rows["baseline"].iat[line])
    is_output = b >= 0 and int(judged.baseline.rows["io"].iat[b]) == OUTPUT
    return Standing(line, call, is_output, collectives_of(judged))


def earliest(standings: Mapping[int, Standing], others: Mapping[int, tuple[Collective, ...]]) -> tuple[int, ...]:
    """Return the keys of the first differences that no other is known to precede; several where none can be told.

    `standings`: the ranks that differ; `others`: the collectives of all ranks, by the same keys. A difference before
    a group's n-th collective precedes one behind it. One in the output of a collective is inherited when a matching
    input of another member differs.
    """
    own = {key: standing for key, standing in standings.items() if not _inherited(key, standing, others)} or standings
    before = {key: standing.before() for key, standing in own.items()}
    first = [key for key in own if not any(_precedes(before[other], before[key]) for other in own if other != key)]
    return tuple(first or own)


def _inherited(key: int, standing: Standing, others: Mapping[int, tuple[Collective, ...]]) -> bool:
    here = next((c for c in standing.collectives if c.call == standing.call), None)
    if here is None or not standing.is_output:
        return False
    return any(
        there.input_differs
        for other, collectives in others.items()
        if other != key
        for there in collectives
        if (there.group, there.number) == (here.group, here.number)
    )


def _precedes(left: Mapping[str, int], right: Mapping[str, int]) -> bool:
    shared = left.keys() & right.keys()
    return all(left[group] <= right[group] for group in shared) and any(left[group] < right[group] for group in shared)


def _group_of(rows: pd.DataFrame) -> str:
    groups = rows.loc[rows["type"] == "torch.ProcessGroup", "value"]
    return str(groups.iat[0]) if len(groups) else WORLD
