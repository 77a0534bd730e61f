"""The settings of one side's collection, and the receipt that this process keeps of what it did.

Settings are `session.json` in the folder that PRECDIAG_SESSION names. What is written goes into that folder, or into
PRECDIAG_OUT with a copy of the settings: a copied kit still works, and may be read-only. The receipt is one JSON file
per process, replaced by rename at every event: launchers kill with SIGKILL, so nothing may wait for exit.
"""

import json
import os
import sys
import time

SETTINGS = "session.json"
SCHEMA = "precdiag.receipt/1"


class Session:
    """What this side is asked to collect."""

    def __init__(self, folder, settings):
        self.folder = os.path.abspath(folder)
        self.out = os.path.abspath(os.environ.get("PRECDIAG_OUT") or self.folder)
        self.settings = settings
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        # a restarted attempt writes beside the earlier ones, not over them
        self.dump = os.path.join(self.out, os.path.join("attempts", str(self.attempt)) if self.attempt else "dump")
        self.receipts = os.path.join(self.out, "receipts")
        self.config = os.path.join(self.folder, "msprobe.json")
        self.id = settings.get("session")
        self.side = settings.get("side")
        self.steps = list(settings.get("steps") or [])
        self.iterations = list(settings.get("iterations") or [])
        self.ranks = list(settings.get("ranks") or [])
        self.level = settings.get("level", "L1")
        self.task = settings.get("task", "statistics")
        self.step_at = settings.get("step_at", "auto")
        self.model = settings.get("model")
        self.seed = settings.get("seed")
        self.deterministic = bool(settings.get("deterministic"))
        self.max_bytes = settings.get("max_bytes")
        self.update_stats = bool(settings.get("update_stats"))

    def make_folders(self):
        """Make what is written into, with a copy of the settings where that is not the session's own folder."""
        for folder in (self.dump, self.receipts):
            os.makedirs(folder, exist_ok=True)
        copy = os.path.join(self.out, SETTINGS)
        if not os.path.exists(copy):
            write_json(copy, self.settings)


class Receipt:
    """What one process did: `data` is the JSON, `write()` replaces the file."""

    def __init__(self, session):
        self.session = session
        self.data = {
            "schema": SCHEMA,
            "session": session.id,
            "side": session.side,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "executable": sys.executable,
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "command": command_line(),
            "started": time.time(),
            "state": "started",
            "rank": None,
            "world_size": None,
            "attempt": session.attempt,
            "node": _integer("GROUP_RANK"),
            "nodes": _integer("GROUP_WORLD_SIZE"),
            "launch": os.environ.get("PRECDIAG_LAUNCH"),
            "steps": [],
            "evaluations": 0,
            "beside": [],
            "notes": [],
        }
        name = "{}-{}-{}.json".format(self.data["host"], self.data["pid"], int(self.data["started"] * 1000))
        self.path = os.path.join(session.receipts, name)

    def write(self):
        """Replace the receipt; a disk that refuses it is said once, and never ends the training."""
        try:
            write_json(self.path, self.data)
        except OSError as error:
            self.note(f"the receipt could not be written: {error}")

    def note(self, text):
        """Keep a line for the report, once, and say it on stderr."""
        if text not in self.data["notes"]:
            self.data["notes"].append(text)
            say(text)

    def step(self, index, **facts):
        """Add to, or change, what is known of one dump step."""
        for entry in self.data["steps"]:
            if entry["step"] == index:
                entry.update(facts)
                return
        entry = {"step": index}
        entry.update(facts)
        self.data["steps"].append(entry)


def load(folder):
    """Read the settings in `folder`; OSError or ValueError where they cannot be read."""
    with open(os.path.join(folder, SETTINGS), encoding="utf-8") as file:
        return Session(folder, json.load(file))


def write_json(path, data):
    """Write by rename, so that a reader, or a kill, never meets half a file."""
    part = f"{path}.{os.uname().nodename}.{os.getpid()}.part"  # two nodes may have the same pid
    with open(part, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
    os.replace(part, path)


def say(text):
    """One line on stderr: stdout belongs to the training."""
    try:
        sys.stderr.write(f"precdiag: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # stderr may be closed, or None in an embedded interpreter


def command_line():
    """The words this process was started with; sys.argv does not exist yet when sitecustomize runs."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", []))


def _integer(name):
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None
