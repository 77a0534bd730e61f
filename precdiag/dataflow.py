"""Recover an order of execution that was lost: from call counters, and from whose output is whose input."""

from __future__ import annotations

import heapq
import re
from typing import TYPE_CHECKING

from precdiag.dump import Dump, fingerprints
from precdiag.rows import OUTPUT

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_DIGITS = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key in which `input.10` stands behind `input.2`."""
    return tuple((int(token), "") if token.isdigit() else (-1, token) for token in _DIGITS.split(name))


def recovered_order(dump: Dump, last: np.ndarray) -> np.ndarray:
    """Rank calls in an order that they can have been made in: int64 of len(calls), a permutation of 0..n-1.

    Forward calls first, then backward calls and gradients, then the calls marked in `last` (an optimizer's). Within
    these, calls of one operation stand by their counters, and a call behind the one whose output it takes in, where
    only one has that value; what is left open goes by name, in the backward pass by the forward calls turned round.
    """
    import numpy as np

    calls = dump.calls
    names = calls["name"].tolist()
    phase = calls["phase"].to_numpy()
    stage = np.where(last, 2, np.where((phase == "backward") | (phase == "parameters_grad"), 1, 0))
    by_name = np.empty(len(calls), dtype=np.int64)
    by_name[sorted(range(len(calls)), key=lambda at: natural_key(names[at]))] = np.arange(len(calls))
    edges = _counter_edges(calls, stage) + _data_edges(dump, stage)
    order = _sorted(np.flatnonzero(stage == 0), by_name, edges)
    forward = {_forward_of(names[at]): rank for rank, at in enumerate(order)}
    mirrored = by_name.copy()
    for at in np.flatnonzero(stage == 1).tolist():
        mirrored[at] -= (forward.get(_forward_of(names[at]), 0) + 1) * len(calls)
    order += _sorted(np.flatnonzero(stage == 1), mirrored, edges)
    order += _sorted(np.flatnonzero(stage == 2), by_name, edges)
    ranks = np.empty(len(calls), dtype=np.int64)
    ranks[order] = np.arange(len(calls))
    return ranks


def _forward_of(name: str) -> str:
    """The name without its phase, the same for a forward call, its backward and its gradients."""
    return re.sub(r"\.(?:forward|backward|parameters_grad)(?=\.|\Z)", "", re.sub(r"(parameters_grad)\Z", r"\1.0", name))


def _counter_edges(calls: pd.DataFrame, stage: np.ndarray) -> list[tuple[int, int]]:
    """Chain the forward calls of one operation by their counters; a module inside itself may finish out of order."""
    forward = calls[(calls["phase"] == "forward") & (calls["module"] == "")]
    forward = forward.assign(at=forward.index, stage=stage[forward.index]).sort_values("index", kind="stable")
    before = forward.groupby(["kind", "operation", "stage"], sort=False)["at"].shift()
    paired = before.notna()
    return list(zip(before[paired].astype(int), forward["at"][paired], strict=True))


def _data_edges(dump: Dump, stage: np.ndarray) -> list[tuple[int, int]]:
    """Pair the only call of a stage that gave a value out with every other call of it that took the value in."""
    import pandas as pd

    call = dump.rows["call"].cat.codes.to_numpy()
    known = pd.DataFrame({"value": fingerprints(dump), "call": call, "stage": stage[call], "io": dump.rows["io"]})
    known = known[known["value"] != 0]
    made = known[known["io"] == OUTPUT].drop_duplicates(["value", "stage", "call"])
    is_module = (dump.calls["module"] != "").to_numpy()
    inner = made[~is_module[made["call"]]]  # a module gives out what its last inner call did
    made = pd.concat([inner, made[~made["value"].isin(inner["value"])]])
    made = made[~made.duplicated(["value", "stage"], keep=False)]
    taken = known[known["io"] != OUTPUT]
    flow = made.merge(taken, on=["value", "stage"], suffixes=("_from", "_to"))
    flow = flow[flow["call_from"] != flow["call_to"]].drop_duplicates(["call_from", "call_to"])
    return list(zip(flow["call_from"].tolist(), flow["call_to"].tolist(), strict=True))


def _sorted(members: np.ndarray, priority: np.ndarray, edges: list[tuple[int, int]]) -> list[int]:
    """Sort topologically, by priority where the edges leave it open; a circle is broken at its first by priority."""
    inside = set(members.tolist())
    behind: dict[int, list[int]] = {}
    waits = dict.fromkeys(inside, 0)
    for before, after in edges:
        if before in inside and after in inside:
            behind.setdefault(before, []).append(after)
            waits[after] += 1
    ready = [(int(priority[at]), at) for at in inside if not waits[at]]
    heapq.heapify(ready)
    rest = iter(sorted((int(priority[at]), at) for at in inside))
    done: set[int] = set()
    order: list[int] = []
    while len(order) < len(inside):
        at = heapq.heappop(ready)[1] if ready else next(at for _, at in rest if at not in done)
        if at in done:
            continue
        done.add(at)
        order.append(at)
        for after in behind.get(at, ()):
            waits[after] -= 1
            if waits[after] == 0 and after not in done:
                heapq.heappush(ready, (int(priority[after]), after))
    return order
