"""What error each row could have taken in: from its call's inputs, its forward call, the calls inside its module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.evidence import EXCLUDED, SHAPE
from precdiag.judge import Judged
from precdiag.relative import Errors
from precdiag.replaced import largest_before
from precdiag.rows import INPUT, OUTPUT
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import numpy as np

# Operations that add what they take in: cancellation magnifies its relative error, only the absolute one is bounded.
_SUMS = frozenset({"sum", "mean", "cumsum"})
_ADDS = _SUMS | {"add", "sub", "rsub", "__add__", "__sub__", "__radd__", "__rsub__", "__iadd__", "__isub__"}
_ADDS = _ADDS | {"add_", "sub_"}
_BACKWARD = re.compile(r"\.backward\b")


@dataclass(frozen=True)
class Incoming:
    """What each line of `judged.rows` could have taken in; every field is an array over the lines.

    e: relative error. u: the roundoff that the line's call computes in, the coarsest of its rows and of the calls
    inside it. trusted: the call stands in a module (or at the top) where both sides made the same calls; elsewhere
    calls of one name may have been paired that do not belong together, so that what they take in says nothing. alike:
    the two calls take in and give out tensors of the same shapes; calls that do not are no pair, and are left out.
    """

    e: np.ndarray
    u: np.ndarray
    trusted: np.ndarray
    alike: np.ndarray


def incoming(judged: Judged, errors: Errors) -> Incoming:
    """Return what each line could have taken in.

    An output's e is the largest error among its call's inputs and parameters; of a backward call also among all rows
    of its forward call, whose values it uses; of a module also among the rows of the calls inside it, which answer for
    themselves; and where errors are estimated from statistics, which may miss any one, among all rows before it. An
    input's is the largest error before it: it was made by what went before. inf where an integer that was taken in
    differs (other elements were chosen) or what was taken in cannot be told.
    """
    import numpy as np

    rows, calls = judged.rows, judged.baseline.calls
    call, size = rows["call"].to_numpy(), len(judged.pairing.calls)
    paired = judged.pairing.paired
    at = np.maximum(rows["baseline"].to_numpy(), 0)
    io = judged.baseline.rows["io"].to_numpy()[at]
    tensor = paired & judged.baseline.rows["tensor"].to_numpy()[at]
    position = np.maximum(judged.pairing.calls["baseline"].to_numpy(), 0)
    child, parent = _inside(judged)
    backward, forward = _forward_of(judged)
    trusted = _trusted(judged)
    # Modules are paired by their path: where their shapes differ, other elements were chosen.
    api = (calls["module"] == "").to_numpy()[position]
    unlike = np.zeros(size, dtype=bool)
    unlike[call[judged.differs_in(SHAPE) & api[call]]] = True
    unlike[backward[unlike[forward]]] = True
    alike = ~unlike
    untold = tensor & np.isnan(errors.e) & (rows["state"] != EXCLUDED).to_numpy()
    e = np.where(untold, np.inf, errors.e)
    counted = paired & alike[call]
    taken = _largest(call, e, counted & (io != OUTPUT), size)
    whole, roundoff = _largest(call, e, counted, size), _largest(call, errors.u, counted, size)
    own = np.fmax(taken, _cancelled(judged, errors, tensor & counted, io))
    own = np.fmax(own, _gradients(judged, errors, tensor & counted, io, backward, forward))
    inside = trusted[child]
    np.fmax.at(roundoff, parent, roundoff[child])
    for to, of in ((parent[inside], child[inside]), (backward, forward)):
        np.fmax.at(own, to, whole[of])
        np.fmax.at(roundoff, to, roundoff[of])
    firm = counted & trusted[call]
    level, anywhere = largest_before(np.where(firm, errors.e, np.nan)), largest_before(errors.e)
    # What a replaced region takes in is not paired: like an input, its result stands behind all that precedes it.
    replaced = (judged.pairing.calls[["baseline", "candidate"]] < 0).any(axis=1).to_numpy()[call]
    estimated = (io == OUTPUT) & (~errors.exact | replaced)
    e_in = np.where(io == OUTPUT, np.nan_to_num(own, nan=0.0, posinf=np.inf)[call], level)
    e_in = np.where(estimated, np.fmax(e_in, np.where(trusted[call], level, anywhere)), e_in)
    return Incoming(e_in, roundoff[call], trusted[call], alike[call])


def _largest(call: np.ndarray, values: np.ndarray, where: np.ndarray, size: int) -> np.ndarray:
    """The largest value by call, NaN where there is none."""
    import numpy as np

    largest = np.full(size, np.nan)
    np.fmax.at(largest, call[where], values[where])
    return largest


def _trusted(judged: Judged) -> np.ndarray:
    """Mark the calls, by line of Pairing.calls, around which both sides made the same calls; modules always are."""
    import numpy as np

    calls = judged.pairing.calls
    trusted = np.ones(len(calls), dtype=bool)
    alone: set[int] = set()
    for dump, side, other in (
        (judged.baseline, "baseline", "candidate"),
        (judged.candidate, "candidate", "baseline"),
    ):
        line = _line_by_position(judged, side)
        here = calls[side].to_numpy()[(calls[other] < 0).to_numpy()]
        parents = dump.calls["parent"].to_numpy()[here]
        alone |= set(np.where(parents >= 0, line[parents], -1).tolist())
    position = judged.pairing.calls["baseline"].to_numpy()
    known = position >= 0
    parent = judged.baseline.calls["parent"].to_numpy()[position[known]]
    scope = np.where(parent >= 0, _line_by_position(judged, "baseline")[parent], -1)
    module = (judged.baseline.calls["module"] != "").to_numpy()[position[known]]
    trusted[known] = module | ~np.isin(scope, list(alone))
    return trusted


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
    result, results = _largest(call, errors.norm, made, size), _largest(call, count, made, size)
    sums, means = np.isin(operation.astype(str), list(_SUMS))[call], (operation == "mean")[call]
    with np.errstate(invalid="ignore", divide="ignore"):
        m = np.fmax(count / results[call], 1.0)
        factor = np.where(sums, np.where(means, 1 / np.sqrt(m), np.sqrt(m)), 1.0)
        absolute = (errors.e + np.where(sums, np.nan_to_num(errors.u), 0.0)) * errors.norm * factor
        added = np.bincount(call[given], weights=absolute[given], minlength=size)
        share = added / result
    return np.where(adds & ~np.isnan(share), share, np.nan)


def _gradients(
    judged: Judged, errors: Errors, tensor: np.ndarray, io: np.ndarray, to: np.ndarray, of: np.ndarray
) -> np.ndarray:
    """By call that gives a parameter's gradient: what its cancelling sum over tokens may make of the error it takes in.

    The gradient is a product gᵀx, so that ‖δ‖ <= ‖δg‖ ‖x‖ + ‖g‖ ‖δx‖; NaN for other calls.
    """
    import numpy as np

    calls = judged.baseline.calls
    call, size = judged.rows["call"].to_numpy(), len(judged.pairing.calls)
    position = np.maximum(judged.pairing.calls["baseline"].to_numpy(), 0)
    phase = calls["phase"].to_numpy(dtype=object)[position]
    given, made = tensor & (io == INPUT), tensor & (io == OUTPUT)
    norm, error = _largest(call, errors.norm, given, size), _largest(call, errors.e, given, size)
    result = np.full(size, np.nan)
    np.fmin.at(result, call[made], errors.norm[made])
    bound = np.full(size, np.nan)
    gradient = phase[to] == "parameters_grad"
    product, total = np.ones(size), np.zeros(size)
    for when in ("forward", "backward"):
        here = gradient & (phase[of] == when)
        share = np.full(size, np.nan)
        np.fmax.at(share, to[here], norm[of[here]])
        product *= share
        np.add.at(total, to[here], np.nan_to_num(error[of[here]], posinf=np.inf))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        bound[to[gradient]] = (total * np.fmax(product / result, 1.0))[to[gradient]]
    return bound


def _inside(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of lines of Pairing.calls: a call that both sides made, and the module call around it."""
    import numpy as np

    calls = judged.pairing.calls
    line = _line_by_position(judged, "baseline")
    both = np.flatnonzero(((calls["baseline"] >= 0) & (calls["candidate"] >= 0)).to_numpy())
    parent = judged.baseline.calls["parent"].to_numpy()[calls["baseline"].to_numpy()[both]]
    return both[parent >= 0], line[parent[parent >= 0]]


def _forward_of(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of lines of Pairing.calls: a backward call and its forward call, a module's gradients and its calls."""
    import numpy as np
    import pandas as pd

    calls = judged.baseline.calls
    line = _line_by_position(judged, "baseline")
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


def _line_by_position(judged: Judged, side: str) -> np.ndarray:
    """The line of Pairing.calls of each call of one side."""
    import numpy as np

    dump = judged.baseline if side == "baseline" else judged.candidate
    position = judged.pairing.calls[side].to_numpy()
    line = np.full(len(dump.calls), -1, dtype=np.int64)
    line[position[position >= 0]] = np.flatnonzero(position >= 0)
    return line
