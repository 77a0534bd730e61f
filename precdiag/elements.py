"""Look into the dumped tensor of an origin: how many elements, where the first stands, and what went in there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from precdiag.dump import Dump
from precdiag.errors import PrecdiagError
from precdiag.operands import forward_of, rows_of
from precdiag.origin import Origin
from precdiag.rows import OUTPUT
from precdiag.stored import Stored, wide
from precdiag.tensors import chunks, read


def with_elements(dump: Dump, origin: Origin) -> tuple[Origin, list[str]]:
    """Add to an origin's metrics what its tensor file holds; notes say why that cannot be had.

    Keys: `non_finite`, `elements` (counts), `index` (of the first element of the origin's value), `inputs` (name and
    value at that index of what went into the call, of a backward also into its forward call; shapes that broadcast).
    """
    path = dump.tensor_path(origin.position)
    if path is None:
        return origin, []
    try:
        found = _look(read(path), origin.value)
        generated = origin.is_output and found["index"] is not None
        found["inputs"] = _inputs(dump, origin, found["index"]) if generated else []
    except PrecdiagError as error:
        return origin, [f"the elements of {origin.row.name} could not be read: {error}"]
    metrics = {**(origin.row.metrics or {}), **found}
    return replace(origin, row=replace(origin.row, metrics=metrics)), []


def _look(tensor: Stored, value: str) -> dict[str, Any]:
    non_finite, seen, first = 0, 0, None
    for (chunk,) in chunks(tensor):
        numbers = wide(chunk).reshape(chunk.values.size, -1)  # a complex number's parts side by side
        non_finite += int((~np.isfinite(numbers)).any(axis=1).sum())
        own = (np.isnan(numbers) if value == "nan" else numbers == float(value)).any(axis=1)
        if first is None and own.any():
            first = seen + int(own.argmax())
        seen += len(numbers)
    index = None if first is None else [int(at) for at in np.unravel_index(first, tensor.values.shape)]
    return {"non_finite": non_finite, "elements": seen, "index": index}


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
    tensor = read(path)
    shape = tensor.values.shape
    place = index[len(index) - len(shape) :]
    if len(shape) > len(index) or any(size != 1 and at >= size for size, at in zip(shape, place, strict=True)):
        return None
    value = tensor.item(tuple(0 if size == 1 else at for size, at in zip(shape, place, strict=True)))
    return value + 0 if isinstance(value, int | float) else None  # -0.0 is 0.0
