"""An executable in msprobe's place: it writes down how it was called, and leaves the tables that it was given."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import tables

from precdiag.installed import Msprobe

STAND_IN = """#!{python}
import json, pathlib, shutil, sys
words = sys.argv[1:]
calls = pathlib.Path({folder!r}) / "calls.json"
told = json.loads(calls.read_text()) if calls.exists() else []
settings = json.loads(pathlib.Path(words[words.index("-i") + 1]).read_text()) if "-i" in words else None
calls.write_text(json.dumps([*told, [words, settings]]))
out = pathlib.Path(words[words.index("-o") + 1])
for rank, table in {tables!r}.items():
    shutil.copy(table, out / f"compare_result{{rank}}_2026.csv")
print("[ERROR] Please verify that the CANN environment is properly configured.")
print("2026 [ERROR] it went wrong", file=sys.stderr)
sys.exit({status})
"""


class StandIn:
    """An executable in msprobe's place, and how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def leaves(self, status: int = 0, **lines: list[tables.Line]) -> Msprobe:
        """Write it: for each rank (`_rank0`, or `` for none) it leaves a table; then it ends with a status."""
        paths = {rank: str(tables.write_csv(self.folder / f"table{rank}.csv", rows)) for rank, rows in lines.items()}
        script = self.folder / "msprobe"
        script.write_text(STAND_IN.format(python=sys.executable, folder=str(self.folder), tables=paths, status=status))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return Msprobe((str(script),), "26.2.0")

    def calls(self) -> list[tuple[list[str], dict[str, object] | None]]:
        return [tuple(call) for call in json.loads((self.folder / "calls.json").read_text())]
