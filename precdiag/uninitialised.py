"""Which rows hold memory that nobody has written yet: they prove nothing, in compare and in nan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precdiag.dump import Dump, fingerprints
from precdiag.rows import INPUT, OUTPUT
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import numpy as np

# torch's allocating functions that leave the memory as it is; deterministic algorithms fill it with NaN.
ALLOCATORS = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided"}
)
# Operations that pass memory on without reading it: a view, or the buffer itself.
VIEWS = frozenset(
    {"view", "reshape", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "narrow", "chunk", "split"}
    | {"__getitem__", "select", "flatten", "detach", "unbind", "view_as", "contiguous", "to", "requires_grad_"}
)
# In-place operations that write their target without reading it. msprobe 26.x does not hook the allocators, so what the
# target held before is known to be someone's work only where a dumped call gave it out or took it in.
OVERWRITERS = frozenset(
    {"__setitem__", "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
)
# Where torch.distributed writes: positional slots and keywords of the receiving argument.
RECEIVERS: dict[str, tuple[str, ...]] = {
    "all_gather": ("input.0", "input.tensor_list"),
    "all_gather_into_tensor": ("input.0", "input.output_tensor"),
    "_all_gather_base": ("input.0", "input.output_tensor"),
    "reduce_scatter": ("input.0", "input.output"),
    "reduce_scatter_tensor": ("input.0", "input.output"),
    "_reduce_scatter_base": ("input.0", "input.output"),
    "all_to_all": ("input.0", "input.output_tensor_list"),
    "all_to_all_single": ("input.0", "input.output"),
    "gather": ("input.1", "input.gather_list"),
    "scatter": ("input.0", "input.tensor"),
    "recv": ("input.0", "input.tensor"),
    "irecv": ("input.0", "input.tensor"),
}


def uninitialised(dump: Dump) -> np.ndarray:
    """Mark rows whose content is undefined: bool of len(rows).

    Outputs of allocating functions, an `out=` argument and a collective's output buffer before the call, a receive's
    before the wait; the target of an overwriting call where no dumped call had that value before. Tensors without
    elements hold nothing undefined.
    """
    import numpy as np

    rows, calls = dump.rows, dump.calls
    operation = calls["operation"].to_numpy()
    forward = (calls["phase"] == "forward").to_numpy()
    allocates = np.isin(operation, list(ALLOCATORS)) & forward
    collective = (calls["kind"] == "Distributed").to_numpy() & forward
    call = rows["call"].cat.codes.to_numpy()
    slot = rows["slot"].cat.codes.to_numpy()
    slots = rows["slot"].cat.categories
    io = rows["io"].to_numpy()
    marked = allocates[call] & (io == OUTPUT)
    out = np.array([_below(name, "input.out") for name in slots], dtype=bool)
    marked |= out[slot] & (io == INPUT) & forward[call]
    for name, receiving in RECEIVERS.items():
        receives = np.array([any(_below(slot_name, place) for place in receiving) for slot_name in slots], dtype=bool)
        here = collective & (operation == name)
        if here.any():
            marked |= here[call] & receives[slot]
    batched = collective & (operation == "batch_isend_irecv")
    if batched.any():
        marked |= _awaited(dump, batched[call])
    overwrites = np.isin(operation, list(OVERWRITERS)) & forward
    target = np.array([name == "input.0" for name in slots], dtype=bool)
    overwritten = overwrites[call] & target[slot]
    if overwritten.any():
        marked |= overwritten & _first_seen(dump)
    return np.asarray(marked & rows["tensor"].to_numpy() & (element_counts(rows["shape"]) != 0))


def undefined_contents(dump: Dump, marked: np.ndarray) -> np.ndarray:
    """Extend `uninitialised` to what merely hands such memory on: bool of len(rows).

    An input that holds what an allocator returned (by its fingerprint), and the outputs of a view of it.
    """
    import numpy as np

    if not marked.any():
        return marked
    prints = fingerprints(dump)
    rows = dump.rows
    io = rows["io"].to_numpy()
    call = rows["call"].cat.codes.to_numpy()
    views = np.isin(dump.calls["operation"].to_numpy(), list(VIEWS))
    undefined = set(prints[marked].tolist()) - {0}
    spread = marked.copy()
    while True:
        holds = np.isin(prints, np.fromiter(undefined, dtype=np.uint64, count=len(undefined)))
        spread |= holds & (io == INPUT)
        viewed = np.zeros(len(dump.calls), dtype=bool)
        viewed[call[spread & (io == INPUT)]] = True
        passed_on = (viewed & views)[call] & (io == OUTPUT) & ~spread
        if not passed_on.any():
            return spread
        spread |= passed_on
        undefined |= set(prints[passed_on].tolist()) - {0}


def _awaited(dump: Dump, within: np.ndarray) -> np.ndarray:
    """Mark the buffers of batch_isend_irecv's receives: it returns before they are filled, so its outputs are none.

    `within`: the rows of such calls, bool of len(rows).
    """
    import numpy as np

    rows = dump.rows[within]
    place = rows["call"].astype(str) + "." + rows["slot"].astype(str)
    receives = place[(rows["value"] == "irecv") & place.str.endswith(".op")].str.removesuffix(".op")
    marked = np.zeros(len(within), dtype=bool)
    marked[within] = place.isin(receives + ".tensor")
    return marked


def _first_seen(dump: Dump) -> np.ndarray:
    """Mark rows whose value stands in no row before them, in the order in which work began."""
    import pandas as pd

    prints = pd.Series(fingerprints(dump), index=dump.rows["order"].to_numpy()).sort_index()
    return ~prints.duplicated().reindex(dump.rows["order"]).to_numpy()


def _below(slot: str, place: str) -> bool:
    return slot == place or slot.startswith(f"{place}.")
