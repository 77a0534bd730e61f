"""Megatron's arguments: the number of finished iterations stands in curr_iteration."""

from types import SimpleNamespace

ARGUMENTS = SimpleNamespace(curr_iteration=0)


def get_args():
    return ARGUMENTS
