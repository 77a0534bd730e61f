"""What two sides were given to compute with: parameters, tokens, labels and masks, devices; how much of it is equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precdiag.dump import Dump, fingerprints
from precdiag.evidence import EQUAL, PORT_NOTE
from precdiag.judge import Judged
from precdiag.operations import WEIGHT_SLOTS
from precdiag.rows import INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import numpy as np

_NPU = "NPU"


def given_parameters(judged: Judged) -> tuple[int, int]:
    """Count parameters that are equal, and all of both sides: of modules, else of functions that take a weight."""
    import numpy as np

    dump, at, state = _paired(judged)
    io = dump.rows["io"].to_numpy()[at]
    call = dump.rows["call"].cat.codes.to_numpy()[at]
    held = io == PARAMETER
    if held.any():
        module = dump.calls["module"].to_numpy(dtype=object)[call[held]]
        names = np.char.add(module.astype(str), dump.rows["slot"].astype(str).to_numpy()[at[held]].astype(str))
        return _counted(names, state[held])
    chosen = weights(dump)[at]
    return _counted(fingerprints(dump)[at[chosen]], state[chosen])


def weights(dump: Dump) -> np.ndarray:
    """Mark the inputs that stand in a slot where a function takes a weight: bool of len(rows)."""
    import numpy as np

    rows, calls = dump.rows, dump.calls
    call, slot = rows["call"].cat.codes.to_numpy(), rows["slot"].cat.codes.to_numpy()
    slots = rows["slot"].cat.categories
    operation = calls["operation"].where(calls["phase"] == "forward", "").to_numpy(dtype=object)
    marked = np.zeros(len(rows), dtype=bool)
    for name in set(operation) & WEIGHT_SLOTS.keys():
        marked |= (operation == name)[call] & np.isin(slot, slots.get_indexer([*WEIGHT_SLOTS[name]]))
    return np.asarray(marked & rows["tensor"].to_numpy() & (rows["io"] == INPUT).to_numpy())


def given_integers(judged: Judged) -> tuple[int, int]:
    """Count the integer and bool tensors that no dumped call made and that are equal, and all of them."""
    import numpy as np

    dump, at, state = _paired(judged)
    rows = dump.rows
    integral = [not _floats(name) for name in rows["dtype"].cat.categories]
    wanted = np.array([*integral, False])[rows["dtype"].cat.codes.to_numpy()] & rows["tensor"].to_numpy()
    prints = fingerprints(dump)
    wanted &= (rows["io"] == INPUT).to_numpy() & (prints != 0) & ~made(dump)
    chosen = wanted[at]
    return _counted(prints[at[chosen]], state[chosen])


def made(dump: Dump) -> np.ndarray:
    """Mark the rows whose value some dumped call gave out: bool of len(rows)."""
    import numpy as np

    prints = fingerprints(dump)
    given_out = prints[(dump.rows["io"] == OUTPUT).to_numpy()]
    return np.isin(prints, given_out[given_out != 0])


def is_port(judged: Judged) -> bool:
    """Tell whether one side alone calls the NPU's own operators, or the sides name other devices."""
    npu = [(dump.calls["kind"] == _NPU).any() for dump in (judged.baseline, judged.candidate)]
    return bool(npu[0] != npu[1]) or any(note.endswith(PORT_NOTE) for note in judged.notes)


def _paired(judged: Judged) -> tuple[Dump, np.ndarray, np.ndarray]:
    rows = judged.rows
    both = judged.pairing.paired
    return judged.baseline, rows["baseline"].to_numpy()[both], rows["state"].to_numpy()[both]


def _counted(keys: np.ndarray, state: np.ndarray) -> tuple[int, int]:
    """Equal and all distinct keys; one is equal when all of its rows are."""
    import numpy as np

    names, place = np.unique(keys, return_inverse=True)
    equal = np.ones(len(names), dtype=bool)
    np.logical_and.at(equal, place.ravel(), state == EQUAL)
    return int(equal.sum()), len(names)


def _floats(dtype: str) -> bool:
    return dtype.rpartition(".")[2].lower().startswith(("float", "bfloat", "complex")) or not dtype
