"""Read both sides of a pair: large ones at the same time."""

from __future__ import annotations

from precdiag.dump import Dump, read_dump
from precdiag.layout import DUMP_FILE, Part
from precdiag.workers import Resources, beside

# A process costs 20 ms to fork and its rows 1 ms a megabyte to send; a megabyte takes 12 ms to read.
WORTH_A_PROCESS_BYTES = 8 << 20


def read_pair(baseline: Part, candidate: Part, resources: Resources) -> tuple[Dump, Dump]:
    """Read the two dumps of a pair, at the same time where that is quicker. Raises as `read_dump`."""
    if resources.workers > 1 and min(_size(baseline), _size(candidate)) >= WORTH_A_PROCESS_BYTES:
        with beside(read_dump, candidate) as other:
            left = read_dump(baseline)
            return left, other()
    return read_dump(baseline), read_dump(candidate)


def _size(part: Part) -> int:
    try:
        return (part.folder / DUMP_FILE).stat().st_size
    except OSError:
        return 0
