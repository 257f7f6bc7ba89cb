# The two commands: `make demo` and `make test`. Both are idempotent.
PYTHON ?= python3
BIN := .venv/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test install install-test lint types clean

demo: install
	$(BIN)/harness demo --out demo

test: install-test lint types
	$(BIN)/python -m pytest

install: .venv/.installed
install-test: .venv/.installed-test

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

# torch comes first and pinned: a range would take a build with several gigabytes of CUDA where a
# plain CPU build of the pinned version is at hand.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) --editable .
	touch $@

.venv/.installed-test: .venv/.installed
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf .venv demo
