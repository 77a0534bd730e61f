"""How the error grows through a step: the steepest jumps, the profile by module, products that look like TF32."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from precdiag.arbiter import Ruling
from precdiag.finding import Row, call_at, row_of
from precdiag.judge import Judged
from precdiag.relative import floor_of
from precdiag.rows import OUTPUT
from precdiag.suspects import OUTPUT_BEYOND, Suspects, places

if TYPE_CHECKING:
    import numpy as np

JUMPS = 5
# How many calls a profile has at most: a step of level L1 may have a hundred thousand.
LEVELS = 1000
# TF32 and HF32 keep 10 bits of the mantissa of what is multiplied: 2^-11 a factor, less once products are added up.
TF32 = (2.0**-13, 2.0**-10)
_MULTIPLIES = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "__matmul__", "conv1d", "conv2d", "conv3d"}
    | {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)


@dataclass(frozen=True)
class Jump:
    """A call whose output is further apart than what it takes in: relative errors, and the roundoff it computes in."""

    row: Row
    e_in: float
    e_out: float
    u: float
    ruling: Ruling | None = None

    @property
    def times(self) -> float:
        """How many times larger the error became; what comes in counts as u at least."""
        return self.e_out / max(self.e_in, self.u)


@dataclass(frozen=True)
class Level:
    """The largest error among the outputs of one module, in one phase, in the order in which it was reached."""

    path: str
    phase: str
    e: float


def jumps_of(judged: Judged, found: Suspects) -> tuple[Jump, ...]:
    """The five outputs with the largest e_out / max(e_in, u), in the order of execution."""
    import numpy as np

    errors, io = found.errors, places(judged)
    random_from = min(found.random, default=len(io))
    with np.errstate(invalid="ignore"):
        ratio = errors.e / np.fmax(found.e_in, found.u)
    usable = (io == OUTPUT) & np.isfinite(ratio) & ~np.isnan(errors.u) & (errors.e > 0)
    usable &= np.arange(len(io)) < random_from
    lines = np.flatnonzero(usable)
    top = np.sort(lines[np.argsort(-ratio[lines], kind="stable")[:JUMPS]])
    return tuple(
        Jump(row_of(judged, at), float(found.e_in[at]), float(errors.e[at]), float(found.u[at])) for at in top.tolist()
    )


def profile_of(judged: Judged, found: Suspects) -> tuple[Level, ...]:
    """The largest error by module path and phase; of the calls themselves where the dump knows no modules.

    Of more calls than LEVELS the highest of each stretch.
    """
    import numpy as np
    import pandas as pd

    calls, e = judged.baseline.calls, found.errors.e
    lines = np.flatnonzero((places(judged) == OUTPUT) & np.isfinite(e) & ~np.isnan(found.errors.u))
    position = judged.pairing.calls["baseline"].to_numpy()[judged.rows["call"].to_numpy()[lines]]
    path = calls["module"].to_numpy(dtype=object)[position]
    modular = bool((path != "").any())
    if not modular:
        path = calls["name"].to_numpy(dtype=object)[position]
    frame = pd.DataFrame({"path": path, "phase": calls["phase"].to_numpy()[position], "e": e[lines]})
    frame = frame[frame["path"] != ""]
    largest = frame.groupby(["phase", "path"], sort=False)["e"].max()
    forward = largest.index.get_level_values("phase") == "forward"
    order = np.argsort(~forward, kind="stable")
    if not modular:
        order = order[highest(largest.to_numpy()[order], LEVELS)]
    return tuple(
        Level(str(path), str(phase), float(e))
        for (phase, path), e in zip(largest.index[order], largest.to_numpy()[order], strict=True)
    )


def highest(values: np.ndarray, most: int) -> np.ndarray:
    """Thin a curve out to at most so many points: positions, ascending, of the largest of each stretch of equal length.

    Values are not NaN. What is at most so long is kept whole.
    """
    import numpy as np

    ends = np.linspace(0, len(values), min(most, len(values)) + 1).astype(np.int64).tolist()
    return np.array([start + int(values[start:end].argmax()) for start, end in pairwise(ends)], dtype=np.int64)


def like_tf32(judged: Judged, found: Suspects) -> list[int]:
    """Beyond lines of float32 multiplications whose error is what ten bits of mantissa leave."""
    single = [
        line
        for line, what in found.beyond.items()
        if what == OUTPUT_BEYOND
        and found.u[line] == 2.0**-24
        and found.e_in[line] <= floor_of(found.u[line])
        and TF32[0] <= found.errors.e[line] <= TF32[1]
    ]
    return [line for line in single if _multiplies(judged, line)]


def _multiplies(judged: Judged, line: int) -> bool:
    """A known multiplication, or a module that holds a matrix."""
    dump, position = call_at(judged, line)
    if dump.calls["operation"].iat[position] in _MULTIPLIES:
        return True
    held = dump.rows[(dump.rows["call"].cat.codes == position) & (dump.rows["slot"] == "parameters.weight")]
    return bool(len(held)) and str(held["shape"].iat[0]).count(",") >= 1
