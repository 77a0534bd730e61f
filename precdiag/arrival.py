"""Where a value that no dumped call gave out may have come from: the output it was, and the calls in between."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from precdiag.dump import Dump, fingerprints
from precdiag.rows import INPUT, OUTPUT, UPDATE_SCOPES

SUSPECTS_NAMED = 3

_IN_PLACE = re.compile(r"(?:[a-z0-9]_|__setitem__|__i(?!nvert)\w+__)\Z")

# Narrower than source.OPTIMIZES: a trainer's own `step` holds the whole iteration, data included.
_UPDATES = re.compile(r"torch[/\\]optim[/\\]|, in (?:_single_tensor_\w+|_multi_tensor_\w+|clip_grad_norm_?)\b")


def call_before(dump: Dump, row: int) -> str:
    """Name the call that gave something out last before this row."""
    order = dump.rows["order"].to_numpy()
    call = dump.rows["call"].cat.codes.to_numpy()
    earlier = np.flatnonzero((order < order[row]) & (call != call[row]) & (dump.rows["io"].to_numpy() == OUTPUT))
    return str(dump.rows["call"].iat[earlier[np.argmax(order[earlier])]]) if len(earlier) else "the start of the step"


def like(dump: Dump, row: int) -> np.ndarray:
    """Mark earlier outputs of the same shape and dtype: bool of len(rows)."""
    rows = dump.rows
    same = np.asarray(rows["tensor"].to_numpy() & (rows["io"].to_numpy() == OUTPUT))
    for column in ("shape", "dtype"):
        codes = rows[column].cat.codes.to_numpy()
        same &= codes == codes[row]
    order = rows["order"].to_numpy()
    return np.asarray(same & (order < order[row]))


def trains(dump: Dump) -> bool:
    """Whether outputs of this dump need gradients at all: under no_grad an activation looks like data."""
    rows = dump.rows
    return bool(((rows["io"] == OUTPUT) & (rows["requires_grad"] == 1)).any())


def updates(dump: Dump, call: str, scope: str) -> bool:
    """Whether a call was made inside an optimizer step or gradient clipping, by construct.json or by its stack."""
    return scope in UPDATE_SCOPES or any(_UPDATES.search(frame) for frame in dump.stack(call))


def continues(dump: Dump, row: int) -> np.ndarray:
    """Mark such outputs that share a finite end with this row, so that only single elements were written."""
    rows = dump.rows
    shared = np.zeros(len(rows), dtype=bool)
    for name in ("max", "min"):
        end = float(rows[name].iat[row])
        if math.isfinite(end) and end != 0:  # relu ends at 0 everywhere
            shared |= rows[name].to_numpy() == end
    return np.asarray(shared & like(dump, row))


def maker_of(dump: Dump, row: int) -> int | None:
    """Return the output that arrives changed as this row: the latest that shares an end with it, else the latest of its
    shape and dtype that arrives nowhere as it was given out; None where there is none.
    """
    order = dump.rows["order"].to_numpy()
    continued = np.flatnonzero(continues(dump, row))
    if len(continued):
        return int(continued[np.argmax(order[continued])])
    prints, inputs = fingerprints(dump), (dump.rows["io"] == INPUT).to_numpy()
    arrived = pd.Series(order[inputs]).groupby(prints[inputs]).max()
    candidates = np.flatnonzero(like(dump, row))
    last = pd.Series(prints[candidates]).map(arrived).fillna(-1).to_numpy()
    unclaimed = candidates[last < order[candidates]]
    return int(unclaimed[np.argmax(order[unclaimed])]) if len(unclaimed) else None


def suspects_of(dump: Dump, row: int, maker: int | None) -> Iterator[str]:
    """Yield in-place calls behind the output that arrives changed (its `maker_of`), the nearest first."""
    order = dump.rows["order"].to_numpy()
    since = -1 if maker is None else int(order[maker])
    between = np.flatnonzero((order < order[row]) & (order > since) & (dump.rows["slot"] == "input.0").to_numpy())
    calls = dump.rows["call"].cat.codes.to_numpy()[between[np.argsort(-order[between])]]
    named = [int(c) for c in dict.fromkeys(calls.tolist()) if _IN_PLACE.search(str(dump.calls["operation"].iat[c]))]
    yield from (str(dump.calls["name"].iat[c]) for c in named[:SUSPECTS_NAMED])
