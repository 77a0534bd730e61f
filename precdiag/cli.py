"""The command line: options and commands. main() is the only place that catches."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from precdiag import __version__
from precdiag.errors import EXIT_CANNOT_LOOK, PrecdiagError, UsageError

if TYPE_CHECKING:
    from precdiag.comparison import Comparison
    from precdiag.judge import Policy
    from precdiag.session import Request
    from precdiag.settings import CompareSettings

# 128 + SIGINT, as shells report a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="precdiag",
    help="Name the first call that computed something else when a PyTorch model moves to an Ascend NPU.",
    epilog="Exit status: 0 looked and found nothing, 1 found it, 2 could not look.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Steps = Annotated[str | None, typer.Option("--step", metavar="LIST", help="Only these steps, as in 0,5-7.")]
Ranks = Annotated[str | None, typer.Option("--rank", metavar="LIST", help="Only these ranks, as in 0,5-7.")]
Stage = Annotated[str | None, typer.Option("--stage", help="Only this stage above the steps (verl: actor, critic …).")]
Format = Annotated[str | None, typer.Option("--format", metavar="table|json", help="What to print. [default: table]")]
Limit = Annotated[int | None, typer.Option("--limit", help="How many later differences to list. [default: 1000]")]
Workers = Annotated[int | None, typer.Option(metavar="N", help="How many processes to use. [default: one a processor]")]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Use this Dask cluster; its workers must see the same paths."),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read this instead of ./precdiag.yaml.")
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting with where it came from, and stop.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"precdiag {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
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
    cache: Annotated[
        bool | None, typer.Option("--cache/--no-cache", help="Keep what is read of a large dump beside it.")
    ] = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Compare two dumps and name the first cause: bitwise, unless a band is asked for.

    Exits 0 when nothing differs, 1 when something does, 2 when that cannot be told.
    """
    from contextlib import ExitStack
    from dataclasses import replace

    from precdiag.combination import LAYOUTS, MSPROBE, REPLICAS, TABLES, check_combination, mode_of
    from precdiag.compare import Calls
    from precdiag.compare import compare as run
    from precdiag.compare_layouts import compare_layouts
    from precdiag.compare_tables import compare_tables
    from precdiag.config import load
    from precdiag.document import comparison_document
    from precdiag.engine import Engine
    from precdiag.installed import find_msprobe
    from precdiag.mapping import CallMap, read_map
    from precdiag.parallelism import parallelism_of
    from precdiag.parts import Partners, Selection
    from precdiag.replicas import compare_replicas
    from precdiag.report import comparison_text, config_text, json_text, progress_on_stderr, show
    from precdiag.repro import check_unused
    from precdiag.settings import CompareSettings
    from precdiag.tablefile import holds_tables
    from precdiag.view import View
    from precdiag.workers import Resources, available

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
    loaded = load(CompareSettings, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        return
    settings = loaded.settings
    policy = _policy_of(settings)
    check_unused(repro)
    partners = Partners(settings.pair_step, settings.pair_rank, settings.pair_stage)
    selection = Selection(settings.step, settings.rank, settings.stage, partners)
    paths = [baseline, *([candidate] if candidate else []), *(tables or [])]
    view = View(settings.include, settings.exclude, settings.phase)
    calls = Calls(read_map(Path(settings.map)) if settings.map else CallMap(), view)
    of_side = settings.baseline_layout or settings.layout, settings.candidate_layout or settings.layout
    layouts = parallelism_of(of_side[0]), parallelism_of(of_side[1])
    mode = mode_of(settings, of_tables=all(map(holds_tables, paths)), same_layout=layouts[0] == layouts[1])
    for note in check_combination(settings, mode, [name for name, value in flags.items() if value is not None]):
        _say(f"precdiag: {note}")
    if mode == REPLICAS:
        with progress_on_stderr() as progress:
            comparison = compare_replicas(_one_path(paths), policy, selection, layouts[0], settings.limit, progress)
    elif mode == TABLES:
        comparison = compare_tables(paths, policy, selection, settings.limit)
    elif mode == LAYOUTS:
        with progress_on_stderr() as progress:
            comparison = compare_layouts(
                *_two_sides(paths), policy, layouts, selection, settings.limit, progress, calls
            )
    else:
        sides = _two_sides(paths)
        resources = Resources(settings.workers or available(), settings.scheduler, settings.cache)
        with ExitStack() as stack:
            progress = stack.enter_context(progress_on_stderr())
            judging = None
            if mode == MSPROBE:
                whole = settings.rank is None
                judging = stack.enter_context(Engine(find_msprobe(), policy, whole_steps=whole, say=_say))
            comparison = run(
                *sides, policy, selection, settings.limit, progress, resources, judging, calls, settings.first
            )
        if judging is None:
            comparison = _with_reference(comparison, settings)
    comparison = replace(comparison, cross_device=comparison.cross_device or settings.cross_device)
    as_json = settings.format == "json"
    show(json_text(comparison_document(comparison)) if as_json else comparison_text(comparison))
    for part in comparison.parts:
        if part.error is not None:
            _complain(part.error)
    _reproduce(comparison, repro)
    raise typer.Exit(comparison.exit_code)


@app.command("nan")
def nan_(
    dump: Annotated[Path, typer.Argument(help="A dump: a side, run, step or rank folder, or a dump.json.")],
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="The training log to hold against the dump.")] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="The log's format: named groups are series, and step.")
    ] = None,
    step: Steps = None,
    rank: Ranks = None,
    stage: Stage = None,
    output_format: Format = None,
    limit: Annotated[int | None, typer.Option("--limit", help="How many events to list. [default: 1000]")] = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Find where the first NaN or Inf of one dump was generated.

    Masks of -inf that a softmax turns finite are no fault. Exits 0 when every value is finite, 1 when one is not, 2
    when that cannot be told.
    """
    from precdiag.config import load
    from precdiag.document_nan import survey_document
    from precdiag.parts import Selection
    from precdiag.report import config_text, json_text, show
    from precdiag.report_nan import survey_text
    from precdiag.settings import NanSettings
    from precdiag.survey import survey

    if log is None:
        _refuse({"--pattern": pattern}, "reads --log: without it it does nothing")
    flags = {
        "step": step,
        "rank": rank,
        "stage": stage,
        "log": None if log is None else str(log),
        "pattern": pattern,
        "format": output_format,
        "limit": limit,
    }
    loaded = load(NanSettings, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        return
    settings = loaded.settings
    selection = Selection(settings.step, settings.rank, settings.stage)
    training_log = None if settings.log is None else Path(settings.log)
    found = survey(_one_side(dump), selection, settings.limit, training_log, settings.pattern)
    show(json_text(survey_document(found)) if settings.format == "json" else survey_text(found))
    for part in found.parts:
        if part.error is not None:
            _complain(part.error)
    raise typer.Exit(found.exit_code)


@app.command()
def demo(
    task: Annotated[Literal["statistics", "tensor", "md5"], typer.Option(help="What to collect.")] = "statistics",
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave the two dumps in this folder.")] = None,
) -> None:
    """Plant a fault, collect both sides under the real msprobe, and find it again.

    Needs torch and mindstudio-probe (pip install 'precdiag[collect]'). Exits 0 when the planted fault is found.
    """
    import tempfile

    from precdiag.compare import compare as run
    from precdiag.demo import PLANTED, is_planted, run_demo_pair
    from precdiag.judge import Policy
    from precdiag.report import comparison_text, show

    with tempfile.TemporaryDirectory(prefix="precdiag-demo-") as scratch:
        _say(PLANTED)
        comparison = run(*run_demo_pair(keep or Path(scratch), task), Policy())
        show(comparison_text(comparison))
    if not is_planted(comparison.cause):
        raise PrecdiagError("the demo did not find the fault that it planted", hint="please report this")
    _say("found: the weight of the second layer" + (f"; the dumps are in {keep}" if keep else ""))


@app.command()
def localize(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="What precdiag collect wrote: logs and dumps of both sides.")
    ] = None,
    candidate_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The log under suspicion; beside DIR, of an earlier run."),
    ] = None,
    baseline_log: Annotated[Path | None, typer.Option(metavar="FILE", help="The trusted run's log.")] = None,
    candidate: Annotated[Path | None, typer.Option(metavar="DUMP", help="The dump under suspicion.")] = None,
    baseline: Annotated[Path | None, typer.Option(metavar="DUMP", help="The trusted dump.")] = None,
    series: Annotated[
        str | None, typer.Option(metavar="NAME", help="The curve to judge: loss, grad_norm, or its own name.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Rows of another format, named groups: step, loss, grad_norm …")
    ] = None,
    list_series: Annotated[
        bool, typer.Option("--list-series", help="Print every curve in the logs, and stop.")
    ] = False,
    step_offset: Annotated[
        int | None, typer.Option(help="The log's number of dump step 0. [default: by receipts, else its first step]")
    ] = None,
    cross_device: Annotated[
        bool | None,
        typer.Option("--cross-device/--same-device", help="Do the sides differ in device? [default: by receipts]"),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run both sides (of precdiag.yaml or DIR), coarse to fine, until it is named.")
    ] = False,
    continue_: Annotated[
        Path | None, typer.Option("--continue", metavar="DIR", help="Go on with the search that --run began in DIR.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where --run collects. [default: precdiag-localize]")
    ] = None,
    float32: Annotated[
        str | None, typer.Option(metavar='"ARGS"', help="With --run: what both commands take to run in float32.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End the search after this long.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Most bytes that the whole search may leave.")] = None,
    plot: Annotated[
        bool | None, typer.Option("--plot/--no-plot", help="Plot the curves. [default: on a terminal]")
    ] = None,
    output_format: Format = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """From a loss curve to the step, and with dumps of it to the call and the source line; else what to collect.

    Exits 0 when the curves are healthy, 1 when something is wrong, 2 when there is too little to tell.
    """
    from precdiag.config import load
    from precdiag.document_localize import localization_document, series_document
    from precdiag.localize import localize as look
    from precdiag.localize import logs_of
    from precdiag.nextstep import advise
    from precdiag.plot import plot_of
    from precdiag.report import config_text, json_text, progress_on_stderr, show
    from precdiag.report_localize import localization_text, series_text
    from precdiag.search import search
    from precdiag.settings import CollectSettings, LocalizeSettings
    from precdiag.sides import Given, find_sides

    flags = {
        "series": series,
        "pattern": pattern,
        "step_offset": step_offset,
        "cross_device": cross_device,
        "out": out,
        "float32": float32,
        "timeout": timeout,
        "max_bytes": max_bytes,
        "format": output_format,
    }
    loaded = load(LocalizeSettings, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        return
    settings = loaded.settings
    of_search = {"--out": out, "--float32": float32, "--timeout": timeout, "--max-bytes": max_bytes}
    inputs = (folder, candidate_log, baseline_log, candidate, baseline)
    if not (run or continue_):
        _refuse(of_search, "goes with --run or --continue: here it does nothing")
    if continue_ and (run or out is not None or cross_device is not None or any(inputs)):
        raise UsageError(
            "--continue goes on with what its search began with", hint=f"precdiag localize --continue {continue_}"
        )
    if list_series and (run or continue_ or series is not None or plot is not None):
        raise UsageError("--list-series prints every curve and stops", hint="leave out the other options, or it")
    if plot and settings.format == "json":
        raise UsageError("--plot draws for a terminal, not into JSON", hint="choose one of --plot and --format json")
    collecting = load(CollectSettings, {}, config_file=config, environ=os.environ, cwd=Path.cwd()).settings
    given = Given(*inputs)
    as_json = settings.format == "json"
    if list_series:
        sides = find_sides(given, cross_device=settings.cross_device)
        logs = logs_of(sides, settings)
        show(json_text(series_document(logs)) if as_json else series_text(logs))
        return
    with progress_on_stderr() as progress:
        if run or continue_:
            found = search(given, settings, collecting, progress, go_on=continue_)
        else:
            sides = find_sides(given, cross_device=settings.cross_device)
            found = look(sides, settings, progress)
    found = found if found.next else advise(found, collecting, folder)
    drawn = "" if as_json else plot_of(found, wanted=plot)
    show(json_text(localization_document(found)) if as_json else localization_text(found, drawn))
    raise typer.Exit(found.exit_code)


@app.command(context_settings={"allow_interspersed_args": False})
def collect(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD ARG…]", help="What the side given by --side runs.")
    ] = None,
    side: Annotated[
        Literal["baseline", "candidate"], typer.Option(help="The side that CMD after -- belongs to.")
    ] = "candidate",
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Where to collect. [default: precdiag-run]")] = None,
    baseline: Annotated[str | None, typer.Option(metavar='"CMD"', help="The trusted side's command.")] = None,
    candidate: Annotated[str | None, typer.Option(metavar='"CMD"', help="The other side's command.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="LIST", help="Steps, as in 0,5-7, or iter:30001 by the log. [default: 0]")
    ] = None,
    rank: Ranks = None,
    level: Annotated[str | None, typer.Option(metavar="L0|L1|mix", help="[default: L1]")] = None,
    task: Annotated[str | None, typer.Option(metavar="statistics|tensor", help="[default: statistics]")] = None,
    summary: Annotated[str | None, typer.Option(metavar="statistics|md5|xor", help="[default: statistics]")] = None,
    scope: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="From this call to that one.")] = None,
    list_: Annotated[str | None, typer.Option("--list", metavar="NAMES", help="Only these calls.")] = None,
    step_at: Annotated[
        str | None, typer.Option(metavar="auto|optimizer|call|manual", help="What ends a step. [default: auto]")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="PATH", help="Only this submodule at L0 and mix.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed Python, NumPy and torch before the script does.")] = None,
    deterministic: Annotated[bool, typer.Option(help="Set the deterministic switches, and say which.")] = False,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="End a side after this long.")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Stop collecting once a dump is larger.")] = None,
    update_stats: Annotated[
        bool, typer.Option("--update-stats", help="Write what each optimizer step did to each parameter, as norms.")
    ] = False,
    parallel: Annotated[bool, typer.Option(help="Run both sides at once.")] = False,
    quiet: Annotated[bool, typer.Option(help="Do not echo the commands' output; it is in log.txt.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a collection that is there.")] = False,
    check_determinism: Annotated[bool, typer.Option(help="Run the first side twice and compare.")] = False,
    check_observer: Annotated[bool, typer.Option(help="Run the first side without the hook too.")] = False,
    node: Annotated[
        int | None, typer.Option(help="One of several nodes that write into one DIR. [default: $GROUP_RANK]")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="What the nodes of one run share. [default: the scheduler's job]")
    ] = None,
    prepare: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Run nothing: write the hook and its settings into KIT.")
    ] = None,
    print_env: Annotated[
        bool, typer.Option("--print-env", help="Run nothing: print the two variables that put the hook in.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run nothing: judge what came back; the arguments are its folders.")
    ] = False,
    output_format: Format = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Run each side with the hook injected and prove what it left; nobody edits the script.

    Exits 0 only when every side ran and every step of every rank is there; with a side's own status if it failed;
    125 when it exited 0 but the evidence is not whole; 126 or 127 when it could not be run.
    """
    from precdiag.collect import collect as run
    from precdiag.collect import node_of, side_commands
    from precdiag.collection import document
    from precdiag.config import load
    from precdiag.report import config_text, json_text, show
    from precdiag.report_collect import collection_text
    from precdiag.session import request_of
    from precdiag.settings import CollectSettings

    flags = {
        "out": out,
        "baseline": baseline,
        "candidate": candidate,
        "step": step,
        "rank": rank,
        "level": level,
        "task": task,
        "summary": summary,
        "scope": scope,
        "list": list_,
        "step_at": step_at,
        "model": model,
        "seed": seed,
        "deterministic": deterministic or None,
        "timeout": timeout,
        "max_bytes": max_bytes,
        "update_stats": update_stats or None,
        "parallel": parallel or None,
        "quiet": quiet or None,
        "format": output_format,
    }
    loaded = load(CollectSettings, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        return
    settings, request = loaded.settings, request_of(loaded.settings)
    if prepare is not None or print_env:
        show(_hook_elsewhere(prepare, Path(settings.out) / side, request, side, force=force))
        return
    if verify:
        from precdiag.verify import verify as judge

        if misplaced := next((word for word in command or [] if word.startswith("-")), None):
            raise UsageError(f"{misplaced} stands behind a folder", hint="options go before the folders")
        collection = judge([Path(folder) for folder in command or [settings.out]], Path(settings.out), side)
    else:
        collection = run(
            Path(settings.out),
            request,
            side_commands(settings, side, command or []),
            force=force,
            parallel=settings.parallel,
            quiet=settings.quiet,
            timeout=settings.timeout,
            repeat=check_determinism,
            observe=check_observer,
            node=node_of(node, run_id, os.environ),
        )
    show(json_text(document(collection)) if settings.format == "json" else collection_text(collection))
    raise typer.Exit(collection.status)


def _hook_elsewhere(kit: Path | None, folder: Path, request: Request, side: str, *, force: bool) -> str:
    """Prepare a kit and return how to use it, or a session in `folder` and return its two variables."""
    from precdiag.kit import begin, prepare, usage

    try:
        if kit is None:
            return begin(folder, request, side, os.environ, force=force)
        prepare(kit, request, side, force=force)
    except OSError as error:
        raise PrecdiagError(f"cannot write to {kit or folder}: {error.strerror}", exit_code=125) from error
    return usage(kit.absolute())


@app.command()
def doctor(
    folder: Annotated[Path, typer.Argument(help="Where a collection would go.")] = Path(),
    kit: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Say what the hook of this kit finds, by the kit's own script.")
    ] = None,
    python: Annotated[
        str, typer.Option(metavar="PYTHON", help="The interpreter that trains, for --kit.")
    ] = sys.executable,
) -> None:
    """Check torch, torch_npu, CANN, msprobe, the disk and the path. Exits 1 when one of them fails."""
    from precdiag.report import show
    from precdiag.report_collect import doctor_text

    if kit is not None:
        from precdiag.kit import examine_kit

        text, status = examine_kit(kit, python)
        show(text)
        raise typer.Exit(status)
    from precdiag.doctor import examine

    checks = examine(folder)
    show(doctor_text(checks))
    raise typer.Exit(int(any(check.state == "fail" for check in checks)))


