"""Which rows of one dump hold NaN or Inf, and what each call does to them: generates, propagates or kills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump, fingerprints
from precdiag.rows import OUTPUT
from precdiag.statistic import element_counts
from precdiag.uninitialised import undefined_contents, uninitialised

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# What a row holds, as bits. A statistic that is NaN hides whatever infinities stand beside it.
NAN, POSITIVE, NEGATIVE = 1, 2, 4
INFINITE = POSITIVE | NEGATIVE
GENERATED, PROPAGATED, KILLED = "generated", "propagated", "killed"

_MAX, _MIN, _MEAN = 1, 2, 4  # bits of the column `known`
_NUMBER = re.compile(r"[+-]?(nan|inf)\Z", re.IGNORECASE)
_WITHIN_TEXT = re.compile(r"(?<![a-z])([+-]?)(nan|inf)(?![a-z])", re.IGNORECASE)
_TEXTS = ("str", "None", "bool")
_INTEGRAL = ("int", "uint", "bool", "qint", "quint", "char", "short", "long", "byte")


@dataclass(frozen=True)
class Classes:
    """What is known of each row: arrays over the rows of one dump.

    `found`: uint8, the classes that stand in the data or in a scalar argument. `undefined`: bool, memory that nobody
    wrote, which proves nothing (found is 0 there). `unknown`: bool, floating-point data about which nothing is known.
    `looked`: bool, data that are known to be finite or not.
    """

    found: np.ndarray
    undefined: np.ndarray
    unknown: np.ndarray
    looked: np.ndarray


@dataclass(frozen=True)
class Flow:
    """What goes into each call and comes out of it: uint8 over the calls of one dump.

    `incoming`: classes of tensors and parameters, of a backward call also those of its forward call, of a parameter's
    gradient whatever was there before; `arguments`: of scalars; `outgoing`: of outputs; `within`: of the
    outputs of the calls directly inside a module. `returns`: bool, some output is known to be finite or not.
    """

    incoming: np.ndarray
    arguments: np.ndarray
    outgoing: np.ndarray
    within: np.ndarray
    returns: np.ndarray

    @property
    def gained(self) -> np.ndarray:
        """Classes that come out of a call and that no tensor brought in."""
        gained: np.ndarray = self.outgoing & ~self.incoming & ~self.within
        return gained


def classify(dump: Dump) -> Classes:
    """Tell from statistics what each row holds.

    Max and Min decide; an infinite or NaN Mean or Norm beside finite ends is a sum that overflowed, but for a NaN Mean,
    which only a NaN brings about where a device's Max passes NaN over.
    """
    import numpy as np

    rows = dump.rows
    found = _from_statistics(rows) | _from_texts(rows)
    tensor = rows["tensor"].to_numpy()
    undefined = _undefined(dump)
    known = (rows["known"].to_numpy() != 0) | (found != 0)
    holds = tensor & ~_integral(rows) & (element_counts(rows["shape"]) != 0)
    found = np.where(undefined, 0, found).astype(np.uint8)
    looked = tensor & ~undefined & (known | ~holds)
    return Classes(found, undefined, holds & ~known & ~undefined, looked)


def flow_of(dump: Dump, found: np.ndarray, looked: np.ndarray) -> Flow:
    """Gather the classes of rows (uint8 of len(rows)) by call."""
    import numpy as np

    rows, count = dump.rows, len(dump.calls)
    call = rows["call"].cat.codes.to_numpy()
    leaving = rows["io"].to_numpy() == OUTPUT
    tensor = rows["tensor"].to_numpy()

    def gathered(which: np.ndarray) -> np.ndarray:
        bits = np.zeros(count, dtype=np.uint8)
        at = np.flatnonzero(which & (found != 0))
        np.bitwise_or.at(bits, call[at], found[at])
        return bits

    outgoing = gathered(leaving & tensor)
    within = np.zeros(count, dtype=np.uint8)
    parent = dump.calls["parent"].to_numpy()
    inner = np.flatnonzero((parent >= 0) & (outgoing != 0))
    np.bitwise_or.at(within, parent[inner], outgoing[inner])
    returns = np.zeros(count, dtype=bool)
    returns[call[leaving & looked]] = True
    incoming = gathered(~leaving & tensor)
    incoming |= _saved(dump, outgoing, incoming | outgoing) | _before_gradients(dump, outgoing, found)
    return Flow(incoming, gathered(~tensor), outgoing, within, returns)


def events_of(dump: Dump, found: np.ndarray, flow: Flow) -> pd.DataFrame:
    """List what calls do to NaN and Inf, in the order in which work began: row (position), what, order.

    One line a call: its first output that it generated or passed on, or its first input that it killed.
    """
    import numpy as np
    import pandas as pd

    rows = dump.rows
    call = rows["call"].cat.codes.to_numpy()
    leaving = rows["io"].to_numpy() == OUTPUT
    tensor = rows["tensor"].to_numpy()
    generates = leaving & tensor & ((found & flow.gained[call]) != 0)
    passes = leaving & tensor & (found != 0) & (flow.gained[call] == 0)
    kills = ~leaving & tensor & (found != 0) & (flow.outgoing[call] == 0) & flow.returns[call]
    lines = []
    for which, what in ((generates, GENERATED), (passes, PROPAGATED), (kills, KILLED)):
        at = np.flatnonzero(which)
        first = at[np.unique(call[at], return_index=True)[1]]
        lines.append(pd.DataFrame({"row": first, "what": what, "order": rows["order"].to_numpy()[first]}))
    return pd.concat(lines, ignore_index=True).sort_values("order", kind="stable", ignore_index=True)


def value_of(found: int) -> str:
    """Name the gravest class: `nan`, `inf` or `-inf`."""
    return "nan" if found & NAN else "inf" if found & POSITIVE else "-inf"


def norm_overflows(dump: Dump) -> np.ndarray:
    """Mark rows whose Norm is infinite between finite Max and Min: the sum of squares overflowed, not the data."""
    import numpy as np

    rows = dump.rows
    known = rows["known"].to_numpy()
    ends = np.isfinite(rows["max"].to_numpy()) & np.isfinite(rows["min"].to_numpy())
    return np.asarray(((known & 8) != 0) & ends & ~np.isfinite(rows["norm"].to_numpy()))


def _saved(dump: Dump, outgoing: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Classes that the forward call of each backward call with anything to explain took in and gave out."""
    import numpy as np
    import pandas as pd

    saved = np.zeros(len(outgoing), dtype=np.uint8)
    backward = np.flatnonzero((dump.calls["phase"] == "backward").to_numpy() & (outgoing != 0))
    names = pd.Index(dump.calls["name"])
    forward = names.get_indexer(names[backward].str.replace(".backward", ".forward", regex=False))
    saved[backward[forward >= 0]] = held[forward[forward >= 0]]
    return saved


