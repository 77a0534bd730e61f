"""The order of a result table: whether it is that of execution, and what order its rows stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precdiag.dataflow import natural_key, recovered_order
from precdiag.dump import Dump
from precdiag.rows import OUTPUT, split_names
from precdiag.source import OPTIMIZES
from precdiag.tableside import PLACES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def is_ordered(speaking: pd.DataFrame) -> bool:
    """Tell whether a table can be in the order of execution.

    It is not where a call's rows stand apart, a later call of an operation precedes an earlier one, a backward its
    forward, or several operations stand in the order of their names.
    """
    runs = speaking["call"][speaking["call"] != speaking["call"].shift()]
    if runs.duplicated().any():
        return False
    split = split_names(runs)
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


def recovered_ranks(baseline: Dump, candidate: Dump, calls: pd.DataFrame) -> np.ndarray:
    """Rank the pairs of `calls` (Pairing.calls) by counters and data flow: int64.

    The candidate's calls decide, the baseline's where it has none.
    """
    import numpy as np

    ranks = np.full(len(calls), len(calls), dtype=np.int64)
    for column, dump in (("baseline", baseline), ("candidate", candidate)):
        last = np.array([any(map(OPTIMIZES.search, candidate.stack(name))) for name in dump.calls["name"]], dtype=bool)
        recovered = recovered_order(dump, last)
        here = calls[column].to_numpy()
        ranks[here >= 0] = recovered[here[here >= 0]]
    return ranks


def row_order(speaking: pd.DataFrame, rank: np.ndarray, line_call: np.ndarray, ordered: bool) -> np.ndarray:
    """Return the positions of lines in order: by the rank of their call, and within it inputs, parameters, outputs."""
    import numpy as np
    import pandas as pd

    first = pd.Series(rank).groupby(line_call).transform("min").to_numpy()
    io = speaking["slot"].str.partition(".")[0].map(PLACES).fillna(OUTPUT).to_numpy()
    within = np.arange(len(rank))
    if not ordered:
        slots, unique = pd.factorize(speaking["slot"])
        by_number = np.argsort(np.array(sorted(range(len(unique)), key=lambda at: natural_key(unique[at]))))
        within = by_number[slots]
    return np.lexsort((within, io, line_call, first))
