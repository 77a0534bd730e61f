"""Find where an iteration of an untouched training script begins, pauses and ends, and drive the probe there.

An iteration begins with the outermost call of the model: a module that owns parameters of an optimizer, with
gradients on (without them, or in eval mode once it has trained, the call is an evaluation pass and not counted).
It pauses when an optimizer has stepped, or when its step was skipped; another optimizer's step or another backward
before the next outermost call goes on with it. It ends at that call, or at exit; so what runs between two iterations
is never recorded. Where several optimizers took part (a GAN), it ends when each of them has had its step. Without
any optimizer each outermost call is a step.

`torch.nn.Module.__call__` is replaced only while the next outermost call is awaited.
"""

import weakref

IDLE, OPEN, PAUSED = "idle", "open", "paused"


class Steps:
    """The state of the current iteration. `recorder` records the ones asked for; see _precdiag_record."""

    def __init__(self, recorder, step_at):
        self.recorder = recorder
        self.step_at = step_at
        self.phase = IDLE
        self.index = 0
        self.over = False
        self.inside = False
        self.stepping = 0
        self.backward_ran = False
        self.evaluating = False
        self.beside = 0
        self.lenient = False
        self.trained = False
        self.optimizers = Optimizers()
        self.stepped = set()
        self.due = None
        self.called = {}
        self.arm = lambda: None  # set by _precdiag_torch: await the next outermost call again

    # What the wrappers in _precdiag_torch report, in the order of an iteration.

    def awaits_call(self):
        """True while the next outermost call decides something."""
        return not self.evaluating and (self.phase != OPEN or self._learns_who_takes_part())

    def enter(self, module, args, kwargs):
        """Before an awaited call. Returns what must be called after it, or None."""
        if self._by_call():
            self._end_iteration()
            self._begin(module, args, kwargs)
            return self._call_ended
        if not self._owns(module):
            return self._enter_beside(module)
        if self.phase == OPEN:
            self.called[id(module)] = module
            return None
        if self._is_evaluation(module):
            self.evaluating = True
            self.recorder.evaluation()
            return self._evaluation_ended
        self._enter_model(module, args, kwargs)
        return None

    def _enter_beside(self, module):
        """A module without an optimizer's parameters: what it calls may be the model all the same."""
        if self.phase == OPEN:
            return None
        if not self.beside:
            self.recorder.beside(module)
        self.beside += 1
        return self._beside_ended

    def _enter_model(self, module, args, kwargs):
        self.called[id(module)] = module
        self.trained = self.trained or module.training
        if self.phase == PAUSED and not self._is_over():
            self.phase = OPEN
            self.recorder.resume()
            return
        self._end_iteration()
        self.called = {id(module): module}
        self._begin(module, args, kwargs)

    def _call_ended(self):
        if self.phase == OPEN:
            self._pause()

    def _evaluation_ended(self):
        self.evaluating = False

    def _beside_ended(self):
        self.beside -= 1

    def before_backward(self):
        """Go on with a paused iteration: a second loss on one graph, or a model without optimizer."""
        if self.phase == PAUSED:
            self.recorder.resume()

    def after_backward(self):
        """A backward has run: a gradient thrown away from now on is a skipped step."""
        self.backward_ran = True
        if self.phase == PAUSED:
            self.recorder.pause(complete=self._is_over())

    def before_optimizer(self, optimizer):
        """Go on with a paused iteration: a second optimizer steps in it."""
        self.stepping += 1
        if self.phase == PAUSED:
            self.recorder.resume()
        self.recorder.update_begins(optimizer)

    def after_optimizer(self, optimizer):
        """An optimizer has stepped. A subclass that calls its parent's step reports twice: the outer one counts."""
        self.stepping -= 1
        if self.stepping <= 0:
            self.stepping = 0
            self._step_taken(id(optimizer))
            self.recorder.update_ended()

    def scaler_stepped(self, optimizer):
        """GradScaler.step has run, and may have skipped the optimizer's own step."""
        if id(optimizer) not in self.stepped:
            self._step_taken(id(optimizer))

    def zeroed(self, optimizers, parameters):
        """Gradients are about to be dropped: after a backward that no step has used, the step was skipped."""
        if self.phase == OPEN and self.backward_ran and any(p.grad is not None for p in parameters()):
            for key in optimizers():
                self._step_taken(key)

    def iteration_begins(self):
        """A framework's own iteration begins: optimizer steps inside it do not end it."""
        self.inside = True

    def iteration_ends(self):
        """A framework's own iteration is over, whether or not its optimizer stepped."""
        self.inside = False
        self.over = True
        if self.phase != IDLE:
            self._pause()

    def optimizer_built(self, optimizer):
        """An optimizer exists: what was taken for inference, if anything, was a rehearsal and is forgotten."""
        first = not self.optimizers
        self.optimizers.add(optimizer)
        self.due = None
        if first and self.step_at == "auto" and (self.index or self.phase != IDLE):
            self.phase = IDLE
            self.recorder.forget()
            self.index = 0

    def parameters_added(self, optimizer):
        """A parameter group was added; while the optimizer is being built, it is not known yet."""
        if self.optimizers.know(optimizer):
            self.optimizers.add(optimizer)

    def finish(self):
        """The process ends. An iteration left open is unfinished, a paused one is complete."""
        if self.phase == OPEN:
            self.recorder.unfinished()
        elif self.phase == PAUSED:
            self._end_iteration()

    # The rules.

    def _step_taken(self, key):
        self.backward_ran = False
        if self._by_call():
            return
        if self.phase == IDLE:
            self._stepped_unseen()
            return
        if self.due is None:
            self.due = self.optimizers.taking_part(self.called.values())
        if key in self.stepped:
            self.due = set(self.stepped)
        self.stepped.add(key)
        self._pause()

    def _by_call(self):
        return self.step_at == "call" or (self.step_at == "auto" and not self.optimizers)

    def _learns_who_takes_part(self):
        return self.due is None and len(self.optimizers) > 1

    def _is_over(self):
        if self.over or self._by_call():
            return True
        return not self.inside and bool(self.stepped) and not ((self.due or set()) - self.stepped)

    def _begin(self, module, args, kwargs):
        self.phase = OPEN
        self.over = False
        self.stepping = 0
        self.backward_ran = False
        self.recorder.begin(self.index, module, self.optimizers, args, kwargs)

    def _pause(self):
        self.phase = PAUSED
        self.recorder.pause(complete=self._is_over())
        self.arm()

    def _end_iteration(self):
        if self.phase == IDLE:
            return
        self.phase = IDLE
        if self.stepped:
            self.due = set(self.stepped)
        self.stepped = set()
        self.recorder.end(self.index)
        self.index += 1

    def _stepped_unseen(self):
        # Nothing that owns the optimizer's parameters was called: sharded or flattened copies are trained instead.
        self.lenient = True
        self.recorder.unseen(self.index)
        self.index += 1

    def _owns(self, module):
        if self.optimizers.own_any(module):
            return True
        return self.lenient and any(p.requires_grad for p in module.parameters())

    def _is_evaluation(self, module):
        import torch

        return not torch.is_grad_enabled() or (self.trained and not module.training)


