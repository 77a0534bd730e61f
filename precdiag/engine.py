"""msprobe as the engine: its compare on the dumps, its table judged, the verdicts laid on the dumps' own rows."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from precdiag.align import Pairing, merged_order
from precdiag.dump import Dump, read_dump
from precdiag.errors import UnreadableError
from precdiag.evidence import BASELINE_ONLY, CANDIDATE_ONLY, DIFFERENT, EQUAL, NOTHING, UNKNOWN, Pairs, judge_exactly
from precdiag.installed import Msprobe, run_compare
from precdiag.judge import Judged, Policy
from precdiag.judge_table import judge_table
from precdiag.layout import DUMP_FILE, Part
from precdiag.statistic import element_counts
from precdiag.table import paired_calls, read_table
from precdiag.tablefile import TableFile

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

UNPAIRED_REASON = "msprobe compared it with nothing, although both dumps have it"

# What msprobe takes for a process's folder in a step.
_PROCESS = re.compile(r"(?:rank|proc)\d+\Z")


class Engine:
    """Judge pairs of parts by running msprobe: once for all ranks of a step where it can, else once a rank.

    A context manager: the tables live in a temporary folder. `whole_steps`: every rank of a step is wanted. `say` is
    called before each run, with what is compared.
    """

    def __init__(
        self,
        msprobe: Msprobe,
        policy: Policy,
        *,
        whole_steps: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.msprobe, self.policy, self.whole_steps, self.say = msprobe, policy, whole_steps, say
        self._outcomes: dict[tuple[Path, Path], tuple[TableFile, ...] | UnreadableError] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Engine:
        self._out = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="precdiag-msprobe-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __call__(self, baseline: Part, candidate: Part) -> Judged:
        """Judge a pair of parts. Raises UnreadableError where a dump cannot be read or msprobe left no table of it."""
        left, right = read_dump(baseline), read_dump(candidate)
        judged = judge_table(read_table(self._table(baseline, candidate)), self.policy)
        return laid_on(judged, left, right)

    def _table(self, baseline: Part, candidate: Part) -> TableFile:
        folders = self._folders(baseline, candidate)
        if folders not in self._outcomes:
            self._outcomes[folders] = self._run(*folders)
        outcome = self._outcomes[folders]
        if isinstance(outcome, UnreadableError):
            raise outcome
        named = f"_{candidate.folder.name}_"
        found = outcome if len(outcome) == 1 else [table for table in outcome if named in table.part.folder.name]
        if len(found) != 1:
            raise UnreadableError(f"msprobe {self.msprobe.version} left no table of {baseline.folder}")
        return found[0]

    def _run(self, baseline: Path, candidate: Path) -> tuple[TableFile, ...] | UnreadableError:
        self.say(f"msprobe {self.msprobe.version} compares {baseline} and {candidate}")
        out = self._out / str(len(self._outcomes))
        out.mkdir()
        try:
            return run_compare(self.msprobe, baseline, candidate, out)
        except UnreadableError as error:
            return error

    def _folders(self, baseline: Part, candidate: Part) -> tuple[Path, Path]:
        """The two step folders, where msprobe takes them and pairs what they hold as precdiag does; else the ranks'."""
        steps = baseline.folder.parent, candidate.folder.parent
        ranks = [sorted(dump.parent.name for dump in step.glob(f"*/{DUMP_FILE}")) for step in steps]
        alike = len(ranks[0]) == len(ranks[1]) == 1 or (
            ranks[0] == ranks[1] and baseline.folder.name == candidate.folder.name
        )
        whole = all(map(_PROCESS.match, (*ranks[0], *ranks[1]))) and (len(ranks[0]) == 1 or self.whole_steps)
        return steps if self.msprobe.takes_folders and alike and whole else (baseline.folder, candidate.folder)


def laid_on(table: Judged, baseline: Dump, candidate: Dump) -> Judged:
    """Return the verdicts of a judged table on the rows of the two dumps that it was made of.

    The order of execution, modules and stacks are the dumps'. Rows of one name that msprobe left without a partner or
    out of its table are paired: they differ where their types, shapes or arguments do, and are unknown otherwise. What
    only one dump has stands as one-sided. Raises UnreadableError where the table names rows that the dumps do not hold.
    """
    import pandas as pd

    rows = table.rows
    names = _names(baseline), _names(candidate)
    b = _positions(table.baseline, rows["baseline"].to_numpy(), names[0], baseline.part)
    c = _positions(table.candidate, rows["candidate"].to_numpy(), names[1], candidate.part)
    lines = rows.assign(baseline=b, candidate=c)
    left_b, left_c = _left_out(lines, *names)
    alone = (lines["baseline"].isin(left_b) | lines["candidate"].isin(left_c)) & ((b < 0) | (c < 0))
    lines = pd.concat([lines[~alone], _typed(baseline, candidate, left_b, left_c, lines.columns)], ignore_index=True)
    lines = pd.concat([lines, *_missing(lines, baseline, candidate)], ignore_index=True)
    sides = {side: lines[side].to_numpy() for side in ("baseline", "candidate")}
    calls, lines["call"] = paired_calls(baseline, candidate, sides["baseline"], sides["candidate"])
    order = merged_order(sides, baseline.rows["order"].to_numpy(), candidate.rows["order"].to_numpy())
    lines = lines.iloc[order].reset_index(drop=True)
    pairing = Pairing(calls=calls, rows=lines[["baseline", "candidate", "call"]])
    return Judged(baseline, candidate, pairing, lines, {}, table.notes)


