"""As much of torch as the hook touches, for interpreters that have no torch: a model of one parameter."""

from types import SimpleNamespace

from . import autograd, nn, optim

__version__ = "stub"
version = SimpleNamespace(cuda=None)
utils = SimpleNamespace()
distributed = None


class Tensor:
    requires_grad = True
    grad = None

    def is_floating_point(self):
        return True

    def backward(self):
        autograd.backward(self)


def manual_seed(seed):
    pass


def is_grad_enabled():
    return True


def get_rng_state():
    return Tensor()
