"""`precdiag nan`: its options, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precdiag.console import complain, refuse, settled
from precdiag.errors import UsageError
from precdiag.options import Cache, ConfigFile, Format, Ranks, ShowConfig, Stage, Steps


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
    cache: Cache = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Find where the first NaN or Inf of one dump was generated.

    Masks of -inf that a softmax turns finite are no fault. Exits 0 when every value is finite, 1 when one is not, 2
    when that cannot be told.
    """
    from precdiag.document_nan import survey_document
    from precdiag.parts import Selection
    from precdiag.report import json_text, show
    from precdiag.report_nan import survey_text
    from precdiag.settings import NanSettings
    from precdiag.survey import survey

    if log is None:
        refuse({"--pattern": pattern}, "reads --log: without it it does nothing")
    flags = {
        "step": step,
        "rank": rank,
        "stage": stage,
        "log": None if log is None else str(log),
        "pattern": pattern,
        "format": output_format,
        "limit": limit,
        "cache": cache,
    }
    settings = settled(NanSettings, flags, config, show_config=show_config)
    selection = Selection(settings.step, settings.rank, settings.stage)
    training_log = None if settings.log is None else Path(settings.log)
    found = survey(_one_side(dump), selection, settings.limit, training_log, settings.pattern, settings.cache)
    show(json_text(survey_document(found)) if settings.format == "json" else survey_text(found))
    for part in found.parts:
        if part.error is not None:
            complain(part.error)
    raise typer.Exit(found.exit_code)


def _one_side(folder: Path) -> Path:
    """Return the only side of a folder that collect wrote, else the folder itself."""
    from precdiag.collection import SIDES

    sides = [folder / side for side in SIDES if (folder / side).is_dir()]
    if len(sides) == 2:
        raise UsageError(f"{folder}: holds two sides, and one dump is looked at", hint=f"precdiag nan {sides[1]}")
    return sides[0] if sides else folder
