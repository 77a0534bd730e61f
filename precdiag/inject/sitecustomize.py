"""Start the collection hook where PRECDIAG_SESSION asks for it, then run the sitecustomize that this file shadows.

Standard library only, Python 3.8 syntax: the training interpreter is not ours. Nothing raised by the hook leaves
this file: site.py would print it and the program would go on uninstrumented, or (SystemExit) end.
"""

import os
import sys


def _start_hook():
    if not os.environ.get("PRECDIAG_SESSION"):
        return
    try:
        import _precdiag_hook

        _precdiag_hook.install()
    except BaseException as error:
        sys.stderr.write(f"precdiag: the hook did not start: {type(error).__name__}: {error}\n")


def _run_shadowed():
    """Import the next `sitecustomize` on sys.path, with this folder out of the way by index: the user's edits stay."""
    here = os.path.dirname(os.path.abspath(__file__))
    index = next((i for i, entry in enumerate(sys.path) if entry and os.path.abspath(entry) == here), None)
    if index is None:
        return
    entry = sys.path.pop(index)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.path.insert(min(index, len(sys.path)), entry)
        if ours is not None:
            # importlib takes the entry out of sys.modules again when this module has run: one must be there.
            sys.modules.setdefault("sitecustomize", ours)


_start_hook()
_run_shadowed()
