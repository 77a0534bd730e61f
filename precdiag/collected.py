"""What collect wrote about two dumps: how their environments differ, which check warns, whether they were verified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precdiag.environment import differences

# DIR/collection.json stands at most this far above a dumped file's folder: DIR/side/dump/step0/rank0.
_HIGHEST = 5
# Differences listed in a note each; collection.json has them all.
_LISTED = 8


def notes_on_collection(baseline: Path, candidate: Path) -> tuple[str, ...]:
    """Say what can change numbers and differs between two collected sides, before any call is looked at.

    Each path lies in a collection of its own or both in one; () where a dump was not collected by precdiag.
    """
    sides = {"baseline": _find_side(baseline), "candidate": _find_side(candidate)}
    notes = [note for name, side in sides.items() if side is not None for note in _warnings(name, side)]
    facts = [side["environment"] for side in sides.values() if side is not None and side.get("environment")]
    if len(facts) == 2:
        notes += _differing(*facts)
    return tuple(notes)


def folder_of_side(path: Path) -> Path | None:
    """Return the folder of the collected side that `path` is or lies in, None where precdiag did not collect it."""
    absolute = path.absolute()
    folders = (absolute, *absolute.parents[:_HIGHEST])
    return next((folder for folder in folders if _entry(folder) is not None), None)


def _find_side(path: Path) -> dict[str, Any] | None:
    """Return the entry in collection.json of the side whose folder `path` is or lies in."""
    folder = folder_of_side(path)
    return None if folder is None else _entry(folder)


def _entry(folder: Path) -> dict[str, Any] | None:
    collection = _read(folder.parent / "collection.json")
    entry = collection.get("sides", {}).get(folder.name)
    return None if entry is None else {**entry, "checks": collection.get("checks", [])}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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
