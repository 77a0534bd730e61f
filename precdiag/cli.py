"""The command line: the app and its commands. main() is the only place that catches."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, NoReturn

import typer

from precdiag import __version__
from precdiag.cli_collect import collect, doctor
from precdiag.cli_compare import compare
from precdiag.cli_localize import localize
from precdiag.cli_nan import nan_
from precdiag.console import complain, say
from precdiag.errors import EXIT_CANNOT_LOOK, PrecdiagError

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


app.command()(compare)
app.command("nan")(nan_)


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
        say(PLANTED)
        comparison = run(*run_demo_pair(keep or Path(scratch), task), Policy())
        show(comparison_text(comparison))
    if not is_planted(comparison.cause):
        raise PrecdiagError("the demo did not find the fault that it planted", hint="please report this")
    say("found: the weight of the second layer" + (f"; the dumps are in {keep}" if keep else ""))


app.command()(localize)
# what stands behind the command belongs to it
app.command(context_settings={"allow_interspersed_args": False})(collect)
app.command()(doctor)


def main() -> NoReturn:
    """Run the command line; every error becomes one line on stderr and the status that its class carries."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except PrecdiagError as error:
        complain(str(error), error.hint)
        sys.exit(error.exit_code)
    except Exception as error:  # whatever it is, it must not end as 1, which means "found"
        if "PRECDIAG_DEBUG" in os.environ:
            raise
        complain(
            f"internal error: {type(error).__name__}: {error}",
            "this is a fault of precdiag's; PRECDIAG_DEBUG=1 shows where. Please report it",
        )
        sys.exit(EXIT_CANNOT_LOOK)
    sys.exit(0)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # Not KeyboardInterrupt: typer would end it with status 1, which means "found".
    raise SystemExit(EXIT_INTERRUPTED)
