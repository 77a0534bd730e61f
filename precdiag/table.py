"""msprobe's result tables as what they were made of: two dumps, as far as the table shows them, and their pairing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag import cells as cell
from precdiag.align import Pairing
from precdiag.dump import Dump
from precdiag.errors import UnreadableError
from precdiag.layout import Part
from precdiag.match import MAP, NAME
from precdiag.tablefile import TableFile, read_cells
from precdiag.tableorder import is_ordered, recovered_ranks, row_order
from precdiag.tableside import dump_of_side, task_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Metric columns of a table, by their names in lower case.
TENSOR_METRICS = (
    "cosine",
    "eucdist",
    "maxabserr",
    "maxrelativeerr",
    "one thousandth err ratio",
    "five thousandths err ratio",
)
STATISTIC_DIFFERENCES = ("max diff", "min diff", "mean diff", "l2norm diff")
STATISTIC_RATIOS = ("maxrelativeerr", "minrelativeerr", "meanrelativeerr", "normrelativeerr")

_RESULTS = ("result", "accuracy reached or not")
_ROW_NAME = re.compile(
    r"(?P<call>.+?\.(?:forward|backward)(?:\.\d+)?)\.(?P<slot>(?:input|output|parameters)(?:\..+)?)\Z"
    r"|(?P<module>.+?\.parameters_grad(?:\.\d+)?)\.(?P<parameter>.+)\Z"
    r"|(?P<other>.+)\.(?P<rest>[^.]*)\Z"
)
_GROUPS = ("call", "module", "other"), ("slot", "parameter", "rest")

LOST_ORDER_NOTE = (
    "the table is sorted by name (msprobe 8.x) or by hand, so the order of execution is lost: forward comes before"
    " backward, calls go by their counters and by which call's output is which call's input"
)


@dataclass(frozen=True)
class Table:
    """A result table: both sides as dumps, their pairing, and msprobe's own cells.

    `baseline`, `candidate`: what the Bench and the NPU columns hold, as dumps without files. `pairing`: how msprobe
    paired them. `cells`: the text of every column by its name in lower case, one line each of `pairing.rows`.
    `ordered`: the table kept the order of execution.
    """

    baseline: Dump
    candidate: Dump
    pairing: Pairing
    cells: pd.DataFrame
    ordered: bool

    @property
    def task(self) -> str:
        """What the table compares: `tensor`, `statistics`, `md5` or `xor`."""
        return task_of(self.cells)

    def results(self) -> np.ndarray | None:
        """msprobe's own word for each line (object), None where the table has no such column."""
        return next((cell.texts(self.cells[name]) for name in _RESULTS if name in self.cells), None)


def read_table(file: TableFile) -> Table:
    """Read one table. Raises what `tablefile.read_cells` does, and UnreadableError where it names a row twice."""
    return table_of(read_cells(file), file.part)


def table_of(cells: pd.DataFrame, part: Part) -> Table:
    """Build a table from its cells (text, columns by their names in lower case, in the table's order)."""
    import numpy as np
    import pandas as pd

    cells = cells.apply(cell.of_texts)
    taken_apart: dict[str, tuple[str, str]] = {}
    names = {side: _Names(cells[f"{side} name"], taken_apart) for side in ("bench", "npu")}
    if (twice := cells.duplicated(["npu name", "bench name"])).any():
        where = cells["npu name"][twice].iloc[0]
        raise UnreadableError(f"{part.folder}: names {where} twice", hint="one table holds one step and rank")
    sides = {side: dump_of_side(cells, side, each.call, each.slot, each.there, part) for side, each in names.items()}
    calls, line_call = paired_calls(sides["bench"], sides["npu"], names["bench"].row, names["npu"].row)
    speaking = _speaking(names)
    ordered = is_ordered(speaking)
    rank = np.arange(len(cells))
    if not ordered:
        rank = recovered_ranks(sides["bench"], sides["npu"], calls)[line_call]
    order = row_order(speaking, rank, line_call, ordered)
    rows = pd.DataFrame({"baseline": names["bench"].row, "candidate": names["npu"].row, "call": line_call})
    for side in ("bench", "npu"):
        _set_order(sides[side], names[side], order)
    return Table(
        baseline=sides["bench"],
        candidate=sides["npu"],
        pairing=Pairing(calls=calls, rows=rows.iloc[order].reset_index(drop=True)),
        cells=cells.iloc[order].reset_index(drop=True),
        ordered=ordered,
    )


