"""The options that several commands share, each spelled and documented once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
Cache = Annotated[bool | None, typer.Option("--cache/--no-cache", help="Keep what is read of a large dump beside it.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Read this instead of ./precdiag.yaml.")
]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting with where it came from, and stop.")
]
