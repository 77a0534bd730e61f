"""Map a dumped tensor without torch: an archive that torch.save wrote of one plain tensor, or an .npy file."""

from __future__ import annotations

import mmap
import re
import struct
import sys
import zipfile
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from precdiag.dtypes import CARRIERS
from precdiag.errors import UnreadableError
from precdiag.stored import Stored

NUMPY_MAGIC = b"\x93NUMPY"  # numpy.lib.format.MAGIC_PREFIX
ZIP_MAGIC = b"PK\x03\x04"  # what torch.save has written since 1.6; only this form can be mapped

# The storages of torch/storage.py. Newer dtypes are written another way and are left to torch.
_STORAGES = {
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
# The pickle that torch.save writes of a plain tensor, byte by byte: a call of _rebuild_tensor_v2 with storage, offset,
# size, stride, requires_grad and no hooks. `q.` puts what precedes it in the memo (pickletools lists the opcodes). No
# pickle is run: a file with anything else in it is left to torch.
_INTEGER = rb"(?:K.|M..|J....|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_TUPLE = rb"(?:\)|" + b"|".join((_INTEGER * n) + end + b"q." for n, end in enumerate((b"\x85", b"\x86", b"\x87"), 1))
_TUPLE += rb"|\(" + _INTEGER + rb"{4,64}tq.)"
_PICKLE = re.compile(
    rb"\x80\x02ctorch\._utils\n_rebuild_tensor_v2\nq.\(\(X\x07\x00\x00\x00storageq."
    rb"ctorch\n(?P<storage>\w+)\nq.X(?P<key_length>.)\x00\x00\x00(?P<key>\d+)q."
    rb"X(?P<device_length>.)\x00\x00\x00(?P<device>\w+(?::\d+)?)q."
    rb"(?P<elements>" + _INTEGER + rb")tq.Q(?P<offset>" + _INTEGER + rb")(?P<size>" + _TUPLE + rb")(?P<stride>" + _TUPLE
    + rb")[\x88\x89]ccollections\nOrderedDict\nq.\)Rq.tq.Rq.\.",
    re.DOTALL,
)  # fmt: skip
_EACH_INTEGER = re.compile(rb"\)|[\x85-\x87(]|tq.|q.|" + _INTEGER, re.DOTALL)
_TEXTS = ("key", "device")
_MOST_PICKLE_BYTES = 4096
# A zip's local file header, with the lengths of the name and the extra field behind it (APPNOTE 4.3.7); and the head
# of a block of the extra field (4.5.1). torch.save pads there, so that a storage begins at a multiple of 64.
_LOCAL_HEADER, _BLOCK = struct.Struct("<4s22xHH"), struct.Struct("<HH")
_ALIGNMENT = 64


def mapped_from(path: Path, magic: bytes) -> Stored | None:
    """Map the tensor in a file that begins with `magic`; None where it is not written plainly and is left to torch."""
    try:
        if magic.startswith(NUMPY_MAGIC):
            return of_numpy(path)
        return _of_archive(path) if magic.startswith(ZIP_MAGIC) and sys.byteorder == "little" else None
    except Exception:  # a damaged file may raise anything in zipfile; torch says what is wrong with it
        return None


def of_numpy(path: Path) -> Stored:
    """Map an .npy file; what is written to it stays in memory.

    Raises UnreadableError for a dtype that no tensor has, and what numpy raises for a file that is none.
    """
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if CARRIERS.get(native.dtype.name) != native.dtype:
        raise UnreadableError(f"cannot be compared: {path}: no rule for dtype {array.dtype}")
    return Stored(native, native.dtype.name)


class _Tensor(NamedTuple):
    """What a pickle says of a tensor: the storage it lies in (dtype, member of the archive, elements), and where."""

    dtype: str
    key: str
    elements: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _described(pickled: bytes) -> _Tensor | None:
    match = _PICKLE.fullmatch(pickled)
    dtype = None if match is None else _STORAGES.get(match["storage"].decode())
    if match is None or dtype is None or any(match[f"{name}_length"][0] != len(match[name]) for name in _TEXTS):
        return None
    elements, offset, size, stride = (_integers(match[name]) for name in ("elements", "offset", "size", "stride"))
    if min((*elements, *offset, *size, *stride)) < 0 or len(size) != len(stride):
        return None
    return _Tensor(dtype, match["key"].decode(), elements[0], offset[0], size, stride)


def _integers(pickled: bytes) -> tuple[int, ...]:
    """Read the integers of a pickled integer or tuple."""
    tokens = (token for token in _EACH_INTEGER.findall(pickled) if token[:1] in b"KMJ\x8a")
    return tuple(
        int.from_bytes(token[2 if token[:1] == b"\x8a" else 1 :], "little", signed=token[:1] in b"J\x8a")
        for token in tokens
    )


def _of_archive(path: Path) -> Stored | None:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        members = {info.filename.partition("/")[2]: info for info in infos}
        tops = {info.filename.partition("/")[0] for info in infos}
        if len(tops) != 1 or len(members) != len(infos):
            return None
        order = members.get("byteorder")
        if order is not None and (order.file_size != len(b"little") or archive.read(order) != b"little"):
            return None
        if members["data.pkl"].file_size > _MOST_PICKLE_BYTES:
            return None
        found = _described(archive.read(members["data.pkl"]))
        if found is None:
            return None
        carrier, data = CARRIERS[found.dtype], members[f"data/{found.key}"]
        if data.compress_type != zipfile.ZIP_STORED or data.file_size != found.elements * carrier.itemsize:
            return None
        start = _start_of(file, data)
        behind = min(each.header_offset for each in infos if each.header_offset > data.header_offset)
        if start is None or start + data.file_size > behind:
            return None
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start : start + data.file_size]
    values: np.ndarray = np.ndarray(  # raises where size and stride reach out of the storage
        found.size,
        carrier,
        mapped,
        found.offset * carrier.itemsize,
        tuple(each * carrier.itemsize for each in found.stride),
    )
    return Stored(values, found.dtype)


def _start_of(file: IO[bytes], member: zipfile.ZipInfo) -> int | None:
    """Where a storage begins: behind its local header, if that is whole; the directory at the end does not say it."""
    file.seek(member.header_offset)
    magic, length, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    name, blocks = file.read(length), file.read(extra)
    start = file.tell()
    at = 0
    while at + _BLOCK.size <= len(blocks):
        at += _BLOCK.size + _BLOCK.unpack_from(blocks, at)[1]
    whole = magic == ZIP_MAGIC and name == member.filename.encode() and at == len(blocks)
    return start if whole and start % _ALIGNMENT == 0 else None
