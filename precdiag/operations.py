"""What is known of torch's operations by name: weight slots, random draws, choices. Data, easy to extend."""

from __future__ import annotations

from collections.abc import Mapping

_AFFINE = ("input.1", "input.2", "input.weight", "input.bias")
_NORM = ("input.2", "input.3", "input.weight", "input.bias")
# Positional and keyword slots that take a weight in torch.nn.functional and torch_npu.
WEIGHT_SLOTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "npu_linear"), _AFFINE),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _AFFINE),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _NORM),
    "batch_norm": ("input.3", "input.4", "input.weight", "input.bias"),
    "embedding": ("input.1", "input.weight"),
    "embedding_bag": ("input.1", "input.weight"),
    "npu_rms_norm": ("input.1", "input.gamma"),
}

_DROPS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "npu_dropout")
_DRAWS = frozenset(
    {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_"}
    | {"bernoulli", "bernoulli_", "multinomial", "uniform_", "random_", "exponential_", "cauchy_", "geometric_"}
    | {"log_normal_", "poisson", "rrelu", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"}
)
_DROP_MODULES = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"})
_DROPPING_ATTENTION = frozenset(
    {"scaled_dot_product_attention", "npu_fusion_attention", "multi_head_attention_forward"}
)
_CHOICES = frozenset(
    {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "mode", "unique", "nonzero"}
    | {"eq", "ne", "gt", "ge", "lt", "le", "searchsorted", "bucketize", "npu_moe_gating_top_k_softmax"}
    | {"__eq__", "__ne__", "__gt__", "__ge__", "__lt__", "__le__", "where", "npu_moe_gating_top_k"}
)


# State that a call reads and writes in place: what is wrong in it was left by an earlier step or a checkpoint.
BUFFER_SLOTS: dict[str, tuple[str, ...]] = {
    "batch_norm": ("input.1", "input.2", "input.running_mean", "input.running_var"),
    "instance_norm": ("input.1", "input.2", "input.running_mean", "input.running_var"),
}


def is_weight_slot(operation: str, slot: str) -> bool:
    """Tell whether a call takes a weight or a buffer in this slot (`input.1` of linear)."""
    return slot in WEIGHT_SLOTS.get(operation, ()) or slot in BUFFER_SLOTS.get(operation, ())


def is_random(operation: str, arguments: Mapping[str, str]) -> bool:
    """Tell whether a call draws random numbers, given its scalar arguments by slot (`input.1` → `0.1`).

    Dropout does not when p is 0 or training is False, attention only with a dropout probability above 0.
    """
    if operation in _DRAWS or operation in _DROP_MODULES:
        return True
    if operation in _DROPS:
        p = arguments.get("input.p", arguments.get("input.1", "0.5"))
        training = arguments.get("input.training", arguments.get("input.2", "True"))
        return training != "False" and p not in ("0", "0.0")
    if operation in _DROPPING_ATTENTION:
        keep = arguments.get("input.keep_prob", "1.0")
        p = arguments.get("input.dropout_p", arguments.get("input.4", "0.0"))
        return keep not in ("1", "1.0") or (p not in ("0", "0.0", "None") and p.replace(".", "", 1).isdecimal())
    return False


def is_routing(operation: str) -> bool:
    """Tell whether a call chooses among elements, so that near ties can flip what it returns."""
    return operation in _CHOICES