def _before_gradients(dump: Dump, outgoing: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Every class for gradients of parameters behind the first row that holds any: what made them is not recorded."""
    import numpy as np

    order = dump.rows["order"].to_numpy()
    held = (found != 0) & dump.rows["tensor"].to_numpy()
    passed = np.zeros(len(outgoing), dtype=np.uint8)
    if held.any():
        first = int(dump.rows["call"].cat.codes.to_numpy()[held][np.argmin(order[held])])
        later = (dump.calls["phase"] == "parameters_grad").to_numpy() & (np.arange(len(outgoing)) != first)
        passed[later] = NAN | INFINITE
    return passed


def _from_statistics(rows: pd.DataFrame) -> np.ndarray:
    import numpy as np

    known = rows["known"].to_numpy()
    high, low, mean = (rows[name].to_numpy() for name in ("max", "min", "mean"))
    knows_high, knows_low, knows_mean = ((known & bit) != 0 for bit in (_MAX, _MIN, _MEAN))
    ends = ~(knows_high & ~np.isfinite(high)) & ~(knows_low & ~np.isfinite(low))
    nan = (knows_high & np.isnan(high)) | (knows_low & np.isnan(low)) | (knows_mean & np.isnan(mean) & ends)
    positive = (knows_high & (high == np.inf)) | (knows_low & (low == np.inf))
    negative = (knows_high & (high == -np.inf)) | (knows_low & (low == -np.inf))
    return np.asarray(nan * NAN | positive * POSITIVE | negative * NEGATIVE, dtype=np.uint8)


def _from_texts(rows: pd.DataFrame) -> np.ndarray:
    """Classes of scalar arguments, of complex statistics, and of the bare value that xor leaves of a 0-dim tensor."""
    import numpy as np

    found = np.zeros(len(rows), dtype=np.uint8)
    tensor = rows["tensor"].to_numpy()
    kinds = rows["type"].astype(object).to_numpy()
    for column in ("value", "checksum"):
        texts = rows[column].to_numpy()
        for at in np.flatnonzero([text is not None and len(text) < 400 and "n" in text.lower() for text in texts]):
            if tensor[at]:
                for match in _WITHIN_TEXT.finditer(texts[at]):
                    found[at] |= _class_of(match[1] + match[2])
            elif kinds[at] not in _TEXTS and _NUMBER.match(texts[at]):
                found[at] |= _class_of(texts[at])
    return found


def _class_of(text: str) -> int:
    number = float(text)
    return NAN if number != number else POSITIVE if number > 0 else NEGATIVE


def _integral(rows: pd.DataFrame) -> np.ndarray:
    import numpy as np

    table = [name.rpartition(".")[2].lower().startswith(_INTEGRAL) for name in rows["dtype"].cat.categories]
    return np.array(table, dtype=bool)[rows["dtype"].cat.codes.to_numpy()]


def _undefined(dump: Dump) -> np.ndarray:
    """Rows that hold unwritten memory, or hand it on: not those whose value a call gave out by itself before."""
    import pandas as pd

    marked = uninitialised(dump)
    if not marked.any():
        return marked
    spread = undefined_contents(dump, marked)
    prints = pd.Series(fingerprints(dump))
    order = dump.rows["order"]
    own = (dump.rows["io"] == OUTPUT).to_numpy() & ~spread
    first = order[own].groupby(prints[own]).min()
    made: np.ndarray = (prints.map(first) < order).to_numpy()
    return marked | (spread & ~made)
