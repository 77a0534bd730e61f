"""Run many scripts under the hook, each in a fork of this one process, which has torch and msprobe imported already.

stdin: a JSON list of {"session", "inject", "words", "env"}; the last line on stdout is the list of statuses. In each
fork the hook starts as sitecustomize starts it: what a run spares is the import alone.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import traceback

import torch  # noqa: F401
from msprobe.pytorch import PrecisionDebugger  # noqa: F401


def child(run):
    log = os.open(os.path.join(run["session"], "log.txt"), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(run["env"], PRECDIAG_SESSION=run["session"])
    sys.path[:0] = [run["inject"], *filter(None, run["env"].get("PYTHONPATH", "").split(os.pathsep))]
    import _precdiag_hook

    _precdiag_hook.install()
    sys.argv = run["words"]
    sys.path.insert(0, os.path.dirname(run["words"][0]))
    status = 0
    try:
        runpy.run_path(run["words"][0], run_name="__main__")
    except SystemExit as error:
        status = int(error.code or 0)
    except Exception:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)  # tearing down this much of an interpreter takes longer than the run


def main():
    """Two at a time: the machines that this is for have two cores."""
    gc.freeze()
    runs = json.load(sys.stdin)
    waiting, running, codes = list(enumerate(runs)), {}, [None] * len(runs)
    while waiting or running:
        if waiting and len(running) < 2:
            place, run = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                child(run)
            running[pid] = place
            continue
        pid, status = os.wait()
        codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
