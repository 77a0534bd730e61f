"""Error metrics of two tensors of one shape, added up chunk by chunk, with numpy alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from precdiag.dtypes import COMPLEX, EIGHT_BITS, FLOATS, INTEGERS
from precdiag.stored import Stored, bits, byte_values, wide
from precdiag.torchfile import quietly

LARGEST = sys.float_info.max
# A dot product of more elements is spread over threads by OpenBLAS (interface/ddot.c: from 10,000 on), which wait for
# one another where other processes keep the cores busy.
_DOT_ELEMENTS = 8192

Scalar = bool | int | float | complex


@dataclass(frozen=True)
class Metrics:
    """How far two tensors of one shape are apart, element by element.

    Everything is computed on exact values: integers as integers, all else widened to float64. An element that is NaN
    or infinite on one side only, or infinite with another sign, makes `max_abs`, `max_rel`, `max_ulp` and `euclidean`
    inf; one that is the same on both sides has no error. The error of a complex element is the modulus of the
    difference, its ulp the larger of its two parts'.
    """

    max_abs: float | int
    """max |c - b|; an exact int for integers. inf only for a non-finite element: a finite difference beyond float64
    counts as float64's largest number."""
    max_rel: float
    """max |c - b| / |b|; inf where b is zero and c is not."""
    cosine: float
    """b·c / (‖b‖ ‖c‖) over the whole tensor. nan when a value is non-finite on either side or the squares overflow
    float64, 1.0 when all values are equal (also all zero), 0.0 when one norm is zero."""
    euclidean: float
    """‖c - b‖₂"""
    relative_norm: float
    """‖c - b‖₂ / ‖b‖₂ over the elements that are finite on both sides; inf where an element is non-finite on one side
    only, or ‖b‖ is zero and ‖c - b‖ is not; 0.0 when all values are equal. Where all squares of the errors underflow
    float64 it is no less than that: √mismatched max_abs / ‖b‖, or max_rel."""
    max_ulp: float | int
    """Steps from one representable number to the next between c and b; for integers and bool |c - b|. Of two dtypes
    the coarser float counts, to which both sides are rounded first (float64 for uint64 against signed integers)."""
    mismatched: int
    elements: int
    index: tuple[int, ...] | None
    """The first element with the largest error, non-finite before finite; None when every value is equal."""
    baseline: Scalar | None
    candidate: Scalar | None


class _Floats(NamedTuple):
    """A chunk's exact values, and their bits as signed integers of the dtype's width: (n,), or (n, 2) of complex."""

    values: np.ndarray
    bits: np.ndarray


Steps = Callable[[_Floats, _Floats], int]


