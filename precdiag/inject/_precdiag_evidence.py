"""What can change numbers: the process's environment, the numerical switches, hashes of what a step starts from."""

import os
import re
import sys
import zlib

import _precdiag_probe

# Values under such names are never stored, nor are URLs that carry a password.
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE", re.I)
SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@|^(ghp_|sk-|hf_|xox|AKIA)\w+|-----BEGIN")
HIDDEN = "<hidden>"

# Switches that torch knows: (name, expression on the torch module). A switch that this torch lacks is left out.
TORCH_SWITCHES = (
    ("torch.deterministic_algorithms", lambda torch: torch.are_deterministic_algorithms_enabled()),
    ("cuda.matmul.allow_tf32", lambda torch: torch.backends.cuda.matmul.allow_tf32),
    ("cudnn.allow_tf32", lambda torch: torch.backends.cudnn.allow_tf32),
    ("cudnn.benchmark", lambda torch: torch.backends.cudnn.benchmark),
    ("cudnn.deterministic", lambda torch: torch.backends.cudnn.deterministic),
    (
        "cuda.matmul.allow_bf16_reduced_precision_reduction",
        lambda torch: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    ),
    (
        "cuda.matmul.allow_fp16_reduced_precision_reduction",
        lambda torch: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    ),
    ("float32_matmul_precision", lambda torch: torch.get_float32_matmul_precision()),
    ("sdpa.flash", lambda torch: torch.backends.cuda.flash_sdp_enabled()),
    ("sdpa.mem_efficient", lambda torch: torch.backends.cuda.mem_efficient_sdp_enabled()),
    ("sdpa.math", lambda torch: torch.backends.cuda.math_sdp_enabled()),
    ("npu.matmul.allow_hf32", lambda torch: torch.npu.matmul.allow_hf32),
    ("npu.conv.allow_hf32", lambda torch: torch.npu.conv.allow_hf32),
    ("npu.allow_internal_format", lambda torch: torch.npu.config.allow_internal_format),
    ("npu.jit_compile", lambda torch: not torch.npu.is_jit_compile_false()),
    ("autocast.enabled", lambda torch: torch.is_autocast_enabled()),
    ("autocast.cpu_enabled", lambda torch: torch.is_autocast_cpu_enabled()),
    ("autocast.dtype", lambda torch: str(torch.get_autocast_gpu_dtype())),
    ("autocast.cpu_dtype", lambda torch: str(torch.get_autocast_cpu_dtype())),
    ("default_dtype", lambda torch: str(torch.get_default_dtype())),
    ("threads", lambda torch: torch.get_num_threads()),
    ("interop_threads", lambda torch: torch.get_num_interop_threads()),
    ("initial_seed", lambda torch: torch.initial_seed()),
)

ENVIRONMENT_SWITCHES = (
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "NCCL_ALGO",
    "CLOSE_MATMUL_K_SHIFT",
    "ASCEND_LAUNCH_BLOCKING",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "INF_NAN_MODE_ENABLE",
    "NVIDIA_TF32_OVERRIDE",
    "PYTHONHASHSEED",
)

# CANN's toolkit and the driver write their versions here.
CANN_FILES = ("version.cfg", "version.info", "ascend_toolkit_install.info")
DRIVER_FILE = "/usr/local/Ascend/driver/version.info"


def of_process():
    """Everything about this process that is known once a model runs in it: one dict of JSON values."""
    import torch

    rank, world_size = rank_of(torch)
    return {
        "rank": rank,
        "world_size": world_size,
        "versions": versions(torch),
        "device": device_of(torch),
        "cwd": os.getcwd(),
        "environment": environment(),
        "packages": packages(),
        "switches": switches(torch),
    }


