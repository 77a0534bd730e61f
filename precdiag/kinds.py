"""What kind of cause a differing row is, why, and what to do next: DESIGN's list, the first that fits."""

from __future__ import annotations

import math

from precdiag.dump import Dump, fingerprints
from precdiag.evidence import (
    ARGUMENT,
    BASELINE_ONLY,
    CANDIDATE_ONLY,
    DTYPE,
    GRAD,
    SHAPE,
    STATISTICS,
    TABLE,
    UNKNOWN,
    VALUE,
)
from precdiag.finding import is_beyond, side_of, texts_of
from precdiag.identity import skips_counters
from precdiag.judge import Judged
from precdiag.operations import WEIGHT_SLOTS, is_random, is_routing
from precdiag.replaced import Replaced
from precdiag.rows import INPUT, OUTPUT, PARAMETER

_NOT_PROOF = "statistics are not proof: they may still differ in order or in single elements; collect md5 or tensor"
_DTYPE_NEXT = "check autocast and the dtype the model was built or loaded with"
_GRAD_NEXT = "check which parameters are frozen, and no_grad blocks"
PARAMETER_KIND = "parameter"
_PARAMETER = (
    PARAMETER_KIND,
    "the parameter differs before the call computes",
    "compare how the two sides initialise or load this weight (seed, checkpoint, conversion)",
)
# Kind, why and what to do next of a parameter that differs after a step whose gradients were equal.
UPDATE = (
    "update",
    "the parameter differs at this step although the gradients before it were equal: the update made it differ",
    "look at the optimizer of the step before: learning rate, weight decay, clipping, state dtype",
)
UPDATE_STATS = "; collect both sides with --update-stats to be told which of them"
_TWO_PATHS = "read the two code paths at this line side by side"


def explain(judged: Judged, line: int, replaced: tuple[Replaced, ...] = ()) -> tuple[str, str, str]:
    """Return kind, why and what to do next: the first kind of DESIGN's list that fits."""
    aspects = int(judged.rows["aspects"].iat[line])
    state = int(judged.rows["state"].iat[line])
    if state in (BASELINE_ONLY, CANDIDATE_ONLY):
        return _explain_one_sided(judged, line, state, replaced)
    before, after = texts_of(judged, line)
    if aspects & SHAPE:
        return "shape", f"its shape is {before} in the baseline and {after} in the candidate", "look at what made it"
    if aspects & DTYPE and not aspects & VALUE:
        return "dtype", f"{before} in the baseline, {after} in the candidate; values agree but for that", _DTYPE_NEXT
    if aspects & ARGUMENT:
        return "argument", f"called with {before} in the baseline and {after} in the candidate", "align the argument"
    if aspects == GRAD:
        return "requires_grad", f"requires_grad is {before} in the baseline and {after} in the candidate", _GRAD_NEXT
    for region in replaced:
        if line in region.lines:
            return "introduced", f"{region.sides}; {_told(region)}", "read what stands behind it: beyond rounding"
    dump, at = side_of(judged, line)
    io = int(dump.rows["io"].iat[at])
    if io == PARAMETER or (io == INPUT and is_parameter(judged, line)):
        return _PARAMETER
    if io == INPUT:
        return _explain_input(judged, line)
    return _explain_output(judged, line)


def _told(region: Replaced) -> str:
    """How far apart a region's results are, in units of the roundoff."""
    if math.isnan(region.e_out) or math.isnan(region.u):
        return "their results differ"
    out, taken = f"{region.e_out / region.u:.2g}", f"{region.e_in / region.u:.2g}"
    verdict = "rounding explains that" if region.explained else "that is more than rounding"
    return f"what they hand on differs by {out} u, what was taken in by {taken}: {verdict}"


def _explain_one_sided(judged: Judged, line: int, state: int, replaced: tuple[Replaced, ...]) -> tuple[str, str, str]:
    dump, at = side_of(judged, line)
    here, there = ("baseline", "candidate") if state == BASELINE_ONLY else ("candidate", "baseline")
    whole = judged.pairing.calls["how"].iat[int(judged.rows["call"].iat[line])] == ""
    if whole and is_beyond(judged, line):
        first = zip((judged.baseline, judged.candidate), judged.pairing.stopped or (), strict=True)
        names = " stands against ".join(str(side.calls["name"].iat[position]) for side, position in first)
        return "structure", f"not comparable beyond here: {names}, and too little behind them matches", _TWO_PATHS
    for region in replaced:
        if int(judged.rows["call"].iat[line]) in region.calls:
            return "structure", f"{region.sides}; {_told(region)}", _TWO_PATHS
    if whole:
        why = f"only the {here} made this call; the {there} has none to pair with it"
        return "structure", why, _TWO_PATHS
    if int(dump.rows["io"].iat[at]) == OUTPUT:
        return "structure", f"only the {here} returned this value", _TWO_PATHS
    return "argument", f"only the {here} passed this argument", "align the argument"


