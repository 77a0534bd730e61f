"""Write the folder that one side's collection starts from: the hook's settings and msprobe's config."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from precdiag.errors import UsageError
from precdiag.settings import CollectSettings, Level, StepAt, Summary, Task, parse_integers

# msprobe's FileChecker (core/common/const.py, FILE_VALID_PATTERN) refuses every other path.
MSPROBE_PATH = re.compile(r"[a-zA-Z0-9_.:/-]")

# The folder that goes on PYTHONPATH.
INJECT = Path(__file__).resolve().parent / "inject"

SETTINGS = "session.json"
CONFIG = "msprobe.json"
DUMP = "dump"
ATTEMPTS = "attempts"
RECEIPTS = "receipts"


@dataclass(frozen=True)
class Request:
    """Say what one side is to collect: the same for both sides, but for where it goes.

    `steps` are dump steps (the process's own count from 0), `iterations` the log's numbers; one of them is empty.
    """

    steps: tuple[int, ...] = (0,)
    iterations: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    level: Level = "L1"
    task: Task = "statistics"
    summary: Summary = "statistics"
    scope: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    step_at: StepAt = "auto"
    model: str | None = None
    seed: int | None = None
    deterministic: bool = False
    max_bytes: int | None = None
    update_stats: bool = False


def parse_window(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parse `0,5-7` or `iter:30001,30005-30007` into (dump steps, log iterations), ranges included at both ends.

    Raises UsageError for anything else.
    """
    if text.startswith("iter:"):
        return (), parse_integers(text.removeprefix("iter:"))
    return parse_integers(text), ()


def request_of(settings: CollectSettings) -> Request:
    """Return what precdiag.yaml, the variables and the flags ask for."""
    steps, iterations = parse_window(settings.step)
    return Request(
        steps=steps,
        iterations=iterations,
        ranks=settings.rank,
        level=settings.level,
        task=settings.task,
        summary=settings.summary,
        scope=settings.scope,
        list=settings.list,
        step_at=settings.step_at,
        model=settings.model,
        seed=settings.seed,
        deterministic=settings.deterministic,
        max_bytes=settings.max_bytes,
        update_stats=settings.update_stats,
    )


def msprobe_config(request: Request, dump: Path) -> dict[str, Any]:
    """Build msprobe's config as MSPROBE.md measured it: scope and list stand in the task's block, steps explicit."""
    block: dict[str, Any] = {
        "scope": list(request.scope),
        "list": list(request.list),
        "data_mode": ["all"],
    }
    if request.task == "statistics":
        block["summary_mode"] = request.summary
    return {
        "task": request.task,
        "dump_path": str(dump),
        "rank": list(request.ranks),
        "step": list(request.steps),
        "level": request.level,
        request.task: block,
    }


def write_session(folder: Path, request: Request, *, side: str, identity: str) -> None:
    """Make `folder` with session.json, msprobe.json and the empty dump and receipts folders.

    Raises UsageError where msprobe would refuse the path, OSError where it cannot be written.
    """
    folder = folder.absolute()
    check_path(folder)
    for name in (DUMP, RECEIPTS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_settings(folder, request, folder / DUMP, side=side, identity=identity)


def clear_session(folder: Path, *, force: bool) -> None:
    """Delete the collection that `folder` holds. Raises UsageError without `force`."""
    if not force:
        raise UsageError(f"{folder} holds a collection", hint="choose another --out, or --force")
    shutil.rmtree(folder)


def write_settings(folder: Path, request: Request, dump: Path, *, side: str, identity: str) -> None:
    """Write msprobe.json, with `dump` in it, and session.json last: where that is, the folder is ready."""
    write_json(folder / CONFIG, msprobe_config(request, dump))
    write_json(folder / SETTINGS, {"session": identity, "side": side, **asdict(request)})


def read_settings(folder: Path) -> dict[str, Any]:
    """Read session.json in `folder`. Raises OSError or ValueError where it cannot be read."""
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    return settings


def request_in(folder: Path) -> Request:
    """Return the request that session.json in `folder` was written from."""
    settings = read_settings(folder)
    return request_from({each.name: settings[each.name] for each in fields(Request)})


def request_from(document: Mapping[str, Any]) -> Request:
    """Return the request that JSON was written from, a list for every tuple. Raises TypeError for keys it has not."""
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in document.items()}
    return Request(**values)


def hook_environment(folder: Path, environ: Mapping[str, str], inject: Path = INJECT) -> dict[str, str]:
    """Return the two variables that put the hook into every Python process that inherits them.

    PYTHONPATH gets our folder first and keeps what it had; no empty entry is made, which would be the current folder.
    """
    before = environ.get("PYTHONPATH")
    path = f"{inject}{os.pathsep}{before}" if before else str(inject)
    return {"PRECDIAG_SESSION": str(folder.absolute()), "PYTHONPATH": path}


def check_path(folder: Path) -> None:
    """Raise UsageError naming every character of `folder` that msprobe refuses in a dump path."""
    refused = sorted(set(MSPROBE_PATH.sub("", str(folder))))
    if refused:
        named = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in refused)
        raise UsageError(
            f"msprobe refuses {folder}: it holds {named}",
            hint="choose a folder whose whole path has only letters, digits and _ . : / -",
        )


def write_json(path: Path, data: object) -> None:
    """Write `data` by rename."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
