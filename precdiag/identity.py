"""What a call is, as numbers that agree between two dumps: its key, and fingerprints of what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.rows import CHECKSUM_NONE, OUTPUT, STATISTICS
from precdiag.sequence import ROWS_COMPARED, Sequence

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# MindSpore's names for what PyTorch calls Module, Torch and Functional.
_KINDS = {"Cell": "Module", "Mint": "Torch", "MintFunctional": "Functional"}


def names_of(calls: pd.DataFrame) -> pd.Series[str]:
    """Return the calls' names, with `parameters_grad` (1.x, 8.x) spelt as `parameters_grad.0` (26.x)."""
    names = calls["name"]
    old = (calls["phase"] == "parameters_grad") & (calls["index"] < 0)
    return names.where(~old, names + ".0") if old.any() else names


def subjects_of(calls: pd.DataFrame) -> pd.Series[str]:
    """Return what each call calls: `Functional.linear`; for a module its path instead of its class, `Module.net.fc`."""
    kind = calls["kind"].replace(_KINDS)
    return kind + "." + calls["module"].where(kind == "Module", calls["operation"])


def skips_counters(calls: pd.DataFrame) -> bool:
    """Tell whether the counters of forward API calls have holes, as where a scope or a list left calls out."""
    calls = calls[(calls["phase"] == "forward") & (calls["index"] >= 0) & (calls["module"] == "")]
    counted = calls.groupby(["kind", "operation"])["index"].agg(["max", "count"])
    return bool((counted["max"] >= counted["count"]).any())


def renamed_subjects(subjects: pd.Series[str], renamed: Mapping[str, str]) -> pd.Series[str]:
    """Return subjects as the other side calls them."""
    return subjects.map(lambda own: renamed.get(own, own)) if renamed else subjects


def contents(baseline: Dump, candidate: Dump) -> tuple[Sequence, Sequence]:
    """Return the two sides' calls as sequences that have yet to be keyed: `whole` is of their rows alone."""
    import numpy as np
    import pandas as pd

    both = pd.concat([names_of(baseline.calls), names_of(candidate.calls)], ignore_index=True)
    names = pd.factorize(both)[0].astype(np.int64)
    checked = all((dump.rows["checksum_kind"] != CHECKSUM_NONE).any() for dump in (baseline, candidate))
    parts = []
    for dump, own in zip((baseline, candidate), np.split(names, [len(baseline.calls)]), strict=True):
        shapes, values = _row_prints(dump, checked)
        call = dump.rows["call"].cat.codes.to_numpy(dtype=np.int64)
        whole = _summed(call, values, len(own))
        tables = (_by_call(call, column, len(own)) for column in (values, shapes))
        parts.append(Sequence(np.zeros(len(own), dtype=np.int64), whole, own, *tables))
    return parts[0], parts[1]


def keyed(sides: tuple[Sequence, Sequence], left: pd.Series[str], right: pd.Series[str]) -> tuple[Sequence, Sequence]:
    """Return such sequences so that they can be aligned, given their keys."""
    import numpy as np
    import pandas as pd

    keys = pd.factorize(pd.concat([left, right], ignore_index=True))[0].astype(np.int64)
    parts = [
        replace(side, key=own, whole=side.whole ^ pd.util.hash_array(own))
        for side, own in zip(sides, np.split(keys, [len(left)]), strict=True)
    ]
    return parts[0], parts[1]


def inputs_of(dump: Dump) -> np.ndarray:
    """Hash what each call takes in, slots and values: uint64 of len(calls)."""
    import numpy as np

    _, values = _row_prints(dump, bool((dump.rows["checksum_kind"] != CHECKSUM_NONE).any()))
    taken = np.where((dump.rows["io"] != OUTPUT).to_numpy(), values, np.uint64(0))
    return _summed(dump.rows["call"].cat.codes.to_numpy(dtype=np.int64), taken, len(dump.calls))


def _summed(call: np.ndarray, prints: np.ndarray, size: int) -> np.ndarray:
    """Sum the rows of each call: they carry their slots, so that the sum (which wraps around) stands for them."""
    import numpy as np

    sums = np.concatenate([[np.uint64(0)], np.cumsum(prints * np.uint64(0x9E3779B97F4A7C15), dtype=np.uint64)])
    bounds = np.searchsorted(call, np.arange(size + 1))
    return np.asarray(sums[bounds[1:]] - sums[bounds[:-1]])


def _row_prints(dump: Dump, checked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Hash each row's slot, dtype and shape, and those with its value: two uint64 of len(rows), never 0."""
    import numpy as np
    import pandas as pd

    rows = dump.rows
    place = np.zeros(len(rows), dtype=np.uint64)
    for turn, column in enumerate(("slot", "type", "dtype", "shape")):
        place ^= _rolled(_text_prints(rows[column]), turn)
    value = np.zeros(len(rows), dtype=np.uint64)
    for turn, name in enumerate(STATISTICS):
        value ^= _rolled(pd.util.hash_array(rows[name].to_numpy() + 0.0), turn + 5)
    value ^= _rolled(_text_prints(rows["value"].astype("category")), 9)
    if checked:  # the strongest evidence decides alone: statistics of equal bytes may differ in the last digit
        summed = (rows["checksum_kind"] != CHECKSUM_NONE).to_numpy()
        value = np.where(summed, _rolled(_text_prints(rows["checksum"].astype("category")), 10), value)
    one = np.uint64(1)
    return place | one, (place ^ (value * np.uint64(0xD6E8FEB86659FD93))) | one


def _text_prints(column: pd.Series[str]) -> np.ndarray:
    import numpy as np
    import pandas as pd

    categories = column.cat.categories
    table = pd.util.hash_array(np.asarray(categories.astype(str), dtype=object))
    codes = column.cat.codes.to_numpy()
    return np.where(codes >= 0, table[codes], np.uint64(0)) if len(table) else np.zeros(len(codes), dtype=np.uint64)


def _rolled(prints: np.ndarray, turn: int) -> np.ndarray:
    """Rotate the bits, so that the same text in two columns does not cancel out."""
    import numpy as np

    by, rest = np.uint64(turn * 6 + 1), np.uint64(63 - turn * 6)
    return np.asarray((prints << by) | (prints >> rest))


def _by_call(call: np.ndarray, prints: np.ndarray, size: int) -> np.ndarray:
    """Arrange rows as a table with a line a call: the first ROWS_COMPARED of each, 0 where it has fewer."""
    import numpy as np

    first = np.searchsorted(call, np.arange(size))
    place = np.arange(len(call)) - first[call]
    table = np.zeros((size, ROWS_COMPARED), dtype=np.uint64)
    fits = place < ROWS_COMPARED
    table[call[fits], place[fits]] = prints[fits]
    return table
