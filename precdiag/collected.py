"""What collect wrote about two dumps: how their environments differ, which check warns, whether they were verified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precdiag.environment import differences

COLLECTION = "collection.json"

# DIR/collection.json stands at most this far above a dumped file's folder: DIR/side/dump/step0/rank0.
_HIGHEST = 5
# Differences listed in a note each; collection.json has them all.
_LISTED = 8


def notes_on_collection(baseline: Path, candidate: Path) -> tuple[str, ...]:
    """Say what can change numbers and differs between two collected sides, before any call is looked at.

    Each path lies in a collection of its own or both in one; () where a dump was not collected by precdiag.
    """
    sides = {"baseline": _side_of(baseline), "candidate": _side_of(candidate)}
    notes = [note for name, side in sides.items() if side is not None for note in _warnings(name, side)]
    facts = [side["environment"] for side in sides.values() if side is not None and side.get("environment")]
    if len(facts) == 2:
        notes += _differing(*facts)
    return tuple(notes)


def on_two_devices(baseline: Path, candidate: Path) -> bool:
    """Tell whether both dumps were collected by precdiag, on devices of two kinds (`cuda` and `npu`)."""
    kinds = [device.partition(":")[0] for device in map(_device_of, (baseline, candidate)) if device]
    return len(kinds) == 2 and kinds[0] != kinds[1]


def folder_of_side(path: Path) -> Path | None:
    """Return the folder of the collected side that `path` is or lies in, None where precdiag did not collect it."""
    return next((folder for folder, _ in _sides_around(path)), None)


def read_collection(folder: Path) -> dict[str, Any]:
    """Read collection.json in `folder`; {} where there is none that can be read."""
    try:
        found = json.loads((folder / COLLECTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _device_of(path: Path) -> str | None:
    """Return the device (`npu: Ascend910B`) of the side that `path` belongs to; None where no collection says so."""
    side = _side_of(path)
    try:
        device = side["environment"]["device"] if side is not None else None
    except (KeyError, TypeError):
        return None
    return device if isinstance(device, str) else None


def _side_of(path: Path) -> dict[str, Any] | None:
    return next((entry for _, entry in _sides_around(path)), None)


def _sides_around(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder of each side that `path` is or lies in, innermost first, and its entry with the checks."""
    absolute = path.absolute()
    for folder in (absolute, *absolute.parents[:_HIGHEST]):
        collection = read_collection(folder.parent)
        sides = collection.get("sides")
        entry = sides.get(folder.name) if isinstance(sides, dict) else None
        if isinstance(entry, dict):
            yield folder, {**entry, "checks": collection.get("checks", [])}


def _warnings(name: str, side: Mapping[str, Any]) -> Iterator[str]:
    for check in side["checks"]:
        if check["found"]:
            yield f"{check['check']}: {check['text']}"
    if not side.get("verified", True):
        why = side.get("reason") or f"its command ended with status {side.get('status')}"
        yield f"the {name}'s collection was not verified: {why}"


def _differing(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[str]:
    found = [each for each in differences(baseline, candidate) if each.numbers]
    for each in found[:_LISTED]:
        yield f"the sides differ in {each.label}: {_short(each.baseline)} → {_short(each.candidate)}"
    if len(found) > _LISTED:
        yield f"and in {len(found) - _LISTED} more things that can change numbers: see collection.json"


def _short(value: object) -> str:
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"
