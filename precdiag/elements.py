"""Look into the dumped tensor of an origin: how many elements, where the first stands, and what went in there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precdiag.dump import Dump
from precdiag.errors import PrecdiagError
from precdiag.operands import forward_of, rows_of
from precdiag.origin import Origin
from precdiag.rows import OUTPUT
from precdiag.tensors import load

if TYPE_CHECKING:
    from torch import Tensor


def with_elements(dump: Dump, origin: Origin) -> tuple[Origin, list[str]]:
    """Add to an origin's metrics what its tensor file holds; notes say why that cannot be had.

    Keys: `non_finite`, `elements` (counts), `index` (of the first element of the origin's value), `inputs` (name and
    value at that index of what went into the call, of a backward also into its forward call; shapes that broadcast).
    """
    path = dump.tensor_path(origin.position)
    if path is None:
        return origin, []
    try:
        found = _look(load(path), origin.value)
        generated = origin.is_output and found["index"] is not None
        found["inputs"] = _inputs(dump, origin, found["index"]) if generated else []
    except PrecdiagError as error:
        return origin, [f"the elements of {origin.row.name} could not be read: {error}"]
    metrics = {**(origin.row.metrics or {}), **found}
    return replace(origin, row=replace(origin.row, metrics=metrics)), []


def _look(tensor: Tensor, value: str) -> dict[str, Any]:
    import torch

    wide = tensor.float() if tensor.element_size() == 1 else tensor
    bad = ~torch.isfinite(wide)
    own = torch.isnan(wide) if value == "nan" else wide == float(value)
    where = own.nonzero()
    return {
        "non_finite": int(bad.sum()),
        "elements": tensor.numel(),
        "index": where[0].tolist() if len(where) else None,
    }


def _inputs(dump: Dump, origin: Origin, index: list[int]) -> list[dict[str, Any]]:
    call = int(dump.rows["call"].cat.codes.iat[origin.position])
    calls = [call]
    if origin.row.phase != "forward" and (forward := forward_of(dump, call)) is not None:
        calls.append(forward)
    inputs = []
    for at in (int(row) for each in calls for row in rows_of(dump, each)):
        path = dump.tensor_path(at)
        if path is None or at == origin.position or int(dump.rows["io"].iat[at]) == OUTPUT:
            continue
        value = _value_at(path, index)
        if value is not None:
            inputs.append({"name": dump.name(at), "value": value})
    return inputs


def _value_at(path: Path, index: list[int]) -> float | int | None:
    """The element that stands at an index once the tensor is broadcast; None where its shape does not reach there."""
    tensor = load(path)
    place = index[len(index) - tensor.dim() :]
    if tensor.dim() > len(index) or any(size != 1 and at >= size for size, at in zip(tensor.shape, place, strict=True)):
        return None
    value = tensor[tuple(0 if size == 1 else at for size, at in zip(tensor.shape, place, strict=True))].item()
    return value + 0 if isinstance(value, int | float) else None  # -0.0 is 0.0
