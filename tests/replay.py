"""Stands in for collect: hands out, of runs that were collected whole, what a request would have recorded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from precdiag.collection import SideCommand
from precdiag.session import Request, write_json, write_session

Source = Callable[[SideCommand], Path]


def replaying(source: Source, asked: list[tuple[Request, tuple[str, ...]]]) -> Callable[..., SimpleNamespace]:
    """Return a collect() that takes each side from `source(command)` and notes what it was asked for."""

    def collect(folder: Path, request: Request, commands: Mapping[str, SideCommand], **_: Any) -> SimpleNamespace:
        asked.append((request, tuple(commands)))
        for side, command in commands.items():
            shutil.rmtree(folder / side, ignore_errors=True)
            place(source(command), folder / side, request, side)
        return SimpleNamespace(sides=())

    return collect


def place(whole: Path, folder: Path, request: Request, side: str) -> None:
    """Write the side that `request` would have left of a run whose every step was recorded at level mix."""
    write_session(folder, request, side=side, identity="replay")
    shutil.copy(whole / "log.txt", folder / "log.txt")
    kept: dict[int, int] = {}
    for part in sorted((whole / "dump").glob("step*/*")):
        step = int(part.parent.name.removeprefix("step"))
        if step in request.steps:
            kept[step] = _place_part(part, folder / "dump" / part.parent.name / part.name, request)
    for receipt in (whole / "receipts").glob("*.json"):
        document = json.loads(receipt.read_text())
        steps = [entry | {"calls": kept[entry["step"]]} for entry in document["steps"] if entry["step"] in kept]
        write_json(folder / "receipts" / receipt.name, document | {"steps": steps})


def _place_part(part: Path, folder: Path, request: Request) -> int:
    shutil.copytree(part, folder)
    document = json.loads((part / "dump.json").read_text())
    parents = json.loads((part / "construct.json").read_text())
    names = [name for name in document["data"] if _recorded(name, request, parents)]
    document["data"] = {name: document["data"][name] for name in names}
    document["level"] = request.level
    (folder / "dump.json").write_text(json.dumps(document))
    return len(names)


def _recorded(name: str, request: Request, parents: Mapping[str, str | None]) -> bool:
    if request.level == "L0" and not name.startswith("Module."):
        return False
    above: str | None = name
    while above is not None and request.list:
        if above in request.list:
            return True
        above = parents.get(above)
    return not request.list
