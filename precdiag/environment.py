"""Set the two sides' environments and numerical switches side by side: what differs, and what can change numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# One row a switch: its key in a receipt, what it changes. Sources: the manuals of torch (Numerical accuracy,
# Reproducibility), torch_npu, HCCL and CANN; the values themselves are read in the training process.
SWITCHES: tuple[tuple[str, str], ...] = (
    ("torch.deterministic_algorithms", "torch.use_deterministic_algorithms"),
    ("HCCL_DETERMINISTIC", "order of reduction in HCCL collectives"),
    ("LCCL_DETERMINISTIC", "order of reduction in LCCL collectives"),
    ("NCCL_ALGO", "algorithm, so order of reduction, of NCCL collectives"),
    ("CLOSE_MATMUL_K_SHIFT", "1: matmul sums over K in one fixed order on the NPU"),
    ("ASCEND_LAUNCH_BLOCKING", "kernels one after another on the NPU"),
    ("CUDA_LAUNCH_BLOCKING", "kernels one after another on the GPU"),
    ("CUBLAS_WORKSPACE_CONFIG", "cuBLAS reproducible with :4096:8 or :16:8"),
    ("INF_NAN_MODE_ENABLE", "0: overflow saturates on the NPU instead of giving inf"),
    ("NVIDIA_TF32_OVERRIDE", "0: no TF32 in NVIDIA's libraries"),
    ("cuda.matmul.allow_tf32", "float32 matmul in TF32"),
    ("cudnn.allow_tf32", "float32 convolution in TF32"),
    ("cudnn.benchmark", "convolution algorithm chosen by timing"),
    ("cudnn.deterministic", "convolution algorithm fixed"),
    ("npu.matmul.allow_hf32", "float32 matmul in HF32"),
    ("npu.conv.allow_hf32", "float32 convolution in HF32 (on by default)"),
    ("cuda.matmul.allow_bf16_reduced_precision_reduction", "bf16 matmul reduced in bf16"),
    ("cuda.matmul.allow_fp16_reduced_precision_reduction", "fp16 matmul reduced in fp16"),
    ("float32_matmul_precision", "highest, high (TF32/HF32) or medium (bf16)"),
    ("npu.allow_internal_format", "private layouts on the NPU"),
    ("npu.jit_compile", "operators compiled for the shape"),
    ("sdpa.flash", "attention backend"),
    ("sdpa.mem_efficient", "attention backend"),
    ("sdpa.math", "attention backend"),
    ("autocast.enabled", "autocast at the first step"),
    ("autocast.cpu_enabled", "autocast at the first step"),
    ("autocast.dtype", "autocast's dtype"),
    ("autocast.cpu_dtype", "autocast's dtype on CPU"),
    ("default_dtype", "dtype of new floating-point tensors"),
    ("threads", "threads within an operator: order of reduction on CPU"),
    ("interop_threads", "threads between operators"),
    ("initial_seed", "seed of torch's generator"),
)

# What --deterministic sets before the start, and what the hook sets in torch; dropout is left alone.
DETERMINISTIC_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "HCCL_DETERMINISTIC": "true",
    "LCCL_DETERMINISTIC": "1",
    "CLOSE_MATMUL_K_SHIFT": "1",
}
DETERMINISTIC_TORCH = (
    "torch.use_deterministic_algorithms(warn_only)",
    "cudnn.deterministic",
    "cudnn.benchmark off",
)

# Packages whose version can change numbers; the others that differ are listed after them.
NUMERICAL_PACKAGES = ("torch", "torch-npu", "numpy", "triton", "transformers", "accelerate", "deepspeed", "flash-attn")

# These differ between any two processes and change nothing.
IGNORED_VARIABLES = frozenset(
    {"PRECDIAG_SESSION", "PRECDIAG_LAUNCH", "_", "SHLVL", "OLDPWD", "PWD", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    | {"TORCHELASTIC_ERROR_FILE", "PYTEST_CURRENT_TEST"}
)


@dataclass(frozen=True)
class Difference:
    """One thing in which the sides differ. `numbers`: it can change numerical results."""

    kind: str
    name: str
    baseline: Any
    candidate: Any
    numbers: bool

    @property
    def label(self) -> str:
        """How the thing is named to people: `switch cudnn.benchmark`; what a run starts from speaks for itself."""
        return self.name if self.kind in ("start", "process") else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class SwitchRow:
    """One numerical switch on both sides; None where it is not set or that torch does not have it."""

    name: str
    baseline: Any
    candidate: Any
    what: str

    @property
    def differs(self) -> bool:
        """True where the sides set it differently."""
        return bool(self.baseline != self.candidate)


def switch_table(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[SwitchRow]:
    """Set the switches of two receipts side by side, differences first; rows that neither side has are left out."""
    one, two = baseline.get("switches", {}), candidate.get("switches", {})
    rows = [
        SwitchRow(name, one.get(name), two.get(name), what)
        for name, what in SWITCHES
        if one.get(name) is not None or two.get(name) is not None
    ]
    return sorted(rows, key=lambda row: not row.differs)


def differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[Difference]:
    """List what differs between two receipts, what can change numbers first."""
    found = [
        *_started_from(baseline, candidate),
        *_plain(baseline, candidate),
        *_mapping("version", baseline, candidate, "versions", numbers=True),
        *(
            Difference("switch", r.name, r.baseline, r.candidate, True)
            for r in switch_table(baseline, candidate)
            if r.differs
        ),
        *_packages(baseline, candidate),
        *(
            each
            for each in _mapping("variable", baseline, candidate, "environment", numbers=False)
            if each.name not in IGNORED_VARIABLES
        ),
    ]
    return sorted(found, key=lambda each: not each.numbers)


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit that `folder` stands at and whether files differ from it; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _started_from(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare the hashes of what the first recorded step of each rank started from: inputs, parameters, generators."""
    ours, theirs = baseline.get("starts") or {}, candidate.get("starts") or {}
    for rank in sorted({*ours} & {*theirs}, key=lambda rank: (len(rank), rank)):
        for each in _starts_apart(ours[rank], theirs[rank]):
            yield each if rank == "-" else replace(each, name=f"rank {rank}'s {each.name.removeprefix('the ')}")


