"""Say which quantity of the optimizer's step made a parameter differ, from what collect --update-stats wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from precdiag.cause import Cause
from precdiag.collected import folder_of_side
from precdiag.finding import Row
from precdiag.kinds import UPDATE, UPDATE_STATS
from precdiag.layout import Part
from precdiag.session import ATTEMPTS, RECEIPTS, read_settings

# What an optimizer's step uses and makes, in the order in which it does.
ORDER = (
    "gradient",
    "clip_factor",
    "loss_scale",
    "learning_rate",
    "state_before",
    "master_before",
    "parameter_before",
    "state_after",
    "master_after",
    "parameter_after",
)
MADE = ("state_after", "master_after", "parameter_after")
# Norms are float64 sums over the same values: only the order of summation can tell two of them apart.
_SAME = 1e-12
_MODULE_CALL = re.compile(r"Module\.(.*)\.[^.]+\.(?:forward|backward)\.\d+\Z")

Number = float | None
Parameters = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """The first quantity of a parameter's update that differs: its name in ORDER, of state with the entry's name."""

    quantity: str
    baseline: Number
    candidate: Number

    def __str__(self) -> str:
        name, space, entry = self.quantity.partition(" ")
        said = name.replace("_", " ") + space + entry
        return f"the {said} differs first: {_text(self.baseline)} → {_text(self.candidate)}"


def explained_update(cause: Cause, baseline: Part, candidate: Part) -> tuple[Cause, tuple[str, ...]]:
    """Return the cause, and as a note what made its parameter differ; of another kind than `update` as it is.

    The parts are those that the cause lies in. Where update statistics were not asked for, what to do next says how to.
    """
    if cause.row.kind != UPDATE[0]:
        return cause, ()
    left, right = _read(baseline), _read(candidate)
    if left is not None and right is not None:
        step = -1 if baseline.step is None else baseline.step - 1
        return cause, (f"optimizer of step {step}: {_told(cause.row, left, right)}",)
    sides = (("baseline", baseline, left), ("candidate", candidate, right))
    silent = [name for name, part, found in sides if found is None and _was_asked_for(part)]
    if silent:
        said = "no step of it was recorded: skipped (a loss scaler does), no torch.optim.Optimizer, or not collected"
        return cause, (f"optimizer of the step before, {' and '.join(silent)}: {said}",)
    return replace(cause, next_step=cause.next_step + UPDATE_STATS), ()


def first_difference(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Difference | None:
    """Return the first quantity, in ORDER, that differs between two records of one parameter's update."""
    for name in ORDER:
        for quantity, left, right in _pairs(name, baseline.get(name), candidate.get(name)):
            if not _is_same(name, left, right):
                return Difference(quantity, left, right)
    return None


def _told(row: Row, baseline: Parameters, candidate: Parameters) -> str:
    own = _name_of(row)
    common = [name for name in baseline if name in candidate]
    looked = [own] if own in common else common
    found = ((name, first_difference(baseline[name], candidate[name])) for name in looked if name is not None)
    name, difference = next(((name, each) for name, each in found if each is not None), ("", None))
    if not common:
        return "the two sides name no parameter alike"
    if difference is None:
        return "no norm differs: what differs keeps its norm, or came between the two steps"
    rest = "; what it was made from is equal: weight decay, betas, momentum or eps are left"
    return f"of {name} {difference}{rest if difference.quantity.startswith(MADE) else ''}"


def _name_of(row: Row) -> str | None:
    """Return the model's name of the parameter that a row of a module's call shows; rows of APIs show none."""
    match = _MODULE_CALL.match(row.call)
    slot = (row.slot or "").removeprefix("parameters.")
    return f"{match[1]}.{slot}" if match and slot else None


def _pairs(name: str, left: Any, right: Any) -> Iterator[tuple[str, Number, Number]]:
    if not name.startswith("state"):
        yield name, _number(left), _number(right)
        return
    left, right = left or {}, right or {}
    for entry in dict.fromkeys((*left, *right)):
        yield f"{name} ({entry})", _number(left.get(entry)), _number(right.get(entry))


def _is_same(name: str, left: Number, right: Number) -> bool:
    if name == "clip_factor":  # not clipped is clipped by 1
        left, right = 1.0 if left is None else left, 1.0 if right is None else right
    if left is None or right is None:
        return left is right or name.startswith("master")  # only one side may keep an fp32 master
    return math.isclose(left, right, rel_tol=_SAME) or (math.isnan(left) and math.isnan(right))


def _number(value: Any) -> Number:
    return None if value is None else float(value)


def _text(value: Number) -> str:
    return "none" if value is None else f"{value:.10g}"


def _read(part: Part) -> Parameters | None:
    """Return what the step before `part` did to each parameter, None where the side has no whole file of it."""
    side = folder_of_side(part.folder)
    if side is None or part.step is None:
        return None
    folder = side / RECEIPTS / "updates"
    inside = part.folder.absolute().relative_to(side).parts
    if inside[0] == ATTEMPTS:
        folder /= f"attempt{inside[1]}"
    place = part.folder.name if part.rank is None else f"rank{part.rank}"
    try:
        found = json.loads((folder / f"step{part.step - 1}.{place}.json").read_text(encoding="utf-8"))
        parameters: Parameters = found["parameters"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return parameters


def _was_asked_for(part: Part) -> bool:
    side = folder_of_side(part.folder)
    try:
        return side is not None and bool(read_settings(side)["update_stats"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
