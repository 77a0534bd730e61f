"""Cells of msprobe's result tables, in every version's spelling, as numbers, flags and checksums."""

from __future__ import annotations

import re
from collections.abc import Callable
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


def of_texts(column: pd.Series[str]) -> pd.Series[str]:
    """Return a column of texts as a categorical: what is parsed here is parsed once for each distinct text."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    codes, unique = pd.factorize(column.to_numpy(dtype=object))
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(unique, dtype=object)), index=column.index)


def texts(column: pd.Series[str]) -> np.ndarray:
    """Return each cell's text, stripped: trailing tabs and leading blanks are guards against spreadsheets (object)."""
    return _spread(column, lambda text: text.to_numpy(dtype=object))


def is_empty(column: pd.Series[str]) -> np.ndarray:
    """Mark cells in which a side says nothing (`N/A`, `None`, nothing at all)."""
    return _spread(column, lambda text: text.str.lower().isin(EMPTY).to_numpy(dtype=bool))


def matches(column: pd.Series[str], pattern: str) -> np.ndarray:
    """Mark cells in whose text a regular expression is found."""
    return _spread(column, lambda text: text.str.contains(pattern, case=False).to_numpy(dtype=bool))


def statistics(column: pd.Series[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic's values (float64, NaN also where null), where one stands, and the digits of large integers.

    One stands where there is a number, a flag or NaN; the digits (object, else None) are those of integers beyond what
    float64 holds.
    """
    import numpy as np

    text, codes = _distinct(column)
    values = _numbers(text)
    stands, exact = ~np.isnan(values), np.full(len(text), None, dtype=object)
    rest = np.flatnonzero(~stands)
    stands[rest] = text.iloc[rest].str.lower().isin(_NANS).to_numpy(dtype=bool)
    for at in np.flatnonzero(np.abs(values) > EXACT_INTEGER).tolist():
        exact[at] = text.iat[at] if _EXACT.fullmatch(text.iat[at]) else None
    return values[codes], stands[codes], exact[codes]


def metrics(column: pd.Series[str]) -> np.ndarray:
    """Return a metric's values: float64, percent as ratio, inf where too unlike for a number, NaN where not said."""
    import numpy as np

    def parse(text: pd.Series[str]) -> np.ndarray:
        values = _numbers(text.str.removesuffix("%"))
        values = np.where(text.str.endswith("%").to_numpy(dtype=bool), values / 100, values)
        values[text.str.lower().isin(_UNLIKE).to_numpy(dtype=bool)] = np.inf
        return values

    return _spread(column, parse)


def requires_grad(column: pd.Series[str]) -> np.ndarray:
    """Return 1, 0, or -1 where it is not said: int8."""
    return _spread(column, lambda text: text.str.lower().map(_TRUTH).fillna(-1).to_numpy(dtype="int8"))


def checksums(column: pd.Series[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return checksums (object, None where none) and their kinds (int8, as in rows.py).

    A 0-dim tensor stands with its bare value among xor checksums. A spreadsheet that re-saved the table took digits for
    a number: leading zeros are restored, and what it rounded is no checksum any more.
    """
    import numpy as np

    is_xor = bool(matches(column, r"\A0x").any())

    def parse(text: pd.Series[str]) -> np.ndarray:
        known = ~text.str.lower().isin(EMPTY)
        if not is_xor:
            whole = text.str.removesuffix(".0")
            text = text.where(~whole.str.fullmatch(r"\d{1,8}"), whole.str.zfill(8))
            known &= text.str.fullmatch(_CRC)
        return text.where(known, None).to_numpy(dtype=object)

    sums = _spread(column, parse)
    kind = np.where(sums != None, CHECKSUM_XOR if is_xor else CHECKSUM_CRC, CHECKSUM_NONE)  # noqa: E711 - elementwise
    return sums, kind.astype(np.int8)


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


def _distinct(column: pd.Series[str]) -> tuple[pd.Series[str], np.ndarray]:
    """Return the distinct texts of a column, stripped, and which of them stands in each cell."""
    import pandas as pd

    text = pd.Series([each.strip() for each in column.cat.categories], dtype=object)
    return text, column.cat.codes.to_numpy()


def _spread(column: pd.Series[str], parse: Callable[[pd.Series[str]], np.ndarray]) -> np.ndarray:
    """Parse each distinct text of a column once, and lay what it means on the cells."""
    text, codes = _distinct(column)
    parsed: np.ndarray = parse(text)
    return parsed[codes]


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
