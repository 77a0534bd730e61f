"""Drive msprobe's PrecisionDebugger: build it, open, pause and close a step, take its hooks out again."""

import importlib
import os
import sys
import time

INSTALL_LINE = "pip install mindstudio-probe"

_building = []


class Probe:
    """One PrecisionDebugger, built when the first step of the window opens and not before.

    msprobe is a process-wide singleton; its own counter (`service.loop`) is set before every step, so that steps
    outside the window cost nothing and a discarded step leaves no gap.
    """

    def __init__(self, session):
        self.session = session
        self.debugger = None
        self.recording = False
        self.hooked = False
        self._opened_at = 0.0
        self._seconds = 0.0

    def open(self, index, model, steps):
        """Start to record dump step `index`; `steps` are the dump steps of the whole window."""
        if self.debugger is None:
            self.debugger = build(self.session, steps)
        elif not self.hooked:
            self._hook_apis()
        self.hooked = True
        self.debugger.service.loop = index
        self._seconds = 0.0
        self.resume(model)

    def resume(self, model):
        """Record (again) into the open step."""
        self._opened_at = time.time()
        self.debugger.start(model=model)
        self.recording = True

    def pause(self):
        """Stop recording and flush; the step stays open. Returns the calls dumped so far and the seconds."""
        if self.recording:
            self.recording = False
            self.debugger.stop()
            self._seconds += time.time() - self._opened_at
        return self.calls(), round(self._seconds, 3)

    def close(self):
        """End the open step. Returns the calls dumped and the seconds spent recording."""
        done = self.pause()
        self.debugger.step()
        return done

    def discard(self, index):
        """End the open step, if any, and delete what `index` left on disk."""
        import shutil  # which loads compression libraries: not at every start

        if self.debugger is not None:
            self.pause()
            self.debugger.step()
            folder = dump_folder(self.debugger)
            if folder and f"step{index}" in folder.split(os.sep):
                shutil.rmtree(folder, ignore_errors=True)

    def calls(self):
        """How many calls the open step holds."""
        writer = self.debugger.service.data_collector.data_writer
        return len(writer.cache_data.get("data") or {})

    def detach(self):
        """Take msprobe's wrappers off the APIs and the modules: steps outside the window run as without it."""
        if not self.hooked:
            return
        self.hooked = False
        service = self.debugger.service
        restore = getattr(getattr(service, "api_register", None), "restore_all_api", None)
        if restore is not None and self.session.level in ("L1", "mix"):
            restore()
        for models in service.hooked_modules:
            for root in models if isinstance(models, (list, tuple)) else [models]:
                for module in root.modules():
                    _unhook_module(module)
        service.hooked_modules.clear()

    def abandon(self):
        """In a forked child: the parent's debugger writes nothing here, and another one may be built."""
        if self.debugger is None:
            return
        _stop_runtime()
        writer = self.debugger.service.data_collector.data_writer
        writer.reset_cache()
        writer.data_updated = False
        self.detach()
        for kind in type(self.debugger).__mro__:
            if "_instance" in vars(kind):
                kind._instance = None
        self.debugger = None

    def _hook_apis(self):
        register = getattr(getattr(self.debugger.service, "api_register", None), "register_all_api", None)
        if register is not None and self.session.level in ("L1", "mix"):
            register()


def package_problem():
    """None where the importable `msprobe` is MindStudio's; else one line that says what is there instead."""
    import importlib.util

    spec = importlib.util.find_spec("msprobe")
    if spec is None:
        return f"msprobe is not installed for {sys.executable}: {INSTALL_LINE}"
    for folder in spec.submodule_search_locations or []:
        if os.path.isdir(os.path.join(folder, "pytorch")):
            return None
    return (
        f"the installed `msprobe` ({spec.origin}) is PyPI's network scanner, not MindStudio Probe: "
        f"pip uninstall msprobe, then {INSTALL_LINE}"
    )


def package_version():
    """The version of mindstudio-probe, or None."""
    try:
        from importlib.metadata import PackageNotFoundError, version
    except ImportError:
        return None
    for name in ("mindstudio-probe", "mindstudio_probe"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def build(session, steps):
    """Construct the PrecisionDebugger for `session`; RuntimeError says what stands in the way."""
    problem = package_problem()
    if problem:
        raise RuntimeError(problem)
    from msprobe.pytorch import PrecisionDebugger

    _synchronous_checksums()
    _building.append(True)
    try:
        debugger = PrecisionDebugger(config_path=session.config, dump_path=session.dump, step=list(steps))
    finally:
        _building.pop()
    service = getattr(debugger, "service", None)
    if not all(hasattr(service, name) for name in ("loop", "data_collector", "hooked_modules")):
        raise RuntimeError(
            f"msprobe {package_version()} has another interface than the versions known here (1.2 to 26.2)"
        )
    return debugger


def building():
    """True while this module constructs a PrecisionDebugger: that one is ours."""
    return bool(_building)


def dump_folder(debugger):
    """The folder of the step that msprobe writes, or None before the first start."""
    path = debugger.service.data_collector.data_writer.dump_file_path
    return os.path.dirname(path) if path else None


def folder_bytes(folder):
    """The size of everything under `folder`, in bytes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(parent, name))
            except OSError:
                continue
    return total


class _SynchronousExecutor:
    """Run at submit: msprobe's pool takes the CRC of a live CPU tensor after later in-place writes (8.3 to 26.2)."""

    def __init__(self, *args, **kwargs):
        pass

    def submit(self, function, *args, **kwargs):
        from concurrent.futures import Future

        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, *args, **kwargs):
        pass


def _synchronous_checksums():
    for name in (
        "msprobe.core.dump.data_dump.data_processor.pytorch_processor",
        "msprobe.core.data_dump.data_processor.pytorch_processor",
    ):
        try:
            module = importlib.import_module(name)  # msprobe itself imports it only while PrecisionDebugger is built
        except ImportError:
            continue
        if hasattr(module, "ThreadPoolExecutor"):
            module.ThreadPoolExecutor = _SynchronousExecutor


def _stop_runtime():
    for name in ("msprobe.core.common.runtime", "msprobe.pytorch.common.runtime"):
        runtime = getattr(sys.modules.get(name), "Runtime", None)
        if runtime is not None:
            runtime.is_running = False


def _unhook_module(module):
    if not module.__dict__.pop("msprobe_hook", False):
        return
    module.__dict__.pop("msprobe_forward_hook", None)
    for name in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, name)
        for key in [key for key, hook in hooks.items() if "ModuleProcessor" in getattr(hook, "__qualname__", "")]:
            del hooks[key]
            getattr(module, name + "_with_kwargs", {}).pop(key, None)
    forward = module.__dict__.get("forward")
    if getattr(forward, "__qualname__", "").startswith("wrap_forward_with_hook_safety"):
        original = forward.__closure__[forward.__code__.co_freevars.index("original_forward")].cell_contents
        if getattr(original, "__self__", None) is module:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = original
