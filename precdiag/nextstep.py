"""What to type next after a localization: the coarsest collection that can decide, with its cost, or the next finer."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from precdiag.advice import COUNTED_BY_FRAMEWORK, collect_command, side_command
from precdiag.collect import side_commands
from precdiag.collection import Side, SideCommand
from precdiag.cost import Cost, estimate
from precdiag.culprit import Seen
from precdiag.errors import UnreadableError, UsageError
from precdiag.evidence import BYTES, CHECKSUM
from precdiag.layout import open_run
from precdiag.localize import Curves, Localization
from precdiag.session import Request, request_of
from precdiag.settings import CollectSettings
from precdiag.sides import Sides

EXACT = frozenset({"structure", "shape", "dtype", "argument", "requires_grad"})
"""Kinds of cause that tensors could prove no better."""

STEPS_AT_ONCE = 8
"""Steps dumped at once to find the first that differs: each run then divides what is in question by nine."""


def advise(found: Localization, settings: CollectSettings, folder: Path | None) -> Localization:
    """Add the next commands, and what they cost where a dumped step tells it. `folder`: the collection looked at."""
    request = _request(found, request_of(settings))
    if request is None:
        return replace(found, next=_without_dump(found))
    out = settings.out if folder is None else f"{folder}-next"
    commands, configured = known_commands(found.sides, settings)
    if found.sides.baseline is None:
        line = side_command(request, out, "candidate", commands.get("candidate"))
    else:
        line = collect_command(request, out, commands, configured=configured)
    again = _again(found, out)
    cost = cost_of(found.sides, request)
    notes = () if cost is None else (f"the next collection costs {cost}",)
    return replace(found, next=(line, again), notes=(*found.notes, *notes))


def _again(found: Localization, out: str) -> str:
    words = ["precdiag", "localize", out, "--candidate-log", found.curves.candidate.path]
    if found.curves.baseline is not None:
        words += ["--baseline-log", found.curves.baseline.path]
    return shlex.join(words)


def known_commands(sides: Sides, settings: CollectSettings) -> tuple[Mapping[Side, SideCommand | None], bool]:
    """Return what each side runs, by the configuration or else the collection looked at; and whether by the first."""
    try:
        return side_commands(settings, "candidate", ()), True
    except UsageError:
        baseline = None if sides.baseline is None else sides.baseline.command
        return {"baseline": baseline, "candidate": sides.candidate.command}, False


def cost_of(sides: Sides, request: Request) -> Cost | None:
    """Estimate a step of `request` from any step that is dumped."""
    for side in (sides.candidate, sides.baseline):
        if side is not None and side.dump is not None:
            try:
                return estimate(open_run(side.dump).parts[0], request)
            except UnreadableError:
                continue
    return None


def coarsest(sides: Sides, base: Request) -> Request:
    """Return the coarsest request that can decide: on two devices statistics of modules, else checksums of all calls.

    One side alone is looked at for NaN, which statistics show.
    """
    if sides.baseline is None:
        return replace(base, level="mix", task="statistics", summary="statistics", scope=(), list=())
    if sides.cross_device:
        return replace(base, level="L0", task="statistics", summary="statistics", scope=(), list=())
    return replace(base, level="mix", task="statistics", summary="md5", scope=(), list=())


def tensors_around(seen: Seen, base: Request) -> Request | None:
    """Return the request for the tensors of the calls around the culprit, None where they could prove nothing more."""
    row = None if seen.culprit is None else seen.culprit.row
    if seen.culprit is None or row is None or row.step is None or seen.culprit.kind in EXACT:
        return None
    around = () if seen.comparison is None else seen.comparison.around
    calls = dict.fromkeys([row.call, *(each.call for each in around)])
    return replace(
        base, steps=(row.step,), iterations=(), level="mix", task="tensor", summary="statistics", list=tuple(calls)
    )


def spread(low: int, high: int, most: int = STEPS_AT_ONCE) -> tuple[int, ...]:
    """Choose up to `most` steps strictly between low and high, evenly; all of them where they are so few."""
    inside = range(low + 1, high)
    if len(inside) <= most:
        return tuple(inside)
    return tuple(low + (high - low) * k // (most + 1) for k in range(1, most + 1))


def _request(found: Localization, base: Request) -> Request | None:
    seen = found.seen
    if seen.culprit is not None:
        if seen.carried and seen.culprit.row.step is not None:
            return replace(coarsest(found.sides, base), steps=(0, *spread(0, seen.culprit.row.step)), iterations=())
        told = seen.culprit.by == "nan" or seen.culprit.row.evidence >= BYTES
        return None if told else tensors_around(seen, base)
    if not found.curves.dump_steps or not _asks_for_more(seen, found.sides):
        return None
    return at_window(coarsest(found.sides, base), found.curves, found.sides.cross_device)


def _asks_for_more(seen: Seen, sides: Sides) -> bool:
    """Whether steps are still to be dumped, or are there with statistics alone, which on one device prove little."""
    if seen.missing or seen.comparison is None:
        return True
    return sides.cross_device is False and seen.comparison.evidence < CHECKSUM


def at_window(request: Request, curves: Curves, cross_device: bool | None) -> Request:
    """Ask for the window by the log's own numbers where the hook sees them counted, else by dump steps.

    Of curves that part on two devices, or on nobody knows which, the first step is asked for too: behind an update
    everything differs by rounding, and a fault is told from it only before.
    """
    early = curves.found.verdict == "diverged" and cross_device is not False
    steps = {*curves.dump_steps, *([0] if early else [])}
    log, basis = curves.candidate, curves.mapping.basis
    by_framework = log.format in COUNTED_BY_FRAMEWORK and not log.counted and basis == "assumed"
    if basis == "receipts" or by_framework:
        return replace(request, iterations=tuple(sorted(map(curves.mapping.iteration, steps))), steps=())
    return replace(request, steps=tuple(sorted(steps)), iterations=())


def _without_dump(found: Localization) -> tuple[str, ...]:
    if found.verdict in ("no-data", "too-short"):
        return (f"precdiag localize --candidate-log {found.curves.candidate.path} --list-series",)
    return ()
