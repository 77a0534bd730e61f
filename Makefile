# Each target sets up its own .venv first: a fresh machine needs only make and Python >= 3.10 with pip.
#   make demo         plant a fault, dump both sides with the real msprobe, name the fault
#   make test         everything that CI holds: the checks, then the suite
#   make check        lint, format, types, import contracts
#   make bench        measure precdiag beside msprobe (an hour on two cores; BENCH="--only tensors" for a part)
#   make completions  write the shells' completion scripts anew
# Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check completions bench

demo: $(READY)
	@$(BIN)/python -m precdiag demo

test: check
	@$(BIN)/python -m pytest -n 2

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)
	@$(BIN)/python benchmarks/bench.py $(BENCH)

completions: $(READY)
	@$(BIN)/python completions/generate.py

# Debian and Ubuntu ship ensurepip in a package of its own (python3-venv); pip can fill a .venv from outside.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("precdiag needs Python 3.10 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" % v[:2])'
	@echo "setting up .venv (some minutes, once)"
	@if "$(PYTHON)" -c 'import ensurepip' 2>/dev/null; then "$(PYTHON)" -m venv .venv; else \
	  "$(PYTHON)" -m venv --without-pip .venv && "$(PYTHON)" -m pip --python $(BIN)/python install -qq pip; fi
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,collect,ray]'
	@touch $@
