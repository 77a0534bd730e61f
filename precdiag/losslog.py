"""Read a training log of any format people post into its curves."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from precdiag import tfevents
from precdiag.curves import Gatherer, LossLog, ProgressBars, find_event
from precdiag.errors import UnreadableError, UsageError
from precdiag.logformats import (
    DEEPSPEED,
    LINE_FORMATS,
    STEP_KEYS,
    LineFormat,
    Record,
    is_series,
    mapping_record,
    number,
    step_number,
)
from precdiag.loglines import LONGEST_LINE, LogFile, open_log

ROWS_TO_BE_SURE = 3
"""A log is read as the first format of which it has so many rows: one such line may stand in any log."""

EXAMPLE_PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"

_RANK = re.compile(r"^\s*\[(?:rank|default)?(\d+)\]:?\s?")  # torchrun's prefix, torchtitan
_CUT_VALUE = re.compile(r"[^\s|,}\])]+$")  # an unfinished line ends in half a number
_TRAINER_STATE = '"log_history"'  # transformers, TrainerState
_BETWEEN = re.compile(r"[\s,]*")
_DELIMITERS = ",\t;"
_NO_NAME = re.compile(r"[{}]|:\s|^\S+=\S+$|^[-+.\d]+$")  # a cell that is no column's name: the line is a row
_WANDB_COLUMN = re.compile(r"^(.+) - (.+)$")


def read_curves(path: str | Path, *, pattern: str | None = None) -> LossLog:
    """Read a log of any known format, told by its content; memory grows with the points, not with the file.

    `pattern` is a regular expression for another format: its named groups are the series, `step` among them the
    step (without it rows are counted). A folder of TensorBoard event files is one log. Where a step occurs twice
    the last value counts, as after a restart. A text without any series is no error: it has none, and a note.

    Raises UnreadableError for what is missing, another folder, or neither text nor events; UsageError for a
    pattern that cannot serve.
    """
    formats = [_user_format(pattern)] if pattern else [*LINE_FORMATS, DEEPSPEED]
    source = Path(path)
    if source.is_dir():
        return _read_event_files(source, sorted(source.glob("*tfevents*")))
    with open_log(source) as log:
        if tfevents.MAGIC in log.head[: tfevents.MAGIC_WITHIN]:
            return _read_event_files(source, [source])
        gatherer, name = _read_text(log, formats)
        found = replace(gatherer.log(str(path), name, _notes(log, name, pattern)), cut=bool(log.damage))
        if not found.series and not found.events and b"\0" in log.head and log.encoding == "utf-8":
            raise UnreadableError(f"{path}: neither text nor a TensorBoard event file")
    return found


def _read_event_files(source: Path, files: list[Path]) -> LossLog:
    if not files:
        raise UnreadableError(f"{source}: a folder without event files", hint="give the log file itself")
    gatherer, notes = Gatherer(), []
    for file in files:
        with open_log(file) as log:
            try:
                for step, tag, value in tfevents.scalars(log.read):
                    if is_series(tag):
                        gatherer.add(Record(step, {tag: value}))
            except ValueError as error:
                notes.append(f"{file.name} is damaged ({error}): read up to there")
            notes += [f"{file.name}: {log.damage}"] if log.damage else []
    return replace(gatherer.log(str(source), "tensorboard", notes), cut=bool(notes))


def _notes(log: LogFile, name: str | None, pattern: str | None) -> list[str]:
    notes = [log.damage] if log.damage else []
    if log.too_long:
        notes.append(f"lines of more than {LONGEST_LINE:,} characters were left out: {log.too_long}")
    if name is None and pattern is not None:
        notes.append(f"--pattern '{pattern}' matches no row")
    elif name is None:
        notes.append(f"no known format; name the parts of a row: --pattern '{EXAMPLE_PATTERN}'")
    return notes


def _read_text(log: LogFile, formats: list[LineFormat]) -> tuple[Gatherer, str | None]:
    if len(formats) > 1:
        if _TRAINER_STATE in log.head_text and log.head_text.lstrip().startswith("{"):
            return _read_trainer_state(log)
        if table := _csv_header(log.head_text):
            return _read_csv(log, *table)
    return _read_lines(log, formats)


def _read_lines(log: LogFile, formats: list[LineFormat]) -> tuple[Gatherer, str | None]:
    """Read lines as each format that recognises them, until one is sure; in the end the one with the most rows."""
    bars = ProgressBars()
    gatherers = {each.name: Gatherer(bars, loss_vanishes=each.loss_vanishes) for each in formats}
    for line in log.lines():
        text = _CUT_VALUE.sub("", line) if log.unfinished else line
        if "%|" in text:
            bars.see(_RANK.sub("", text))
        row = _format_of(text, formats)
        if row:
            rank = _RANK.match(text)
            for record in row.parse(text):
                gatherers[row.name].add(record, text, rank[1] if rank else None)
            if gatherers[row.name].rows == ROWS_TO_BE_SURE and row is not DEEPSPEED:
                formats, gatherers = [row], {row.name: gatherers[row.name]}
        elif event := find_event(text):
            for each in gatherers.values():
                each.add_event(event)
    name = max(gatherers, key=lambda each: gatherers[each].rows)
    return gatherers[name], name if gatherers[name].rows else None


def _format_of(line: str, formats: list[LineFormat]) -> LineFormat | None:
    return next((each for each in formats if each.cue in line and each.sniff.search(line)), None)


def _user_format(pattern: str) -> LineFormat:
    """Build the format of a user's regular expression."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--pattern: {error}", hint=f"an example: {EXAMPLE_PATTERN}") from error
    names = [name for name in compiled.groupindex if name != "step"]
    if not names:
        raise UsageError("--pattern names no series", hint=f"an example: {EXAMPLE_PATTERN}")

    def parse(line: str) -> Iterator[Record]:
        for match in compiled.finditer(line):
            step = step_number(match["step"]) if "step" in compiled.groupindex else None
            values = {name: value for name in names if (value := number(match[name])) is not None}
            if step is not None or "step" not in compiled.groupindex:
                yield Record(step, values)

    return LineFormat("pattern", "", compiled, parse)