def _names(dump: Dump) -> pd.Index[str]:
    import pandas as pd

    return pd.Index(dump.rows["call"].astype(str) + "." + dump.rows["slot"].astype(str))


def _positions(shown: Dump, at: np.ndarray, names: pd.Index[str], part: Part) -> np.ndarray:
    """Positions among the names of a part's rows of those that a table shows, -1 where it shows none."""
    import numpy as np

    wanted = _names(shown)
    found = names.get_indexer(wanted) if len(wanted) else np.array([], dtype=np.int64)
    if (found < 0).any():
        name = wanted[int(np.argmax(found < 0))]
        raise UnreadableError(f"{shown.part.folder}: names {name}, which {part.folder} does not hold")
    return np.where(at >= 0, np.append(found, -1)[at], -1)


def _left_out(lines: pd.DataFrame, baseline: pd.Index[str], candidate: pd.Index[str]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of rows that both dumps have by one name, and that no line pairs; given the names of all rows."""
    import numpy as np

    paired = lines[(lines["baseline"] >= 0) & (lines["candidate"] >= 0)]
    b = np.setdiff1d(np.arange(len(baseline)), paired["baseline"])
    c = np.setdiff1d(np.arange(len(candidate)), paired["candidate"])
    partner = baseline[b].get_indexer(candidate[c])
    return b[partner[partner >= 0]], c[partner >= 0]


def _typed(baseline: Dump, candidate: Dump, b: np.ndarray, c: np.ndarray, columns: pd.Index[str]) -> pd.DataFrame:
    """Judge pairs of which the table says nothing by what the dumps say exactly, which proves no tensor's values."""
    import numpy as np
    import pandas as pd

    pairs = Pairs(baseline, candidate, b, c)
    judge_exactly(pairs)
    left, right = pairs.of("tensor")
    valued = left & right & (element_counts(baseline.rows["shape"])[b] != 0)
    pairs.unknown(valued & (pairs.state == EQUAL), UNPAIRED_REASON)
    frame = pd.DataFrame({"baseline": b, "candidate": c, "state": pairs.state, "aspects": pairs.aspects})
    frame = frame.assign(reason=pairs.reason, evidence=np.int8(NOTHING), nonfinite=np.uint8(0))
    frame = frame.assign(outside=pairs.state == DIFFERENT, blocking=pairs.state == UNKNOWN)
    return _whole(frame, columns)


def _whole(frame: pd.DataFrame, columns: pd.Index[str]) -> pd.DataFrame:
    """Add the columns of judged rows that a frame lacks: no number, no word."""
    import numpy as np
    import pandas as pd

    for column in columns.difference(frame.columns):
        empty = None if column in ("reason", "result") else np.nan
        frame[column] = pd.Series(empty, index=frame.index, dtype=object if empty is None else np.float64)
    for column in columns.intersection(["reason", "result"]):
        frame[column] = frame[column].astype(object).where(frame[column].notna(), None)
    return frame[columns]


def _missing(lines: pd.DataFrame, baseline: Dump, candidate: Dump) -> list[pd.DataFrame]:
    """Rows of either dump that the table has no line for."""
    import numpy as np
    import pandas as pd

    frames = []
    for side, dump, state in (("baseline", baseline, BASELINE_ONLY), ("candidate", candidate, CANDIDATE_ONLY)):
        rest = np.setdiff1d(np.arange(len(dump.rows)), lines[side])
        if not len(rest):
            continue
        frame = pd.DataFrame({"baseline": -1, "candidate": -1, "state": np.int8(state)}, index=range(len(rest)))
        frame[side] = rest
        blank = {"aspects": np.uint8(0), "evidence": np.int8(NOTHING), "outside": False, "blocking": False}
        frame = _whole(frame.assign(**blank, nonfinite=np.uint8(0)), lines.columns)
        frames.append(frame)
    return frames
