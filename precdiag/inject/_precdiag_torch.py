"""The wrappers around torch that report an iteration's events to Steps; installed when torch is imported."""

import functools

HIDDEN_FRAME = "<precdiag>"

_undo = []


def _hidden(function):
    """Leave a function out of msprobe's stacks, which show no frame whose source cannot be found."""
    function.__code__ = function.__code__.replace(co_filename=HIDDEN_FRAME)
    return function


def install(torch, steps):
    """Wrap module calls, backward, optimizers, clipping and GradScaler; uninstall() takes all of it back."""
    _wrap_calls(torch, steps)
    _wrap_backward(torch, steps)
    _wrap_optimizers(torch, steps)
    if steps.recorder.updates.active:
        _wrap_clipping(torch, steps.recorder)
    for namespace in (getattr(torch, "amp", None), getattr(getattr(torch, "cuda", None), "amp", None)):
        wrap_scaler(getattr(namespace, "GradScaler", None), steps)


def uninstall():
    """Restore what install() replaced, where nobody has replaced it again since."""
    while _undo:
        _undo.pop()()


def wrap(owner, name, before=None, after=None):
    """Call `before(*args, **kwargs)` and `after(*args, **kwargs)` around `owner.name`."""

    def around(original, *args, **kwargs):
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    _replace(owner, name, around)


def wrap_scaler(scaler, steps):
    """Anchor a GradScaler class that has a step of its own."""
    if scaler is not None and "step" in vars(scaler):
        _replace(scaler, "step", functools.partial(_scaler_step, steps))


def _wrap_calls(torch, steps):
    module_class = torch.nn.Module
    original = module_class.__call__

    @_hidden
    def __call__(self, *args, **kwargs):  # noqa: N807
        if not steps.awaits_call() or _in_data_worker(torch):
            return original(self, *args, **kwargs)
        ended = steps.enter(self, args, kwargs)
        if ended is None:
            if not steps.awaits_call():
                _disarm()
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            ended()

    def _arm():
        if module_class.__call__ is original:
            module_class.__call__ = __call__

    def _disarm():
        # Somebody else's wrapper (torch.fx while it traces) stays; ours lets calls through while none is awaited.
        if module_class.__call__ is __call__:
            module_class.__call__ = original

    steps.arm = _arm
    _arm()
    _undo.append(_disarm)


def _in_data_worker(torch):
    data = getattr(torch.utils, "data", None)
    return data is not None and data.get_worker_info() is not None


def _wrap_backward(torch, steps):
    wrap(
        torch.autograd,
        "backward",
        before=lambda *args, **kwargs: steps.before_backward(),
        after=lambda *args, **kwargs: steps.after_backward(),
    )


def _wrap_optimizers(torch, steps):
    optimizer_class = torch.optim.Optimizer
    wrap(optimizer_class, "__init__", after=lambda self, *args, **kwargs: steps.optimizer_built(self))
    wrap(optimizer_class, "add_param_group", after=lambda self, *args, **kwargs: steps.parameters_added(self))
    _replace(optimizer_class, "zero_grad", functools.partial(_optimizer_zero_grad, steps))
    _replace(torch.nn.Module, "zero_grad", functools.partial(_module_zero_grad, steps))
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    handles = [
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: steps.before_optimizer(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: steps.after_optimizer(optimizer)),
    ]
    _undo.extend(handle.remove for handle in handles)


def _wrap_clipping(torch, recorder):
    for owner in (torch.nn.utils, torch.nn.utils.clip_grad):  # scripts take it from either
        _replace(owner, "clip_grad_norm_", functools.partial(_clip, torch, recorder))


def _optimizer_zero_grad(steps, original, self, *args, **kwargs):
    steps.zeroed(lambda: [id(self)], lambda: [p for group in self.param_groups for p in group["params"]])
    return original(self, *args, **kwargs)


def _module_zero_grad(steps, original, self, *args, **kwargs):
    steps.zeroed(lambda: steps.optimizers.taking_part([self]), self.parameters)
    return original(self, *args, **kwargs)


@_hidden
def _scaler_step(steps, original, self, optimizer, *args, **kwargs):
    """GradScaler.step skips the optimizer's own step when it finds an inf: the iteration is over either way."""
    steps.recorder.updates.scaler = self
    try:
        result = original(self, optimizer, *args, **kwargs)
    finally:
        steps.recorder.updates.scaler = None
    steps.scaler_stepped(optimizer)
    return result


@_hidden
def _clip(torch, recorder, original, parameters, max_norm, *args, **kwargs):
    if not isinstance(parameters, torch.Tensor):
        parameters = list(parameters)
    given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    recorder.clip_begins(given)
    total = original(parameters, max_norm, *args, **kwargs)
    recorder.clip_ended(given, total, max_norm)
    return total


def _replace(owner, name, around):
    original = getattr(owner, name)

    @_hidden
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)

    def undo():
        if getattr(owner, name, None) is wrapper:
            setattr(owner, name, original)

    _undo.append(undo)