def _explain_input(judged: Judged, line: int) -> tuple[str, str, str]:
    dump, at = side_of(judged, line)
    row = dump.rows.iloc[at]
    call = dump.calls.iloc[dump.cell.code("call", at)]
    producer = _producer(judged.baseline, int(judged.rows["baseline"].iat[line]))
    integral = not str(row["dtype"]).rpartition(".")[2].lower().startswith(("float", "bfloat", "complex"))
    if producer is None and call["phase"] == "forward" and (integral or int(row["requires_grad"]) == 0):
        why = "it comes from no dumped call: data, labels or masks differ"
        return "input", why, "check the data order, the sampler's seed and the preprocessing of both sides"
    if producer is None and _has_gap(judged.baseline):
        why = "the dump leaves out what came before it (level, scope or list), so where it came to differ is not seen"
        return "gap", why, "collect again without scope or list, at level mix"
    if producer is None:
        why = "it differs although no dumped call produced it: an in-place write, a stomp, or work that no hook saw"
        return "between calls", why, "look between this call and the one before it"
    maker = judged.baseline.name(producer)
    why = f"{maker} produced it with equal values, yet it arrives different: it was written to between the two calls"
    return "between calls", why, f"look for in-place writes between {maker} and this call"


def _explain_output(judged: Judged, line: int) -> tuple[str, str, str]:
    dump, at = side_of(judged, line)
    position = dump.cell.code("call", at)
    call = dump.calls.iloc[position]
    arguments = arguments_of(dump, position)
    proof = _input_proof(judged, line)
    if call["phase"] == "forward" and is_random(call["operation"], arguments):
        why = f"it draws random numbers and the generators of the two sides differ{proof}"
        return "random", why, "align the generators (seed, device generator) or set p = 0"
    dtype = str(dump.rows["dtype"].iat[at]).rpartition(".")[2]
    if is_routing(call["operation"]) and dtype.startswith(("int", "uint", "bool")):
        why = f"it chose other elements from equal inputs: a tie was broken the other way{proof}"
        return "routing", why, "what depends on the choice is not comparable beyond here; replay the choice of one side"
    nonfinite = int(judged.rows["nonfinite"].iat[line])
    if nonfinite in (1, 2):
        side = "baseline" if nonfinite == 1 else "candidate"
        return (
            "non-finite",
            f"only the {side} has NaN or Inf here, from equal inputs{proof}",
            (f"precdiag nan on the {side}'s dump"),
        )
    if call["phase"] == "parameters_grad":
        why = "the gradient accumulated for this parameter differs, and nothing dumped before it does"
        return "introduced", why, "look at the backward of the calls that use this parameter"
    return (
        "introduced",
        f"every input of the call is equal and this output differs: it computes differently{proof}",
        ("replay this one call on both devices"),
    )


def _input_proof(judged: Judged, line: int) -> str:
    rows = judged.rows
    same = rows[(rows["call"] == rows["call"].iat[line]) & (rows.index < line)]
    if (same["state"] == UNKNOWN).any():
        return "; some of its inputs could not be judged"
    if (same["evidence"] == STATISTICS).any():
        return f"; its inputs are equal by statistics, and {_NOT_PROOF}"
    if (same["evidence"] == TABLE).any():
        return "; its inputs are equal as far as msprobe's table shows"
    return ""


def is_parameter(judged: Judged, line: int) -> bool:
    """A known weight slot, a value that stands in a parameters row, or a leaf that needs a gradient at L1."""
    dump, at = judged.baseline, int(judged.rows["baseline"].iat[line])
    call = dump.calls.iloc[dump.cell.code("call", at)]
    if call["phase"] != "forward":
        return False
    if dump.rows["slot"].iat[at] in WEIGHT_SLOTS.get(call["operation"], ()):
        return True
    prints = fingerprints(dump)
    parameters = prints[(dump.rows["io"] == PARAMETER).to_numpy()]
    if prints[at] != 0 and (parameters == prints[at]).any():
        return True
    leaf = dump.level == "L1" and int(dump.rows["requires_grad"].iat[at]) == 1
    return leaf and _producer(dump, at) is None


def _producer(dump: Dump, at: int) -> int | None:
    """Return the latest row before this one that a call gave out with an equal value, None where there is none."""
    import numpy as np

    prints = fingerprints(dump)
    if prints[at] == 0:
        return None
    order = dump.rows["order"].to_numpy()
    candidates = np.flatnonzero((prints == prints[at]) & (dump.rows["io"].to_numpy() == OUTPUT) & (order < order[at]))
    return int(candidates[np.argmax(order[candidates])]) if len(candidates) else None


def _has_gap(dump: Dump) -> bool:
    """L0 sees no API calls; a scope or a list leaves holes in the call counters of the forward calls."""
    if dump.level == "L0":
        return True
    return skips_counters(dump.calls)


def arguments_of(dump: Dump, position: int) -> dict[str, str]:
    """Return the scalar arguments of one call by slot (`input.1` → `0.1`)."""
    rows = dump.rows[dump.rows["call"].cat.codes == position]
    rows = rows[~rows["tensor"]]
    return {str(slot): str(value) for slot, value in zip(rows["slot"], rows["value"], strict=True)}
