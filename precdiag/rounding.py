"""What rounding explains between two devices and what it does not: the onset, the first row beyond, jumps, profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precdiag.arbiter import BASELINE, CANDIDATE, NEITHER, Ruling, arbitrate
from precdiag.cause import Cause, stack_at
from precdiag.errors import PrecdiagError
from precdiag.finding import Row, row_of
from precdiag.given import given_integers, given_parameters, is_port
from precdiag.growth import Jump, Level, jumps_of, like_tf32, profile_of
from precdiag.judge import Judged, Scrutiny
from precdiag.kinds import is_parameter
from precdiag.noise import limit_of, noise_of
from precdiag.relative import floor_of
from precdiag.rows import OUTPUT
from precdiag.source import Source, source_of
from precdiag.suspects import (
    INPUT_BEYOND,
    INTEGER_BEYOND,
    OUTPUT_BEYOND,
    PARAMETER_BEYOND,
    Suspects,
    differing_arguments,
    places,
    suspects,
)
from precdiag.torchfile import require_torch

if TYPE_CHECKING:
    import numpy as np

NOT_REPLAYED = "no call was replayed in float64"

ESTIMATE, NOISE, ARBITER = "estimate", "noise", "arbiter"
# How many calls are replayed at most: those that stand out, in order.
REPLAYED = 24
# And at most so many behind random draws, where nothing but a replay tells.
SWEPT = 400


@dataclass(frozen=True)
class Beyond:
    """The first row that rounding does not explain, on what `basis` (arbiter, noise, estimate), and what to do."""

    row: Row
    e_in: float
    e_out: float
    u: float
    basis: str
    why: str
    next_step: str
    source: Source | None
    ruling: Ruling | None = None


@dataclass(frozen=True)
class Rounding:
    """The second finding beside the first cause; it decides neither verdict nor exit status.

    onset: the first cause, where it is rounding and no fault by itself. arguments: rows of arguments that differ.
    tf32: rows of multiplications that look like TF32 or HF32 on one side. parameters, integers (tokens, labels, masks
    that no dumped call made): how many are equal, of how many. unresolved: a row that statistics of half precision show
    to jump, without telling where the error came in. lost: a row whose error is larger than rounding adds up to, though
    none stands out. u: the coarsest roundoff that was compared. largest: the
    largest finite error in units of its row's u. ported: one side alone calls the NPU's own operators, or the sides
    name other devices.
    """

    onset: Row | None
    beyond: Beyond | None
    jumps: tuple[Jump, ...]
    profile: tuple[Level, ...]
    random: tuple[Row, ...]
    routing: tuple[Row, ...]
    arguments: tuple[Row, ...]
    tf32: tuple[Row, ...]
    parameters: tuple[int, int]
    integers: tuple[int, int]
    unresolved: Row | None
    lost: Row | None
    u: float
    largest: float
    ported: bool


def find_rounding(
    judged: Judged,
    cause: Cause | None,
    *,
    fresh: bool,
    scrutiny: Scrutiny = Scrutiny(),  # noqa: B008 - a frozen value
) -> Rounding | None:
    """Look for what rounding does not explain in one step of one rank; None where nothing differs.

    `fresh`: no update has touched the parameters yet. e and u are relative to the baseline's norm.
    """
    import numpy as np

    if cause is None:
        return None
    found = suspects(judged, fresh=fresh)
    errors = found.errors
    jumps = jumps_of(judged, found)
    rulings = _rulings(judged, found, jumps) if scrutiny.arbiter else {}
    measured = None if scrutiny.noise is None else noise_of(judged, scrutiny.noise)
    quiet = within_noise(found, measured, scrutiny.k)
    line = _first(found, rulings, quiet)
    finite = np.isfinite(errors.e) & ~np.isnan(errors.u)
    scaled = errors.e[finite] / errors.u[finite]
    return Rounding(
        onset=_onset(judged, cause, found),
        beyond=None if line is None else _beyond(judged, found, line, rulings.get(line), measured),
        jumps=tuple(replace(jump, ruling=rulings.get(jump.row.order)) for jump in jumps),
        profile=profile_of(judged, found),
        random=tuple(row_of(judged, at) for at in found.random),
        routing=tuple(row_of(judged, at) for at in found.routing),
        arguments=tuple(row_of(judged, at) for at in found.arguments),
        tf32=tuple(row_of(judged, at) for at in like_tf32(judged, found)),
        parameters=given_parameters(judged),
        integers=given_integers(judged),
        unresolved=row_of(judged, found.unresolved) if found.unresolved >= 0 else None,
        lost=row_of(judged, found.lost) if found.lost >= 0 and line is None and not found.random else None,
        u=float(np.nanmax(errors.u)) if finite.any() else np.nan,
        largest=float(scaled.max()) if len(scaled) else 0.0,
        ported=is_port(judged),
    )


def explained_cause(cause: Cause, rounding: Rounding | None) -> Cause:
    """Say of a first cause what is known of rounding: that it is its onset, or what stands behind random draws."""
    if rounding is None:
        return cause
    if rounding.onset is not None:
        return replace(cause, why=f"{cause.why}; it differs by rounding, no fault by itself")
    if cause.row.kind != "random":
        return cause
    # A value alone tells nothing behind random draws: it is one of theirs unless rounding.beyond says otherwise.
    exact = cause.behind if cause.behind is not None and cause.behind.kind != "value" else None
    return replace(cause, behind=exact if rounding.beyond is None else rounding.beyond.row)


def note_on_replays(judged: Judged, scrutiny: Scrutiny) -> list[str]:
    """Say why no call was replayed, where tensors were dumped and torch is missing or does not start."""
    if not scrutiny.arbiter or not _has_tensors(judged):
        return []
    try:
        require_torch()
    except PrecdiagError as error:
        return [f"{NOT_REPLAYED}: {error.with_hint}"]
    return []


def _has_tensors(judged: Judged) -> bool:
    return all(bool(dump.rows["file"].notna().any()) for dump in (judged.baseline, judged.candidate))


def _onset(judged: Judged, cause: Cause, found: Suspects) -> Row | None:
    line = cause.row.order
    e, e_in, u = found.errors.e[line], found.e_in[line], found.u[line]
    if cause.row.kind == "introduced" and e_in == 0 and line not in found.beyond and e <= floor_of(u):
        return cause.row
    return None


def _rulings(judged: Judged, found: Suspects, jumps: tuple[Jump, ...]) -> dict[int, Ruling]:
    """Have the arbiter rule on the outputs that stand out, in order, where it can: it replays dumped tensors."""
    if not _has_tensors(judged):
        return {}
    outputs = [line for line, what in found.beyond.items() if what == OUTPUT_BEYOND]
    lines = sorted({*outputs[:REPLAYED], *(jump.row.order for jump in jumps)})
    rulings = {}
    for line in lines:
        if not differing_arguments(judged, int(judged.rows["call"].iat[line])):  # each side would be right by its own
            ruling = arbitrate(judged, line, float(found.u[line]))
            if ruling is not None:
                rulings[line] = ruling
    if not found.beyond and not any(ruling.off in (CANDIDATE, BASELINE) for ruling in rulings.values()):
        rulings |= _swept(judged, found)
    return rulings


def _swept(judged: Judged, found: Suspects) -> dict[int, Ruling]:
    """Behind random draws, or an error too large to be judged, ask the arbiter call by call until a side is off."""
    start = min((line for line in (*found.random, found.lost) if line >= 0), default=-1)
    if start < 0:
        return {}
    io = places(judged)
    lines = [line for line in range(start + 1, len(io)) if io[line] == OUTPUT and found.errors.e[line] > 0]
    for line in lines[:SWEPT]:
        ruling = None if line in found.random else arbitrate(judged, line, float(found.u[line]))
        if ruling is not None and ruling.off in (CANDIDATE, BASELINE):
            return {line: ruling}
    return {}


def within_noise(found: Suspects, measured: np.ndarray | None, k: float) -> set[int]:
    """Return the lines that the estimate finds beyond rounding and measured noise explains: e <= k·max(noise, u).

    Noise that was not measured, or is none at all, explains nothing; integers and parameters have none.
    """
    if measured is None:
        return set()
    limit = limit_of(measured, found.u, k)
    floats = [line for line, what in found.beyond.items() if what in (OUTPUT_BEYOND, INPUT_BEYOND)]
    return {line for line in floats if found.errors.e[line] <= limit[line]}


def _first(found: Suspects, rulings: Mapping[int, Ruling], quiet: set[int]) -> int | None:
    """The first line beyond rounding: the arbiter decides where it can rule, then measured noise, then the estimate.

    Where both sides are off alike the replay may be of another function than the call's: there the estimate stands.
    """
    ruled = {line for line, ruling in rulings.items() if ruling.off in (CANDIDATE, BASELINE)}
    cleared = {line for line, ruling in rulings.items() if ruling.off == NEITHER}
    return min(((set(found.beyond) - quiet) | ruled) - cleared, default=None)


def _beyond(judged: Judged, found: Suspects, line: int, ruling: Ruling | None, measured: np.ndarray | None) -> Beyond:
    what = found.beyond.get(line, OUTPUT_BEYOND)
    e_in = 0.0 if what == PARAMETER_BEYOND else float(found.e_in[line])
    e_out, u = float(found.errors.e[line]), float(found.u[line])
    told = differing_arguments(judged, int(judged.rows["call"].iat[line])) if what == OUTPUT_BEYOND else []
    at = told[0] if told else line
    has_noise = measured is not None and measured[line] > 0
    basis = NOISE if has_noise and what != PARAMETER_BEYOND else ESTIMATE
    if told:
        kind, why, following = "argument", "the call's argument differs, and so does its output", "align the argument"
    else:
        kind, why, following = _explanation(judged, line, what, e_in)
    if ruling is not None and ruling.off in (CANDIDATE, BASELINE):
        basis = ARBITER
        why = (
            f"replayed in float64 from each side's own inputs, the {ruling.off}'s output is off and the other's is not"
        )
    row = replace(row_of(judged, at), kind=kind)
    return Beyond(row, e_in, e_out, u, basis, why, following, source_of(stack_at(judged, at)), ruling)


def _explanation(judged: Judged, line: int, what: str, e_in: float) -> tuple[str, str, str]:
    if what == PARAMETER_BEYOND or (what == INPUT_BEYOND and is_parameter(judged, line)):
        why = "the parameter differs before anything was updated"
        return (
            "parameter",
            why,
            "compare how the two sides initialise or load this weight (seed, checkpoint, conversion)",
        )
    if what == INTEGER_BEYOND:
        why = "it comes from no dumped call: data, labels or masks differ"
        return "input", why, "check the data order, the sampler's seed and the preprocessing of both sides"
    if what == INPUT_BEYOND:
        why = "it arrives further apart than anything before it: work between the calls, which no hook saw"
        return "between calls", why, "collect again at level mix, or look between this call and the one before it"
    if int(judged.rows["nonfinite"].iat[line]) in (1, 2):
        side = "baseline" if int(judged.rows["nonfinite"].iat[line]) == 1 else "candidate"
        return "non-finite", f"only the {side} has NaN or Inf here", f"precdiag nan on the {side}'s dump"
    taken = "equal inputs" if e_in == 0 else "inputs that differ by rounding"
    return (
        "introduced",
        f"its output differs by more than rounding, from {taken}",
        "replay this one call on both devices",
    )