def at_step_start(model, args, kwargs, first):
    """Hash what a step starts from: integer inputs, RNG states and, at the first step only, parameters and buffers."""
    import torch

    found = {
        "inputs": [_checksum(torch, t) for t in _tensors(torch, (args, kwargs)) if not _is_floating(t)],
        "rng": rng_states(torch),
    }
    if first:
        models = model if isinstance(model, list) else [] if model is None else [model]
        found["parameters"] = {
            "{}{}".format(f"{place}." if len(models) > 1 else "", name): _checksum(torch, tensor)
            for place, each in enumerate(models)
            for name, tensor in sorted(each.state_dict(keep_vars=True).items())
            if isinstance(tensor, torch.Tensor)
        }
    return found


def rank_of(torch):
    """(rank, world size) where torch.distributed is initialised, else (None, 1): msprobe asks the same question."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None, 1


def versions(torch):
    """The versions of torch, torch_npu, msprobe, CANN and the driver, where they can be read."""
    torch_npu = sys.modules.get("torch_npu")
    return {
        "torch": str(torch.__version__),
        "torch_npu": getattr(torch_npu, "__version__", None),
        "msprobe": _precdiag_probe.package_version(),
        "cuda": getattr(torch.version, "cuda", None),
        "cann": _first_version(os.path.join(cann_home(), name) for name in CANN_FILES),
        "driver": _first_version([DRIVER_FILE]),
    }


def cann_home():
    """Where the CANN toolkit says that it is installed."""
    return os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or "/usr/local/Ascend"


def device_of(torch):
    """The accelerator in use, `npu: Ascend910B` for example, else `cpu`."""
    for kind in ("npu", "cuda"):
        backend = getattr(torch, kind, None)
        try:
            if backend is not None and backend.is_available():
                return f"{kind}: {backend.get_device_name()}"
        except (RuntimeError, AssertionError):
            continue
    return "cpu"


def environment():
    """The environment variables, secrets hidden."""
    return {name: hide(name, value) for name, value in sorted(os.environ.items())}


def hide(name, value):
    """`value`, or a placeholder where the name or the value looks like a secret."""
    return HIDDEN if SECRET_NAME.search(name) or SECRET_VALUE.search(value) else value


def packages():
    """Every installed distribution and its version."""
    from importlib.metadata import distributions

    found = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return dict(sorted(found.items()))


def switches(torch):
    """The numerical switches as they stand: name to value, those that this torch lacks left out."""
    found = {name: os.environ.get(name) for name in ENVIRONMENT_SWITCHES}
    for name, read in TORCH_SWITCHES:
        try:
            found[name] = read(torch)
        except Exception:
            continue  # torch raises anything from AttributeError to RuntimeError for a switch that it lacks
    return found


def make_deterministic(torch):
    """Set torch's own deterministic switches; the environment variables are set by the parent before the start."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def seed_everything(torch, seed):
    """Seed Python's, NumPy's and torch's generators; the script's own seeding comes later and wins."""
    import random

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def rng_states(torch):
    """A checksum of each generator's state: reading it draws nothing."""
    import random

    found = {"python": _crc(repr(random.getstate()).encode()), "torch": _checksum(torch, torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        found["numpy"] = _crc(repr(state[1:3]).encode() + state[1].tobytes())
    for kind in ("npu", "cuda"):
        backend = getattr(torch, kind, None)
        if backend is not None and getattr(backend, "is_initialized", bool)():
            found[kind] = _checksum(torch, backend.get_rng_state())
    return found


def _tensors(torch, value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from _tensors(torch, value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(torch, each)


def _is_floating(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def _checksum(torch, tensor):
    """CRC-32 of the tensor's bytes in order, or why there is none (meta, fake, sharded in a form not known here)."""
    try:
        with torch.no_grad():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            plain = local.detach().contiguous().cpu().reshape(-1)
            return _crc(plain.view(torch.uint8).numpy())
    except Exception as error:
        return f"unknown: {type(error).__name__}"


def _crc(data):
    return f"{zlib.crc32(data):08x}"


def _first_version(paths):
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                match = re.search(r"(?i)version\s*=\s*\[?([\w.]+)", file.read())
        except OSError:
            continue
        if match:
            return match.group(1)
    return None