class _Names:
    """One side's row names, taken apart: arrays over the table's lines.

    there: the side has the row. call, slot: object. row: its position in the side's frame, -1 where it has none.
    """

    def __init__(self, column: pd.Series[str], taken_apart: dict[str, tuple[str, str]]) -> None:
        import numpy as np

        self.there = ~cell.is_empty(column)
        names = cell.texts(column).tolist()
        for name in names:
            if name not in taken_apart:
                taken_apart[name] = _split(name)
        self.call = np.array([taken_apart[name][0] for name in names], dtype=object)
        self.slot = np.array([taken_apart[name][1] for name in names], dtype=object)
        self.row = np.where(self.there, np.cumsum(self.there) - 1, -1)


def _split(name: str) -> tuple[str, str]:
    """Split a row's name into its call's and the slot."""
    match = _ROW_NAME.match(name)
    if match is None:
        return name, ""
    call, slot = (next(filter(None, match.group(*keys)), "") for keys in _GROUPS)
    return call, slot


def paired_calls(baseline: Dump, candidate: Dump, b: np.ndarray, c: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Return Pairing.calls as pairs of rows imply it, and for each pair its position there.

    `b`, `c`: positions of rows, -1 for none. A row on one side only stands with the pair that its call has elsewhere.
    """
    import numpy as np
    import pandas as pd

    codes = [
        np.append(dump.rows["call"].cat.codes.to_numpy(dtype=np.int64), -1)[at]
        for dump, at in ((baseline, b), (candidate, c))
    ]
    lines = pd.DataFrame({"baseline": codes[0], "candidate": codes[1]})
    paired = lines[(lines >= 0).all(axis=1)].drop_duplicates()
    for own, other in (("candidate", "baseline"), ("baseline", "candidate")):
        partner = paired.drop_duplicates(own).set_index(own)[other]
        alone = lines[other] < 0
        lines.loc[alone, other] = lines.loc[alone, own].map(partner).fillna(-1).astype(np.int64)
    position, unique = pd.factorize(pd.MultiIndex.from_frame(lines))
    calls = pd.DataFrame(list(unique), columns=["baseline", "candidate"])
    names = [
        np.append(dump.calls["name"].to_numpy(dtype=object), "")[calls[side]]
        for dump, side in ((baseline, "baseline"), (candidate, "candidate"))
    ]
    both = (calls >= 0).all(axis=1)
    calls["how"] = np.where(both, np.where(names[0] == names[1], NAME, MAP), "")
    return calls.assign(moved=False), np.asarray(position)


def _speaking(names: dict[str, _Names]) -> pd.DataFrame:
    """Call and slot of each line: the candidate's, whose order the table keeps, the baseline's where only that is."""
    import numpy as np
    import pandas as pd

    npu, bench = names["npu"], names["bench"]
    return pd.DataFrame(
        {"call": np.where(npu.there, npu.call, bench.call), "slot": np.where(npu.there, npu.slot, bench.slot)}
    )


def _set_order(dump: Dump, names: _Names, order: np.ndarray) -> None:
    import numpy as np

    mine = names.row[order]
    mine = mine[mine >= 0]
    ranks = np.empty(len(mine), dtype=np.int64)
    ranks[mine] = np.arange(len(mine))
    dump.rows["order"] = ranks