class Optimizers:
    """The optimizers built in this process and the parameters each was given, by identity.

    Parameters are taken down when the optimizer is built: DeepSpeed and Megatron put flat copies into its groups later.
    """

    def __init__(self):
        self._parameters = {}
        self._owned = {}

    def __len__(self):
        return len(self._parameters)

    def add(self, optimizer):
        """Take down an optimizer's parameters, or those of a group added later."""
        mine = self._parameters.setdefault(id(optimizer), {})
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                mine[id(parameter)] = self._owned[id(parameter)] = weakref.ref(parameter)

    def know(self, optimizer):
        """True once add() has taken it down."""
        return id(optimizer) in self._parameters

    def own_any(self, module):
        """True if any parameter of `module` was given to an optimizer."""
        return any(self._is_owned(p) for p in module.parameters())

    def own_all(self, module):
        """True if every parameter given to an optimizer, and still alive, is in `module`."""
        inside = {id(p) for p in module.parameters()}
        return all(key in inside for key, ref in self._owned.items() if ref() is not None)

    def taking_part(self, modules):
        """The ids of the optimizers with a parameter in `modules`."""
        inside = {id(p) for module in modules for p in module.parameters()}
        return {key for key, mine in self._parameters.items() if inside & set(mine)}

    def order(self, module):
        """The place of `module`'s first owned parameter among all of them: the same in every run of a script."""
        inside = {id(p) for p in module.parameters()}
        return next((place for place, key in enumerate(self._owned) if key in inside), len(self._owned))

    def _is_owned(self, parameter):
        ref = self._owned.get(id(parameter))
        return ref is not None and ref() is parameter
