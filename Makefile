# `make demo` and `make test` do all their set-up. Variables to override:
#   PYTHON    the interpreter that makes the environment (3.11 or newer)
#   VENV      where the environment goes
#   PIP_ARGS  more arguments for pip, such as an index of your own
#   PYTEST_ARGS  more arguments for pytest, such as -k search
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=

BIN = $(abspath $(VENV))/bin
# A stamp is touched after its install came through, so a killed install is done again.
RUN_STAMP = $(VENV)/.installed
DEV_STAMP = $(VENV)/.installed-dev
PIP_INSTALL = "$(BIN)/python" -m pip install $(PIP_ARGS) -c constraints.txt
IN_VENV = PATH="$(BIN):$$PATH"

.PHONY: help demo test test-fast check format docs venv venv-dev clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       install, then train, export, quantize and compare a small translator"
	@echo "make test       install, then run the tests"
	@echo "make test-fast  the same without the tests that take more than some seconds"
	@echo "make check      lint, formatting, types, import contracts"
	@echo "make format     let ruff put the formatting right"
	@echo "make docs       write docs/cli.md again"
	@echo "make venv       only install"
	@echo "make clean      remove the environment, build/ and caches"

demo: $(RUN_STAMP)
	$(IN_VENV) python -m export build --int8

test: $(DEV_STAMP)
	$(IN_VENV) python -m pytest $(PYTEST_ARGS)

test-fast: $(DEV_STAMP)
	$(IN_VENV) python -m pytest -m "not slow" $(PYTEST_ARGS)

check: $(DEV_STAMP)
	$(IN_VENV) ruff check .
	$(IN_VENV) ruff format --check .
	$(IN_VENV) mypy
	$(IN_VENV) lint-imports

format: $(DEV_STAMP)
	$(IN_VENV) ruff check --fix .
	$(IN_VENV) ruff format .

docs: $(DEV_STAMP)
	$(IN_VENV) python docs/make_cli.py

venv: $(RUN_STAMP)

venv-dev: $(DEV_STAMP)

$(RUN_STAMP): pyproject.toml constraints.txt $(wildcard runtime/native/*)
	@"$(PYTHON)" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "leanseq needs Python 3.11 or newer, found " + sys.version.split()[0] + "; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@rm -f "$(RUN_STAMP)" "$(DEV_STAMP)"
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP_INSTALL) -e '.[cpu,train]'
	@touch "$(RUN_STAMP)"

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP_INSTALL) -e '.[cpu,train,dev,trt-rtx]'
	@touch "$(DEV_STAMP)"

clean:
	rm -rf "$(VENV)" build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
