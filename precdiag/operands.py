"""The numbers at hand of one call: the ends of its inputs, its scalars, its dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.rows import INPUT, OUTPUT
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Largest finite value by dtype (torch.finfo). float8_e4m3fn has no infinity: beyond its limit stands NaN.
LIMITS = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


_FLOATS = ("float", "bfloat", "double", "half")
_MASKS = ("input.3", "input.attn_mask", "input.atten_mask")
_NAN_ENDS = (math.nan, math.nan)


@dataclass(frozen=True)
class Numbers:
    """What the dump says about one call; NaN where it does not.

    `low`, `high`: the ends of its first floating-point input, `other_low`, `other_high` of the second (a scalar counts
    as both ends); of a backward call those of the forward call, and `gradient`, the largest absolute gradient that came
    in. `dtype`: of the output. `elements`: of the first input; `terms`: how many of them go into one element of the
    output. `arguments`: scalars by slot. `labels`: ends of the first integer input, `mask_ends` of an attention mask.
    """

    low: float = math.nan
    high: float = math.nan
    other_low: float = math.nan
    other_high: float = math.nan
    gradient: float = math.nan
    dtype: str = ""
    elements: int = -1
    terms: int = 1
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[float, float] = (math.nan, math.nan)
    mask_ends: tuple[float, float] = (math.nan, math.nan)

    @property
    def limit(self) -> float:
        """The largest finite value of the output's dtype."""
        return LIMITS.get(self.dtype, math.inf)

    @property
    def most(self) -> float:
        """The largest absolute value of the first input."""
        return max(abs(self.low), abs(self.high))

    @property
    def other(self) -> float:
        """The largest absolute value of the second input."""
        return max(abs(self.other_low), abs(self.other_high))

    @property
    def exponent_limit(self) -> float:
        """Above this, exp is beyond the output's dtype."""
        return math.log(self.limit)

    @property
    def ignored(self) -> float:
        """The label that cross_entropy and nll_loss leave out."""
        for slot in ("input.ignore_index", "input.4", "ignore_index"):
            if self.arguments.get(slot, "").lstrip("-").isdecimal():
                return float(self.arguments[slot])
        return -100.0


def rows_of(dump: Dump, call: int) -> np.ndarray:
    """Return the positions of a call's rows."""
    import numpy as np

    codes = dump.rows["call"].cat.codes.to_numpy()  # ascending: rows stand call by call
    return np.arange(*np.searchsorted(codes, [call, call + 1]))


def forward_of(dump: Dump, call: int) -> int | None:
    """Return the forward call whose backward or parameters_grad a call is; None where the dump lacks it."""
    name = str(dump.calls["name"].iat[call])
    for phase in ("backward", "parameters_grad"):
        name = name.replace(f".{phase}", ".forward")
    at = dump.rows["call"].cat.categories.get_indexer([name])[0]
    return int(at) if at >= 0 else None


def numbers_of(dump: Dump, row: int) -> Numbers:
    """Gather what the dump says about the call that gave out a row."""
    rows = dump.rows
    call = int(rows["call"].cat.codes.iat[row])
    own = rows.iloc[rows_of(dump, call)]
    backward = str(dump.calls["phase"].iat[call]) != "forward"
    forward = forward_of(dump, call) if backward else call
    given = own if forward is None else rows.iloc[rows_of(dump, forward)]
    incoming = given[given["io"] != OUTPUT]
    kinds = [str(name).rpartition(".")[2].lower() for name in incoming["dtype"]]
    floats = incoming[[kind.startswith(_FLOATS) for kind in kinds]]
    integers = incoming[[kind.startswith(("int", "uint")) for kind in kinds]]
    arguments = {
        str(slot): str(value) for slot, value in zip(incoming["slot"], incoming["value"], strict=True) if value
    }
    first = _ends(floats, 0)
    gradients = own[own["io"] == INPUT] if backward else own.iloc[:0]
    return Numbers(
        low=first[0],
        high=first[1],
        other_low=(other := _second(floats, incoming))[0],
        other_high=other[1],
        gradient=max((max(abs(low), abs(high)) for low, high in _all_ends(gradients)), default=math.nan),
        dtype=str(rows["dtype"].iat[row]).rpartition(".")[2],
        elements=_elements(floats, 0),
        terms=_terms(str(dump.calls["operation"].iat[call]), floats, _elements(rows.iloc[[row]], 0)),
        arguments=arguments,
        labels=_ends(integers, 0),
        mask_ends=_ends(incoming[incoming["slot"].isin(_MASKS) & incoming["tensor"]], 0),
    )


def _all_ends(rows: pd.DataFrame) -> list[tuple[float, float]]:
    ends = zip(rows["min"].tolist(), rows["max"].tolist(), strict=True)
    return [each for each in ends if not math.isnan(each[0])]


def _ends(rows: pd.DataFrame, at: int) -> tuple[float, float]:
    return (float(rows["min"].iat[at]), float(rows["max"].iat[at])) if len(rows) > at else _NAN_ENDS


def _second(floats: pd.DataFrame, incoming: pd.DataFrame) -> tuple[float, float]:
    """The ends of the second floating-point input, a scalar counting as both."""
    if len(floats) > 1:
        return _ends(floats, 1)
    for kind, value in zip(incoming["type"].astype(str), incoming["value"], strict=True):
        if kind in ("int", "float") or kind.startswith(("int", "float", "numpy.")):
            return (float(value), float(value))
    whole = incoming[incoming["tensor"] & ~incoming.index.isin(floats.index)]
    return _ends(whole, 0)


def _elements(rows: pd.DataFrame, at: int) -> int:
    return int(element_counts(rows["shape"])[at]) if len(rows) > at else -1


def _terms(operation: str, floats: pd.DataFrame, results: int) -> int:
    """How many terms go into one element of the result.

    A convolution's channels and window, a product's last dimension, else elements over elements.
    """
    first = _elements(floats, 0)
    if len(floats) > 1:
        shapes = [_shape(text) for text in floats["shape"].astype(str).iloc[:2]]
        if operation.lower().startswith("conv"):
            return math.prod(shapes[1][1:])
        return shapes[0][-1] if shapes[0] else 1
    return max(first // results, 1) if first > 0 and results > 0 else 1


def _shape(text: str) -> list[int]:
    return [int(size) for size in text.strip("[]()").split(",") if size.strip().isdecimal()]
