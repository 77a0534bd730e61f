"""precdiag: name the first call that computed something else when a PyTorch model moves to an Ascend NPU."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("precdiag")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
