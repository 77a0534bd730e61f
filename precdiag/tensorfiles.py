"""Compare many pairs of tensor files, in several processes: those of the same bytes without reading what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from precdiag.archive import ZIP_MAGIC
from precdiag.tensors import TensorPair, compare_files
from precdiag.workers import Resources, each

# Read so much of both files at a time: it stays in the cache, where comparing costs a tenth of reading.
_CHUNK_BYTES = 1 << 18
# How many pairs are handed to a process at once, where the first that differs may end it all, and how many elements are
# worth processes.
_AT_ONCE, _AT_ONCE_FOR_FIRST = 32, 4
WORTH_PROCESSES_ELEMENTS = 1 << 24

# What torch.save writes of a plain tensor begins with: the first member of the archive is its pickle.
_PICKLE_OF_A_TENSOR = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n"
_HEAD_BYTES = 4096
# The last 22 bytes of a whole zip archive without a comment (APPNOTE 4.3.16); a file that was cut lacks them.
_END_OF_ARCHIVE = b"PK\x05\x06"
_END_BYTES = 22


class FilePair(NamedTuple):
    """Two tensor files, and what to say of them where their bytes are the same."""

    baseline: Path
    candidate: Path
    same: TensorPair


def compare_all(
    pairs: Sequence[FilePair], elements: int, resources: Resources, *, first: bool = False
) -> Iterator[TensorPair]:
    """Compare pairs of files in order, `elements` in all; closing the iterator leaves the rest. See `compare_files`.

    `first`: it will be closed soon, so little is begun ahead.
    Files of the same bytes are equal if they are whole archives of a plain tensor, whatever it would take to load them.
    """
    at_once = _AT_ONCE_FOR_FIRST if first else _AT_ONCE
    batches = [pairs[at : at + at_once] for at in range(0, len(pairs), at_once)]
    spread = resources.scheduler is not None or elements >= WORTH_PROCESSES_ELEMENTS
    for found in each(_compare_some, batches, resources if spread else Resources()):
        yield from found


def is_same_archive(baseline: Path, candidate: Path) -> bool:
    """Tell whether two files hold the same bytes and are whole archives of one plain tensor, as torch.save writes."""
    try:
        with baseline.open("rb", buffering=0) as left, candidate.open("rb", buffering=0) as right:
            size = os.fstat(left.fileno()).st_size
            if size != os.fstat(right.fileno()).st_size or not _is_whole_tensor(left, size):
                return False
            return _same_content(left, right, size)
    except OSError:
        return False


def _compare_some(pairs: Sequence[FilePair], share: Resources) -> list[TensorPair]:
    return [_compare_pair(pair) for pair in pairs]


def _compare_pair(pair: FilePair) -> TensorPair:
    if is_same_archive(pair.baseline, pair.candidate):
        return pair.same
    return compare_files(pair.baseline, pair.candidate)


def _is_whole_tensor(file: BinaryIO, size: int) -> bool:
    if size < _END_BYTES:
        return False
    head = os.pread(file.fileno(), _HEAD_BYTES, 0)
    end = os.pread(file.fileno(), _END_BYTES, size - _END_BYTES)
    return head.startswith(ZIP_MAGIC) and _PICKLE_OF_A_TENSOR in head and end.startswith(_END_OF_ARCHIVE)


def _same_content(left: BinaryIO, right: BinaryIO, size: int) -> bool:
    x, y = np.zeros(_CHUNK_BYTES // 8, np.uint64), np.zeros(_CHUNK_BYTES // 8, np.uint64)
    seen = 0
    while seen < size:
        count = left.readinto(x.view(np.uint8))  # type: ignore[attr-defined]
        if not count or right.readinto(y.view(np.uint8)[:count]) != count:  # type: ignore[attr-defined]
            return False
        words = -(-count // 8)  # behind the last byte both hold what the chunk before left, which was the same
        if not np.array_equal(x[:words], y[:words]):
            return False
        seen += count
    return True
