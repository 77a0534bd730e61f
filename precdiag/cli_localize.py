"""`precdiag localize`: its options, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precdiag.console import refuse, settled
from precdiag.errors import UsageError
from precdiag.options import ConfigFile, Format, ShowConfig


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
    from precdiag.document_localize import localization_document, series_document
    from precdiag.localize import localize as look
    from precdiag.localize import logs_of
    from precdiag.nextstep import advise
    from precdiag.plot import plot_of
    from precdiag.report import json_text, progress_on_stderr, show
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
    settings = settled(LocalizeSettings, flags, config, show_config=show_config)
    of_search = {"--out": out, "--float32": float32, "--timeout": timeout, "--max-bytes": max_bytes}
    inputs = (folder, candidate_log, baseline_log, candidate, baseline)
    if not (run or continue_):
        refuse(of_search, "goes with --run or --continue: here it does nothing")
    if continue_ and (run or out is not None or cross_device is not None or any(inputs)):
        raise UsageError(
            "--continue goes on with what its search began with", hint=f"precdiag localize --continue {continue_}"
        )
    if list_series and (run or continue_ or series is not None or plot is not None):
        raise UsageError("--list-series prints every curve and stops", hint="leave out the other options, or it")
    if plot and settings.format == "json":
        raise UsageError("--plot draws for a terminal, not into JSON", hint="choose one of --plot and --format json")
    collecting = settled(CollectSettings, {}, config, show_config=False)
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
