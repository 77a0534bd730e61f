"""Read a dump.json and its neighbours into one frame of rows and one of calls."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precdiag.decode import MalformedError, decode
from precdiag.errors import UnreadableError
from precdiag.layout import DUMP_FILE, TENSOR_FOLDER, Part
from precdiag.lookup import Lookup
from precdiag.rows import CHECKSUM_NONE, OUTPUT, STATISTICS, Columns, split_names

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Dump:
    """One dump.json in memory.

    `rows`: one line a tensor or argument, in the order of the file, index 0..n-1. Columns:
      call (categorical, codes are `calls` indices), slot (categorical: `input.1`, `output.0`, `parameters.weight`),
      io (int8: INPUT, PARAMETER, OUTPUT), type (categorical: `torch.Tensor`, `float`, `None` …), tensor (bool),
      dtype, shape (categorical text, "" for arguments), max, min, mean, norm (float64, NaN where null),
      known (uint8: bit i set where statistic i stands in the file, so that a NaN value differs from a null),
      requires_grad (int8: 1, 0, -1 not said), checksum (object), checksum_kind (int8), value (object: an argument's
      text, or what of a tensor has no column), file (object: name in dump_tensor_data), order (int64: rank in the
      order in which work began; see `begin_order`).
    `calls`: one line a call, in the order in which calls finished. Columns: name, kind (`Functional`, `Module` …),
      operation (`linear`; the class for a module), module (path of a module, else ""), index (call counter),
      phase (forward, backward, parameters_grad), parent (position of the enclosing module call, -1), scope (what
      construct.json names around it that is no dumped call: `optimizer`, `clip_grad`, else ""), recompute (bool).
    """

    part: Part
    task: str
    level: str
    framework: str
    rows: pd.DataFrame
    calls: pd.DataFrame
    notes: tuple[str, ...] = ()
    _stacks: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def prints(self) -> np.ndarray:
        """See `fingerprints`."""
        return _fingerprints(self.rows)

    @cached_property
    def cell(self) -> Lookup:
        """Single values of `rows`."""
        return Lookup(self.rows)

    @cached_property
    def call_cell(self) -> Lookup:
        """Single values of `calls`."""
        return Lookup(self.calls)

    def name(self, row: int) -> str:
        """Return msprobe's own name of a row, `Functional.linear.1.forward.input.1`."""
        return f"{self.cell('call', row)}.{self.cell('slot', row)}"

    def tensor_path(self, row: int) -> Path | None:
        """Return the row's tensor file beside this dump.json, wherever the dump was collected."""
        name = self.cell("file", row)
        return None if name is None else self.part.folder / TENSOR_FOLDER / name

    def stack(self, call: str) -> tuple[str, ...]:
        """Return the call's Python stack, innermost frame first; () where none was recorded."""
        if not self._stacks:
            # No call has an empty name: a file that is missing or empty is looked at once, and not for every call.
            self._stacks.update({"": ()} | _read_stacks(self.part.folder / "stack.json"))
        return self._stacks.get(call, ())

    def mentioned(self) -> frozenset[str]:
        """Return the names of all calls that construct.json knows, those that a scope or a list left out included."""
        return frozenset(_read_parents(self.part.folder / "construct.json")[0])


def read_dump(part: Part) -> Dump:
    """Read one part's dump.json (and construct.json for the order) into frames.

    Raises UnreadableError naming the file where it is missing, empty, cut short, not a dump, or has no rows:
    msprobe writes a head first, so a file that parses may still be one that was never filled.
    """
    import numpy as np

    path = part.folder / DUMP_FILE
    header, columns = _decode(path)
    if not len(columns):
        raise UnreadableError(
            f"{path}: holds a head and no rows: collection ended before the first flush of this step",
            hint="collect this step again, or leave it out with --step",
        )
    if len(set(columns.names)) != len(columns.names):
        raise UnreadableError(f"{path}: names a call twice; expected the {DUMP_FILE} of msprobe")
    if not _is_text(columns.names):
        raise UnreadableError(
            f"{path}: names a call in characters that are no text; expected the {DUMP_FILE} of msprobe"
        )
    parents, notes = _read_parents(part.folder / "construct.json")
    calls = _calls_frame(columns, parents)
    rows = columns.frame()
    rows["order"] = begin_order(rows, calls["parent"].to_numpy(dtype=np.int64))
    return Dump(
        part=part,
        task=str(header.get("task", "")),
        level=str(header.get("level", "")),
        framework=str(header.get("framework", "")),
        rows=rows,
        calls=calls,
        notes=notes,
    )


