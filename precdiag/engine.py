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
from precdiag.evidence import ARGUMENT, BASELINE_ONLY, CANDIDATE_ONLY, DIFFERENT, DTYPE, NOTHING
from precdiag.judge import Judged, Policy
from precdiag.judge_table import judge_table
from precdiag.layout import DUMP_FILE, Part
from precdiag.msprobe import Msprobe, run_compare
from precdiag.table import paired_calls, read_table
from precdiag.tablefile import TableFile

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

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

    The order of execution, modules and stacks are the dumps'; what the table has no row for stands as one-sided. Rows
    of one name that msprobe leaves without a partner, because their types differ, are paired and different in that.
    Raises UnreadableError where the table names rows that the dumps do not hold.
    """
    import numpy as np
    import pandas as pd

    rows = table.rows
    b = _positions(table.baseline, rows["baseline"].to_numpy(), baseline)
    c = _positions(table.candidate, rows["candidate"].to_numpy(), candidate)
    b, c, typed = _with_partners(b, c, baseline, candidate)
    lines = rows.assign(baseline=b, candidate=c)
    lines.loc[typed, "state"] = DIFFERENT
    tensor = baseline.rows["tensor"].to_numpy()[b[typed]] & candidate.rows["tensor"].to_numpy()[c[typed]]
    lines.loc[typed, "aspects"] = np.where(tensor, DTYPE, ARGUMENT).astype(np.uint8)
    lines.loc[typed, "outside"] = True
    lines = pd.concat([lines, *_missing(lines, baseline, candidate)], ignore_index=True)
    calls, lines["call"] = paired_calls(
        baseline, candidate, lines["baseline"].to_numpy(), lines["candidate"].to_numpy()
    )
    sides = {side: lines[side].to_numpy() for side in ("baseline", "candidate")}
    order = merged_order(sides, baseline.rows["order"].to_numpy(), candidate.rows["order"].to_numpy())
    lines = lines.iloc[order].reset_index(drop=True)
    pairing = Pairing(calls=calls, rows=lines[["baseline", "candidate", "call"]])
    return Judged(baseline, candidate, pairing, lines, {}, table.notes)


def _names(dump: Dump) -> pd.Index[str]:
    import pandas as pd

    return pd.Index(dump.rows["call"].astype(str) + "." + dump.rows["slot"].astype(str))


def _positions(shown: Dump, at: np.ndarray, dump: Dump) -> np.ndarray:
    """Positions in `dump` of the rows that a table shows, -1 where it shows none."""
    import numpy as np

    found = _names(dump).get_indexer(_names(shown)) if len(shown.rows) else np.array([], dtype=np.int64)
    if (found < 0).any():
        name = _names(shown)[int(np.argmax(found < 0))]
        raise UnreadableError(f"{shown.part.folder}: names {name}, which {dump.part.folder} does not hold")
    return np.where(at >= 0, np.append(found, -1)[at], -1)


def _with_partners(
    b: np.ndarray, c: np.ndarray, baseline: Dump, candidate: Dump
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pair candidate rows that have no partner with a baseline row of the same name that the table leaves out."""
    import numpy as np

    names = _names(baseline)
    alone = np.flatnonzero((b < 0) & (c >= 0))
    partner = names.get_indexer(_names(candidate)[c[alone]])
    free = (partner >= 0) & ~np.isin(partner, b)
    b = b.copy()
    b[alone[free]] = partner[free]
    return b, c, alone[free]


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
        frame = frame.assign(**blank, nonfinite=np.uint8(0)).reindex(columns=lines.columns)
        for column in frame.columns.intersection(["reason", "result"]):
            frame[column] = pd.Series([None] * len(rest), dtype=object)
        frames.append(frame)
    return frames
