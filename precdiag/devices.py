"""On which devices two dumps were collected, as collection.json says."""

from __future__ import annotations

import json
from pathlib import Path

COLLECTION = "collection.json"


def on_two_devices(baseline: Path, candidate: Path) -> bool:
    """Tell whether both dumps were collected by precdiag, on devices of two kinds (`cuda` and `npu`)."""
    kinds = [device.partition(":")[0] for device in map(device_of, (baseline, candidate)) if device]
    return len(kinds) == 2 and kinds[0] != kinds[1]


def device_of(dump: Path) -> str | None:
    """Return the device (`npu: Ascend910B`) of the side that a path belongs to; None where no collection says so."""
    path = dump.absolute()
    for side in (path, *path.parents):
        try:
            text = (side.parent / COLLECTION).read_text(encoding="utf-8")
            device = json.loads(text)["sides"][side.name]["environment"]["device"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return device if isinstance(device, str) else None
    return None
