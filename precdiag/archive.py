"""Map a dumped tensor without torch: an archive that torch.save wrote of one plain tensor, or an .npy file."""

from __future__ import annotations

import io
import mmap
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from precdiag.dtypes import CARRIERS
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
# The pickle of a plain tensor has some 200 bytes.
_MOST_PICKLE_BYTES = 4096
# A zip's local file header, with the lengths of the name and the extra field behind it (APPNOTE 4.3.7); and the head
# of a block of the extra field (4.5.1). torch.save pads there, so that a storage begins at a multiple of 64.
_LOCAL_HEADER, _BLOCK = struct.Struct("<4s22xHH"), struct.Struct("<HH")
_ALIGNMENT = 64


def plain(path: Path, magic: bytes) -> Stored | None:
    """Map the tensor in a file that begins with `magic`; None where it is not written plainly: torch may know better.

    Nothing in the file is run: of its pickle only the names that a plain tensor needs are taken, as descriptions.
    """
    try:
        if magic.startswith(NUMPY_MAGIC):
            return _of_numpy(path)
        return _of_torch(path) if magic.startswith(ZIP_MAGIC) and sys.byteorder == "little" else None
    except Exception:  # a damaged file may raise anything in the unpickler and in zipfile
        return None


class _Storage(NamedTuple):
    """What a pickle says of the bytes that a tensor lies in."""

    kind: str
    dtype: str
    key: str
    location: str
    elements: int


class _Tensor(NamedTuple):
    """What a pickle says of a tensor; `flags` stand for a conjugate or negative view."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    hooks: Any
    flags: Any = None


class _Unpickler(pickle.Unpickler):
    """Reads the description of one plain tensor and nothing else ("Restricting Globals" in pickle's manual)."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Tensor
        if (module, name) == ("collections", "OrderedDict"):  # the hooks
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        return _Storage(*pid)


def _of_torch(path: Path) -> Stored | None:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if members["data.pkl"].file_size > _MOST_PICKLE_BYTES:
            return None
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            return None
        found = _Unpickler(io.BytesIO(archive.read(members["data.pkl"]))).load()
        if type(found) is not _Tensor or found.flags:
            return None
        carrier, data = CARRIERS[found.storage.dtype], members[f"data/{found.storage.key}"]
        stored = data.compress_type == zipfile.ZIP_STORED
        if not stored or data.file_size != found.storage.elements * carrier.itemsize:
            return None
        start = _start_of(file, data)
        behind = min(each.header_offset for each in members.values() if each.header_offset > data.header_offset)
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
    return Stored(values, found.storage.dtype)


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


def _of_numpy(path: Path) -> Stored | None:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Stored(native, native.dtype.name) if CARRIERS.get(native.dtype.name) == native.dtype else None