def _starts_apart(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    if one.get("inputs") != two.get("inputs"):
        yield Difference("start", "the first batch's integer inputs", one.get("inputs"), two.get("inputs"), True)
    parameters, others = one.get("parameters") or {}, two.get("parameters") or {}
    for name in [*parameters, *(name for name in others if name not in parameters)]:
        if parameters.get(name) != others.get(name):
            yield Difference("start", f"the parameter {name}", parameters.get(name), others.get(name), True)
    for kind in ("torch", "npu", "cuda"):
        states = one.get("rng", {}).get(kind), two.get("rng", {}).get(kind)
        if None not in states and states[0] != states[1]:
            yield Difference("start", f"the random state of {kind}", states[0], states[1], True)


def _plain(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Difference]:
    keys = (("device", True), ("python", True), ("world_size", True), ("git", True))
    for key, numbers in (*keys, ("executable", False), ("host", False), ("cwd", False), ("command", False)):
        if baseline.get(key) != candidate.get(key):
            yield Difference("process", key, baseline.get(key), candidate.get(key), numbers)


def _mapping(
    kind: str, baseline: Mapping[str, Any], candidate: Mapping[str, Any], key: str, *, numbers: bool
) -> Iterator[Difference]:
    one, two = baseline.get(key) or {}, candidate.get(key) or {}
    for name in sorted({*one, *two}):
        if one.get(name) != two.get(name):
            yield Difference(kind, name, one.get(name), two.get(name), numbers)


def _packages(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[Difference]:
    for each in _mapping("package", baseline, candidate, "packages", numbers=False):
        yield Difference(each.kind, each.name, each.baseline, each.candidate, each.name in NUMERICAL_PACKAGES)


def _git(folder: Path, *words: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None
