"""Error metrics of two tensors of one shape, added up chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, dtype

INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = (  # from the finest to the coarsest: two dtypes are rounded to the later one
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
COMPLEX = ("complex128", "complex64", "complex32")
LARGEST = float(np.finfo(np.float64).max)

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
    only, or ‖b‖ is zero and ‖c - b‖ is not; 0.0 when all values are equal."""
    max_ulp: float | int
    """Steps from one representable number to the next between c and b; for integers and bool |c - b|. Of two dtypes
    the coarser float counts, to which both sides are rounded first (float64 for uint64 against signed integers)."""
    mismatched: int
    elements: int
    index: tuple[int, ...] | None
    """The first element with the largest error, non-finite before finite; None when every value is equal."""
    baseline: Scalar | None
    candidate: Scalar | None


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

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take the next chunk of baseline and candidate: flat, contiguous, equally long, not empty."""
        names = {dtype_name(x), dtype_name(y)}
        if names <= set(INTEGERS) and (len(names) == 1 or "uint64" not in names):
            self._add_integers(x, y)
        elif len(names) == 1:
            self._add_floats(parts(x), parts(y))
        else:
            self._add_widened(x, y)
        self.elements += x.numel()

    def metrics(self, baseline: Tensor, candidate: Tensor) -> Metrics:
        """Turn the sums into what is reported; the whole tensors give the two values at the worst element."""
        index = None
        if self.worst is not None:
            index = tuple(int(i) for i in np.unravel_index(self.worst, tuple(baseline.shape)))
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
            baseline=None if index is None else baseline[index].item(),
            candidate=None if index is None else candidate[index].item(),
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
        if error == 0:
            return 0.0
        return math.inf if norm == 0 or not math.isfinite(norm) else error / norm

    def _add_integers(self, x: Tensor, y: Tensor) -> None:
        distance = _distance(_integer_keys(x), _integer_keys(y))
        top = _unsigned_max(distance)
        error = distance.double()
        if top >= 2**63:
            error += (distance < 0) * 2.0**64
        self.max_ulp = max(self.max_ulp, top)
        self._tally(x.double(), y.double(), error, _dot(error, error), top, distance ^ -(2**63))

    def _add_widened(self, x: Tensor, y: Tensor) -> None:
        """Two dtypes: in float64, where only 64-bit integers need a correction, with the ulps of the coarser."""
        import torch

        wide = torch.complex128 if x.is_complex() or y.is_complex() else torch.float64
        floats = [name for name in map(dtype_name, (parts(x), parts(y))) if name in FLOATS]
        coarser = getattr(torch, max(floats, key=FLOATS.index, default="float64"))
        self._add_floats(parts(x.to(wide)), parts(y.to(wide)), coarser, _lost(y) - _lost(x))

    def _add_floats(self, x: Tensor, y: Tensor, coarser: dtype | None = None, lost: Tensor | float = 0.0) -> None:
        """Chunks of one float dtype, (n,) or the parts (n, 2) of complex; `lost` is what y - x lacks."""
        a, b, difference = _subtract(x, y, lost)
        squares, outside = _dot(difference, difference), None
        if not math.isfinite(squares):
            x, y, outside = self._set_aside(x, y)
            a, b, difference = _subtract(x, y, lost)
            squares = _dot(difference, difference)
        error = _magnitude(difference)
        if outside is not None:
            error = error.clamp(max=LARGEST).masked_fill(outside, math.inf)
        ulps = _distance(*(_float_keys(t.to(coarser or t.dtype)) for t in (x, y)))
        self.max_ulp = max(self.max_ulp, _unsigned_max(ulps))
        self.negative_zeros += _negative_zeros(x, y, error)
        self._tally(a, b, error, squares, error.amax().item(), error)

    def _set_aside(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Put zero bits where either is non-finite; tell which elements (n,) are not the same non-finite value."""
        a, b = x.double(), y.double()
        nonfinite = ~(a.isfinite() & b.isfinite())
        outside = nonfinite & (a != b) & ~(a.isnan() & b.isnan())
        if outside.any():
            self.nonfinite = "differs"
        elif nonfinite.any() and self.nonfinite == "none":
            self.nonfinite = "same"
        x, y = (bits(t).masked_fill(nonfinite, 0).view(t.dtype) for t in (x, y))
        return x, y, outside if outside.dim() == 1 else outside.any(1)

    def _tally(self, a: Tensor, b: Tensor, error: Tensor, squares: float, top: float, order: Tensor) -> None:
        """Add float64 values and errors, and the sum of error²; `order` ranks the elements, `top` is the best rank."""
        if top > self.max_abs:
            self.max_abs = top
            self.worst = self.elements + int(order.numpy().argmax())
        self.mismatched += int(np.count_nonzero(error.numpy() != 0))  # torch's own branches on every element
        relative = error / _magnitude(a)
        largest = relative.amax().item()
        if math.isnan(largest):  # 0 / 0: no error
            largest = relative.nan_to_num_(nan=0.0, posinf=math.inf).amax().item()
        self.max_rel = max(self.max_rel, largest)
        for i, more in enumerate((_dot(a, a), _dot(b, b), _dot(a, b), squares)):
            self.products[i] += more


