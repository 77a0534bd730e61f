"""Decode a dump.json piece by piece: bounded memory, and msgspec's parser where it is installed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

Calls = dict[str, Any]
Parse = Callable[[bytes], Any]

# Measured on 94 MB: pieces of 64 to 256 KB stay in the cache and are decoded twice as fast as ones of 4 MB.
PIECE_BYTES = 1 << 18
# How many calls are passed on at once where they are decoded one by one.
_CALLS_AT_ONCE = 256

# Where a call begins: every msprobe writes json.dump(…, indent=1), and inside a string a line break is escaped.
_BOUNDARY = b'\n  "'
# NaN and the infinities are no JSON: for msgspec they are written as strings that no dump holds.
_MARK = "\0"
_MARKED = {_MARK + literal: float(literal) for literal in ("NaN", "Infinity", "-Infinity")}
_MARKS = tuple(
    (text.lstrip("\0-")[:1].encode(), f'": {text[1:]}'.encode(), f'": "\\u0000{text[1:]}"'.encode()) for text in _MARKED
)
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


class MalformedError(Exception):
    """The text is not what msprobe writes, or is cut short; `calls` whole ones stand before the place."""

    def __init__(self, calls: int, *, blank: bool = False) -> None:
        super().__init__(calls)
        self.calls, self.blank = calls, blank


def decode(path: Path, take: Callable[[Calls], None]) -> dict[str, Any]:
    """Pass the calls of a dump.json to `take`, some at a time and in order; return the document with an empty `data`.

    NaN and the infinities may arrive marked: see `plain`. A document that is not laid out as msprobe does it is decoded
    call by call, with the same result. Raises MalformedError, OSError and UnicodeDecodeError.
    """
    pieces = _pieces(path)
    head = next(pieces)
    header = _closed(head)
    if header is None:
        return _one_by_one(head + b"".join(pieces), take, 0)
    parsers = _parsers()
    done = 0
    for piece in pieces:
        # Parsed as whole members of the object that the head opened, so the next piece begins with a member again.
        calls = _members(piece, parsers)
        if calls is None:  # the last piece, or another layout
            return header | _one_by_one(b'{"data": {' + piece + b"".join(pieces), take, done)
        done += len(calls)
        take(calls)
    raise MalformedError(done)


def plain(value: Any) -> Any:
    """Turn the marks of NaN and the infinities in a decoded value back into numbers."""
    if isinstance(value, str):
        return _MARKED.get(value, value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _pieces(path: Path) -> Iterator[bytes]:
    """Cut the file where calls begin: what stands before the first, some calls at a time, the last with the rest."""
    with path.open("rb") as file:
        held: list[bytes] = []
        opened = False
        while block := file.read(PIECE_BYTES):
            if not opened and (at := block.find(_BOUNDARY)) >= 0:
                yield b"".join([*held, block[:at]])
                held, block, opened = [], block[at:], True
            if opened and (at := block.rfind(_BOUNDARY)) > 0:
                yield b"".join([*held, block[:at]])
                held, block = [], block[at:]
            held.append(block)
        yield b"".join(held)


def _closed(head: bytes) -> dict[str, Any] | None:
    """Return the document that begins with `head` if nothing came after; None where `data` is not what it opens."""
    try:
        header = json.loads(head.decode() + "}}")
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("data") == {} else None


def _parsers() -> tuple[Parse, ...]:
    def slow(text: bytes) -> Any:
        return json.loads(text.decode())

    try:
        import msgspec
    except ImportError:
        return (slow,)

    def fast(text: bytes) -> Any:
        if b"\\" in text and (b'\\": ' in text or b"\\u0000" in text):  # a mark may stand inside a string already
            raise ValueError
        for initial, literal, mark in _MARKS:
            if initial in text:  # one byte is looked for at the speed of memory
                text = text.replace(literal, mark)
        try:
            return msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise ValueError from error

    return (fast, slow)


def _members(piece: bytes, parsers: tuple[Parse, ...]) -> Calls | None:
    """Decode a piece of whole members; None where it is none, or names one twice."""
    text = piece.rstrip()
    if not text.endswith(b","):
        return None
    text = b"{" + text[:-1] + b"}"
    for parse in parsers:
        try:
            calls = parse(text)
        except (ValueError, RecursionError):
            continue
        return calls if len(calls) == piece.count(_BOUNDARY) else None
    return None


def _one_by_one(document: bytes, take: Callable[[Calls], None], done: int) -> dict[str, Any]:
    """Decode a document call by call, so that only some calls' objects are in memory at a time."""
    text = document.decode()
    header: dict[str, Any] = {}
    calls: Calls = {}

    def on_call(name: str, at: int) -> int:
        nonlocal calls, done
        if name in calls or len(calls) == _CALLS_AT_ONCE:
            take(calls)
            calls = {}
        calls[name], end = _DECODER.raw_decode(text, at)
        done += 1
        return end

    def on_key(key: str, at: int) -> int:
        if key == "data":
            header[key] = {}
            return _object(text, at, on_call)
        header[key], end = _DECODER.raw_decode(text, at)
        return end

    try:
        if _skip(text, _object(text, _skip(text, 0), on_key)) != len(text):
            raise ValueError("something stands behind the document")
    except (ValueError, IndexError, RecursionError):  # ValueError: no JSON, or a number of thousands of digits
        raise MalformedError(done, blank=not text.strip()) from None
    take(calls)
    return header


def _object(text: str, at: int, member: Callable[[str, int], int]) -> int:
    """Walk the JSON object at `at`: `member(key, position of its value)` returns the value's end; so does this.

    Raises JSONDecodeError or IndexError where the text is not an object or ends inside it.
    """
    _expect(text, at, "{")
    at = _skip(text, at + 1)
    while text[at] != "}":
        _expect(text, at, '"')
        key, at = scanstring(text, at + 1, True)
        at = _skip(text, at)
        _expect(text, at, ":")
        at = _skip(text, member(key, _skip(text, at + 1)))
        if text[at] != "}":
            _expect(text, at, ",")
            at = _skip(text, at + 1)
    return at + 1


def _expect(text: str, at: int, character: str) -> None:
    if text[at] != character:
        raise JSONDecodeError(f"expected {character}", text, at)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
