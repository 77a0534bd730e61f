"""What error each row could have taken in: from its call's inputs, its forward call, the calls inside its module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from precdiag.evidence import EXCLUDED
from precdiag.judge import Judged
from precdiag.relative import Errors
from precdiag.replaced import largest_before
from precdiag.rows import INPUT, OUTPUT
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# Operations that add what they take in: cancellation magnifies its relative error, only the absolute one is bounded.
_SUMS = frozenset({"sum", "mean", "cumsum"})
_ADDS = _SUMS | {"add", "sub", "rsub", "__add__", "__sub__", "__radd__", "__rsub__", "__iadd__", "__isub__"}
_ADDS = _ADDS | {"add_", "sub_"}
_BACKWARD = re.compile(r"\.backward\b")


def incoming(judged: Judged, errors: Errors) -> tuple[np.ndarray, np.ndarray]:
    """Return e_in of each line of `judged.rows`, relative, and the roundoff that its call computes in.

    An output's e_in is the largest error among its call's inputs and parameters; of a backward call also among all
    rows of its forward call, whose values it uses; of a module also among the rows of the calls inside it, which
    answer for themselves; and where errors are estimated from statistics, which may miss any one, among all rows
    before it. An input's is the largest error before it: it was made by what went before. inf where an integer that
    was taken in differs (other elements were chosen) or what was taken in cannot be told. The roundoff is the coarsest
    of the call's rows, inner calls included.
    """
    import numpy as np
    import pandas as pd

    rows = judged.rows
    call, size = rows["call"].to_numpy(), len(judged.pairing.calls)
    paired = ((rows["baseline"] >= 0) & (rows["candidate"] >= 0)).to_numpy()
    at = np.maximum(rows["baseline"].to_numpy(), 0)
    io = judged.baseline.rows["io"].to_numpy()[at]
    tensor = paired & judged.baseline.rows["tensor"].to_numpy()[at]
    untold = tensor & np.isnan(errors.e) & (rows["state"] != EXCLUDED).to_numpy()
    lines = pd.DataFrame({"call": call, "e": np.where(untold, np.inf, errors.e), "u": errors.u})[paired]
    taken = _largest(lines[io[paired] != OUTPUT], "e", size)
    whole, roundoff = _largest(lines, "e", size), _largest(lines, "u", size)
    own = np.fmax(taken, _cancelled(judged, errors, tensor, io))
    child, parent = _inside(judged)
    backward, forward = _forward_of(judged)
    np.fmax.at(roundoff, parent, roundoff[child])
    for to, of in ((parent, child), (backward, forward)):
        np.fmax.at(own, to, whole[of])
        np.fmax.at(roundoff, to, roundoff[of])
    level = largest_before(errors.e)
    e_in = np.where(io == OUTPUT, np.nan_to_num(own, nan=0.0)[call], level)
    # What a replaced region takes in is not paired: like an input, its result stands behind all that precedes it.
    alone = (judged.pairing.calls[["baseline", "candidate"]] < 0).any(axis=1).to_numpy()[call]
    e_in = np.where((io == OUTPUT) & (alone | ~errors.exact), np.fmax(e_in, level), e_in)
    return e_in, roundoff[call]


def _largest(lines: pd.DataFrame, column: str, size: int) -> np.ndarray:
    """The largest of a column by call, NaN where there is none."""
    import numpy as np

    largest = np.full(size, np.nan)
    np.fmax.at(largest, lines["call"].to_numpy(), lines[column].to_numpy())
    return largest


def _cancelled(judged: Judged, errors: Errors, tensor: np.ndarray, io: np.ndarray) -> np.ndarray:
    """By call: Σ ‖δ_input‖ / ‖output‖ of calls that add, NaN for others.

    A sum over m elements magnifies the absolute error by √m at most (Cauchy-Schwarz), a mean divides that by m; and
    either rounds in proportion to what it adds, not to its result.
    """
    import numpy as np

    rows, calls = judged.rows, judged.baseline.calls
    position = judged.pairing.calls["baseline"].to_numpy()
    operation = np.where(position >= 0, calls["operation"].to_numpy(dtype=object)[position], "")
    adds = np.isin(operation.astype(str), list(_ADDS))
    call = rows["call"].to_numpy()
    at = np.maximum(rows["baseline"].to_numpy(), 0)
    size, count = len(operation), element_counts(judged.baseline.rows["shape"])[at].astype(np.float64)
    given, made = tensor & (io == INPUT) & adds[call], tensor & (io == OUTPUT) & adds[call]
    result, results = np.full(size, np.nan), np.full(size, np.nan)
    np.fmax.at(result, call[made], errors.norm[made])
    np.fmax.at(results, call[made], count[made])
    sums, means = np.isin(operation.astype(str), list(_SUMS))[call], (operation == "mean")[call]
    with np.errstate(invalid="ignore", divide="ignore"):
        m = np.fmax(count / results[call], 1.0)
        factor = np.where(sums, np.where(means, 1 / np.sqrt(m), np.sqrt(m)), 1.0)
        absolute = (errors.e + np.where(sums, np.nan_to_num(errors.u), 0.0)) * errors.norm * factor
        added = np.bincount(call[given], weights=absolute[given], minlength=size)
        share = added / result
    return np.where(adds & ~np.isnan(share), share, np.nan)


def _inside(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of lines of Pairing.calls: a call that both sides made, and the module call around it."""
    import numpy as np

    calls = judged.pairing.calls
    line = _line_by_position(judged)
    both = np.flatnonzero(((calls["baseline"] >= 0) & (calls["candidate"] >= 0)).to_numpy())
    parent = judged.baseline.calls["parent"].to_numpy()[calls["baseline"].to_numpy()[both]]
    return both[parent >= 0], line[parent[parent >= 0]]


def _forward_of(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of lines of Pairing.calls: a backward call and its forward call, a module's gradients and its calls."""
    import numpy as np
    import pandas as pd

    calls = judged.baseline.calls
    line = _line_by_position(judged)
    names = calls["name"]
    backward = np.flatnonzero((calls["phase"] == "backward").to_numpy())
    forward = pd.Index(names).get_indexer(pd.Index(names.iloc[backward].str.replace(_BACKWARD, ".forward", regex=True)))
    known = forward >= 0
    modules = calls[calls["module"] != ""].reset_index(names="position")
    gradients = modules[modules["phase"] == "parameters_grad"]
    others = modules[modules["phase"] != "parameters_grad"]
    uses = gradients.merge(others, on=["module", "operation"], suffixes=("", "_of"))
    to = np.concatenate([backward[known], uses["position"].to_numpy(dtype=np.int64)])
    of = np.concatenate([forward[known], uses["position_of"].to_numpy(dtype=np.int64)])
    return line[to], line[of]


def _line_by_position(judged: Judged) -> np.ndarray:
    """The line of Pairing.calls of each call of the baseline."""
    import numpy as np

    position = judged.pairing.calls["baseline"].to_numpy()
    line = np.full(len(judged.baseline.calls), -1, dtype=np.int64)
    line[position[position >= 0]] = np.flatnonzero(position >= 0)
    return line