def begin_order(rows: pd.DataFrame, parent: np.ndarray) -> np.ndarray:
    """Rank rows by when their work began: int64 of len(rows), a permutation of 0..n-1.

    The file is in the order in which calls finished. A module's inputs and parameters count where it was entered,
    that is at its first descendant, an outer module before an inner one; its outputs where it finished. Within a
    call: inputs, parameters, outputs.
    """
    import numpy as np

    begin = np.arange(len(parent), dtype=np.int64)
    for child, owner in enumerate(parent.tolist()):  # children stand before their parents, so one pass is enough
        if owner >= 0 and begin[child] < begin[owner]:
            begin[owner] = begin[child]
    call = rows["call"].cat.codes.to_numpy(dtype=np.int64)
    io = rows["io"].to_numpy()
    leaving = io == OUTPUT
    at = np.where(leaving, call, begin[call])
    nesting = np.where(leaving, 1, -call)
    order = np.empty(len(rows), dtype=np.int64)
    order[np.lexsort((np.arange(len(rows)), io, nesting, at))] = np.arange(len(rows))
    return order


def fingerprints(dump: Dump) -> np.ndarray:
    """Hash what is known of each row's value (dtype, shape, statistics, checksum): uint64 of len(rows), read-only.

    Equal values on one side have equal fingerprints; rows about which nothing is known have 0. Used to find which
    call produced an input.
    """
    return dump.prints


def _fingerprints(rows: pd.DataFrame) -> np.ndarray:
    import numpy as np
    import pandas as pd

    mixed = pd.util.hash_pandas_object(
        pd.DataFrame(
            {
                "dtype": rows["dtype"].cat.codes,
                "shape": rows["shape"].cat.codes,
                "known": rows["known"],
                "checksum": rows["checksum"].fillna(""),
                "value": rows["value"].fillna(""),
                **{name: rows[name] for name in STATISTICS},
            }
        ),
        index=False,
    ).to_numpy()
    silent = (rows["known"].to_numpy() == 0) & (rows["checksum_kind"].to_numpy() == CHECKSUM_NONE)
    hashes: np.ndarray = np.where(silent | ~rows["tensor"].to_numpy(), np.uint64(0), mixed)
    hashes.flags.writeable = False  # shared by all that ask
    return hashes


def _decode(path: Path) -> tuple[dict[str, Any], Columns]:
    columns = Columns()
    try:
        with _uncollected():
            header = decode(path, columns.add_calls)
    except FileNotFoundError:
        raise UnreadableError(f"{path}: missing; msprobe left no {DUMP_FILE} for this step and rank") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UnreadableError(f"{path}: cannot be read ({reason}); expected the JSON that msprobe writes") from None
    except MalformedError as error:
        if error.blank:
            raise UnreadableError(f"{path}: empty; expected the JSON that msprobe writes") from None
        raise UnreadableError(
            f"{path}: cut short or not what msprobe writes ({error.calls} whole calls in it); expected a {DUMP_FILE}",
            hint="collect this step again, or leave it out with --step",
        ) from None
    if "data" not in header:
        raise UnreadableError(f"{path}: has no `data`; expected the {DUMP_FILE} of msprobe")
    return header, columns


def _is_text(names: list[str]) -> bool:
    try:
        "".join(names).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from walking what was just decoded: it holds no cycles, and a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _calls_frame(columns: Columns, parents: dict[str, str | None]) -> pd.DataFrame:
    position = {name: at for at, name in enumerate(columns.names)}
    return split_names(columns.names).assign(
        parent=[_enclosing(name, at, parents, position) for at, name in enumerate(columns.names)],
        scope=[_scope(name, parents, position) for name in columns.names],
        recompute=columns.recompute,
    )


def _enclosing(name: str, at: int, parents: dict[str, str | None], position: dict[str, int]) -> int:
    """Return the position of the nearest dumped call around this one, -1 at the top.

    Parents that dump.json lacks are climbed over; one that finished before its child is stale (in-place modules).
    """
    seen = {name}
    parent = parents.get(name)
    while parent is not None and parent not in seen:
        if position.get(parent, -1) > at:
            return position[parent]
        seen.add(parent)
        parent = parents.get(parent)
    return -1


def _scope(name: str, parents: dict[str, str | None], position: dict[str, int]) -> str:
    parent = parents.get(name)
    return "" if parent is None or parent in position else parent


def _read_parents(path: Path) -> tuple[dict[str, str | None], tuple[str, ...]]:
    if not path.exists():
        return {}, ()
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}, (f"{path}: cannot be read; rows are in the order in which calls finished",)
    if not isinstance(table, dict):
        return {}, (f"{path}: not a table of parents; rows are in the order in which calls finished",)
    return {name: parent if isinstance(parent, str) else None for name, parent in table.items()}, ()


def _read_stacks(path: Path) -> dict[str, tuple[str, ...]]:
    """Read stack.json of either form: calls grouped by their stack (26.x), or one stack a call."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    stacks: dict[str, tuple[str, ...]] = {}
    for key, entry in table.items() if isinstance(table, dict) else ():
        if not isinstance(entry, list):
            continue
        if len(entry) == 2 and all(isinstance(half, list) for half in entry):
            frames = tuple(map(str, entry[1]))
            stacks.update((str(name), frames) for name in entry[0])
        else:
            stacks[key] = tuple(map(str, entry))
    return stacks
