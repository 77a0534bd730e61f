"""Read both sides of a pair: large ones at the same time, and only once if an index may be left beside them."""

from __future__ import annotations

import os
from functools import partial

from precdiag.dump import Dump, read_dump
from precdiag.index import is_kept, key_of, load_index, save_index
from precdiag.layout import DUMP_FILE, TENSOR_FOLDER, Part
from precdiag.workers import Resources, beside

# A process costs 20 ms to fork and its rows 1 ms a megabyte to send; a megabyte takes 12 ms to read. An index of a
# smaller dump would save less than starting Python takes.
LARGE_BYTES = 8 << 20


def read(part: Part, *, cache: bool) -> Dump:
    """Read a dump, or its index where `cache` allows and a run before has left one. Raises as `read_dump`."""
    if not cache or _size(part) < LARGE_BYTES:
        return read_dump(part)
    return load_index(part) or _read_and_keep(part)


def read_pair(baseline: Part, candidate: Part, resources: Resources) -> tuple[Dump, Dump]:
    """Read the two dumps of a pair, at the same time where that is quicker. Raises as `read_dump`."""
    large = min(_size(baseline), _size(candidate)) >= LARGE_BYTES
    if resources.workers > 1 and large and not (resources.cache and is_kept(baseline) and is_kept(candidate)):
        with beside(partial(read, cache=resources.cache), candidate) as other:
            left = read(baseline, cache=resources.cache)
            return left, other()
    return read(baseline, cache=resources.cache), read(candidate, cache=resources.cache)


def tensor_bytes(part: Part) -> int:
    """Return the size of a part's tensor files, 0 where it has none."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(part.folder / TENSOR_FOLDER))
    except OSError:
        return 0


def _read_and_keep(part: Part) -> Dump:
    try:
        key = key_of(part)
    except OSError:
        return read_dump(part)
    dump = read_dump(part)
    save_index(dump, key)
    return dump


def _size(part: Part) -> int:
    try:
        return (part.folder / DUMP_FILE).stat().st_size
    except OSError:
        return 0
