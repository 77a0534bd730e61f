"""Which options of `precdiag compare` have no effect together: refused where the answer would change, else said."""

from __future__ import annotations

from collections.abc import Collection

from precdiag.errors import UsageError
from precdiag.settings import CompareSettings

REPLICAS, TABLES, LAYOUTS, MSPROBE, NATIVE = (
    "--replicas",
    "result tables of msprobe",
    "two layouts",
    "--engine msprobe",
    "two dumps",
)

_CALLS = ("map", "include", "exclude", "phase")
_PAIRS = ("pair_step", "pair_rank", "pair_stage")
_SIDES = ("baseline_layout", "candidate_layout")
# What is asked for and not given would be taken for an answer.
_REFUSED: dict[str, tuple[str, ...]] = {
    REPLICAS: ("engine", "first", *_SIDES, *_PAIRS, *_CALLS),
    TABLES: ("engine", "first", "noise", "band_from", "layout", *_SIDES, *_PAIRS, *_CALLS),
    LAYOUTS: ("engine", "first", "pair_rank"),
    MSPROBE: _CALLS,
    NATIVE: (),
}
# These change how long it takes and what is shown beside: a configuration may hold them for other comparisons.
_ONE_PROCESS = ("workers", "scheduler", "cache", "reference")
_IDLE: dict[str, tuple[str, ...]] = {
    REPLICAS: _ONE_PROCESS,
    TABLES: _ONE_PROCESS,
    LAYOUTS: _ONE_PROCESS,
    MSPROBE: (*_ONE_PROCESS, "layout", *_SIDES),
    NATIVE: ("layout", *_SIDES),
}


def mode_of(settings: CompareSettings, *, of_tables: bool, same_layout: bool) -> str:
    """Return what kind of comparison the settings ask for; `of_tables`: all paths are result tables."""
    if settings.replicas:
        return REPLICAS
    if of_tables:
        return TABLES
    if not same_layout:
        return LAYOUTS
    return MSPROBE if settings.engine == "msprobe" else NATIVE


def check_combination(settings: CompareSettings, mode: str, flags: Collection[str]) -> tuple[str, ...]:
    """Return a note for each option among `flags`, those on the command line, that a mode has no use for.

    Raises UsageError where an option, wherever it is set, asks for another result than the mode can give.
    """
    refused = [name for name in _REFUSED[mode] if _is_set(settings, name)]
    if refused:
        said = ", ".join(map(_flag, refused))
        raise UsageError(
            f"{said}: not possible with {mode}",
            hint="leave one of them out" if mode.startswith("--") else f"{_flag(refused[0])} is for two dumps",
        )
    idle = [name for name in _IDLE[mode] if name in flags and getattr(settings, name)]
    if "k" in flags and settings.noise is None and settings.band_from is None:
        idle.append("k")
    why = {"k": "without --noise or --band-from"} | dict.fromkeys(
        ("layout", *_SIDES), "where both sides have the same layout"
    )
    return tuple(f"{_flag(name)} changes nothing {why.get(name, f'with {mode}')}" for name in idle)


def _is_set(settings: CompareSettings, name: str) -> bool:
    return bool(getattr(settings, name) != CompareSettings.model_fields[name].default)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
