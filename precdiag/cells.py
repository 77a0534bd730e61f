"""Cells of msprobe's result tables, in every version's spelling, as numbers, flags and checksums."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from precdiag.rows import CHECKSUM_CRC, CHECKSUM_NONE, CHECKSUM_XOR, EXACT_INTEGER

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# What stands where a side has no row, or msprobe nothing to say.
EMPTY = frozenset({"", "n/a", "none", "null", "-"})
# What stands where msprobe found the two sides too unlike for a number.
_UNLIKE = frozenset({"diff", "different"})
_NANS = frozenset({"nan", "nan%", "#num!"})
_TRUTH = {"true": 1.0, "false": 0.0}
_EXACT = re.compile(r"-?\d{16,}")
_CRC = re.compile(r"[0-9a-f]{8}")
_CLASS = re.compile(r"<class '(.*)'>")


def texts(column: pd.Series[str]) -> pd.Series[str]:
    """Return cells as stripped text: a trailing tab and a leading blank are msprobe's guards against spreadsheets."""
    return column.astype(str).str.strip()


def is_empty(column: pd.Series[str]) -> np.ndarray:
    """Mark cells in which a side says nothing (`N/A`, `None`, nothing at all)."""
    import numpy as np

    return np.asarray(column.str.lower().isin(EMPTY))


def statistics(column: pd.Series[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return a statistic's values (float64, NaN also where null) and where one stands: a number, NaN or a flag."""
    import numpy as np

    values = _numbers(column)
    nan = column.str.lower().isin(_NANS).to_numpy()
    return values, ~np.isnan(values) | nan


def exact_integers(column: pd.Series[str]) -> np.ndarray:
    """Return the text of integers that float64 cannot hold, else None: object array."""
    import numpy as np

    exact = np.full(len(column), None, dtype=object)
    for at in np.flatnonzero(column.str.fullmatch(_EXACT).to_numpy(dtype=bool)).tolist():
        text = column.iat[at]
        exact[at] = text if abs(int(text)) > EXACT_INTEGER else None
    return exact


def metrics(column: pd.Series[str]) -> np.ndarray:
    """Return a metric's values: float64, percent as ratio, inf where too unlike for a number, NaN where not said."""
    import numpy as np

    percent = column.str.endswith("%").to_numpy(dtype=bool)
    values = _numbers(column.str.removesuffix("%"))
    values = np.where(percent, values / 100, values)
    values[column.str.lower().isin(_UNLIKE).to_numpy()] = np.inf
    return values


def requires_grad(column: pd.Series[str]) -> np.ndarray:
    """Return 1, 0, or -1 where it is not said: int8."""
    return column.str.lower().map(_TRUTH).fillna(-1).to_numpy(dtype="int8")


def checksums(column: pd.Series[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return checksums (object, None where none) and their kinds (int8, as in rows.py).

    A 0-dim tensor stands with its bare value among xor checksums. A spreadsheet that re-saved the table took digits for
    a number: leading zeros are restored, and what it rounded is no checksum any more.
    """
    import numpy as np

    known = ~is_empty(column)
    is_xor = bool(column.str.startswith("0x").any())
    if not is_xor:
        whole = column.str.removesuffix(".0")
        column = column.where(~whole.str.fullmatch(r"\d{1,8}"), whole.str.zfill(8))
        known &= column.str.fullmatch(_CRC).to_numpy(dtype=bool)
    kind = np.where(known, CHECKSUM_XOR if is_xor else CHECKSUM_CRC, CHECKSUM_NONE).astype(np.int8)
    return column.where(known, None).to_numpy(dtype=object, copy=True), kind


def argument_type(dtype: str) -> str | None:
    """Return the type of an argument from its dtype cell (`<class 'int'>`, `torch.Size`, empty for None).

    None for a tensor's dtype.
    """
    if dtype.lower() in EMPTY:
        return "None"
    match = _CLASS.fullmatch(dtype)
    if match:
        return "None" if match[1] == "NoneType" else match[1]
    return dtype if dtype in ("torch.Size", "slice", "ellipsis", "torch.ProcessGroup", "int", "str") else None


def argument_text(kind: str, value: str) -> str:
    """Return an argument's value as dump.py spells it; a spreadsheet may have turned 2 into 2.0 and True into TRUE."""
    if kind == "None":
        return "None"
    if kind == "bool":
        return value.capitalize()
    if kind not in ("int", "float"):
        return value
    try:
        if kind == "int":
            return str(int(value.removesuffix(".0")))
        return repr(float(value) + 0.0)
    except ValueError:
        return value


def _numbers(column: pd.Series[str]) -> np.ndarray:
    """Parse numbers and flags: float64, NaN for everything else. A comma is the decimal sign of some spreadsheets."""
    import numpy as np
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    rest = np.flatnonzero(np.isnan(numbers))
    if len(rest):
        words = column.iloc[rest].str.lower()
        flags = words.map(_TRUTH).to_numpy(dtype=np.float64)
        commas = pd.to_numeric(words.str.replace(",", "."), errors="coerce").to_numpy(dtype=np.float64)
        numbers[rest] = np.where(np.isnan(flags), commas, flags)
    return numbers