def main() -> NoReturn:
    """Run the command line; every error becomes one line on stderr and the status that its class carries."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except PrecdiagError as error:
        _complain(str(error), error.hint)
        sys.exit(error.exit_code)
    except Exception as error:  # whatever it is, it must not end as 1, which means "found"
        if "PRECDIAG_DEBUG" in os.environ:
            raise
        _complain(
            f"internal error: {type(error).__name__}: {error}",
            "this is a fault of precdiag's; PRECDIAG_DEBUG=1 shows where. Please report it",
        )
        sys.exit(EXIT_CANNOT_LOOK)
    sys.exit(0)


def _one_path(paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise UsageError("--replicas looks into one dump", hint="precdiag compare DUMP --replicas")
    return paths[0]


def _with_reference(comparison: Comparison, settings: CompareSettings) -> Comparison:
    """Ask msprobe for its Result on what is shown, which takes seconds: where somebody sees it, or asked for it."""
    from precdiag.reference import with_reference
    from precdiag.report import shown_rows

    on_terminal = settings.format == "table" and sys.stdout.isatty()
    wanted = on_terminal if settings.reference is None else settings.reference
    if not wanted or comparison.cause is None:
        return comparison
    return with_reference(comparison, shown_rows(comparison) if settings.format == "table" else [comparison.cause.row])


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError for the first option that was given, where it would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} {why}")


def _two_sides(paths: list[Path]) -> tuple[Path, Path]:
    if len(paths) > 2:
        raise UsageError(
            f"{len(paths)} paths, and not all of them are result tables of msprobe",
            hint="precdiag compare BASELINE CANDIDATE, or precdiag compare TABLE…",
        )
    if len(paths) == 2:
        return paths[0], paths[1]
    sides = paths[0] / "baseline", paths[0] / "candidate"
    if all(side.is_dir() for side in sides):
        return sides
    raise UsageError(
        f"{paths[0]}: one path alone must be a folder that holds baseline/ and candidate/, or a table of msprobe",
        hint="precdiag compare BASELINE CANDIDATE",
    )


def _one_side(folder: Path) -> Path:
    """Return the only side of a folder that collect wrote, else the folder itself."""
    sides = [folder / side for side in ("baseline", "candidate") if (folder / side).is_dir()]
    if len(sides) == 2:
        raise UsageError(f"{folder}: holds two sides, and one dump is looked at", hint=f"precdiag nan {sides[1]}")
    return sides[0] if sides else folder


def _policy_of(settings: CompareSettings) -> Policy:
    """What counts, and what is to be found out about rounding."""
    from precdiag.judge import Policy, Scrutiny

    noise, band_from = (None if folder is None else Path(folder) for folder in (settings.noise, settings.band_from))
    arbiter = settings.arbiter and not settings.first  # it replays calls that --first may have left out
    scrutiny = Scrutiny(arbiter, noise, settings.k)
    bounds = (settings.max_abs, settings.max_rel, settings.cosine_min, settings.max_ulp)
    return Policy(*bounds, band_from, scrutiny)


def _reproduce(comparison: Comparison, folder: Path | None) -> None:
    """Write a reproduction where one is asked for; that there is none to write is said, and is no other result."""
    from precdiag.repro import reproduce

    if folder is None:
        return
    try:
        _say(f"python {reproduce(comparison, folder)} reproduces the call")
    except PrecdiagError as error:
        _complain(str(error), error.hint)


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201


def _complain(message: str, hint: str | None = None) -> None:
    """Write one line, and one for the hint, to stderr; a closed stderr is no reason to fail."""
    try:
        sys.stderr.write(f"precdiag: {message}\n" + (f"  {hint}\n" if hint else ""))
        sys.stderr.flush()
    except OSError:
        pass


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # Not KeyboardInterrupt: typer would end it with status 1, which means "found".
    raise SystemExit(EXIT_INTERRUPTED)
