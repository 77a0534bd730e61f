"""Dumped tensor files: bytes first, then error metrics in one pass over chunks."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from precdiag.errors import PrecdiagError, UnreadableError, one_line
from precdiag.metrics import COMPLEX, FLOATS, INTEGERS, Metrics, Totals, bits, dtype_name, parts

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 1 << 18
"""Elements of each tensor looked at together: the temporaries stay below 60 MB (complex128). Measured: smaller chunks
are slower to find equal, larger ones fall out of the cache when the metrics are taken."""

NUMPY_MAGIC = b"\x93NUMPY"  # numpy.lib.format.MAGIC_PREFIX
ZIP_MAGIC = b"PK\x03\x04"  # what torch.save has written since 1.6; only this form can be mapped


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
        first, second = load(baseline), load(candidate)
        with quietly():
            return _compare(first, second, chunk_elements)
    except PrecdiagError as error:
        return TensorPair("unknown", f"{error}: {error.hint}" if error.hint else str(error))
    except Exception as error:  # an operator that this torch lacks for this dtype, memory: not looked at, so not equal
        return TensorPair("unknown", f"cannot be compared: {baseline}: {one_line(error)}")


def load(path: Path) -> Tensor:
    """Map a dumped tensor (`.pt` or `.npy`, told by its first bytes) into memory, never running a pickle.

    Raises UnreadableError for anything but a plain strided tensor of a dtype in INTEGERS, FLOATS or COMPLEX,
    and PrecdiagError without torch.
    """
    require_torch()
    try:
        with quietly():
            loaded = _load(path)
    except FileNotFoundError as error:
        raise UnreadableError(f"file missing: {path}") from error
    except pickle.UnpicklingError as error:  # torch's own text advises to unpickle all the same
        raise UnreadableError(f"cannot be read: {path}: not a plain tensor, and no pickle is run") from error
    except Exception as error:  # a damaged file may raise anything in the unpickler
        raise UnreadableError(f"cannot be read: {path}: {one_line(error)}") from error
    if unfit := _why_unfit(loaded):
        raise UnreadableError(f"cannot be compared: {path}: {unfit}")
    return loaded.detach().resolve_conj().resolve_neg()


def require_torch() -> ModuleType:
    """Import torch, or raise PrecdiagError that says how to get it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise PrecdiagError(f"torch cannot be imported: {one_line(error)}") from error
        raise PrecdiagError("torch is not installed", hint="pip install 'precdiag[tensor]'") from error
    except Exception as error:  # torch-npu without CANN fails inside `import torch`
        raise PrecdiagError(
            f"torch cannot be imported: {one_line(error)}",
            hint="with torch-npu but no CANN set TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        ) from error
    return torch


@contextmanager
def quietly() -> Iterator[None]:
    """Keep torch's warnings off stderr, and torch to one thread. Raises PrecdiagError where there is no torch.

    A forked process must not run an operator in several: those of its parent, which torch counts on, are not there.
    On a busy machine the threads of an operator wait for one another for whole time slices: what takes 0.5 s took 2 to
    20 s beside two busy processes. On an idle one two threads save a third of the time.
    """
    torch = require_torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _load(path: Path) -> Any:
    import torch

    if path.exists() and not path.is_file():
        raise OSError("not a file")
    with path.open("rb") as file:
        magic = file.read(len(NUMPY_MAGIC))
    if magic == NUMPY_MAGIC:
        array = np.load(path, mmap_mode="c", allow_pickle=False)  # "c": torch warns about read-only memory
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    # str(): torch 2.1 maps no Path
    return torch.load(str(path), map_location="cpu", mmap=magic.startswith(ZIP_MAGIC), weights_only=True)


def _why_unfit(loaded: Any) -> str:
    import torch

    if type(loaded) is not torch.Tensor:
        return f"it holds a {type(loaded).__name__}, not a plain tensor"
    if loaded.layout is not torch.strided or loaded.is_nested or loaded.device.type != "cpu":
        return f"the tensor is nested, sparse or without data ({loaded.layout}, {loaded.device.type})"
    if dtype_name(loaded) not in INTEGERS + FLOATS + COMPLEX:
        return f"no rule for dtype {loaded.dtype}"
    return ""


def _compare(baseline: Tensor, candidate: Tensor, chunk: int) -> TensorPair:
    unlike = TensorPair(
        "different",
        baseline_dtype=str(baseline.dtype),
        candidate_dtype=str(candidate.dtype),
        baseline_shape=tuple(baseline.shape),
        candidate_shape=tuple(candidate.shape),
    )
    if baseline.shape != candidate.shape:
        return unlike
    same_dtype = baseline.dtype == candidate.dtype
    if same_dtype and (nonfinite := _equal_bytes(baseline, candidate, chunk)):
        return replace(unlike, state="equal", nonfinite=nonfinite)
    totals = Totals()
    _keep_freed_memory()
    for pair in _chunk_pairs(baseline, candidate, chunk):
        totals.add(*pair)
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


def _chunk_pairs(b: Tensor, c: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut two tensors of one shape, in row-major order, into flat contiguous pairs of at most `size` elements.

    Contiguous tensors are never copied, others one chunk at a time.
    """
    if b.numel() == 0:
        return
    if b.is_contiguous() and c.is_contiguous():
        b, c = b.view(-1), c.view(-1)
    rows = max(1, size * len(b) // b.numel())
    for x, y in zip(b.split(rows), c.split(rows), strict=True):
        if x.numel() <= size:
            yield x.reshape(-1).contiguous(), y.reshape(-1).contiguous()
        else:
            yield from _chunk_pairs(x[0], y[0], size)


def _equal_bytes(b: Tensor, c: Tensor, chunk: int) -> Literal["none", "same"] | None:
    """None when a byte differs, else whether both hold the same non-finite values or none."""
    nonfinite = False
    for x, y in _chunk_pairs(b, c, chunk):
        if not _same_bytes(x, y):
            return None
        nonfinite = nonfinite or _holds_nonfinite(x)
    return "same" if nonfinite else "none"


def _same_bytes(x: Tensor, y: Tensor) -> bool:
    import torch

    size = x.element_size()  # torch.equal is five times as fast on words as on bytes
    words = all((n * size) % 8 == 0 for n in (x.numel(), x.storage_offset(), y.storage_offset()))
    return bool(torch.equal(x.view(torch.int64), y.view(torch.int64)) if words else torch.equal(bits(x), bits(y)))


def _holds_nonfinite(x: Tensor) -> bool:
    if dtype_name(x) in INTEGERS:
        return False
    x = parts(x.float() if x.element_size() == 1 else x)
    if math.isfinite(x.sum().item()):  # a third of aminmax's time, but finite values may sum to inf
        return False
    return not all(math.isfinite(extreme.item()) for extreme in x.aminmax())  # one NaN makes both NaN
