"""Wait for torch in a process that PRECDIAG_SESSION watches, attach at the first training signal, leave a receipt.

Standard library only, Python 3.8 syntax. Nothing here imports torch or a framework: it waits for the script to do so.
"""

import atexit
import os
import sys

import _precdiag_evidence
import _precdiag_frameworks
import _precdiag_probe
import _precdiag_record
import _precdiag_session
import _precdiag_steps
import _precdiag_torch

# Where PrecisionDebugger stands: 26.2, and the versions before it.
DEBUGGER_MODULES = (
    "msprobe.pytorch.dump.debugger.precision_debugger",
    "msprobe.pytorch.debugger.precision_debugger",
)

_watch = None


def install():
    """Start watching this process, once; OSError or ValueError where the session cannot be read."""
    global _watch
    if _watch is not None:
        return
    session = _precdiag_session.load(os.environ["PRECDIAG_SESSION"])
    session.make_folders()
    _watch = Watch(session)
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def current():
    """The watch of this process, or None where the hook was not injected."""
    return _watch


class Watch:
    """One process: its receipt, its recorder and its steps, and the imports waited for."""

    def __init__(self, session):
        self.session = session
        self.receipt = _precdiag_session.Receipt(session)
        self.recorder = _precdiag_record.Recorder(session, self.receipt, _precdiag_torch.uninstall)
        self.steps = _precdiag_steps.Steps(self.recorder, session.step_at)
        self.receipt.write()
        callbacks = {"torch": self._torch_imported, "ray": self._ray_imported}
        if session.step_at != "manual":
            callbacks.update(_precdiag_frameworks.anchors(self.steps, self.recorder))
            callbacks.update((name, self._debugger_imported) for name in DEBUGGER_MODULES)
        self.finder = ImportWatch(callbacks)
        sys.meta_path.insert(0, self.finder)
        for name in [name for name in callbacks if name in sys.modules]:  # after a fork
            self.finder.imported(sys.modules[name])

    def dismiss(self):
        """Take this watch out of a process that another watch takes over."""
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _precdiag_torch.uninstall()
        self.recorder.retired = True
        self.recorder.probe.abandon()

    def _torch_imported(self, torch):
        self.receipt.data["state"] = "torch"
        problem = _precdiag_probe.package_problem()
        if problem:
            self.receipt.data["problem"] = problem
            self.receipt.note(problem)
        self.receipt.write()
        if self.session.seed is not None:
            _precdiag_evidence.seed_everything(torch, self.session.seed)
        if self.session.deterministic:
            _precdiag_evidence.make_deterministic(torch)
        if self.session.step_at != "manual":
            _precdiag_torch.install(torch, self.steps)

    def _ray_imported(self, module):
        self.receipt.data["ray"] = True
        self.receipt.write()

    def _debugger_imported(self, module):
        _precdiag_torch.wrap(module.PrecisionDebugger, "__init__", after=self._debugger_built)

    def _debugger_built(self, debugger, config_path=None, *args, **kwargs):
        if _precdiag_probe.building():
            return
        config = getattr(debugger, "config", None)
        facts = {name: getattr(config, name, None) for name in ("dump_path", "task", "level", "step", "rank")}
        facts["config_path"] = config_path
        facts["dump_path"] = os.path.abspath(facts["dump_path"]) if facts["dump_path"] else None
        self.recorder.stand_back(facts)


class ImportWatch:
    """A finder that finds nothing: it lets the others find, and calls back once the module has been executed."""

    def __init__(self, callbacks):
        self.callbacks = callbacks

    def find_spec(self, name, path=None, target=None):
        """Return the others' spec with the callback behind it, or None for every module not waited for."""
        if name not in self.callbacks:
            return None
        spec = next(
            filter(None, (_ask(finder, name, path, target) for finder in sys.meta_path if finder is not self)), None
        )
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def imported(self, module):
        """Call back for a module, once; a failure of ours is one line on stderr."""
        callback = self.callbacks.pop(module.__name__, None)
        if callback is None:
            return
        try:
            callback(module)
        except Exception as error:
            _precdiag_session.say(f"{module.__name__} could not be watched: {type(error).__name__}: {error}")

    def _follow(self, loader):
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            self.imported(module)

        loader.exec_module = exec_module


def _ask(finder, name, path, target):
    find_spec = getattr(finder, "find_spec", None)
    return None if find_spec is None else find_spec(name, path, target)


def _at_exit():
    receipt = _watch.receipt
    if receipt.data["pid"] != os.getpid():
        return
    _watch.steps.finish()
    receipt.data["finished"] = True
    receipt.write()


def _after_fork():
    """A forked child starts again: it may be a DataLoader worker, or a rank of its own."""
    global _watch
    parent = _watch
    try:
        foreign = parent.receipt.data.get("foreign")
        parent.dismiss()
        _watch = Watch(parent.session)
        if foreign is not None:
            _watch.recorder.stand_back(foreign)
    except Exception as error:
        _precdiag_session.say(f"the hook did not survive a fork: {type(error).__name__}: {error}")
