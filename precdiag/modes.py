"""Compare as the settings ask: two dumps, by precdiag or by msprobe's engine, two layouts, tables, or replicas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from precdiag.collection import SIDES
from precdiag.combination import LAYOUTS, MSPROBE, REPLICAS, TABLES, check_combination, mode_of
from precdiag.compare import Calls, Progress, compare
from precdiag.compare_layouts import compare_layouts
from precdiag.compare_tables import compare_tables
from precdiag.comparison import Comparison
from precdiag.engine import Engine
from precdiag.errors import UsageError
from precdiag.installed import find_msprobe
from precdiag.judge import Policy, Scrutiny
from precdiag.mapping import CallMap, read_map
from precdiag.parallelism import parallelism_of
from precdiag.parts import Partners, Selection
from precdiag.replicas import compare_replicas
from precdiag.settings import CompareSettings
from precdiag.tablefile import holds_tables
from precdiag.view import View
from precdiag.workers import Resources, available


def compare_as_asked(
    paths: Sequence[Path],
    settings: CompareSettings,
    flags: Collection[str],
    say: Callable[[str], None],
    progress: Progress,
) -> tuple[str, Comparison]:
    """Compare what stands at `paths` in the mode that the settings ask for; return the mode (combination.py) too.

    `flags`: the keys given on the command line; those without effect are said. Raises UsageError for options, or a
    number of paths, that do not go with the mode, and what the comparisons themselves raise.
    """
    policy = policy_of(settings)
    partners = Partners(settings.pair_step, settings.pair_rank, settings.pair_stage)
    selection = Selection(settings.step, settings.rank, settings.stage, partners)
    view = View(settings.include, settings.exclude, settings.phase)
    calls = Calls(read_map(Path(settings.map)) if settings.map else CallMap(), view)
    of_side = settings.baseline_layout or settings.layout, settings.candidate_layout or settings.layout
    layouts = parallelism_of(of_side[0]), parallelism_of(of_side[1])
    limit = settings.limit
    mode = mode_of(settings, of_tables=all(map(holds_tables, paths)), same_layout=layouts[0] == layouts[1])
    for note in check_combination(settings, mode, flags):
        say(f"precdiag: {note}")
    if mode == REPLICAS:
        return mode, compare_replicas(_one_path(paths), policy, selection, layouts[0], limit, progress)
    if mode == TABLES:
        return mode, compare_tables(list(paths), policy, selection, limit)
    sides = two_sides(paths)
    if mode == LAYOUTS:
        return mode, compare_layouts(*sides, policy, layouts, selection, limit, progress, calls)
    resources = Resources(settings.workers or available(), settings.scheduler, settings.cache)
    with ExitStack() as stack:
        judging = None
        if mode == MSPROBE:
            engine = Engine(find_msprobe(), policy, whole_steps=settings.rank is None, say=say)
            judging = stack.enter_context(engine)
        found = compare(*sides, policy, selection, limit, progress, resources, judging, calls, settings.first)
    return mode, found


def policy_of(settings: CompareSettings) -> Policy:
    """What counts, and what is to be found out about rounding."""
    noise, band_from = (None if folder is None else Path(folder) for folder in (settings.noise, settings.band_from))
    arbiter = settings.arbiter and not settings.first  # it replays calls that --first may have left out
    scrutiny = Scrutiny(arbiter, noise, settings.k)
    bounds = (settings.max_abs, settings.max_rel, settings.cosine_min, settings.max_ulp)
    return Policy(*bounds, band_from, scrutiny)


def two_sides(paths: Sequence[Path]) -> tuple[Path, Path]:
    """Return the two sides that one or two paths name: a folder that holds both, or each. Raises UsageError."""
    if len(paths) > 2:
        raise UsageError(
            f"{len(paths)} paths, and not all of them are result tables of msprobe",
            hint="precdiag compare BASELINE CANDIDATE, or precdiag compare TABLE…",
        )
    if len(paths) == 2:
        return paths[0], paths[1]
    baseline, candidate = (paths[0] / side for side in SIDES)
    if baseline.is_dir() and candidate.is_dir():
        return baseline, candidate
    raise UsageError(
        f"{paths[0]}: one path alone must be a folder that holds baseline/ and candidate/, or a table of msprobe",
        hint="precdiag compare BASELINE CANDIDATE",
    )


def _one_path(paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        raise UsageError("--replicas looks into one dump", hint="precdiag compare DUMP --replicas")
    return paths[0]
