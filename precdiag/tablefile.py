"""Find msprobe's result tables, and read one, csv or xlsx, whole or sliced, as a frame of text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precdiag.cells import of_texts
from precdiag.errors import PrecdiagError, UnreadableError
from precdiag.layout import DUMP_FILE, Part, open_run, part_order

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".xlsx")
# Every table has these; all other columns may be missing, renamed or new.
NAMES = ("npu name", "bench name")

_PATTERN = "*compare_result*"
_RANK = re.compile(r"(?:\A|_)rank_?(\d+)(?:_|\Z)")
_STEP = re.compile(r"(?:\A|_)step_?(\d+)(?:_|\Z)")
# 26.x slices a csv of more than a million rows into files, and an xlsx into sheets.
_SLICE = re.compile(r"_part_(\d+)\Z")
_ENCODINGS = ("utf-8-sig", "gb18030")


@dataclass(frozen=True)
class TableFile:
    """One table of one step and rank: its place (`part.folder` is the first file), and its files in order."""

    part: Part
    files: tuple[Path, ...]


def holds_tables(path: Path) -> bool:
    """Tell whether a path is a result table, or a folder that holds such tables and no dump, at any depth."""
    if path.is_dir():
        return not _holds_dump(path) and next(_tables_below(path), None) is not None
    return path.suffix.lower() in SUFFIXES


def find_tables(paths: Sequence[Path]) -> tuple[TableFile, ...]:
    """Return the tables that the paths name, in order of step and rank, slices put together.

    Step and rank are read from the file's name and the folders around it. Raises UnreadableError where there is no
    table, or two are of one step and rank.
    """
    slices: dict[Path, list[tuple[int, Path]]] = {}
    for path in paths:
        found = sorted(_tables_below(path)) if path.is_dir() else [path]
        if not found:
            raise UnreadableError(f"{path}: no {_PATTERN}.csv or .xlsx in it or below it")
        for file in found:
            match = _SLICE.search(file.stem)
            whole = file.with_name(_SLICE.sub("", file.stem) + file.suffix)
            slices.setdefault(whole, []).append((int(match[1]) if match else 0, file))
    tables: dict[tuple[int | None, int | None], TableFile] = {}
    for whole, files in slices.items():
        part = _place(whole, files)
        if (part.step, part.rank) in tables:
            other = tables[part.step, part.rank].part.folder
            raise UnreadableError(
                f"{other} and {part.folder} are both tables of {part.label}",
                hint="name one of them, or put each into a folder step{N}/rank{R} of its own",
            )
        tables[part.step, part.rank] = TableFile(part, tuple(file for _, file in sorted(files)))
    return tuple(sorted(tables.values(), key=lambda table: part_order(table.part)))


def read_cells(table: TableFile) -> pd.DataFrame:
    """Return a table's cells as categoricals of text, columns by their names in lower case.

    Raises UnreadableError where a file is missing, cut short, or no table that msprobe writes, or has no rows;
    PrecdiagError where an xlsx needs python-calamine and it is not installed.
    """
    import pandas as pd

    frames = [_read_csv(file) if file.suffix.lower() == ".csv" else _read_xlsx(file) for file in table.files]
    cells = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True).fillna("")
    cells = cells[(cells[list(NAMES)] != "").any(axis=1)].reset_index(drop=True).apply(of_texts)
    if cells.empty:
        raise UnreadableError(f"{table.part.folder}: has a header and no rows: msprobe compared nothing")
    return cells


def _holds_dump(folder: Path) -> bool:
    try:
        return any((part.folder / DUMP_FILE).exists() for part in open_run(folder).parts)
    except UnreadableError:
        return False


def _tables_below(folder: Path) -> Iterator[Path]:
    for suffix in SUFFIXES:
        yield from (path for path in folder.rglob(_PATTERN + suffix) if not path.name.startswith((".", "~")))


def _place(whole: Path, files: Sequence[tuple[int, Path]]) -> Part:
    """Read step and rank off the file's name, else off the nearest folder that says."""
    names = [whole.stem, *(folder.name for folder in whole.absolute().parents)]

    def first(pattern: re.Pattern[str]) -> int | None:
        return next((int(match[1]) for name in names if (match := pattern.search(name))), None)

    return Part(folder=min(files)[1], step=first(_STEP), rank=first(_RANK))


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a csv as msprobe wrote it, or as a spreadsheet saved it again: with a BOM, semicolons, another encoding."""
    import pandas as pd

    text = _text(path)
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    if not text.strip():
        raise UnreadableError(f"{path}: empty; expected a table that `msprobe compare` writes")
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=object, keep_default_na=False, sep=delimiter)
    except (pd.errors.ParserError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UnreadableError(f"{path}: cannot be read as a table: {reason}", hint="is it cut short?") from None
    if not text.endswith("\n"):  # every writer ends the last row: is it whole?
        *_, last = csv.reader(io.StringIO(text), delimiter=delimiter)
        if len(last) != len(frame.columns):
            raise UnreadableError(f"{path}: cut short in its last row, {last[0]}", hint="compare again")
    short = _short_row(text, delimiter, list(frame.columns))
    if short is not None:
        raise UnreadableError(f"{path}: {short} has cells missing in its row", hint="compare again")
    return _named(path, frame)


def _short_row(text: str, delimiter: str, columns: list[str]) -> str | None:
    """Return the first cell of the first row that ends before its Result: pandas fills it up with empty cells.

    A spreadsheet drops empty cells at the end of a row, and those behind Result may be empty.
    """
    needed = columns.index("Result") + 1 if "Result" in columns else len(columns)
    try:
        rows = csv.reader(io.StringIO(text), delimiter=delimiter)
        return next((row[0] for row in rows if 0 < len(row) < needed), None)
    except csv.Error:  # a cell longer than the reader takes
        return None


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UnreadableError(f"{path}: no such file", hint="give a compare_result….csv or .xlsx") from None
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from None
    for encoding in _ENCODINGS:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise UnreadableError(f"{path}: not text; expected a csv that `msprobe compare` writes")


def _read_xlsx(path: Path) -> pd.DataFrame:
    """Read every sheet that is a table; 26.x puts slices of a large one on sheets of their own, in order."""
    import pandas as pd

    calamine = _calamine()
    if not path.exists():
        raise UnreadableError(f"{path}: no such file", hint="give a compare_result….csv or .xlsx")
    try:
        book = calamine.CalamineWorkbook.from_path(str(path))
        sheets = [book.get_sheet_by_name(name).to_python() for name in book.sheet_names]
    except (calamine.CalamineError, OSError) as error:
        raise UnreadableError(f"{path}: cannot be read as xlsx: {error}", hint="is it whole?") from None
    tables = [pd.DataFrame(rows[1:], columns=list(map(str, rows[0])), dtype=object) for rows in sheets if rows]
    named = [_named(path, table) for table in tables if set(NAMES) <= set(map(_key, table.columns))]
    if not named:
        raise UnreadableError(_unlike(path, tables[0].columns if tables else ()))
    return pd.concat(named, ignore_index=True).astype(str)


def _calamine() -> Any:
    try:
        import python_calamine
    except ImportError:
        raise PrecdiagError(
            "reading xlsx needs python-calamine, which is not installed",
            hint="pip install 'precdiag[table]'; msprobe 26.2 writes csv, which needs nothing",
        ) from None
    return python_calamine


def _named(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Look columns up by name: lower case, single blanks; of two alike the first counts."""
    frame.columns = [_key(name) for name in frame.columns]
    if not set(NAMES) <= set(frame.columns):
        raise UnreadableError(_unlike(path, frame.columns))
    return frame.loc[:, ~frame.columns.duplicated()]


def _key(name: object) -> str:
    return " ".join(str(name).lower().split())


def _unlike(path: Path, columns: Sequence[object]) -> str:
    found = ", ".join(map(str, list(columns)[:4])) or "nothing"
    return f"{path}: no result table of msprobe: expected the columns NPU Name and Bench Name, found {found}"
