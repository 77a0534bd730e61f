"""Open a log, compressed or not, and hand out its text in bounded memory."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from precdiag.errors import UnreadableError

BLOCK = 1 << 20
"""Bytes read at once."""

HEAD = 1 << 16
"""Bytes from which a format is told."""

LONGEST_LINE = 1 << 24
"""Characters. A longer line is a tensor or a sample somebody printed; it is dropped and counted."""

GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")  # ECMA-48: CSI, OSC, C1


class LogFile:
    """A log that is being read once, from its start.

    `head` holds its first bytes. After reading, `unfinished` says that the last line has no line end, `too_long`
    how many lines were dropped, and `damage` why reading ended early.
    """

    def __init__(self, stream: io.BufferedReader[Any]) -> None:
        self._stream = stream
        self.head = stream.peek(HEAD)[:HEAD]
        self.encoding = next((name for bom, name in _BOMS if self.head.startswith(bom)), "utf-8")
        self.unfinished = False
        self.too_long = 0
        self.damage = ""

    @property
    def head_text(self) -> str:
        """The first characters, decoded as the rest will be."""
        return codecs.getincrementaldecoder(self.encoding)("replace").decode(self.head)

    def read(self, size: int) -> bytes:
        """Read so many bytes, fewer at the end; damaged compression ends the file, what came before it is kept."""
        pieces: list[bytes] = []
        try:
            while size > 0 and (piece := self._stream.read1(size)):
                pieces.append(piece)
                size -= len(piece)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.damage = f"the gzip stream is cut off or damaged ({error})"
        return b"".join(pieces)

    def blocks(self) -> Iterator[str]:
        """Yield the text piece by piece; what cannot be decoded is replaced."""
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        while block := self.read(BLOCK):
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)

    def lines(self) -> Iterator[str]:
        """Yield lines without line ends and ANSI escapes. A carriage return ends a line: progress bars redraw so."""
        rest, dropping = "", False
        for block in self.blocks():
            first, *others = block.replace("\r", "\n").split("\n")
            rest = "" if dropping else rest + first
            if others:
                if not dropping:
                    yield _plain(rest)
                yield from map(_plain, others[:-1])
                rest, dropping = others[-1], False
            if len(rest) > LONGEST_LINE:
                rest, dropping, self.too_long = "", True, self.too_long + 1
        if rest:
            self.unfinished = True
            yield _plain(rest)


@contextmanager
def open_log(path: Path) -> Iterator[LogFile]:
    """Open a file, gzip or plain by its content. Raises UnreadableError when that cannot be done."""
    try:
        with io.BufferedReader(io.FileIO(path), HEAD) as raw:
            packed = raw.peek(2)[:2] == GZIP_MAGIC
            yield LogFile(io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=raw)), HEAD) if packed else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error


def _plain(line: str) -> str:
    return _ANSI.sub("", line) if "\x1b" in line else line