def dtype_name(x: Tensor) -> str:
    """The dtype's name as in INTEGERS, FLOATS and COMPLEX."""
    return str(x.dtype).removeprefix("torch.")


def parts(x: Tensor) -> Tensor:
    """A complex tensor as real and imaginary parts in one more dimension, any other as it is."""
    import torch

    return torch.view_as_real(x) if x.is_complex() else x


def bits(x: Tensor) -> Tensor:
    """The same bytes as signed integers of the same width; a complex128 as twice as many."""
    import torch

    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}.get(x.element_size(), torch.int64))


def _dot(x: Tensor, y: Tensor) -> float:
    return float(x.view(-1).dot(y.view(-1)))


def _subtract(x: Tensor, y: Tensor, lost: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    a, b = x.double(), y.double()
    difference = b - a
    if not isinstance(lost, float):
        difference.view(len(x), -1)[:, 0] += lost
    return a, b, difference


def _magnitude(x: Tensor) -> Tensor:
    return x.abs() if x.dim() == 1 else x[:, 0].hypot(x[:, 1])


def _negative_zeros(x: Tensor, y: Tensor, error: Tensor) -> int:
    a, b = bits(x), bits(y)
    if _lowest(a) not in (a.amin(), b.amin()):  # the bits of -0.0; looking for them first is the quicker way
        return 0
    unlike = a != b
    return int(((unlike if unlike.dim() == 1 else unlike.any(1)) & (error == 0)).sum())


def _lost(x: Tensor) -> Tensor | float:
    """x - x.double(): 0.0 unless x holds 64-bit integers."""
    import torch

    if dtype_name(x) not in ("int64", "uint64"):
        return 0.0
    whole = x.view(torch.int64)
    high, low = (whole & ~0x7FF).double(), (whole & 0x7FF).double()  # 53 and 11 bits, both exact in float64
    if dtype_name(x) == "uint64":
        high += (whole < 0) * 2.0**64
    return (high - x.double()) + low


def _integer_keys(x: Tensor) -> Tensor:
    """int64 in the order of the values and at their distances."""
    import torch

    return x.view(torch.int64) ^ -(2**63) if dtype_name(x) == "uint64" else x.long()


def _float_keys(x: Tensor) -> Tensor:
    """Integers in the order of the values, neighbours one apart, both zeros alike; NaN has no place of its own.

    Sign and magnitude turned into two's complement (Bruce Dawson, "Comparing Floating Point Numbers", 2012); the 8-bit
    formats differ too much among themselves and are looked up.
    """
    import torch

    if x.element_size() == 1:
        return _byte_keys(x.dtype)[x.view(torch.uint8).long()]
    whole = bits(x)
    sign = whole >> (8 * x.element_size() - 1)
    return (sign & ~_lowest(whole)).bitwise_xor_(whole).sub_(sign)


@cache
def _byte_keys(kind: dtype) -> Tensor:
    import torch

    values = torch.arange(256, dtype=torch.uint8).view(kind).double()
    keys: Tensor = values.unique(return_inverse=True)[1]
    return keys


def _distance(x: Tensor, y: Tensor) -> Tensor:
    """|x - y| of signed integers, to be read as unsigned ones of the same width: it never overflows."""
    return x.maximum(y).sub_(x.minimum(y))


def _unsigned_max(x: Tensor) -> int:
    return int((x ^ _lowest(x)).amax()) - _lowest(x)


def _lowest(x: Tensor) -> int:
    """The most negative integer of x's width, of which only the sign bit is set."""
    return int(-(2 ** (8 * x.element_size() - 1)))
