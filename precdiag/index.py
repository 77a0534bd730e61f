"""Keep what was read of a large dump.json in a file beside it: a cache that may be removed at any time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precdiag import __version__
from precdiag.dump import Dump
from precdiag.layout import DUMP_FILE, Part

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

INDEX_FILE = ".precdiag-index.npz"
# Raised with every change of what stands in the file; the version of precdiag is part of the key too.
FORMAT = 1
# A file that was written less than this ago may be written again within the same tick of its clock.
_SETTLED_SECONDS = 2.0
# So much of both ends of dump.json is part of the key, next to size and time: `cp -p` keeps those two.
_EDGE_BYTES = 1 << 16

_TEXTS = ("kind", "operation", "module", "phase", "scope")


def load_index(part: Part) -> Dump | None:
    """Return the dump as an earlier run read it; None where there is no index, or it is not of these very files.

    Whatever is wrong with the file is no error: it is as if there were none.
    """
    try:
        import numpy as np

        with np.load(part.folder / INDEX_FILE, allow_pickle=False) as archive:
            header = json.loads(bytes(archive["header"]))
            if header["key"] != key_of(part):
                return None
            return _dump_of(part, header, {name: archive[name] for name in archive.files if name != "header"})
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def is_kept(part: Part) -> bool:
    """Tell whether an index stands beside a dump, whatever is in it."""
    return (part.folder / INDEX_FILE).exists()


def save_index(dump: Dump, key: list[Any]) -> None:
    """Leave the dump for later runs, if its folder may be written; `key`: `key_of` its part before it was read."""
    if time.time() - max(key[2][1], key[3][1]) / 1e9 < _SETTLED_SECONDS or key_of(dump.part) != key:
        return
    target = dump.part.folder / INDEX_FILE
    draft = target.with_name(f"{INDEX_FILE}.{os.getpid()}")
    try:
        draft.write_bytes(_packed(dump, key))
        draft.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def key_of(part: Part) -> list[Any]:
    """Return what an index must have been made of to be used: formats, and size, time and ends of the files read.

    Raises OSError where there is no dump.json.
    """
    return [FORMAT, __version__, _stamp(part.folder / DUMP_FILE), _stamp(part.folder / "construct.json")]


def _stamp(path: Path) -> list[int]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            ends = file.read(_EDGE_BYTES)
            file.seek(max(0, status.st_size - _EDGE_BYTES))
            return [status.st_size, status.st_mtime_ns, zlib.crc32(file.read(_EDGE_BYTES), zlib.crc32(ends))]
    except FileNotFoundError:
        if path.name == DUMP_FILE:
            raise
        return [-1, 0, 0]


def _packed(dump: Dump, key: list[Any]) -> bytes:
    import numpy as np

    header: dict[str, Any] = {"key": key, "notes": dump.notes, "texts": {}}
    header |= {"task": dump.task, "level": dump.level, "framework": dump.framework}
    arrays: dict[str, np.ndarray] = {}
    for prefix, frame in (("rows.", dump.rows), ("calls.", dump.calls)):
        for name in frame:
            column = frame[name]
            if column.dtype == "category":
                arrays[prefix + name] = column.cat.codes.to_numpy(dtype=np.int32)
                header["texts"][prefix + name] = column.cat.categories.tolist()
            elif column.dtype == object or name in _TEXTS:
                codes, texts = _factorised(column)
                arrays[prefix + name], header["texts"][prefix + name] = codes, texts
            else:
                arrays[prefix + name] = column.to_numpy()
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _factorised(column: pd.Series[Any]) -> tuple[np.ndarray, list[str]]:
    import pandas as pd

    codes, texts = pd.factorize(column.to_numpy(dtype=object))  # None is -1
    return codes.astype("int32"), texts.tolist()


def _dump_of(part: Part, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Dump:
    import numpy as np
    import pandas as pd

    columns: dict[str, dict[str, Any]] = {"rows": {}, "calls": {}}
    for place, values in arrays.items():
        frame, _, name = place.partition(".")
        if place not in header["texts"]:
            columns[frame][name] = values
            continue
        texts = header["texts"][place]
        if len(values) and not -1 <= values.min() <= values.max() < len(texts):
            raise ValueError(f"{place}: codes out of range")
        if frame == "rows" and name in ("call", "slot", "type", "dtype", "shape"):
            dtype = pd.CategoricalDtype(pd.Index(texts, dtype=object))
            columns[frame][name] = pd.Categorical.from_codes(values, dtype=dtype)
        else:
            spelt = np.array([*texts, None], dtype=object)[values]
            columns[frame][name] = pd.Series(spelt, dtype="str" if name == "scope" else object)
    rows, calls = pd.DataFrame(columns["rows"]), pd.DataFrame(columns["calls"])
    whole = len(rows["call"].cat.categories) == len(calls)
    if not whole or not (np.bincount(rows["order"], minlength=len(rows)) == 1).all():
        raise ValueError("the order is no order of the rows")
    return Dump(
        part=part,
        task=header["task"],
        level=header["level"],
        framework=header["framework"],
        rows=rows,
        calls=calls,
        notes=tuple(header["notes"]),
    )
