"""Two dumped tensor files: bytes first, then error metrics in one pass over chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from precdiag.archive import mapped_from
from precdiag.dtypes import CARRIERS
from precdiag.errors import PrecdiagError, one_line
from precdiag.metrics import Metrics, Totals
from precdiag.stored import Stored, holds_nonfinite
from precdiag.torchfile import load, magic_of

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 1 << 16
"""Elements of each tensor looked at together: with half as many, numpy's calls weigh a quarter more; with twice as
many, their temporaries fall out of the cache."""


@dataclass(frozen=True)
class TensorPair:
    """What two files say about one tensor; `unknown` (see `reason`) is never equal and never different."""

    state: Literal["equal", "different", "unknown"]
    reason: str = ""
    metrics: Metrics | None = None
    """Only when different and the shapes are equal; None for empty tensors."""
    nonfinite: Literal["none", "same", "differs"] = "none"
    """Whether NaN or inf stand at the same places with the same sign (any NaN equals any NaN). Not looked at when
    the shapes differ."""
    negative_zeros: int = 0
    """Elements with equal values of which only the sign of a zero differs."""
    dtype_only: bool = False
    """The dtypes differ and the values do not."""
    rounding_only: bool = False
    """The dtypes differ and the values agree once both are rounded to the coarser; true with dtype_only."""
    baseline_dtype: str = ""
    candidate_dtype: str = ""
    baseline_shape: tuple[int, ...] = ()
    candidate_shape: tuple[int, ...] = ()


def compare_files(baseline: Path, candidate: Path, *, chunk_elements: int = CHUNK_ELEMENTS) -> TensorPair:
    """Compare two tensor files without ever raising for what they hold.

    Equal means equal values of equal dtype and shape: equal bytes, or bytes that differ only in the sign of zeros or in
    the payload of NaNs. Whatever cannot be loaded or compared is `unknown`, with one line that says why.
    `chunk_elements` bounds the memory and changes no result but the last digits of `cosine` and `euclidean`.
    """
    try:
        return _compare(read(baseline), read(candidate), chunk_elements)
    except PrecdiagError as error:
        return TensorPair("unknown", error.with_hint)
    except Exception as error:  # an operator that this torch lacks for this dtype, memory: not looked at, so not equal
        return TensorPair("unknown", f"cannot be compared: {baseline}: {one_line(error)}")


def read(path: Path) -> Stored:
    """Map a dumped tensor (`.pt` or `.npy`, told by its first bytes), without torch where it is written plainly.

    Raises as `torchfile.load`.
    """
    return mapped_from(path, magic_of(path)) or _from_torch(load(path))


def _from_torch(tensor: Tensor) -> Stored:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if CARRIERS[dtype].name != dtype:  # numpy lacks it
        tensor = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
    return Stored(tensor.numpy().view(CARRIERS[dtype]), dtype)


def _compare(baseline: Stored, candidate: Stored, chunk: int) -> TensorPair:
    shapes = baseline.values.shape, candidate.values.shape
    unlike = TensorPair(
        "different",
        baseline_dtype=f"torch.{baseline.dtype}",
        candidate_dtype=f"torch.{candidate.dtype}",
        baseline_shape=shapes[0],
        candidate_shape=shapes[1],
    )
    if shapes[0] != shapes[1]:
        return unlike
    same_dtype = baseline.dtype == candidate.dtype
    if same_dtype and (nonfinite := _equal_bytes(baseline, candidate, chunk)):
        return replace(unlike, state="equal", nonfinite=nonfinite)
    totals = Totals()
    _keep_freed_memory()
    for left, right in chunks(baseline, candidate, size=chunk):
        totals.add(left, right)
    equal = same_dtype and totals.mismatched == 0
    return replace(
        unlike,
        state="equal" if equal else "different",
        metrics=None if equal or not totals.elements else totals.metrics(baseline, candidate),
        nonfinite=totals.nonfinite,
        negative_zeros=totals.negative_zeros,
        dtype_only=not same_dtype and totals.mismatched == 0,
        rounding_only=not same_dtype and totals.max_ulp == 0 and totals.nonfinite != "differs",
    )


@cache
def _keep_freed_memory() -> None:
    """Have glibc reuse the temporaries of one chunk for the next: giving each back to the system halves the speed.

    Freeing a large block raises malloc's thresholds to its size (mallopt(3), M_MMAP_THRESHOLD), up to 32 MB.
    """
    np.empty(31 << 20, np.uint8)


def chunks(*tensors: Stored, size: int = CHUNK_ELEMENTS) -> Iterator[tuple[Stored, ...]]:
    """Cut tensors of one shape, in row-major order, into flat contiguous ones of at most `size` elements."""
    for flat in _cut(tuple(tensor.values for tensor in tensors), size):
        yield tuple(Stored(values, tensor.dtype) for values, tensor in zip(flat, tensors, strict=True))


def _cut(arrays: tuple[np.ndarray, ...], size: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Contiguous arrays are never copied, others one chunk at a time."""
    if arrays[0].size == 0:
        return
    if all(array.flags.c_contiguous for array in arrays):
        arrays = tuple(array.reshape(-1) for array in arrays)
    rows = max(1, size * len(arrays[0]) // arrays[0].size)
    for at in range(0, len(arrays[0]), rows):
        slices = tuple(array[at : at + rows] for array in arrays)
        if slices[0].size <= size:
            yield tuple(np.ascontiguousarray(each).reshape(-1) for each in slices)
        else:
            yield from _cut(tuple(each[0] for each in slices), size)


def _equal_bytes(b: Stored, c: Stored, chunk: int) -> Literal["none", "same"] | None:
    """None when a byte differs, else whether both hold the same non-finite values or none."""
    nonfinite = False
    for x, y in chunks(b, c, size=chunk):
        if not _same_bytes(x.values, y.values):
            return None
        nonfinite = nonfinite or holds_nonfinite(x)
    return "same" if nonfinite else "none"


def _same_bytes(x: np.ndarray, y: np.ndarray) -> bool:
    word = np.uint64 if x.nbytes % 8 == 0 else np.uint8
    return np.array_equal(x.view(word), y.view(word))