def _read_trainer_state(log: LogFile) -> tuple[Gatherer, str]:
    gatherer = Gatherer()
    for entry in _history(log):
        record = mapping_record(entry) if isinstance(entry, dict) else None
        if record:
            gatherer.add(record)
    return gatherer, "hf-trainer-state"


def _history(log: LogFile) -> Iterator[object]:
    """Decode the entries of log_history one by one: the file may be large, in one line, or cut off."""
    decoder, text, at = json.JSONDecoder(), "", -1
    for block in log.blocks():
        text = text[max(at, 0) :] + block
        at = 0 if at >= 0 else text.find("[", text.find(_TRAINER_STATE)) + 1
        while len(text) < LONGEST_LINE:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            try:
                entry, at = decoder.raw_decode(text, at)
            except ValueError:
                break
            yield entry


def _csv_header(head: str) -> tuple[str, list[str]] | None:
    """Find a header with a step or a loss in the first line, and as many cells in the second."""
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith("#")][:2]
    for delimiter in _DELIMITERS if lines else ():
        header, *rows = csv.reader(lines, delimiter=delimiter)
        names = [name.strip() for name in header]
        known = any(name.lower() in STEP_KEYS or "loss" in name.lower() for name in names)
        if (
            len(names) > 1
            and known
            and not any(map(_NO_NAME.search, names))
            and all(len(r) == len(names) for r in rows)
        ):
            return delimiter, names
    return None


def _csv_format(names: list[str]) -> str:
    lowered = {name.lower().replace("_", " ") for name in names}
    if lowered >= {"wall time", "step", "value"}:
        return "tensorboard-csv"
    if any(map(_WANDB_COLUMN.match, names)):
        return "wandb-csv"
    lightning = any(re.search(r"_(step|epoch)$|^(train|val)_", name) for name in names)
    return "lightning-csv" if lightning and lowered >= {"epoch", "step"} else "csv"


def _column_names(names: list[str]) -> list[str]:
    """Name the columns: W&B's bounds get no name, its run is left out where there is but one."""
    runs = {found[1] for name in names if (found := _WANDB_COLUMN.match(name))}
    kept = ["" if name.endswith(("__MIN", "__MAX")) else name for name in names]
    if len(runs) == 1:
        kept = [_WANDB_COLUMN.sub(r"\2", name) for name in kept]
    return [name.lower() if name.lower() in (*STEP_KEYS, "epoch") else name for name in kept]


def _read_csv(log: LogFile, delimiter: str, names: list[str]) -> tuple[Gatherer, str]:
    gatherer, columns = Gatherer(), _column_names(names)
    rows = csv.reader((line for line in log.lines() if line.strip()), delimiter=delimiter)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error:  # a cell beyond the limit, a NUL: that row is lost
            continue
        record = mapping_record(dict(zip(columns, row, strict=True))) if len(row) == len(columns) else None
        if record:
            gatherer.add(record)
    return gatherer, _csv_format(names)
