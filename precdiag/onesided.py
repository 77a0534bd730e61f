"""Calls that one side made and that prove nothing: activation recomputation, and optimizer implementations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from precdiag.dump import Dump
from precdiag.evidence import BASELINE_ONLY, CANDIDATE_ONLY
from precdiag.identity import inputs_of, subjects_of
from precdiag.rows import UPDATE_SCOPES
from precdiag.source import OPTIMIZES

if TYPE_CHECKING:
    import numpy as np

    from precdiag.judge import Judged

RECOMPUTED, OPTIMIZER, REPLACED = "recomputed", "optimizer", "replaced"

_MEANING = {
    RECOMPUTED: "activation recomputation: no divergence by themselves",
    REPLACED: "in replaced regions, whose results agree or differ by what rounding explains",
    OPTIMIZER: "inside an optimizer step: the next step's parameters decide there",
}

# Passing checkpoint.py alone is not enough: the first forward pass of a checkpointed block does so too.
# A stack that does not reach the script (the backward pass has threads of its own) does not tell who called.
_SCRIPT = ", in <module>"
_RECOMPUTES = re.compile(r", in (?:recompute_fn|unpack_hook|backward)\b")


def recognise(judged: Judged) -> dict[int, str]:
    """Return the one-sided calls that are no divergence by themselves: line of Pairing.calls → why.

    recomputed: its stack passes a backward frame or the recomputing ones of torch/utils/checkpoint.py; without a
    stack that reaches the script: it stands among backward calls and repeats an earlier forward call with equal
    inputs. optimizer: it was made
    inside an optimizer step or gradient clipping (construct.json, or its stack), where one implementation loops and
    another does not; the
    next step's parameters decide there.
    """
    calls = judged.pairing.compared
    known: dict[int, str] = {}
    for side, dump, other in (
        ("baseline", judged.baseline, "candidate"),
        ("candidate", judged.candidate, "baseline"),
    ):
        lines = calls.index[(calls[side] >= 0) & (calls[other] < 0)]
        if not len(lines):
            continue
        repeats = _repeats(dump)
        for line, call in zip(lines.tolist(), calls.loc[lines, side].tolist(), strict=True):
            why = _why(dump, call, repeats)
            if why is not None:
                known[line] = why
    return known


def notes_on(judged: Judged, known: Mapping[int, str]) -> tuple[str, ...]:
    """Say how many calls stand on one side only, and which of them are no divergence by themselves."""
    calls = judged.pairing.compared
    alone = calls.index[calls["how"] == ""]
    others = int((~alone.isin(list(known))).sum())
    notes = [f"{others} calls stand on one side only"] if others else []
    for why, meaning in _MEANING.items():
        if count := sum(word == why for line, word in known.items() if line in calls.index):
            notes.append(f"{count} one-sided calls are {meaning}")
    return tuple(notes)


def unexplained(judged: Judged, known: Mapping[int, str]) -> np.ndarray:
    """Mark the lines of `judged.rows` that stand on one side only and are not recognised: bool of len(rows)."""
    import numpy as np

    state = judged.rows["state"].to_numpy()
    one_sided = (state == BASELINE_ONLY) | (state == CANDIDATE_ONLY)
    return one_sided & ~np.isin(judged.rows["call"].to_numpy(), list(known))


def _why(dump: Dump, call: int, repeats: np.ndarray) -> str | None:
    cell = dump.call_cell
    stack = dump.stack(cell("name", call))
    if cell("phase", call) == "forward":
        if cell("recompute", call) or any(_RECOMPUTES.search(frame) for frame in stack):
            return RECOMPUTED
        if not any(_SCRIPT in frame for frame in stack) and repeats[call]:
            return RECOMPUTED
    if cell("scope", call) in UPDATE_SCOPES or any(OPTIMIZES.search(frame) for frame in stack):
        return OPTIMIZER
    return None


def _repeats(dump: Dump) -> np.ndarray:
    """Mark forward calls behind the first backward call that repeat an earlier one with equal inputs."""
    import numpy as np
    import pandas as pd

    phase = dump.calls["phase"]
    forward = (phase == "forward").to_numpy()
    behind = np.cumsum((phase == "backward").to_numpy()) > 0
    if not (forward & behind).any():
        return forward & behind
    made = pd.DataFrame({"subject": subjects_of(dump.calls), "inputs": inputs_of(dump)})[forward]
    repeated = np.zeros(len(forward), dtype=bool)
    repeated[forward] = made.duplicated().to_numpy()
    return repeated & behind
