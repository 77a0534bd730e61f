"""Write a folder that takes the hook to where precdiag is not installed, and the lines that put it to use there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from precdiag.errors import UnreadableError, UsageError
from precdiag.session import (
    DUMP,
    INJECT,
    SETTINGS,
    Request,
    clear_session,
    hook_environment,
    write_session,
    write_settings,
)

INJECT_FOLDER = "inject"


def prepare(kit: Path, request: Request, side: str, *, force: bool = False) -> None:
    """Write `kit`: the hook's files and the settings of `side`. It runs from wherever it is copied to.

    Raises UsageError where `kit` is in use, OSError where it cannot be written.
    """
    if kit.exists() and any(kit.iterdir()):
        if not force:
            raise UsageError(f"{kit} is not empty", hint="choose another folder, or --force")
        shutil.rmtree(kit)
    shutil.copytree(INJECT, kit / INJECT_FOLDER, ignore=shutil.ignore_patterns("__pycache__"))
    write_settings(kit, request, Path(DUMP), side=side, identity=uuid4().hex)


def begin(folder: Path, request: Request, side: str, environ: Mapping[str, str], *, force: bool = False) -> str:
    """Make the session in `folder` and return its two variables, a NAME=VALUE a line, for whatever starts the training.

    Raises UsageError where `folder` holds a collection or msprobe would refuse it, OSError where it cannot be written.
    """
    if (folder / SETTINGS).exists():
        clear_session(folder, force=force)
    write_session(folder, request, side=side, identity=uuid4().hex)
    return "".join(f"{name}={value}\n" for name, value in hook_environment(folder, environ).items())


def examine_kit(kit: Path, python: str) -> tuple[str, int]:
    """Run the kit's own doctor under `python` and return what it prints, and 1 where a line fails.

    Raises UnreadableError where `kit` is none or `python` cannot be run.
    """
    script = kit.absolute() / INJECT_FOLDER / "_precdiag_doctor.py"
    if not script.is_file():
        raise UnreadableError(f"{kit}: no kit", hint="collect --prepare KIT --side SIDE writes one")
    try:
        run = subprocess.run([python, str(script), str(kit.absolute())], stdout=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise UnreadableError(f"{python}: {error.strerror}", hint="name the interpreter that trains") from error
    return run.stdout, run.returncode


def usage(kit: Path) -> str:
    """Return the lines that use a kit from each kind of launcher; `kit` is where it stands there."""
    return _USAGE.format(kit=kit)


_USAGE = """\
# {kit}: the kit's path where the training runs (it works from any folder).
# What is collected goes into it, or into PRECDIAG_OUT if that is set: one folder
# that all nodes share, or one a node.

# What will the hook find in the training image? (its own Python, nothing else)
python {kit}/inject/_precdiag_doctor.py {kit}

# shell script, before the training starts
export PRECDIAG_SESSION={kit}
export PYTHONPATH={kit}/inject${{PYTHONPATH:+:$PYTHONPATH}}

# torchrun: its workers inherit both
torchrun --nproc_per_node 8 train.py

# srun
srun --export=ALL,PRECDIAG_SESSION={kit},PYTHONPATH={kit}/inject \\
  python train.py

# mpirun
mpirun -x PRECDIAG_SESSION={kit} -x PYTHONPATH={kit}/inject \\
  python train.py

# Dockerfile
ENV PRECDIAG_SESSION={kit} PYTHONPATH={kit}/inject

# Kubernetes manifest, under the container
env:
  - {{name: PRECDIAG_SESSION, value: {kit}}}
  - {{name: PYTHONPATH, value: {kit}/inject}}

# ModelArts: the training job's environment variables
PRECDIAG_SESSION={kit}
PYTHONPATH={kit}/inject

# Ray: its workers do not inherit the driver's environment
ray.init(runtime_env={{"env_vars": {{
    "PRECDIAG_SESSION": "{kit}", "PYTHONPATH": "{kit}/inject"}}}})

# Afterwards, where precdiag is installed; DIR is the kit, or each PRECDIAG_OUT
precdiag collect --out RUN --verify DIR…
"""
