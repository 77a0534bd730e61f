"""What there is of both sides: logs and dumps named one by one, or found in the folder of a collection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precdiag.collected import COLLECTION
from precdiag.collection import LOG, SIDES, SideCommand
from precdiag.collection import Side as SideName
from precdiag.errors import UnreadableError, UsageError
from precdiag.proof import Proof, prove
from precdiag.session import DUMP, SETTINGS


@dataclass(frozen=True)
class Given:
    """What the command line names: the folder of a collection, logs, dumps."""

    folder: Path | None = None
    candidate_log: Path | None = None
    baseline_log: Path | None = None
    candidate: Path | None = None
    baseline: Path | None = None


@dataclass(frozen=True)
class Side:
    """One side. `log` is the curve to judge, `run_log` that of the run which was dumped, where it is another one.

    `device` as its receipts name it; `unfinished` why its evidence is not whole.
    """

    log: Path | None = None
    run_log: Path | None = None
    dump: Path | None = None
    receipts: tuple[Mapping[str, Any], ...] = ()
    command: SideCommand | None = None
    device: str | None = None
    unfinished: str | None = None


@dataclass(frozen=True)
class Sides:
    """Both sides, and whether they ran on different devices (None: nobody says)."""

    candidate: Side
    baseline: Side | None = None
    cross_device: bool | None = None


def find_sides(given: Given, *, cross_device: bool | None = None, needs_log: bool = True) -> Sides:
    """Gather what there is; what is named stands above what the folder holds.

    A log that is named beside a folder is the first run's, and the folder's own log its re-run's. Raises UsageError
    where nothing is to be judged, UnreadableError where the folder is no collection.
    """
    named = {"candidate": (given.candidate_log, given.candidate), "baseline": (given.baseline_log, given.baseline)}
    if given.candidate_log and given.baseline_log and _same_file(given.candidate_log, given.baseline_log):
        raise UsageError(
            f"{given.candidate_log} and {given.baseline_log} are the same file",
            hint="name each run's own log",
        )
    found = {} if given.folder is None else collected(given.folder)
    sides = {}
    for name in SIDES:
        log, dump = named[name]
        side = found.get(name, Side())
        if log is not None:
            side = replace(side, log=log, run_log=side.log)
        if dump is not None:
            side = replace(side, dump=dump)
        sides[name] = side
    if needs_log and sides["candidate"].log is None:
        raise UsageError("no log of the candidate to judge", hint="precdiag localize DIR, or --candidate-log FILE")
    has_baseline = sides["baseline"].log is not None or sides["baseline"].dump is not None
    devices = [sides[name].device for name in SIDES]
    if cross_device is None and all(devices):
        cross_device = devices[0] != devices[1]
    return Sides(sides["candidate"], sides["baseline"] if has_baseline else None, cross_device)


def collected(folder: Path) -> dict[SideName, Side]:
    """Read the sides that `precdiag collect` left in a folder, wherever it lies now.

    Raises UnreadableError where there is no candidate in it.
    """
    if folder.is_file():
        raise UnreadableError(
            f"{folder}: a file, not a folder that precdiag collect wrote",
            hint=f"a log is named by --candidate-log {folder}",
        )
    entries = _entries(folder)
    found = {name: _side(folder / name, entries.get(name, {})) for name in SIDES if (folder / name).is_dir()}
    if "candidate" not in found:
        raise UnreadableError(
            f"{folder}: no candidate/ in it", hint="expected what precdiag collect wrote, or --candidate-log FILE"
        )
    return found


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _entries(folder: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((folder / COLLECTION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{folder / COLLECTION}: not what precdiag collect wrote ({error})") from error
    sides: Mapping[str, Any] = document.get("sides", {})
    return sides


def _side(folder: Path, entry: Mapping[str, Any]) -> Side:
    words = entry.get("command")
    command = None
    if words:
        command = SideCommand(tuple(words), Path(entry.get("cwd") or "."), entry.get("env") or {})
    log = folder / LOG
    proof = prove(folder) if (folder / SETTINGS).is_file() else None
    return Side(
        log=log if log.is_file() else None,
        dump=_dump_of(folder, proof),
        receipts=proof.receipts if proof else (),
        command=command,
        device=str(proof.lead["device"]) if proof and proof.lead and proof.lead.get("device") else None,
        unfinished=proof.reason if proof else None,
    )


def _dump_of(folder: Path, proof: Proof | None) -> Path | None:
    """Return the side's dump; the script's own debugger may have written elsewhere, as the receipts say."""
    for place in (folder / DUMP, *([proof.dump] if proof else [])):
        if any(place.rglob("dump.json")):
            return place
    return None
