"""Say what the hook will find in this interpreter: `python KIT/inject/_precdiag_doctor.py [KIT]`.

Standard library only, Python 3.8 syntax; imports neither torch nor msprobe. Exits 1 where a line fails.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import _precdiag_probe
import _precdiag_session

# msprobe's FileChecker (FILE_VALID_PATTERN) refuses every other character.
REFUSED = re.compile(r"[^a-zA-Z0-9_.:/-]")


def examine(kit):
    """Yield (ok | warn | fail, name, what was found, what to do)."""
    yield "ok", "python", "{}.{}.{}, {}".format(*sys.version_info[:3], sys.executable), ""
    yield from _session(kit)
    yield _variables(kit)
    yield _flags()
    yield _sitecustomize(kit)
    yield _module("torch")
    problem = _precdiag_probe.package_problem()
    yield "fail" if problem else "ok", "msprobe", problem or str(_precdiag_probe.package_version()), ""
    if _spec("ray"):
        yield "warn", "ray", "installed", "its workers do not inherit the driver's environment: use runtime_env"


def _session(kit):
    try:
        session = _precdiag_session.load(kit)
    except (OSError, ValueError) as error:
        yield "fail", "session", str(error), "is this a kit that collect --prepare wrote?"
        return
    window = session.steps or f"iterations {session.iterations}"
    yield "ok", "session", f"{session.side}, step {window}, {session.level} {session.task}", ""
    refused = sorted(set(REFUSED.findall(session.dump)))
    if refused:
        yield "fail", "path", f"msprobe refuses {refused!r} in {session.dump}", "set PRECDIAG_OUT"
    there = session.out
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if os.access(there, os.W_OK):
        yield "ok", "out", session.out, ""
    else:
        yield "fail", "out", f"{there} cannot be written", "set PRECDIAG_OUT to a folder that can"


def _variables(kit):
    inject = os.path.join(kit, "inject")
    entries = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    missing = [] if os.environ.get("PRECDIAG_SESSION") == kit else [f"PRECDIAG_SESSION={kit}"]
    missing += [] if inject in entries else [f"PYTHONPATH={inject}"]
    if missing:
        return "warn", "variables", "not set here: {}".format(" ".join(missing)), "the training needs them"
    return "ok", "variables", "PRECDIAG_SESSION and PYTHONPATH", ""


def _flags():
    if sys.flags.ignore_environment or sys.flags.no_site:
        return "fail", "flags", "-I, -E or -S: no variable reaches this interpreter", "leave them out"
    return "ok", "flags", "none that keep the hook out", ""


def _sitecustomize(kit):
    ours = os.path.join(kit, "inject")
    entries = [os.path.abspath(each) for each in sys.path[2:] if each]  # behind what this script put there itself
    found = [each for each in entries if os.path.isfile(os.path.join(each, "sitecustomize.py"))]
    if ours in found[1:]:
        return "fail", "sitecustomize", f"{found[0]} comes before ours", f"put {ours} first"
    others = [each for each in found if each != ours]
    return "ok", "sitecustomize", f"ours runs first, then {others[0]}" if others else "ours alone", ""


def _module(name):
    if not _spec(name):
        return "fail", name, "not installed for this interpreter", "is this the interpreter that trains?"
    try:
        from importlib.metadata import version

        return "ok", name, version(name), ""
    except Exception:
        return "ok", name, "installed", ""


def _spec(name):
    import importlib.util

    return importlib.util.find_spec(name)


def main():
    """Print the lines."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    kit = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else here
    failed = False
    for state, name, found, todo in examine(kit):
        failed = failed or state == "fail"
        sys.stdout.write(f"{state:<5} {name:<14} {found}\n")
        if todo and state != "ok":
            sys.stdout.write("{:20} -> {}\n".format("", todo))
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
