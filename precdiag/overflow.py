"""Overflow that shows as no Inf: values clamped at the limit of their dtype, and gradients under a loss scale."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.masks import FILLS
from precdiag.operands import LIMITS
from precdiag.origin import Origin
from precdiag.rows import OUTPUT

if TYPE_CHECKING:
    import numpy as np

# Loss scales are powers of two and begin at 2**16 (torch.amp.GradScaler) or 2**32 (Megatron-LM); one that overflows is
# hardly below this.
LEAST_LOSS_SCALE = 2.0**8

_NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def saturated(dump: Dump) -> np.ndarray:
    """Return the positions of outputs whose Max or Min is the limit of their narrow dtype, in the order of the file.

    Left out are calls that were given that value: fills (a mask of torch.finfo(dtype).min), and inputs that hold it.
    """
    import numpy as np

    rows = dump.rows
    limits = [
        LIMITS[name] if (name := dtype.rpartition(".")[2]) in _NARROW else math.inf
        for dtype in rows["dtype"].cat.categories
    ]
    limit = np.array(limits, dtype=np.float64)[rows["dtype"].cat.codes.to_numpy()]
    with np.errstate(invalid="ignore"):
        at_limit = np.isfinite(limit) & (
            (np.abs(rows["max"].to_numpy()) == limit) | (np.abs(rows["min"].to_numpy()) == limit)
        )
    call = rows["call"].cat.codes.to_numpy()
    leaving = rows["io"].to_numpy() == OUTPUT
    given = np.isin(dump.calls["operation"].to_numpy(), list(FILLS))
    given[call[at_limit & ~leaving]] = True
    return np.flatnonzero(at_limit & leaving & ~given[call])


def loss_scale(dump: Dump, origin: Origin) -> float | None:
    """Return the loss scale under which the backward pass overflowed float16; None where it was no such overflow.

    The scale is the gradient of the unscaled loss: a power of two on a 0-dim tensor at the start of the backward pass.
    """
    import numpy as np

    rows = dump.rows
    if origin.row.phase == "forward" or str(rows["dtype"].iat[origin.position]) != "torch.float16":
        return None
    backward = (dump.calls["phase"] == "backward").to_numpy()[rows["call"].cat.codes.to_numpy()]
    order = rows["order"].to_numpy()
    here = np.flatnonzero(backward & (rows["shape"] == "[]").to_numpy() & (order < origin.row.order))
    values = rows["max"].to_numpy()[here]
    scales = [value for value in values.tolist() if value >= LEAST_LOSS_SCALE and math.frexp(value)[0] == 0.5]
    return max(scales, default=None)


def under_scale(origin: Origin, scale: float) -> Origin:
    """Say what an overflow under a loss scale means while no later step is known to be finite."""
    why = f"{origin.why}; it stands under a loss scale of {scale:.0f}: a scaler skips such a step and lowers its scale"
    following = "dump the next steps too: healthy if they are finite; if not, lower the scale or find what grows"
    return replace(origin, why=why, next_step=following)
