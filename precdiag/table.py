"""msprobe's result tables as what they were made of: two dumps, as far as the table shows them, and their pairing."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag import cells as cell
from precdiag.align import Pairing
from precdiag.dataflow import natural_key, recovered_order
from precdiag.dump import Dump
from precdiag.errors import UnreadableError
from precdiag.layout import Part
from precdiag.match import MAP, NAME
from precdiag.rows import CHECKSUM_NONE, INPUT, OUTPUT, PARAMETER, STATISTICS, split_name
from precdiag.source import OPTIMIZES
from precdiag.tablefile import TableFile, read_cells

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

_COLUMN = {"max": "max", "min": "min", "mean": "mean", "norm": "l2norm"}
_STACK = "npu_stack_info"
_RESULTS = ("result", "accuracy reached or not")
_ROW_NAME = re.compile(
    r"(?P<call>.+?\.(?:forward|backward)(?:\.\d+)?)\.(?P<slot>(?:input|output|parameters)(?:\..+)?)\Z"
    r"|(?P<module>.+?\.parameters_grad(?:\.\d+)?)\.(?P<parameter>.+)\Z"
    r"|(?P<other>.+)\.(?P<rest>[^.]*)\Z"
)
_GROUPS = ("call", "module", "other"), ("slot", "parameter", "rest")
_PLACES = {"input": INPUT, "parameters": PARAMETER}

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
        return _task(self.cells)

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
    sides = {side: _dump(cells, side, names[side], part) for side in ("bench", "npu")}
    calls, line_call = paired_calls(sides["bench"], sides["npu"], names["bench"].row, names["npu"].row)
    speaking = _speaking(names)
    ordered = _is_ordered(speaking)
    rank = np.arange(len(cells))
    if not ordered:
        rank = _recovered(cells, sides, names, calls, line_call)
    order = _row_order(speaking, rank, line_call, ordered)
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


def _dump(cells: pd.DataFrame, side: str, names: _Names, part: Part) -> Dump:
    import numpy as np
    import pandas as pd

    here = cells[names.there].reset_index(drop=True)
    blank = cell.of_texts(pd.Series("", index=here.index, dtype=object))

    def column(name: str) -> pd.Series[str]:
        return here.get(f"{side} {name}", blank)

    call, calls = pd.factorize(names.call[names.there])
    rows = pd.DataFrame(
        {
            "call": pd.Categorical.from_codes(call, categories=pd.Index(calls, dtype=object)),
            "slot": pd.Categorical(names.slot[names.there]),
        }
    )
    rows["io"] = np.array([_PLACES.get(slot.partition(".")[0], OUTPUT) for slot in rows["slot"].cat.categories], "i1")[
        rows["slot"].cat.codes
    ]
    dtype = pd.Series(cell.texts(column("dtype")))
    types = dtype.map({text: cell.argument_type(text) for text in dtype.unique()})
    tensor = types.isna().to_numpy()
    rows["type"] = pd.Categorical(types.fillna("torch.Tensor"))
    rows["tensor"] = tensor
    rows["dtype"] = pd.Categorical(dtype.where(tensor, ""))
    rows["shape"] = pd.Categorical(np.where(tensor, cell.texts(column("tensor shape")), ""))
    known = np.zeros(len(rows), dtype=np.uint8)
    exact = np.full(len(rows), None, dtype=object)
    for bit, name in enumerate(STATISTICS):
        values, stands, digits = cell.statistics(column(_COLUMN[name]))
        rows[name] = np.where(tensor & stands, values, np.nan)
        known |= (tensor & stands).astype(np.uint8) << bit
        exact = _joined(exact, name.capitalize(), digits)
    rows["known"] = _without_nulls(rows, known)
    rows["requires_grad"] = cell.requires_grad(column("requires_grad"))
    checksum, kind = cell.checksums(column("md5"))
    checksum[~tensor] = None
    rows["checksum"] = _texts(checksum)
    rows["checksum_kind"] = np.where(tensor, kind, CHECKSUM_NONE).astype(np.int8)
    arguments = np.flatnonzero(~tensor)
    said = [column(name).iloc[arguments] for name in ("max", "tensor shape", "md5")]
    exact[~tensor] = _arguments(types.iloc[arguments], *said)
    rows["value"] = _texts(exact)
    rows["file"] = _texts(np.full(len(rows), None, dtype=object))
    stacks = _stacks(here[_STACK], rows["call"]) if side == "npu" and _STACK in here else {}
    level = _level(calls)
    return Dump(part, _task(cells), level, "", rows, _calls_frame(calls), _stacks=stacks)


def _texts(values: np.ndarray) -> pd.Series[str]:
    """A column of texts in which None stays None."""
    import pandas as pd

    return pd.Series(values, dtype=object)


def _calls_frame(names: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    split = [split_name(name) for name in names]
    keys = ("kind", "operation", "module", "index", "phase")
    columns = {
        key: pd.Series([part[at] for part in split], dtype="int64" if at == 3 else object)
        for at, key in enumerate(keys)
    }
    return pd.DataFrame(
        {"name": pd.Series(names, dtype=object), **columns, "parent": -1, "scope": "", "recompute": False}
    )


def _level(calls: np.ndarray) -> str:
    modules = [str(name).startswith(("Module.", "Cell.")) for name in calls]
    return "L0" if modules and all(modules) else "mix" if any(modules) else "L1"


def _task(cells: pd.DataFrame) -> str:
    if "npu md5" in cells:
        return "xor" if cell.matches(cells["npu md5"], r"\A0x").any() else "md5"
    return "tensor" if "cosine" in cells or "maxabserr" in cells else "statistics"


def _joined(texts: np.ndarray, label: str, more: np.ndarray) -> np.ndarray:
    """Spell exact integers as rows.py does: `Max=… Min=…`."""
    for at in [at for at, text in enumerate(more.tolist()) if text is not None]:
        texts[at] = f"{texts[at]} {label}={more[at]}" if texts[at] else f"{label}={more[at]}"
    return texts


def _without_nulls(rows: pd.DataFrame, known: np.ndarray) -> np.ndarray:
    """8.1.2 writes null as nan: a NaN is one only where Max and Min are too, and the dtype has one."""
    import numpy as np

    floating = rows["dtype"].astype(str).str.lower().str.contains("float|complex").to_numpy()
    ends = rows[["max", "min"]].isna().all(axis=1).to_numpy()
    null = rows[list(STATISTICS)].isna().to_numpy() & ~(floating & ends)[:, None]
    return np.asarray(known & ~np.packbits(null, axis=1, bitorder="little")[:, 0])


def _arguments(types: pd.Series[str], value: pd.Series[str], shape: pd.Series[str], md5: pd.Series[str]) -> np.ndarray:
    """The text of each argument: what stands as its Max; a size or a slice as its shape; else its checksum."""
    import numpy as np

    text = np.where(cell.is_empty(value), cell.texts(md5), cell.texts(value))
    text = np.where(types.isin(["torch.Size", "slice"]), cell.texts(shape), text)
    return np.array([cell.argument_text(*pair) for pair in zip(types, text.tolist(), strict=True)], dtype=object)


def _stacks(column: pd.Series[str], call: pd.Series[str]) -> dict[str, tuple[str, ...]]:
    """Each call's stack, which stands on its first row."""
    said = ~cell.is_empty(column) & ~cell.matches(column, r"\A\[\]\Z")
    texts = cell.texts(column)[said].tolist()
    frames = {text: _frames(text) for text in set(texts)}
    return {name: frames[text] for name, text in zip(call[said], texts, strict=True)}


