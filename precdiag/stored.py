"""A tensor as its file holds it, and what its bytes mean: exact values in float64, bits, single elements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from precdiag.dtypes import COMPLEX, EIGHT_BITS, INTEGERS

# Where all of these bits are set, an element is NaN or infinite.
_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}


@dataclass(frozen=True)
class Stored:
    """One tensor. `values`: an array of its shape, in the numpy dtype of CARRIERS; `dtype`: torch's name of its own."""

    values: np.ndarray
    dtype: str

    def item(self, index: tuple[int, ...]) -> Any:
        """Return one element as a Python number."""
        element = Stored(np.asarray(self.values[index]).reshape(1), self.dtype)
        if element.dtype in INTEGERS:
            return element.values[0].item()
        exact = wide(element)[0]
        return complex(*exact) if exact.ndim else float(exact)


def wide(x: Stored) -> np.ndarray:
    """Return a flat tensor's values in float64, exact but for 64-bit integers: (n,), of complex numbers (n, 2)."""
    if x.dtype in COMPLEX:
        return wide(_parts(x)).reshape(-1, 2)
    if x.dtype in EIGHT_BITS:
        found: np.ndarray = byte_values(x.dtype)[x.values]
        return found
    half = x.dtype == "bfloat16"
    values = (x.values.astype(np.uint32) << 16).view(np.float32) if half else x.values
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return values.astype(np.float64)


def bits(x: Stored) -> np.ndarray:
    """Return a flat tensor's bits as signed integers of its width: (n,), of the parts of complex numbers (n, 2)."""
    if x.dtype in COMPLEX:
        return bits(_parts(x)).reshape(-1, 2)
    return x.values.view(f"i{x.values.itemsize}")


def holds_nonfinite(x: Stored) -> bool:
    """Tell whether an element of a flat tensor is NaN or infinite."""
    if x.dtype in INTEGERS:
        return False
    if x.dtype in COMPLEX:
        return holds_nonfinite(_parts(x))
    if x.dtype in EIGHT_BITS:
        return bool((~np.isfinite(byte_values(x.dtype)))[x.values].any())
    if x.dtype in _EXPONENTS:
        mask = np.uint16(_EXPONENTS[x.dtype])
        return bool(((x.values.view(np.uint16) & mask) == mask).any())
    return not np.isfinite(x.values).all()


@cache
def byte_values(dtype: str) -> np.ndarray:
    """Return the values of the 256 patterns of an 8-bit float, in float64. Needs torch, which alone writes them."""
    import torch

    table: np.ndarray = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).double().numpy()
    return table


def _parts(x: Stored) -> Stored:
    """The parts of complex numbers, each real one before its imaginary one."""
    part = COMPLEX[x.dtype]
    return Stored(x.values.view(part), part)
