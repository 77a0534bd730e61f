"""The dtypes that a dumped tensor may have, by torch's names, and the numpy dtypes that carry their bytes."""

from __future__ import annotations

import numpy as np

INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
EIGHT_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
# From the finest to the coarsest: two dtypes are rounded to the later one.
FLOATS = ("float64", "float32", "float16", "bfloat16", *EIGHT_BITS)
# What their real and imaginary parts are.
COMPLEX = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}

# Unsigned integers of the same width stand for the dtypes that numpy lacks.
CARRIERS: dict[str, np.dtype[np.generic]] = {
    **{name: np.dtype(name) for name in (*INTEGERS, "float64", "float32", "float16", "complex128", "complex64")},
    **{name: np.dtype(np.uint8) for name in EIGHT_BITS},
    "bfloat16": np.dtype(np.uint16),
    "complex32": np.dtype(np.uint32),
}
