"""The rows whose error rounding does not explain, in order, and the random draws and choices among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precdiag.evidence import ARGUMENT, SHAPE, VALUE
from precdiag.finding import call_at
from precdiag.given import made, weights
from precdiag.judge import Judged
from precdiag.kinds import arguments_of
from precdiag.operations import is_random, is_routing
from precdiag.propagation import incoming
from precdiag.relative import HALF, Errors, errors_of, explained
from precdiag.replaced import spans
from precdiag.rows import INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import numpy as np

# An error this large is no small perturbation any more: what a call makes of it cannot be told from rounding. Nor has
# rounding alone been seen to add up to so many units; where it has, a fault that no row shows came before.
PERTURBATION, PERTURBATION_UNITS = 2.0**-3, 2.0**12
# Their integer inputs are data, never chosen by the model.
_LOSSES = frozenset({"cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "ctc_loss", "CTCLoss"})

OUTPUT_BEYOND, INPUT_BEYOND, PARAMETER_BEYOND, INTEGER_BEYOND = "output", "input", "parameter", "integer"


@dataclass(frozen=True)
class Suspects:
    """What stands out in a judged pair of dumps. Arrays are over the lines of `judged.rows`.

    errors; e_in and u (of the call) as propagation.incoming gives them. beyond: lines that rounding does not explain,
    in order, with what they are (an output, an input, a parameter, an integer). random: lines of outputs of calls that
    draw random numbers and differ. routing: lines of integers that a call chose otherwise though the values it chose
    among differ by rounding only. Behind the first random line and, for inputs, the first routing line, only
    parameters are looked at. Statistics of half precision resolve no more than what one call may add: an error may have
    been hidden in what a call takes in, so that no output is named by them alone. unresolved: the first line that would
    be beyond but for that, -1 for none. lost: the first line whose error is too large for its consumers to be judged.
    arguments: lines of arguments that differ, of calls that belong together.
    """

    errors: Errors
    e_in: np.ndarray
    u: np.ndarray
    beyond: dict[int, str]
    random: tuple[int, ...]
    routing: tuple[int, ...]
    unresolved: int
    lost: int
    arguments: tuple[int, ...]


def suspects(judged: Judged, *, fresh: bool) -> Suspects:
    """Find what rounding does not explain. `fresh`: no update has touched the parameters yet, so they must be equal."""
    import numpy as np

    errors = errors_of(judged)
    taken = incoming(judged, errors)
    io = places(judged)
    tensor = (io >= 0) & taken.alike
    integer = tensor & np.isnan(errors.u) & (errors.e == np.inf)
    over = tensor & ~explained(errors.e, taken.e, taken.u, spans(judged))
    draws = _random_lines(judged, over & (io == OUTPUT))
    chosen = np.flatnonzero(integer & (io == OUTPUT))
    routing = tuple(line for line in chosen.tolist() if _is_choice(judged, line, float(taken.e[line])))
    here, size = np.arange(len(io)), len(io)
    random_from, routing_from = (min(lines, default=size) for lines in (draws, _other_elements(judged, chosen)))
    coarsest = np.maximum.accumulate(np.nan_to_num(taken.u, nan=0.0)) if size else taken.u
    limit = np.minimum(PERTURBATION, PERTURBATION_UNITS * coarsest)
    over &= ~np.isnan(errors.u) & (taken.e <= limit) & (here < random_from)
    resolved = errors.exact | (coarsest < HALF) | _has_argument(judged)
    routed = here >= routing_from
    unresolved = np.flatnonzero(over & ~resolved & ((io == OUTPUT) | (taken.trusted & ~routed)))
    over &= resolved
    found = dict.fromkeys(np.flatnonzero(over & (io == OUTPUT)).tolist(), OUTPUT_BEYOND)
    arrived = over & (io == INPUT) & ~routed & taken.trusted
    found |= dict.fromkeys(np.flatnonzero(arrived).tolist(), INPUT_BEYOND)
    computed = [line for line in chosen.tolist() if line not in routing and line < random_from]
    found |= dict.fromkeys(computed, OUTPUT_BEYOND)
    integers = _given_integers(judged, errors, integer & (io == INPUT) & (here < min(random_from, routing_from)))
    found |= dict.fromkeys(integers, INTEGER_BEYOND)
    if fresh:
        found |= dict.fromkeys(_parameters(judged, io), PARAMETER_BEYOND)
    large = np.flatnonzero(tensor & taken.trusted & ~np.isnan(errors.u) & (errors.e > limit))
    first = [int(lines[0]) if len(lines) else -1 for lines in (unresolved, large)]
    told = tuple(line for line in differing_arguments(judged) if taken.trusted[line] and taken.alike[line])
    return Suspects(errors, taken.e, taken.u, dict(sorted(found.items())), draws, routing, first[0], first[1], told)


def places(judged: Judged) -> np.ndarray:
    """Where in its call each line that both sides have stands; -1 for the others."""
    import numpy as np

    io = judged.baseline.rows["io"].to_numpy()[np.maximum(judged.rows["baseline"].to_numpy(), 0)]
    return np.where(judged.pairing.paired, io, -1)


def differing_arguments(judged: Judged, call: int | None = None) -> list[int]:
    """Return the lines of arguments that differ, of one call (a line of Pairing.calls) or of all."""
    import numpy as np

    differ = judged.differs_in(ARGUMENT)
    if call is not None:
        differ &= (judged.rows["call"] == call).to_numpy()
    lines: list[int] = np.flatnonzero(differ).tolist()
    return lines


def _random_lines(judged: Judged, where: np.ndarray) -> tuple[int, ...]:
    """Lines of `where` that belong to forward calls which draw random numbers."""
    import numpy as np

    calls = judged.baseline.calls
    operations = {name for name in calls["operation"].unique() if is_random(name, {}) or "attention" in str(name)}
    drawing = (calls["operation"].isin(operations) & (calls["phase"] == "forward")).to_numpy()
    position = judged.pairing.calls["baseline"].to_numpy()[judged.rows["call"].to_numpy()]
    lines = np.flatnonzero(where & drawing[np.maximum(position, 0)]).tolist()
    return tuple(line for line in lines if _draws(judged, line))


def _draws(judged: Judged, line: int) -> bool:
    dump, position = call_at(judged, line)
    return is_random(str(dump.calls["operation"].iat[position]), arguments_of(dump, position))


def _is_choice(judged: Judged, line: int, e_in: float) -> bool:
    """A call that chooses among elements, or whose values differ already: near ties flip what it returns."""
    dump, position = call_at(judged, line)
    return e_in > 0 or is_routing(str(dump.calls["operation"].iat[position]))


def _has_argument(judged: Judged) -> np.ndarray:
    """Mark the lines of calls that were called with other arguments."""
    import numpy as np

    call = judged.rows["call"].to_numpy()
    return np.isin(call, call[differing_arguments(judged)])


def _other_elements(judged: Judged, chosen: np.ndarray) -> list[int]:
    """Lines behind which the elements themselves may be others: integers were chosen, or a module's input has another
    shape.
    """
    import numpy as np

    shapes = np.flatnonzero(judged.differs_in(SHAPE))
    position = judged.pairing.calls["baseline"].to_numpy()[judged.rows["call"].to_numpy()[shapes]]
    modules = (judged.baseline.calls["module"] != "").to_numpy()[position]
    return [*chosen.tolist(), *shapes[modules].tolist()]


def _given_integers(judged: Judged, errors: Errors, where: np.ndarray) -> list[int]:
    """Integer inputs that differ and that no dumped call made: data, labels, masks.

    At L0 work between the modules is not seen: there only labels, and what stands before the first difference of
    floats.
    """
    import numpy as np

    if judged.baseline.level == "L0":
        floats = np.flatnonzero(~np.isnan(errors.u) & (errors.e > 0))
        position = np.maximum(judged.pairing.calls["baseline"].to_numpy(), 0)[judged.rows["call"].to_numpy()]
        labels = judged.baseline.calls["operation"].isin(_LOSSES).to_numpy()[position]
        where = where & (labels | (np.arange(len(where)) < (floats[0] if len(floats) else len(where))))
    lines = np.flatnonzero(where)
    if not len(lines):
        return []
    given: list[int] = lines[~made(judged.baseline)[judged.rows["baseline"].to_numpy()[lines]]].tolist()
    return given


def _parameters(judged: Judged, io: np.ndarray) -> list[int]:
    """Parameters that differ in value: of modules, and in the slots of functions that take a weight."""
    import numpy as np

    dump, differ = judged.baseline, judged.differs_in(VALUE)
    given = np.flatnonzero(differ & (io == INPUT))
    at = judged.rows["baseline"].to_numpy()[given]
    weight = weights(dump)[at]
    if weight.any():
        weight &= ~made(dump)[at]
    lines: list[int] = sorted([*np.flatnonzero(differ & (io == PARAMETER)).tolist(), *given[weight].tolist()])
    return lines
