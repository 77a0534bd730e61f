"""The command line: options and commands. main() is the only place that catches."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, NoReturn

import typer

from precdiag import __version__
from precdiag.errors import EXIT_CANNOT_LOOK, PrecdiagError, UsageError

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
    max_abs: Annotated[float | None, typer.Option(help="Band: largest absolute error allowed.")] = None,
    max_rel: Annotated[float | None, typer.Option(help="Band: largest relative error allowed.")] = None,
    cosine_min: Annotated[float | None, typer.Option(help="Band: smallest cosine allowed; needs tensors.")] = None,
    max_ulp: Annotated[int | None, typer.Option(help="Band: largest distance in ulp; needs tensors.")] = None,
    step: Steps = None,
    rank: Ranks = None,
    stage: Stage = None,
    output_format: Format = None,
    limit: Limit = None,
    config: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Compare two dumps and name the first cause: bitwise, unless a band is asked for.

    Exits 0 when nothing differs, 1 when something does, 2 when that cannot be told.
    """
    from precdiag.compare import compare as run
    from precdiag.config import CompareSettings, load
    from precdiag.document import comparison_document
    from precdiag.judge import Policy
    from precdiag.parts import Selection
    from precdiag.report import comparison_text, config_text, json_text, progress_on_stderr, show

    flags = {
        "max_abs": max_abs,
        "max_rel": max_rel,
        "cosine_min": cosine_min,
        "max_ulp": max_ulp,
        "step": step,
        "rank": rank,
        "stage": stage,
        "format": output_format,
        "limit": limit,
    }
    loaded = load(CompareSettings, flags, config_file=config, environ=os.environ, cwd=Path.cwd())
    if show_config:
        show(config_text(loaded.rows))
        return
    settings = loaded.settings
    policy = Policy(settings.max_abs, settings.max_rel, settings.cosine_min, settings.max_ulp)
    selection = Selection(settings.step, settings.rank, settings.stage)
    sides = _two_sides(baseline, candidate)
    with progress_on_stderr() as progress:
        comparison = run(*sides, policy, selection, settings.limit, progress)
    as_json = settings.format == "json"
    show(json_text(comparison_document(comparison)) if as_json else comparison_text(comparison))
    for part in comparison.parts:
        if part.error is not None:
            _complain(part.error)
    raise typer.Exit(comparison.exit_code)


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


def _two_sides(baseline: Path, candidate: Path | None) -> tuple[Path, Path]:
    if candidate is not None:
        return baseline, candidate
    sides = baseline / "baseline", baseline / "candidate"
    if all(side.is_dir() for side in sides):
        return sides
    raise UsageError(
        f"{baseline}: one path alone must be a folder that holds baseline/ and candidate/",
        hint="precdiag compare BASELINE CANDIDATE",
    )


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
