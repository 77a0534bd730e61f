"""Where a framework counts its own iterations: found by name when the training imports it, never imported by us.

An optimizer step that the framework skips still ends its iteration, and its number is the one that its log shows.
Tried against stub modules of the same names and signatures, not against the frameworks themselves.
"""

import sys

import _precdiag_torch


def anchors(steps, recorder):
    """Module name to the function that anchors it once it is imported."""
    megatron = Megatron(steps, recorder)
    return {
        "transformers.trainer_callback": Trainer(steps, recorder).anchor,
        "accelerate.optimizer": lambda module: _accelerate(module, steps),
        "deepspeed.runtime.engine": DeepSpeed(steps, recorder).anchor,
        "megatron.training.training": megatron.anchor,
        "mindspeed_llm.training.training": megatron.anchor,
        "mindspeed_mm.training": megatron.anchor,
        "torch_npu.npu.amp.grad_scaler": lambda module: _precdiag_torch.wrap_scaler(module.GradScaler, steps),
    }


class Trainer:
    """Hugging Face Trainer: its callbacks stand around every update, accumulation included."""

    def __init__(self, steps, recorder):
        self.steps = steps
        self.recorder = recorder
        self.number = None

    def anchor(self, module):
        handler = module.CallbackHandler
        _precdiag_torch.wrap(handler, "on_step_begin", before=self._begins)
        _precdiag_torch.wrap(handler, "on_step_end", after=lambda *args, **kwargs: self.steps.iteration_ends())

    def _begins(self, handler, args, state, *rest, **kwargs):
        self.number = state.global_step + 1
        self.recorder.iteration = lambda: self.number
        self.steps.iteration_begins()


class DeepSpeed:
    """DeepSpeedEngine.step ends the iteration at an accumulation boundary, overflow or not."""

    def __init__(self, steps, recorder):
        self.steps = steps
        self.recorder = recorder
        self.at_boundary = False

    def anchor(self, module):
        engine = module.DeepSpeedEngine
        _precdiag_torch.wrap(engine, "__init__", after=self._built)
        _precdiag_torch.wrap(engine, "step", before=self._before_step, after=self._after_step)

    def _built(self, engine, *args, **kwargs):
        self.recorder.iteration = lambda: engine.global_steps + 1

    def _before_step(self, engine, *args, **kwargs):
        # step() itself moves the counter that the boundary is computed from
        self.at_boundary = engine.is_gradient_accumulation_boundary()

    def _after_step(self, engine, *args, **kwargs):
        if self.at_boundary:
            self.steps.iteration_ends()


class Megatron:
    """train_step of Megatron-LM and of MindSpeed's copies: one call is one iteration, whatever it skips."""

    def __init__(self, steps, recorder):
        self.steps = steps
        self.recorder = recorder

    def anchor(self, module):
        step = getattr(module, "train_step", None)
        if step is None or hasattr(step, "precdiag"):
            return
        _precdiag_torch.wrap(module, "train_step", before=self._begins, after=self._ends)
        module.train_step.precdiag = True

    def _begins(self, *args, **kwargs):
        self.recorder.iteration = self._number
        self.steps.iteration_begins()

    def _ends(self, *args, **kwargs):
        self.steps.iteration_ends()

    def _number(self):
        """The number that the log will show: Megatron counts finished iterations, and prints the next."""
        holder = sys.modules.get("megatron.training.global_vars")
        if holder is None:
            return None
        arguments = holder.get_args()
        finished = getattr(arguments, "curr_iteration", getattr(arguments, "iteration", None))
        return None if finished is None else finished + 1


def _accelerate(module, steps):
    def stepped(optimizer, *args, **kwargs):
        if optimizer.gradient_state.sync_gradients:
            steps.scaler_stepped(optimizer.optimizer)

    _precdiag_torch.wrap(module.AcceleratedOptimizer, "step", after=stepped)
