"""Read the scalars of a TensorBoard event file, without TensorBoard.

A file is TFRecords (u64 length, its CRC, the bytes, their CRC), each a protobuf Event. Only the fields that hold a
scalar are read (tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

MAGIC = b"brain.Event:"
"""Every event file opens with a record that holds its version, `brain.Event:2`."""

MAGIC_WITHIN = 64
"""Bytes: the header of the first record, its time stamp, then the version."""

LARGEST = 1 << 28
"""Bytes. A longer record is no scalar, and most likely a damaged length."""

_STEP, _SUMMARY = 2, 5  # Event
_VALUE = 1  # Summary
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # Summary.Value
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6  # TensorProto
_SCALAR_LAYOUT = {1: "<f", 2: "<d"}  # DataType: DT_FLOAT, DT_DOUBLE


def scalars(read: Callable[[int], bytes]) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) in file order. A last record that is cut off ends the file.

    Raises ValueError at a record that is damaged: what follows it cannot be found.
    """
    while len(head := read(12)) == 12:
        length = int.from_bytes(head[:8], "little")
        if length > LARGEST:
            raise ValueError(f"a record of {length:,} bytes")
        data = read(length)
        if len(read(4)) < 4:
            return
        yield from _event_scalars(data)


def _event_scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for field, value in _fields(data):
        if field == _STEP and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif field == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == _VALUE and isinstance(value, bytes):
                tag, scalar = _value_scalar(value)
                if scalar is not None:
                    yield step, tag, scalar


def _value_scalar(data: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field == _TAG:
            tag = value.decode("utf-8", "replace")
        elif field == _SIMPLE_VALUE and len(value) == 4:
            scalar = struct.unpack("<f", value)[0]
        elif field == _TENSOR:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(data: bytes) -> float | None:
    """Read a float or double tensor of one element; None for histograms, images, text."""
    fields = dict(_fields(data))
    layout = _SCALAR_LAYOUT.get(dtype) if isinstance(dtype := fields.get(_DTYPE), int) else None
    content = fields.get(_CONTENT) or fields.get(_FLOATS if layout == "<f" else _DOUBLES)
    if layout is None or not isinstance(content, bytes) or len(content) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, content)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Walk a protobuf message: varints as int, all else as the bytes it holds."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field longer than its record")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number & (2**64 - 1), at
    raise ValueError("a number that does not end")
