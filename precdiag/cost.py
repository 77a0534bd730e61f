"""What a step would cost to collect, told by a step that is there: calls, and bytes a rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError
from precdiag.layout import Part
from precdiag.session import Request
from precdiag.settings import Level
from precdiag.statistic import element_counts

if TYPE_CHECKING:
    import numpy as np

_BITS = re.compile(r"(\d+)")
_KINDS = {"L0": {True}, "L1": {False}, "mix": {True, False}}
"""Which calls a level records: those of modules, those of functions, or both."""


@dataclass(frozen=True)
class Cost:
    """Calls and bytes of one step of one rank."""

    calls: int
    bytes: int

    def __str__(self) -> str:
        return f"about {self.calls:,} calls and {_size(self.bytes)} a step and rank"


def estimate(part: Part, request: Request) -> Cost | None:
    """Estimate one step of `request` from a dumped one; None where that was collected at a level that tells too little.

    Statistics cost what dump.json, stack.json and construct.json weigh, shared out among the calls. Tensors add
    elements times the width of their dtype.
    """
    try:
        dump = read_dump(part)
    except UnreadableError:
        return None
    if not _covers(dump.level, request.level):
        return None
    modules = dump.calls["module"].ne("")
    wanted = modules.isin(_KINDS[request.level]).to_numpy()
    if request.list:
        wanted = wanted & dump.calls["name"].isin(request.list).to_numpy()
    calls = int(wanted.sum())
    text = sum(file.stat().st_size for file in part.folder.glob("*.json"))
    size = text * calls // max(len(dump.calls), 1)
    if request.task == "tensor":
        size += _tensor_bytes(dump, wanted)
    return Cost(calls, size)


def _covers(has: str, wanted: Level) -> bool:
    return has in _KINDS and _KINDS[wanted] <= _KINDS[has]


def _tensor_bytes(dump: Dump, wanted: np.ndarray) -> int:
    rows = dump.rows[wanted[dump.rows["call"].cat.codes.to_numpy()] & dump.rows["tensor"].to_numpy()]
    widths = rows["dtype"].map(_width).astype(float).to_numpy()
    return int((element_counts(rows["shape"]).clip(min=0) * widths).sum())


def _width(dtype: str) -> int:
    """Bytes of one element: torch.bfloat16 has 2, torch.complex64 8, torch.bool 1."""
    bits = _BITS.findall(dtype.rpartition(".")[2])
    return max(int(bits[0]) // 8, 1) if bits else 1


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
