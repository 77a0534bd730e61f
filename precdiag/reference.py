"""msprobe's own Result for the rows that are shown: asked of the installed msprobe, and deciding nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precdiag.cells import texts
from precdiag.comparison import Comparison, PartResult
from precdiag.decode import Calls, MalformedError, decode, plain
from precdiag.errors import PrecdiagError, UnreadableError, UsageError
from precdiag.finding import Row
from precdiag.installed import Msprobe, find_msprobe, run_compare
from precdiag.layout import DUMP_FILE, TENSOR_FOLDER, Part
from precdiag.session import check_path
from precdiag.table import read_table
from precdiag.tablefile import TableFile

# Where a row stands, and its name.
Key = tuple[str, int | None, int | None, str]


def with_reference(
    comparison: Comparison, rows: Sequence[Row], ask: Callable[[], Msprobe] = find_msprobe
) -> Comparison:
    """Return the comparison with msprobe's Result on `rows`, or the reason why it is blank; nothing else changes.

    Runs msprobe once on a pair trimmed to the calls of the rows (1.x and 8.x: once a step and rank), in seconds
    whatever the dumps' size. Rows that it would pair otherwise, by name, stay blank.
    """
    wanted = [row for row in rows if row.partner is None and row.how]
    if not wanted:
        return replace(comparison, reference="its Result is blank: no row shown has a partner of the same name")
    try:
        msprobe = ask()
        words = _asked(msprobe, comparison.parts, wanted)
    except (PrecdiagError, OSError) as error:
        return replace(comparison, reference=f"its Result is blank: {error}")
    said = f"its Result, from msprobe {msprobe.version}, is for reference and decides nothing"
    if any(row not in wanted for row in rows):
        said += "; blank where the two sides have no row of the same name"
    return replace(_told(comparison, words), reference=said)


def _told(comparison: Comparison, words: Mapping[Key, str]) -> Comparison:
    """Fill in a comparison's rows, wherever they are shown."""

    def told(row: Row) -> Row:
        return replace(row, result=words.get(_key(row)))

    def all_of(part: PartResult) -> PartResult:
        cause = None if part.cause is None else replace(part.cause, row=told(part.cause.row))
        return replace(part, cause=cause, hidden=tuple(map(told, part.hidden)))

    cause, outside = comparison.cause, comparison.first_outside
    if cause is not None:
        cause = replace(cause, row=told(cause.row), also=tuple(map(told, cause.also)))
    return replace(
        comparison,
        cause=cause,
        first_outside=None if outside is None else told(outside),
        around=tuple(map(told, comparison.around)),
        symptoms=tuple(map(told, comparison.symptoms)),
        parts=tuple(map(all_of, comparison.parts)),
    )


def _key(row: Row) -> Key:
    return row.stage, row.step, row.rank, row.name


def _asked(msprobe: Msprobe, parts: Sequence[PartResult], rows: Sequence[Row]) -> dict[Key, str]:
    places: dict[tuple[str, int | None, int | None], list[Row]] = {}
    for row in rows:
        places.setdefault((row.stage, row.step, row.rank), []).append(row)
    with tempfile.TemporaryDirectory(prefix="precdiag-reference-") as scratch:
        root = Path(scratch)
        for at, (place, here) in enumerate(places.items()):
            part = next(p for p in parts if (p.place.stage, p.place.step, p.place.rank) == place)
            calls = {row.call for row in here}
            for side, dump in (("baseline", part.baseline), ("candidate", part.candidate)):
                trim(dump, calls, root / side / "step0" / f"rank{at}")
        tables = list(_compared(msprobe, root, len(places)))
        words: dict[Key, str] = {}
        for (_, here), table in zip(places.items(), tables, strict=True):
            results = _results(table)
            words |= {_key(row): results[row.name] for row in here if results.get(row.name)}
    return words


def _compared(msprobe: Msprobe, root: Path, count: int) -> Iterator[TableFile]:
    """Yield the table of each trimmed rank, in order."""
    steps = root / "baseline" / "step0", root / "candidate" / "step0"
    if msprobe.takes_folders:
        out = root / "out"
        out.mkdir()
        tables = {table.part.rank: table for table in run_compare(msprobe, *steps, out)}
        if missing := set(range(count)) - set(tables):
            raise UnreadableError(f"msprobe {msprobe.version} left no table for {len(missing)} of {count} ranks")
        yield from (tables[at] for at in range(count))
        return
    for at in range(count):
        out = root / f"out{at}"
        out.mkdir()
        yield run_compare(msprobe, steps[0] / f"rank{at}", steps[1] / f"rank{at}", out)[0]


def _results(table: TableFile) -> dict[str, str]:
    """Result by the name of the row, where msprobe paired rows of the same name."""
    read = read_table(table)
    results = read.results()
    if results is None:
        return {}
    npu, bench = (texts(read.cells[f"{side} name"]) for side in ("npu", "bench"))
    same = npu == bench
    return dict(zip(npu[same], results[same], strict=True))


def trim(part: Part, calls: set[str], folder: Path) -> None:
    """Write a dump of only these calls into `folder`: dump.json, empty neighbours, and their tensor files linked.

    Raises UnreadableError where the dump cannot be read.
    """
    kept: Calls = {}

    def take(some: Calls) -> None:
        kept.update((name, plain(some[name])) for name in calls & some.keys())

    try:
        header = decode(part.folder / DUMP_FILE, take)
    except (OSError, UnicodeDecodeError, MalformedError):
        raise UnreadableError(f"{part.folder / DUMP_FILE}: cannot be read") from None
    tensors = folder / TENSOR_FOLDER
    tensors.mkdir(parents=True)
    document = {**plain(header), "dump_data_dir": str(tensors) if header.get("dump_data_dir") else None, "data": kept}
    (folder / DUMP_FILE).write_text(json.dumps(document), encoding="utf-8")
    for neighbour in ("stack.json", "construct.json"):
        (folder / neighbour).write_text("{}", encoding="utf-8")
    for name in _files(kept):
        source = part.folder.absolute() / TENSOR_FOLDER / name
        if source.is_file():
            _link(source, tensors / name)


def _files(value: Any) -> Iterator[str]:
    """Names of tensor files anywhere in the calls."""
    if isinstance(value, dict):
        if isinstance(name := value.get("data_name"), str) and Path(name).name == name:
            yield name
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _files(item)


def _link(source: Path, target: Path) -> None:
    """Link a file by the way that msprobe follows: it looks where a symbolic link leads, and refuses some paths."""
    try:
        check_path(source.resolve())
    except UsageError:
        try:
            os.link(source, target)
        except OSError:  # on another file system
            shutil.copyfile(source, target)
    else:
        target.symlink_to(source)