@dataclass
class Totals:
    """What one pass over the chunks of two tensors adds up; see Metrics for what counts as what."""

    elements: int = 0
    mismatched: int = 0
    negative_zeros: int = 0
    nonfinite: Literal["none", "same", "differs"] = "none"
    max_abs: float | int = 0
    max_rel: float = 0.0
    max_ulp: int = 0
    worst: int | None = None
    products: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    """b·b, c·c, b·c and the sum of squared errors."""

    def add(self, x: Stored, y: Stored) -> None:
        """Take the next chunk of baseline and candidate: flat, contiguous, equally long, not empty."""
        names = {x.dtype, y.dtype}
        with np.errstate(all="ignore"):  # what overflows or is no number is told apart below
            if names <= set(INTEGERS) and (len(names) == 1 or "uint64" not in names):
                self._add_integers(x, y)
            elif len(names) == 1:
                self._add_floats(_Floats(wide(x), bits(x)), _Floats(wide(y), bits(y)), _steps_of(x.dtype))
            else:
                self._add_widened(x, y)
        self.elements += x.values.size

    def metrics(self, baseline: Stored, candidate: Stored) -> Metrics:
        """Turn the sums into what is reported; the whole tensors give the two values at the worst element."""
        index = None
        if self.worst is not None:
            index = tuple(int(i) for i in np.unravel_index(self.worst, baseline.values.shape))
        outside = self.nonfinite == "differs"
        return Metrics(
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            cosine=self._cosine(),
            euclidean=math.inf if outside else math.sqrt(self.products[3]),
            relative_norm=math.inf if outside else self._relative_norm(),
            max_ulp=math.inf if outside else self.max_ulp,
            mismatched=self.mismatched,
            elements=self.elements,
            index=index,
            baseline=None if index is None else baseline.item(index),
            candidate=None if index is None else candidate.item(index),
        )

    def _cosine(self) -> float:
        bb, cc, bc, _ = self.products
        if self.nonfinite != "none":
            return math.nan
        if self.mismatched == 0:
            return 1.0
        if bb == 0 or cc == 0:
            return 0.0
        return float(np.clip(bc / (math.sqrt(bb) * math.sqrt(cc)), -1.0, 1.0))

    def _relative_norm(self) -> float:
        norm, error = math.sqrt(self.products[0]), math.sqrt(self.products[3])
        if error == 0 and norm == 0:
            return self.max_rel
        if error == 0:
            return self.max_abs * math.sqrt(self.mismatched) / norm
        return math.inf if norm == 0 or not math.isfinite(norm) else error / norm

    def _add_integers(self, x: Stored, y: Stored) -> None:
        a, b = (side.values if side.dtype == "uint64" else side.values.astype(np.int64) for side in (x, y))
        distance = (np.maximum(a, b) - np.minimum(a, b)).view(np.uint64)  # never overflows, read so
        top = int(distance.max())
        error = distance.astype(np.float64)
        self.max_ulp = max(self.max_ulp, top)
        self._tally(wide(x), wide(y), error, _dot(error, error), top, distance)

    def _add_widened(self, x: Stored, y: Stored) -> None:
        """Two dtypes: in float64, where only 64-bit integers need a correction, with the ulps of the coarser."""
        floats = [COMPLEX.get(side.dtype, side.dtype) for side in (x, y)]
        coarser = max((name for name in floats if name in FLOATS), key=FLOATS.index, default="float64")
        a, b, lost = wide(x), wide(y), _lost(y) - _lost(x)
        if a.ndim != b.ndim:
            a, b = (np.stack([side, np.zeros_like(side)], axis=1) if side.ndim == 1 else side for side in (a, b))

        def steps(x: _Floats, y: _Floats) -> int:
            left, right = (_Floats(side.values, _rounded(side.values, coarser)) for side in (x, y))
            return _steps_of(coarser)(left, right)

        self._add_floats(_Floats(a, a.view(np.int64)), _Floats(b, b.view(np.int64)), steps, lost)

    def _add_floats(self, x: _Floats, y: _Floats, steps: Steps, lost: np.ndarray | float = 0.0) -> None:
        """Chunks of floats; `steps` counts their ulps, `lost` is what y - x lacks."""
        difference = _difference(x, y, lost)
        squares, outside = _dot(difference, difference), None
        if not math.isfinite(squares):
            x, y, outside = self._set_aside(x, y)
            difference = _difference(x, y, lost)
            squares = _dot(difference, difference)
        error = _magnitude(difference)
        if outside is not None:
            np.minimum(error, LARGEST, out=error)
            error[outside] = math.inf
        self.max_ulp = max(self.max_ulp, steps(x, y))
        self.negative_zeros += _negative_zeros(x, y, error)
        self._tally(x.values, y.values, error, squares, float(error.max()), error)

    def _set_aside(self, x: _Floats, y: _Floats) -> tuple[_Floats, _Floats, np.ndarray]:
        """Put zero where either is non-finite; tell which elements (n,) are not the same non-finite value."""
        a, b = x.values, y.values
        nonfinite = ~(np.isfinite(a) & np.isfinite(b))
        outside = nonfinite & (a != b) & ~(np.isnan(a) & np.isnan(b))
        if outside.any():
            self.nonfinite = "differs"
        elif nonfinite.any() and self.nonfinite == "none":
            self.nonfinite = "same"
        x, y = (_Floats(*(np.where(nonfinite, each.dtype.type(0), each) for each in side)) for side in (x, y))
        return x, y, outside if outside.ndim == 1 else outside.any(axis=1)

    def _tally(
        self, a: np.ndarray, b: np.ndarray, error: np.ndarray, squares: float, top: float, order: np.ndarray
    ) -> None:
        """Add float64 values and errors, and the sum of error²; `order` ranks the elements, `top` is the best rank."""
        if top > self.max_abs:
            self.max_abs = top
            self.worst = self.elements + int(order.argmax())
        self.mismatched += int(np.count_nonzero(error != 0))
        for i, more in enumerate((_dot(a, a), _dot(b, b), _dot(a, b), squares)):
            self.products[i] += more
        self._raise_max_rel(error, _magnitude(a))

    def _raise_max_rel(self, error: np.ndarray, of: np.ndarray) -> None:
        """Divide only where the quotient may be a new maximum: that is rare. 0 / 0 is no error."""
        least = of * (self.max_rel * (1 - 2.0**-50))  # in doubt the division decides
        larger = (error >= least) & (error > 0)
        if larger.any():
            self.max_rel = max(self.max_rel, float((error[larger] / of[larger]).max()))


