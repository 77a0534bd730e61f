"""Write what each optimizer step of a collected iteration did to each parameter, as norms (--update-stats).

One JSON file a step and rank, beside the receipts. Norms are taken on the host in float64: what is equal on two
devices then has one norm on both. The caller sees to it that nothing is recorded meanwhile.
"""

import math
import os

import _precdiag_session

FOLDER = "updates"
SCHEMA = "precdiag.updates/1"
MASTERS = ("master_param", "master")
CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class Updates:
    """The optimizer steps of one iteration; begin(), then before() and after() around each of them."""

    def __init__(self, session, receipt):
        self.folder = os.path.join(session.receipts, FOLDER)
        self.attempt = session.attempt
        self.receipt = receipt
        self.active = session.update_stats
        self.scaler = None
        self._gradients = {}
        self._clips = {}
        self._open = {}
        self._parameters = {}

    def begin(self):
        """An iteration that is collected begins."""
        self._gradients = {}
        self._clips = {}
        self._open = {}
        self._parameters = {}

    def before(self, optimizer, models):
        """Take down what the optimizer's step is about to use; a step that calls its parent's counts once."""
        if id(optimizer) not in self._open:
            self._open[id(optimizer)] = [
                (name, optimizer, model_parameter, parameter, self._used(optimizer, group, model_parameter, parameter))
                for name, model_parameter, parameter, group in _parameters(optimizer, models)
            ]

    def after(self, step):
        """Take down what the outermost step, and those inside it, made of that; write the file of dump step `step`."""
        for taken in self._open.values():
            for name, optimizer, model_parameter, parameter, facts in taken:
                facts.update(_values(optimizer, model_parameter, parameter, "after"))
                self._parameters[name] = facts
        self._open = {}
        data = self.receipt.data
        rank = data["rank"]
        place = "proc{}".format(data["pid"]) if rank is None else f"rank{rank}"
        folder = os.path.join(self.folder, f"attempt{self.attempt}") if self.attempt else self.folder
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"step{step}.{place}.json")
        document = {"schema": SCHEMA, "step": step, "rank": rank, "parameters": self._parameters}
        _precdiag_session.write_json(path, document)

    def unclipped(self, parameters):
        """Take down the gradients that clip_grad_norm_ is about to scale in place."""
        for parameter in parameters:
            self._gradients.setdefault(id(parameter), _norm(parameter.grad))

    def clipped(self, parameters, total, limit):
        """clip_grad_norm_ has scaled them."""
        factor = _clip_factor(total, limit)
        for parameter in parameters:
            self._clips[id(parameter)] = factor

    def _used(self, optimizer, group, model_parameter, parameter):
        gradient = getattr(model_parameter, "main_grad", None)
        if gradient is not None:
            gradient = _norm(gradient)
        else:
            gradient = self._gradients[id(parameter)] if id(parameter) in self._gradients else _norm(parameter.grad)
        facts = {
            "gradient": gradient,
            "clip_factor": self._clips.get(id(parameter), self._clips.get(id(model_parameter))),
            "loss_scale": self._loss_scale(optimizer),
            "learning_rate": _number(group.get("lr")),
        }
        facts.update(_values(optimizer, model_parameter, parameter, "before"))
        return facts

    def _loss_scale(self, optimizer):
        if self.scaler is not None:
            return _number(self.scaler.get_scale())
        told = getattr(optimizer, "get_loss_scale", None)
        return _number(told() if callable(told) else getattr(optimizer, "loss_scale", None))


def _parameters(optimizer, models):
    """Yield (name, the model's parameter, the optimizer's, group); the two differ where a fp32 master is trained."""
    names = {}
    for name, parameter in _named(models):
        names.setdefault(id(parameter), (name, parameter))
        master = getattr(parameter, "main_param", None)
        if master is not None:
            names.setdefault(id(master), (name, parameter))
    for place, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name, model_parameter = names.get(id(parameter), (f"group{place}.{index}", parameter))
            yield name, model_parameter, parameter, group


def _named(models):
    if not isinstance(models, (list, tuple)):
        return models.named_parameters()
    return ((f"{at}.{name}", each) for at, model in enumerate(models) for name, each in model.named_parameters())


def _values(optimizer, model_parameter, parameter, when):
    state = optimizer.state.get(parameter) or {}
    master = getattr(model_parameter, "main_param", None)
    if master is None:
        master = next((state[name] for name in MASTERS if state.get(name) is not None), None)
    kept = {str(name): value for name, value in state.items() if name not in MASTERS}
    return {
        f"state_{when}": {name: _norm(value) for name, value in kept.items() if _is_numeric(value)},
        f"master_{when}": _norm(master),
        f"parameter_{when}": _norm(model_parameter),
    }


def _is_numeric(value):
    return hasattr(value, "detach") or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _norm(value):
    """The 2-norm of a tensor, or a number itself; a tensor that is spread over ranks gives this rank's part."""
    if value is None or isinstance(value, (int, float)):
        return _number(value)
    import torch

    value = value.detach()
    if hasattr(value, "to_local"):
        value = value.to_local()
    if value.is_sparse:
        value = value.coalesce().values()
    return _number(value.to("cpu", torch.float64).norm())


def _clip_factor(total, limit):
    total, limit = float(total), float(limit)
    return _number(min(1.0, limit / (total + CLIP_EPSILON)) if math.isfinite(total) else limit / total)


def _number(value):
    """A float for JSON, which has no NaN and no infinity: those are strings."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else repr(value)
