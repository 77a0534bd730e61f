"""Dumps written by hand in msprobe's format, and what stands in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def tensor(
    low: float = -1.0,
    high: float = 1.0,
    *,
    shape: Sequence[int] = (2, 4),
    dtype: str = "torch.float32",
    grad: bool = False,
    **more: Any,
) -> Json:
    """A tensor's entry; Mean and Norm follow from Max and Min so that entries of equal ends are equal."""
    floating = "float" in dtype
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": high,
        "Min": low,
        "Mean": (low + high) / 4 if floating else None,
        "Norm": abs(low) + abs(high) if floating else None,
        "requires_grad": grad,
        **more,
    }


def scalar(value: Any) -> Json:
    """A scalar argument's entry."""
    return {"type": type(value).__name__, "value": value}


def group(*ranks: int) -> Json:
    """A process group's entry."""
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "0"}


def forward(inputs: Sequence[Any], outputs: Sequence[Any], parameters: Json | None = None, **kwargs: Any) -> Json:
    """A forward call's entry."""
    call: Json = {"input_args": list(inputs), "input_kwargs": kwargs}
    if parameters is not None:
        call["parameters"] = parameters
    return call | {"output": list(outputs)}


def backward(inputs: Sequence[Any], outputs: Sequence[Any]) -> Json:
    """A backward call's entry."""
    return {"input": list(inputs), "output": list(outputs)}


def write(
    folder: Path,
    data: Mapping[str, Any],
    *,
    construct: Mapping[str, str | None] | None = None,
    stack: Mapping[str, Sequence[str]] | None = None,
    task: str = "statistics",
    level: str = "L1",
) -> Path:
    """Write a dump folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": None, "data": dict(data)}
    (folder / "dump.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(construct or {}), encoding="utf-8")
    (folder / "stack.json").write_text(json.dumps(stack or {}), encoding="utf-8")
    return folder