def _difference(x: _Floats, y: _Floats, lost: np.ndarray | float) -> np.ndarray:
    difference: np.ndarray = y.values - x.values
    if not isinstance(lost, float):
        difference.reshape(len(difference), -1)[:, 0] += lost
    return difference


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x.reshape(-1), y.reshape(-1)
    whole = len(x) // _DOT_ELEMENTS * _DOT_ELEMENTS
    rest = float(x[whole:] @ y[whole:])
    if not whole:
        return rest
    return float((x[:whole].reshape(-1, 1, _DOT_ELEMENTS) @ y[:whole].reshape(-1, _DOT_ELEMENTS, 1)).sum()) + rest


def _magnitude(x: np.ndarray) -> np.ndarray:
    """Return |x| of each element, in the place of x where it can stand there: no longer needed by then."""
    return np.abs(x, out=x) if x.ndim == 1 else np.hypot(x[:, 0], x[:, 1])


def _steps_of(dtype: str) -> Steps:
    if dtype not in EIGHT_BITS:
        return _most_steps
    # Among the values in order: the 8-bit formats differ too much among themselves for a rule on their bits.
    places = np.unique(byte_values(dtype), return_inverse=True)[1]

    def steps(x: _Floats, y: _Floats) -> int:
        left, right = (places[side.bits.view(np.uint8)] for side in (x, y))
        return int(np.abs(left - right).max())

    return steps


def _most_steps(x: _Floats, y: _Floats) -> int:
    """The most representable numbers between two elements; both zeros are one.

    Of one sign the bits are in the order of the values (IEEE 754's sign and magnitude; Bruce Dawson, "Comparing
    Floating Point Numbers", 2012); across zero the two magnitudes add up.
    """
    a, b = x.bits.reshape(-1), y.bits.reshape(-1)
    steps = a - b  # wraps only where the signs differ
    across, most = np.flatnonzero((a ^ b) < 0), 0
    if len(across):
        steps[across] = 0
        magnitude = a.dtype.type(np.iinfo(a.dtype).max)
        magnitudes = [(side[across] & magnitude).view(f"u{a.itemsize}") for side in (a, b)]
        most = int((magnitudes[0] + magnitudes[1]).max())
    return max(most, int(steps.max()), -int(steps.min()))


def _negative_zeros(x: _Floats, y: _Floats, error: np.ndarray) -> int:
    unlike = x.bits ^ y.bits
    if int(unlike.min()) != np.iinfo(unlike.dtype).min:  # only the sign bit differs: looked for first
        return 0
    differs = unlike != 0
    return int(np.count_nonzero((differs if differs.ndim == 1 else differs.any(axis=1)) & (error == 0)))


def _lost(x: Stored) -> np.ndarray | float:
    """x minus x in float64: 0.0 unless x holds 64-bit integers."""
    if x.dtype not in ("int64", "uint64"):
        return 0.0
    low = x.values & x.values.dtype.type(0x7FF)  # 11 bits, and 53 above them: both are exact in float64
    return ((x.values - low).astype(np.float64) - x.values.astype(np.float64)) + low.astype(np.float64)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float64 to a float dtype, as torch does: half precision by way of float32. Returns its bits."""
    if dtype == "float64":
        return values.view(np.int64)
    if dtype in EIGHT_BITS:
        import torch

        with quietly():
            return torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int8).numpy()
    single = values.astype(np.float32)
    if dtype == "float32":
        return single.view(np.int32)
    if dtype == "float16":
        return single.astype(np.float16).view(np.int16)
    whole = single.view(np.uint32)
    even = (whole + 0x7FFF + ((whole >> 16) & 1)) >> 16
    return even.astype(np.uint16).view(np.int16)
