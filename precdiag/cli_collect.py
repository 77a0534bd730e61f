"""`precdiag collect` and `precdiag doctor`: their options, and what becomes of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from precdiag.console import settled
from precdiag.errors import PrecdiagError, UsageError
from precdiag.options import ConfigFile, Format, Ranks, ShowConfig

if TYPE_CHECKING:
    from precdiag.session import Request


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
    from precdiag.report import json_text, show
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
    settings = settled(CollectSettings, flags, config, show_config=show_config)
    request = request_of(settings)
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