def _frames(text: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return (text,)


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


def _is_ordered(speaking: pd.DataFrame) -> bool:
    """Tell whether a table can be in the order of execution.

    It is not where a call's rows stand apart, a later call of an operation precedes an earlier one, a backward its
    forward, or several operations stand in the order of their names.
    """
    import pandas as pd

    runs = speaking["call"][speaking["call"] != speaking["call"].shift()]
    if runs.duplicated().any():
        return False
    split = pd.DataFrame([split_name(name) for name in runs], columns=["kind", "operation", "module", "index", "phase"])
    split["at"] = split.index
    calls = split[split["module"] == ""]
    forward = calls[calls["phase"] == "forward"]
    if not forward.groupby(["kind", "operation"])["index"].is_monotonic_increasing.all():
        return False
    key = ["kind", "operation", "module", "index"]
    both = split[split["phase"] == "forward"].merge(split[split["phase"] == "backward"], on=key)
    if (both["at_y"] < both["at_x"]).any():
        return False
    operations = split["kind"] + "." + split["module"] + "." + split["operation"]
    return not (operations.nunique() > 2 and (speaking["call"] + "." + speaking["slot"]).is_monotonic_increasing)


def _recovered(
    cells: pd.DataFrame, sides: dict[str, Dump], names: dict[str, _Names], calls: pd.DataFrame, line_call: np.ndarray
) -> np.ndarray:
    """Rank each line's call by counters and data flow: the candidate's, where it has none the baseline's."""
    import numpy as np

    ranks = np.full(len(calls), len(calls), dtype=np.int64)
    for side, column in (("bench", "baseline"), ("npu", "candidate")):
        dump = sides[side]
        last = np.array(
            [any(map(OPTIMIZES.search, sides["npu"].stack(name))) for name in dump.calls["name"]], dtype=bool
        )
        recovered = recovered_order(dump, last)
        here = calls[column].to_numpy()
        ranks[here >= 0] = recovered[here[here >= 0]]
    return ranks[line_call]


def _row_order(speaking: pd.DataFrame, rank: np.ndarray, line_call: np.ndarray, ordered: bool) -> np.ndarray:
    """Order lines by call, and within a call inputs, parameters, outputs."""
    import numpy as np
    import pandas as pd

    first = pd.Series(rank).groupby(line_call).transform("min").to_numpy()
    io = speaking["slot"].str.partition(".")[0].map(_PLACES).fillna(OUTPUT).to_numpy()
    within = np.arange(len(rank))
    if not ordered:
        slots, unique = pd.factorize(speaking["slot"])
        by_number = np.argsort(np.array(sorted(range(len(unique)), key=lambda at: natural_key(unique[at]))))
        within = by_number[slots]
    return np.lexsort((within, io, line_call, first))


def _set_order(dump: Dump, names: _Names, order: np.ndarray) -> None:
    import numpy as np

    mine = names.row[order]
    mine = mine[mine >= 0]
    ranks = np.empty(len(mine), dtype=np.int64)
    ranks[mine] = np.arange(len(mine))
    dump.rows["order"] = ranks
