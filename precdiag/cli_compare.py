"""`precdiag compare`: its options, and what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precdiag.console import complain, say, settled
from precdiag.errors import PrecdiagError
from precdiag.options import Cache, ConfigFile, Format, Limit, Ranks, Scheduler, ShowConfig, Stage, Steps, Workers

if TYPE_CHECKING:
    from precdiag.comparison import Comparison
    from precdiag.settings import CompareSettings


def compare(
    baseline: Annotated[Path, typer.Argument(help="The trusted dump: a run, step or rank folder, or a dump.json.")],
    candidate: Annotated[
        Path | None, typer.Argument(help="The dump under suspicion. Not needed for a folder that collect wrote.")
    ] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Argument(help="All paths may be result tables of msprobe instead, one a step and rank."),
    ] = None,
    max_abs: Annotated[float | None, typer.Option(help="Band: largest absolute error allowed.")] = None,
    max_rel: Annotated[float | None, typer.Option(help="Band: largest relative error allowed.")] = None,
    cosine_min: Annotated[float | None, typer.Option(help="Band: smallest cosine allowed; needs tensors.")] = None,
    max_ulp: Annotated[int | None, typer.Option(help="Band: largest distance in ulp; needs tensors.")] = None,
    cross_device: Annotated[
        bool, typer.Option("--cross-device", help="Show first what rounding between two devices does not explain.")
    ] = False,
    noise: Annotated[
        str | None, typer.Option(metavar="DIR", help="A second run of the baseline: how much rounding moves each row.")
    ] = None,
    band_from: Annotated[
        str | None, typer.Option(metavar="DIR", help="Band: k times each row's distance in this second run.")
    ] = None,
    k: Annotated[float | None, typer.Option("--k", help="Times the noise. [default: 3]")] = None,
    no_arbiter: Annotated[bool, typer.Option("--no-arbiter", help="Do not replay calls in float64.")] = False,
    repro: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the call beyond rounding as a script of torch alone.")
    ] = None,
    step: Steps = None,
    rank: Ranks = None,
    stage: Stage = None,
    pair_step: Annotated[str | None, typer.Option(metavar="B=C,…", help="Steps that belong together by hand.")] = None,
    pair_rank: Annotated[str | None, typer.Option(metavar="B=C,…", help="Ranks that do, as in 0=1,4-7=0-3.")] = None,
    pair_stage: Annotated[str | None, typer.Option(metavar="B=C,…", help="Stages that do.")] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="tp=,pp=,vpp=", help="How the ranks split the model; cp=, sp=1 too.")
    ] = None,
    baseline_layout: Annotated[str | None, typer.Option(metavar="tp=,pp=,vpp=", help="The same of one side.")] = None,
    candidate_layout: Annotated[str | None, typer.Option(metavar="tp=,pp=,vpp=", help="And of the other.")] = None,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Hold the ranks of one dump against each other: which one is wrong?")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(metavar="native|msprobe", help="What measures: msprobe runs its own compare.")
    ] = None,
    map_: Annotated[
        str | None, typer.Option("--map", metavar="FILE", help="What is called what: renames, replaced calls (YAML).")
    ] = None,
    include: Annotated[str | None, typer.Option(metavar="NAMES", help="Only these calls and modules.")] = None,
    exclude: Annotated[str | None, typer.Option(metavar="NAMES", help="All but these.")] = None,
    phase: Annotated[str | None, typer.Option(metavar="forward|backward|parameters_grad", help="Only this.")] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Stop at the first cause: what is behind it is not looked at.")
    ] = False,
    reference: Annotated[
        bool | None,
        typer.Option(help="Ask msprobe for its own Result on the rows shown. [default: in a table on a terminal]"),
    ] = None,
    output_format: Format = None,
    limit: Limit = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    cache: Cache = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Compare two dumps and name the first cause: bitwise, unless a band is asked for.

    Exits 0 when nothing differs, 1 when something does, 2 when that cannot be told.
    """
    from dataclasses import replace

    from precdiag.combination import NATIVE
    from precdiag.document import comparison_document
    from precdiag.modes import compare_as_asked
    from precdiag.report import comparison_text, json_text, progress_on_stderr, show
    from precdiag.repro import check_unused
    from precdiag.settings import CompareSettings

    flags = {
        "max_abs": max_abs,
        "max_rel": max_rel,
        "cosine_min": cosine_min,
        "max_ulp": max_ulp,
        "cross_device": cross_device or None,
        "arbiter": False if no_arbiter else None,
        "noise": noise,
        "band_from": band_from,
        "k": k,
        "step": step,
        "rank": rank,
        "stage": stage,
        "pair_step": pair_step,
        "pair_rank": pair_rank,
        "pair_stage": pair_stage,
        "layout": layout,
        "baseline_layout": baseline_layout,
        "candidate_layout": candidate_layout,
        "replicas": replicas or None,
        "engine": engine,
        "map": map_,
        "include": include,
        "exclude": exclude,
        "phase": phase,
        "reference": reference,
        "format": output_format,
        "limit": limit,
        "first": first or None,
        "workers": workers,
        "scheduler": scheduler,
        "cache": cache,
    }
    settings = settled(CompareSettings, flags, config, show_config=show_config)
    check_unused(repro)
    paths = [baseline, *([candidate] if candidate else []), *(tables or [])]
    given = [name for name, value in flags.items() if value is not None]
    with progress_on_stderr() as progress:
        mode, comparison = compare_as_asked(paths, settings, given, say, progress)
    if mode == NATIVE:
        comparison = _with_reference(comparison, settings)
    comparison = replace(comparison, cross_device=comparison.cross_device or settings.cross_device)
    as_json = settings.format == "json"
    show(json_text(comparison_document(comparison)) if as_json else comparison_text(comparison))
    for part in comparison.parts:
        if part.error is not None:
            complain(part.error)
    _reproduce(comparison, repro)
    raise typer.Exit(comparison.exit_code)


def _with_reference(comparison: Comparison, settings: CompareSettings) -> Comparison:
    """Ask msprobe for its Result on what is shown, which takes seconds: where somebody sees it, or asked for it."""
    from precdiag.reference import with_reference
    from precdiag.report import shown_rows

    on_terminal = settings.format == "table" and sys.stdout.isatty()
    wanted = on_terminal if settings.reference is None else settings.reference
    if not wanted or comparison.cause is None:
        return comparison
    return with_reference(comparison, shown_rows(comparison) if settings.format == "table" else [comparison.cause.row])


def _reproduce(comparison: Comparison, folder: Path | None) -> None:
    """Write a reproduction where one is asked for; that there is none to write is said, and is no other result."""
    from precdiag.repro import reproduce

    if folder is None:
        return
    try:
        say(f"python {reproduce(comparison, folder)} reproduces the call")
    except PrecdiagError as error:
        complain(str(error), error.hint)
