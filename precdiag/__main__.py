"""`precdiag`, the installed command, and `python -m precdiag`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from precdiag.cli import main


def run() -> NoReturn:
    """Run main(), and end at once where torch was imported: taking it down in an orderly way takes half a second."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us: the exit status says it all the same
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - to the end
    try:
        main()
    except SystemExit as ended:
        processes = sys.modules.get("multiprocessing")
        running = processes is not None and bool(processes.active_children())
        if "torch" in sys.modules and isinstance(ended.code, int) and not running:
            with suppress(OSError):  # nobody reads any more: Python says so in its own way
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ended.code)
        raise


if __name__ == "__main__":
    run()
