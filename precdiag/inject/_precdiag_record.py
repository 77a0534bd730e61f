"""Record the iterations asked for: choose the model, drive the probe, keep the receipt. Never end the training."""

import functools
import gc

import _precdiag_evidence
import _precdiag_probe
import _precdiag_updates


def guarded(method):
    """Turn a failure of ours into a note and a receipt: the training goes on as if we were not there."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        if self.retired:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)
            if self.raises:
                raise

    return run


class Recorder:
    """Follow the steps of one process; `uninstall` takes every wrapper of ours out when nothing is left to record."""

    def __init__(self, session, receipt, uninstall):
        self.session = session
        self.receipt = receipt
        self.uninstall = uninstall
        self.probe = _precdiag_probe.Probe(session)
        self.updates = _precdiag_updates.Updates(session, receipt)
        self.retired = False
        self.raises = False  # a script that calls us itself hears of failures; an untouched one goes on
        self.attached = False
        self.iteration = None  # set by _precdiag_frameworks: the log's number of the current iteration
        self._window = list(session.steps)
        self._current = None
        self._model = None
        self._model_of = None

    @guarded
    def begin(self, index, module, optimizers, args, kwargs):
        """An iteration begins; record it if it is one of those asked for."""
        if not self.attached:
            self._attach()
        number = self.iteration() if self.iteration is not None else None
        self._find_window(index, number)
        if self.retired or index not in self._window:
            return
        model = self._choose(module, optimizers)
        rank = self.receipt.data["rank"]
        evidence = _precdiag_evidence.at_step_start(model, args, kwargs, first=not self.receipt.data["steps"])
        self.receipt.step(index, rank=rank, iteration=number, state="open", calls=0, **evidence)
        self.receipt.write()
        self._current = index
        self.updates.begin()
        self.probe.open(index, model, self._window)

    @guarded
    def resume(self):
        """Go on recording the paused iteration."""
        if self._current is not None and not self.probe.recording:
            self.receipt.step(self._current, state="open")
            self.receipt.write()
            self.probe.resume(self._model)

    @guarded
    def pause(self, complete):
        """Nothing more of this iteration is expected; what there is, is flushed, so that a kill now loses nothing."""
        if self._current is not None and self.probe.recording:
            calls, seconds = self.probe.pause()
            self._note_step("complete" if complete else "open", calls, seconds)

    @guarded
    def clip_begins(self, parameters):
        """Gradients are about to be clipped."""
        self._without_recording(lambda: self.updates.unclipped(parameters))

    @guarded
    def clip_ended(self, parameters, total, limit):
        """Gradients have been clipped to a norm of `limit` from `total`."""
        self._without_recording(lambda: self.updates.clipped(parameters, total, limit))

    @guarded
    def update_begins(self, optimizer):
        """An optimizer is about to step."""
        self._without_recording(lambda: self.updates.before(optimizer, self._model))

    @guarded
    def update_ended(self):
        """The outermost optimizer step is over."""
        self._without_recording(lambda: self.updates.after(self._current))

    @guarded
    def end(self, index):
        """Iteration `index` is over."""
        self.receipt.data["iterations"] = index + 1
        if self._current is not None:
            self._close("complete")
        if index + 1 not in self._window:
            self.probe.detach()
        if self._window and index >= max(self._window):
            self.retire()

    @guarded
    def unfinished(self):
        """The process ends inside an iteration."""
        if self._current is not None:
            self._close("unfinished")

    @guarded
    def forget(self):
        """What was recorded so far were no iterations: delete it."""
        for entry in self.receipt.data["steps"]:
            self.probe.discard(entry["step"])
        self.receipt.data["steps"] = []
        self.receipt.write()
        self._current = None
        self._model = None

    @guarded
    def evaluation(self):
        """An evaluation pass: counted for the report, recorded nowhere."""
        self.receipt.data["evaluations"] += 1

    @guarded
    def beside(self, module):
        """A module that no optimizer trains was called before the model: said once, not recorded."""
        if self._window and type(module).__name__ not in self.receipt.data["beside"]:
            self.receipt.data["beside"].append(type(module).__name__)

    @guarded
    def unseen(self, index):
        """An optimizer stepped although no module with its parameters was called."""
        if index in self._window:
            self.receipt.note(f"step {index} was not seen: no module holding an optimizer's parameters ran")
            self.receipt.write()

    def retire(self):
        """Nothing is left to record: run on as if never there."""
        self.retired = True
        self.probe.detach()
        self.uninstall()

    def fail(self, error):
        """Say what broke, keep it, and leave the training alone."""
        import traceback  # which loads a tokenizer: not at every start

        where = traceback.extract_tb(error.__traceback__)[-1]
        self.receipt.data["state"] = "failed"
        self.receipt.data["error"] = f"{type(error).__name__}: {error}"
        self.receipt.data["error_at"] = f"{where.filename}:{where.lineno}"
        self.receipt.note("collection stopped: {}".format(self.receipt.data["error"]))
        self.receipt.write()
        try:
            self.retire()
        except Exception:
            self.uninstall()

    def stand_back(self, facts):
        """Another PrecisionDebugger was built in this process: leave it alone, keep where it writes."""
        data = self.receipt.data
        data["foreign"] = facts
        if self.probe.debugger is not None:
            data["state"] = "conflict"
            self.receipt.note("the script built a PrecisionDebugger of its own after collection had begun")
        else:
            data["state"] = "standing-back"
            self.receipt.note("the script builds its own PrecisionDebugger: that dump is judged, nothing is added")
        data.update(_precdiag_evidence.of_process())
        self.receipt.write()
        self.retired = True
        self.uninstall()

    def _attach(self):
        self.attached = True
        data = self.receipt.data
        data.update(_precdiag_evidence.of_process())
        data["state"] = "attached"
        ranks = self.session.ranks
        if ranks and data["rank"] not in ranks:
            data["state"] = "filtered"
            self.retire()
        self.receipt.write()

    def _find_window(self, index, number):
        if number is not None:
            self.receipt.data["offset"] = number - index
        if not self.session.iterations or self._window:
            return
        if number is None:
            self.receipt.note("the log's own iteration number cannot be known in this process: use --step N")
            self.receipt.write()
            self.retire()
            return
        self._window = [n - number + index for n in self.session.iterations if n >= number] or [-1]

    def _choose(self, module, optimizers):
        if not optimizers:
            if module is not None and (self._model is None or any(True for _ in module.children())):
                self._model = self._inside(module)
            return self._model
        if self._model is None or self._model_of != len(optimizers):
            self._model_of = len(optimizers)
            roots = [module] if optimizers.own_all(module) else owners(optimizers) or [module]
            found = [self._inside(root) for root in roots]
            self._model = found[0] if len(found) == 1 else found
            self.receipt.data["model"] = ", ".join(type(each).__name__ for each in found)
            self._note_what_is_hidden(found)
        return self._model

    def _note_what_is_hidden(self, models):
        kinds = {type(module).__name__ for model in models for module in model.modules()}
        if "OptimizedModule" in kinds:
            self.receipt.note("the model is compiled: calls inside compiled code are recorded only where it breaks")
        if any(kind.startswith(("FSDP", "FullySharded")) for kind in kinds):
            self.receipt.note("the model is sharded (FSDP): msprobe records each rank's own part of a parameter")

    def _inside(self, root):
        path = self.session.model
        if not path:
            return root
        try:
            return root.get_submodule(path)
        except AttributeError:
            raise RuntimeError(f"--model {path}: {type(root).__name__} has no such submodule") from None

    def _without_recording(self, take):
        """Take update statistics, whose own tensor operations belong to no dump; without them the dump goes on."""
        if self._current is None or not self.updates.active:
            return
        recording = self.probe.recording
        if recording:
            self.probe.pause()
        try:
            take()
        except Exception as error:
            self.updates.active = False
            self.receipt.note(f"update statistics stopped: {type(error).__name__}: {error}")
            self.receipt.write()
        if recording:
            self.probe.resume(self._model)

    def _note_step(self, state, calls, seconds):
        self.receipt.step(self._current, state=state, calls=calls, seconds=seconds)
        self.receipt.write()

    def _close(self, state):
        calls, seconds = self.probe.close()
        self._note_step(state, calls, seconds)
        self._current = None
        limit = self.session.max_bytes
        if limit is not None and _precdiag_probe.folder_bytes(self.session.dump) > limit:
            self.receipt.note(f"the dump has grown over --max-bytes {limit}: nothing more is collected")
            self.receipt.write()
            self.retire()


def owners(optimizers):
    """The modules that hold an optimizer's parameters and stand in no other module, in the order of the parameters."""
    import torch

    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in inner and optimizers.own_any(module)]
    return sorted(roots, key=optimizers.order)
