"""Name where the first NaN or Inf of one dump came from: which row, of what kind, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precdiag.arrival import call_before, continues, like, maker_of, suspects_of, trains, updates
from precdiag.dump import Dump
from precdiag.finding import Row, module_of
from precdiag.generators import explain
from precdiag.masks import FILLS, Masks
from precdiag.nonfinite import Classes, Flow, value_of
from precdiag.operands import LIMITS, numbers_of, rows_of
from precdiag.operations import is_weight_slot
from precdiag.rows import INPUT, OUTPUT, PARAMETER, STATISTICS
from precdiag.source import Source, source_of, stack_of

GENERATED, ARGUMENT, BETWEEN = "generated", "argument", "between calls"
PARAMETER_KIND, INPUT_KIND = "parameter", "input"

_LEFT_BEHIND = "look at the backward and the update of the step before, or at the checkpoint it was loaded from"


@dataclass(frozen=True)
class Origin:
    """Where the first NaN or Inf came from. `suspects`: calls that may have written it, for `between calls`."""

    row: Row
    kind: str
    value: str
    source: Source | None
    stack: tuple[str, ...]
    why: str
    next_step: str
    is_output: bool
    position: int
    suspects: tuple[str, ...] = ()
    also: tuple[Row, ...] = ()


def find_origin(dump: Dump, classes: Classes, masks: Masks, found: np.ndarray, flow: Flow) -> Origin | None:
    """Name the origin among the rows of one dump, None where every row is finite.

    `found` and `flow` are without the harmless masks. A scalar counts where its call gave out what no tensor brought,
    or wrote without giving anything out (`__setitem__`) and the first tensor to hold it came from no call.
    """
    candidates = np.flatnonzero(_candidates(dump, found, flow))
    if not len(candidates):
        return None
    order = dump.rows["order"].to_numpy()
    row = int(candidates[np.argmin(order[candidates])])
    if dump.rows["tensor"].iat[row] and int(dump.rows["io"].iat[row]) != OUTPUT:
        row = _writer(dump, found, flow, row)
    kind, why, following, suspects = _explained(dump, classes, masks, row, found)
    call = str(dump.rows["call"].iat[row])
    stack = stack_of(dump, call)
    return Origin(
        row=row_at(dump, row, value_of(int(found[row]))),
        kind=kind,
        value=value_of(int(found[row])),
        source=source_of(stack),
        stack=stack,
        why=why,
        next_step=following,
        is_output=int(dump.rows["io"].iat[row]) == OUTPUT,
        position=row,
        suspects=suspects,
    )


def row_at(dump: Dump, row: int, kind: str) -> Row:
    """Describe one row of a single dump; its metrics are its statistics."""
    call = dump.cell.code("call", row)
    known = int(dump.cell("known", row))
    numbers = {name: float(dump.cell(name, row)) if known >> bit & 1 else None for bit, name in enumerate(STATISTICS)}
    return Row(
        step=dump.part.step,
        rank=dump.part.rank,
        stage=dump.part.stage,
        order=int(dump.cell("order", row)),
        name=dump.name(row),
        call=str(dump.cell("call", row)),
        slot=str(dump.cell("slot", row)),
        phase=str(dump.call_cell("phase", call)),
        kind=kind,
        metrics=numbers if dump.cell("tensor", row) else {"value": dump.cell("value", row)},
        evidence=0,
        module=module_of(dump, call),
    )


def _candidates(dump: Dump, found: np.ndarray, flow: Flow) -> np.ndarray:
    tensor = dump.rows["tensor"].to_numpy()
    call = dump.rows["call"].cat.codes.to_numpy()
    return np.asarray((found != 0) & (tensor | (flow.gained[call] != 0)))


def _writer(dump: Dump, found: np.ndarray, flow: Flow, row: int) -> int:
    """Return the scalar that an earlier call wrote into this row's tensor without giving anything out, else the row.

    The latest call whose target has the row's shape; but for a parameter also one whose target may be a view of it.
    """
    rows = dump.rows
    call, order = rows["call"].cat.codes.to_numpy(), rows["order"].to_numpy()
    writes = (np.isin(dump.calls["operation"].to_numpy(), list(FILLS)) & ~flow.returns)[call]
    scalars = np.flatnonzero(writes & ~rows["tensor"].to_numpy() & ((found & found[row]) != 0) & (order < order[row]))
    shape = rows["shape"].cat.codes.to_numpy()
    targets = np.flatnonzero(writes & (rows["slot"] == "input.0").to_numpy() & (shape == shape[row]))
    fitting = scalars[np.isin(call[scalars], call[targets])]
    weight = is_weight_slot(str(dump.calls["operation"].iat[call[row]]), str(rows["slot"].iat[row]))
    if not len(fitting) and int(rows["io"].iat[row]) != PARAMETER and not weight:
        fitting = scalars
    return int(fitting[np.argmax(order[fitting])]) if len(fitting) else row


def _explained(
    dump: Dump, classes: Classes, masks: Masks, row: int, found: np.ndarray
) -> tuple[str, str, str, tuple[str, ...]]:
    rows = dump.rows
    io, value = int(rows["io"].iat[row]), value_of(int(found[row]))
    if not rows["tensor"].iat[row]:
        return ARGUMENT, *_explain_argument(dump, masks, row, value), ()
    if io == PARAMETER:
        return PARAMETER_KIND, *_explain_parameter(dump, "the parameter", value), ()
    if io == INPUT:
        return _explain_input(dump, masks, row, value)
    return *_explain_output(dump, classes, row, value), ()


def _explain_argument(dump: Dump, masks: Masks, row: int, value: str) -> tuple[str, str]:
    why = f"the scalar {value} was handed to this call"
    source = next((each for each in masks.sources if each.row == row), None)
    if source is not None and source.spread_by is not None:
        why += f", and {dump.calls['name'].iat[source.spread_by]} mixed it into other elements"
    elif source is not None:
        why += ", and nothing dumped behind it turns it finite"
    return why, "look at this line: where the scalar comes from, and whether it is meant"


def _explain_parameter(dump: Dump, what: str, value: str) -> tuple[str, str]:
    step = dump.part.step
    why = f"{what} held {value} before this call computed"
    if not step:
        return why, "look at the checkpoint it was loaded from and at its initialisation"
    return why, f"{_LEFT_BEHIND}: precdiag collect --step {step - 1} --level mix …"


def _explain_input(dump: Dump, masks: Masks, row: int, value: str) -> tuple[str, str, str, tuple[str, ...]]:
    rows = dump.rows
    call = dump.calls.iloc[int(rows["call"].cat.codes.iat[row])]
    if is_weight_slot(str(call["operation"]), str(rows["slot"].iat[row])):
        return PARAMETER_KIND, *_explain_parameter(dump, "this weight or buffer", value), ()
    before = call_before(dump, row)
    if call["phase"] != "forward":
        why = (
            "the forward pass is finite, and no dumped call gave this gradient out: it is a sum over several uses, or"
            f" comes from a tensor hook or an autograd Function that no hook of msprobe sees, behind {before}"
        )
        return BETWEEN, why, "look at hooks and autograd Functions between the two calls", (before,)
    if updates(dump, call["name"], call["scope"]):
        why = f"a gradient or a state of the optimizer that no dumped call gave out (behind {before})"
        return BETWEEN, why, "collect the backward at level mix; look at the optimizer's state", (before,)
    maker = maker_of(dump, row)
    grad = int(rows["requires_grad"].iat[row])
    if maker is None and grad == 1 and dump.level == "L1" and not like(dump, row).any():
        return PARAMETER_KIND, *_explain_parameter(dump, "a parameter (a leaf that no call gave out)", value), ()
    if grad != 1 and (maker is None or (trains(dump) and not continues(dump, row)[maker])):
        spread = next((each.spread_by for each in masks.sources if each.row == row), None)
        more = "" if spread is None else f", and {dump.calls['name'].iat[spread]} mixes it into other elements"
        why = f"no dumped call gave it out and it needs no gradient: the data that came in hold {value}{more}"
        return INPUT_KIND, why, "check the data and the preprocessing of this step", ()
    suspects = tuple(suspects_of(dump, row, maker))
    return BETWEEN, *_explain_between(dump, row, maker, before, suspects, value), suspects or (before,)


def _explain_between(
    dump: Dump, row: int, maker: int | None, before: str, suspects: tuple[str, ...], value: str
) -> tuple[str, str]:
    call = str(dump.rows["call"].iat[row])
    if maker is None:
        why = f"no dumped call gave it out, and {before}, the call before it, is finite"
    else:
        low, high = float(dump.rows["min"].iat[maker]), float(dump.rows["max"].iat[maker])
        why = f"{dump.name(maker)} gave it out finite ({low:.6g} to {high:.6g}), and it arrives with {value}"
        most = max(abs(low), abs(high))
        if value != "nan" and most > LIMITS["float16"]:
            return f"{why}: beyond float16's 65504, so a cast that no hook saw overflows", "look at casts and autocast"
    if suspects:
        return f"{why}; recorded in-place calls between: {', '.join(suspects)}", "look at these in-place calls"
    following = f"look at the code between {before} and {call}: in-place writes, other streams, autograd Functions"
    return f"{why}; no in-place call is recorded between", following


def _explain_output(dump: Dump, classes: Classes, row: int, value: str) -> tuple[str, str, str]:
    rows = dump.rows
    position = int(rows["call"].cat.codes.iat[row])
    call = dump.calls.iloc[position]
    operation, backward = str(call["operation"]), str(call["phase"]) != "forward"
    whole = bool((dump.calls["phase"] == "forward").any())
    lead = "the forward pass is finite and this is the first of the backward: " if backward and whole else ""
    if call["kind"] == "Distributed" and not backward:
        why = f"its own input is finite: {value} was received from another rank, or the reduction overflowed"
        return INPUT_KIND, why, "collect the other ranks of the group too and name the folder that holds all of them"
    if call["phase"] == "parameters_grad":
        why = f"{lead}the gradient of this parameter, and nothing dumped before it holds NaN or Inf"
        return GENERATED, why, "collect at level mix: the backward of the API calls inside the module shows which"
    if classes.undefined[rows_of(dump, position)].any() and not backward:
        why = "it reads memory that nobody has written (empty, or a buffer before it was filled)"
        return GENERATED, why, "fill the buffer before this call"
    known = explain(operation, backward, value, numbers_of(dump, row))
    if known is not None:
        return GENERATED, lead + known[0], known[1]
    why = f"{lead}every tensor that went in is free of {value}, and this came out"
    return GENERATED, why, "replay this one call with its dumped inputs (collect it with --task tensor)"
