"""Judge what came back from a cluster: gather each side's folders, merge its nodes by global rank, prove the whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from precdiag.collected import read_collection
from precdiag.collection import (
    NODE_RESULTS,
    SIDES,
    Collection,
    Side,
    SideCommand,
    SideResult,
    conclude,
    settle,
    write_collection,
)
from precdiag.errors import UnreadableError, UsageError
from precdiag.launch import Ended
from precdiag.proof import prove, prove_files
from precdiag.session import ATTEMPTS, DUMP, RECEIPTS, SETTINGS, Request, read_settings, request_in


def verify(folders: Sequence[Path], out: Path, side: Side) -> Collection:
    """Judge the sides in `folders` (kits, PRECDIAG_OUT folders, collections) and write collection.json.

    A dump made by hand, one folder of it, is judged as `side` by its files alone.

    A collection is judged where it stands. Anything else is gathered in `out`: one folder a side, with links to what
    each node left. Raises UsageError where folders do not belong together, UnreadableError where one holds no session.
    """
    if len(folders) == 1 and not _sessions_in(folders[0]) and any(folders[0].glob("step*")):
        return _of_hand(folders[0].absolute(), out.absolute(), side)
    sides = _by_side(folders)
    root = _standing_collection(sides)
    if root is None:
        root = out.absolute()
        for name, found in sides.items():
            _gather(name, found, root / name)
    earlier = read_collection(root).get("sides", {})
    results = tuple(_judged(name, root / name, earlier.get(name, {})) for name in SIDES if name in sides)
    for result in results:
        settle(result)
    collection = conclude(root, request_in(results[0].folder), results, ())
    write_collection(collection)
    return collection


def _of_hand(dump: Path, out: Path, side: Side) -> Collection:
    target = out / side
    _make_way(target)
    target.mkdir(parents=True)
    (target / DUMP).symlink_to(dump)
    proof = prove_files(dump)
    steps = tuple(sorted({step.step for step in proof.steps if step.step is not None}))
    result = SideResult(side, target, SideCommand((), dump), Ended(0), proof)
    collection = conclude(out, Request(steps=steps), (result,), ())
    write_collection(collection)
    return collection


def _sessions_in(folder: Path) -> list[Path]:
    """The side folders that `folder` is or holds."""
    found = [folder] if (folder / SETTINGS).is_file() else [folder / side for side in SIDES]
    return [each.absolute() for each in found if (each / SETTINGS).is_file()]


def _by_side(folders: Sequence[Path]) -> dict[Side, list[Path]]:
    sides: dict[Side, list[Path]] = {}
    for folder in folders:
        found = _sessions_in(folder)
        if not found:
            raise UnreadableError(
                f"{folder}: no {SETTINGS} in it",
                hint="expected a kit, a PRECDIAG_OUT folder, a collection, or one dump made by hand",
            )
        for each in found:
            sides.setdefault(_settings(each)["side"], []).append(each)
    return sides


def _standing_collection(sides: dict[Side, list[Path]]) -> Path | None:
    """Return the folder that holds every side under its own name already, or None."""
    parents = {folder.parent for found in sides.values() for folder in found}
    in_place = all(len(found) == 1 and found[0].name == side for side, found in sides.items())
    return parents.pop() if in_place and len(parents) == 1 else None


def _gather(side: str, folders: list[Path], target: Path) -> None:
    identities = {_settings(folder)["session"]: folder for folder in folders}
    if len(identities) > 1:
        one, two, *_ = identities.values()
        raise UsageError(
            f"{one} and {two} come from different sessions of the {side}",
            hint="verify the folders of one launch together: one kit, or one --run-id",
        )
    _make_way(target)
    for name in (DUMP, RECEIPTS):
        (target / name).mkdir(parents=True)
    (target / SETTINGS).symlink_to(folders[0] / SETTINGS)
    for folder in folders:
        for file in _left_in(folder):
            link = target / file.relative_to(folder)
            if link.is_symlink():
                raise UsageError(
                    f"{folder} and {link.readlink().parents[len(file.relative_to(folder).parts) - 1]} both hold "
                    f"{file.relative_to(folder)}: two launches, or one folder twice",
                    hint="name each node's folder of one launch once",
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)


def _make_way(target: Path) -> None:
    """Remove what an earlier verify linked together in `target`, and nothing else."""
    if not target.exists():
        return
    if any(each.is_file() and not each.is_symlink() for each in target.rglob("*")):
        raise UsageError(f"{target} holds a collection of its own", hint="choose another --out")
    shutil.rmtree(target)


def _left_in(folder: Path) -> Iterator[Path]:
    """Yield what a node left: receipts, its own status, and a folder a step and rank."""
    yield from sorted(folder.glob(f"{RECEIPTS}/**/*.json"))
    yield from sorted(folder.glob(NODE_RESULTS))
    for dump in (f"{DUMP}/step*/*", f"{ATTEMPTS}/*/step*/*"):
        yield from sorted(folder.glob(dump))


def _judged(side: Side, folder: Path, earlier: dict[str, Any]) -> SideResult:
    proof = prove(folder)
    lead: dict[str, Any] = dict(proof.lead or {})
    command = SideCommand(tuple(lead.get("command", ())), Path(lead.get("cwd", folder)))
    return SideResult(side, folder, command, _ended(folder, earlier), proof)


def _ended(folder: Path, earlier: dict[str, Any]) -> Ended:
    """How the launchers ended, where they ran under collect: the first node that failed, or as it was told before."""
    nodes = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob(NODE_RESULTS)]
    failed = [node for node in sorted(nodes, key=lambda node: int(node["node"])) if node["status"]]
    if failed:
        return Ended(failed[0]["status"], f"on node {failed[0]['node']}")
    return Ended(0) if nodes else Ended(earlier.get("status", 0), earlier.get("ended"))


def _settings(folder: Path) -> dict[str, Any]:
    found = read_settings(folder)
    if found.get("side") not in SIDES:
        raise UnreadableError(f"{folder}: its {SETTINGS} names no side", hint="collect --prepare KIT --side SIDE")
    return found
