"""One side of a result table as the dump that it was made of, as far as the table shows it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precdiag import cells as cell
from precdiag.dump import Dump
from precdiag.layout import Part
from precdiag.rows import CHECKSUM_NONE, INPUT, OUTPUT, PARAMETER, STATISTICS, split_names

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

PLACES = {"input": INPUT, "parameters": PARAMETER}

_COLUMN = {"max": "max", "min": "min", "mean": "mean", "norm": "l2norm"}
_STACK = "npu_stack_info"


def dump_of_side(
    cells: pd.DataFrame, side: str, call_names: np.ndarray, slots: np.ndarray, there: np.ndarray, part: Part
) -> Dump:
    """Return what the columns of one side (`npu` or `bench`) hold as a dump without files, rows in the table's order.

    `call_names`, `slots`: each line's row name taken apart; `there`: which lines the side has. The order column is set
    by the caller.
    """
    import numpy as np
    import pandas as pd

    here = cells[there].reset_index(drop=True)
    blank = cell.of_texts(pd.Series("", index=here.index, dtype=object))

    def column(name: str) -> pd.Series[str]:
        return here.get(f"{side} {name}", blank)

    call, calls = pd.factorize(call_names[there])
    rows = pd.DataFrame(
        {
            "call": pd.Categorical.from_codes(call, categories=pd.Index(calls, dtype=object)),
            "slot": pd.Categorical(slots[there]),
        }
    )
    rows["io"] = np.array([PLACES.get(slot.partition(".")[0], OUTPUT) for slot in rows["slot"].cat.categories], "i1")[
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
    frame = split_names(calls).assign(parent=-1, scope="", recompute=False)
    return Dump(part, task_of(cells), _level(calls), "", rows, frame, _stacks=stacks)


def _texts(values: np.ndarray) -> pd.Series[str]:
    """A column of texts in which None stays None."""
    import pandas as pd

    return pd.Series(values, dtype=object)


def _level(calls: np.ndarray) -> str:
    modules = [str(name).startswith(("Module.", "Cell.")) for name in calls]
    return "L0" if modules and all(modules) else "mix" if any(modules) else "L1"


def task_of(cells: pd.DataFrame) -> str:
    """Tell what a table compares by its columns: `tensor`, `statistics`, `md5` or `xor`."""
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
