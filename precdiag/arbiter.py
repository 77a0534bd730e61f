"""Which side is off: a call replayed in float64 from each side's own inputs, against what that side gave out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.errors import PrecdiagError
from precdiag.judge import Judged
from precdiag.relative import GAIN, floor_of
from precdiag.replay import Call, UnreplayableError, perturbed, rebuild, run
from precdiag.torchfile import quietly

if TYPE_CHECKING:
    from torch import Tensor

CANDIDATE, BASELINE, BOTH, NEITHER = "candidate", "baseline", "both", "neither"
# Errors within this factor of one another are alike (DESIGN: "over twice the baseline's").
FACTOR = 2.0


@dataclass(frozen=True)
class Ruling:
    """Whose output is off: the relative local error of each side, and up to where rounding explains it.

    `allowed` is the floor of the call's precision where both errors are within it, else that and twice what moving each
    input by u changes in float64: a sum that cancels cannot be more exact. `off`: candidate, baseline, both (within a
    factor of 2), or neither.
    """

    off: str
    baseline: float
    candidate: float
    allowed: float


def arbitrate(judged: Judged, line: int, u: float) -> Ruling | None:
    """Rule on the output at a line of `judged.rows`, whose call computes with roundoff u.

    None where the call is no plain function or standard module, or its tensors were not dumped on both sides; nor can
    one call answer for the result of a replaced region.
    """
    calls = judged.pairing.calls.iloc[int(judged.rows["call"].iat[line])]
    if calls["baseline"] < 0 or calls["candidate"] < 0:
        return None
    sides = ((judged.baseline, "baseline"), (judged.candidate, "candidate"))
    if any(dump.tensor_path(int(judged.rows[side].iat[line])) is None for dump, side in sides):
        return None  # statistics need no torch
    try:
        with quietly():
            rows = [(dump, int(judged.rows[side].iat[line])) for dump, side in sides]
            errors = [_replayed(*row).error for row in rows]  # one side's tensors at a time
            allowed = float(floor_of(u))
            if not all(error <= allowed for error in errors):
                allowed += GAIN * max(_replayed(*row).moved(u) for row in rows)
    except (UnreplayableError, PrecdiagError):
        return None
    return ruling_of(errors[0], errors[1], allowed)


def ruling_of(baseline: float, candidate: float, allowed: float) -> Ruling:
    """Rule on two local errors; one that is no number was not computed, and is off."""
    errors = [math.inf if math.isnan(error) else error for error in (baseline, candidate)]
    off = [error > allowed for error in errors]
    if off[1] and errors[1] > FACTOR * errors[0]:
        verdict = CANDIDATE
    elif off[0] and errors[0] > FACTOR * errors[1]:
        verdict = BASELINE
    else:
        verdict = BOTH if all(off) else NEITHER
    return Ruling(verdict, baseline, candidate, allowed)


@dataclass(frozen=True)
class _Replay:
    """One output of a call of one side, and what it is in float64 from the same inputs."""

    call: Call
    slot: str
    exact: Tensor

    @property
    def error(self) -> float:
        """How far the output is off, relative."""
        return distance(self.exact, self.call.outputs[self.slot])

    def moved(self, u: float) -> float:
        """How far the output moves in float64, relative, where each input moves by u."""
        import torch

        return distance(self.exact, run(perturbed(self.call, u), torch.float64)[self.slot])


def _replayed(dump: Dump, row: int) -> _Replay:
    import torch

    call, slot = rebuild(dump, str(dump.cell("call", row))), str(dump.cell("slot", row))
    exact = run(call, torch.float64)
    if slot not in exact:
        raise UnreplayableError("this output is not replayed")
    return _Replay(call, slot, exact[slot])


def distance(exact: Tensor, other: Tensor) -> float:
    """‖other - exact‖ / ‖exact‖ over the elements where exact is finite; inf where only one side is finite."""
    a, b = exact.detach().double().reshape(-1), other.detach().double().reshape(-1)
    finite = a.isfinite()
    if bool((finite != b.isfinite()).any()):
        return math.inf
    error, norm = float((b - a)[finite].norm()), float(a[finite].norm())
    return 0.0 if error == 0 else math.inf if norm == 0 else error / norm
