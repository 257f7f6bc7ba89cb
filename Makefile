# The two commands: `make demo` and `make test`. Both are idempotent.
PYTHON ?= python3
BIN := .venv/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
KIT_PIP := PIP_CONSTRAINT="constraints.txt tests/mergekit/constraints.txt" \
	.venv-mergekit/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test docs fuzz test-mergekit test-browser install install-test install-mergekit
.PHONY: install-browser lint types clean

demo: install
	$(BIN)/harness demo --out demo

test: install-test lint types
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# The page of all public names, from their docstrings.
docs: install
	$(BIN)/python docs/api.py

# Ten thousand spoilt files, and two hundred runs that are killed: half an hour.
fuzz: install-test
	$(BIN)/python -m tests.fuzz --count 10000
	$(BIN)/python -m tests.crash --kills 200

# Against the real mergekit, in an environment of its own.
test-mergekit: install-test install-mergekit
	HARNESS_MERGEKIT=.venv-mergekit $(BIN)/python -m pytest -m mergekit tests/mergekit

# The page of a board in the system's Chromium, where there is one; Playwright in an environment of
# its own. Screenshots in both themes and at phone width go to screenshots/.
test-browser: install-test
	@if command -v chromium > /dev/null; then $(MAKE) --no-print-directory run-browser; \
	else echo "no chromium: the browser tests are skipped"; fi

.PHONY: run-browser
run-browser: install-browser
	HARNESS_BROWSER=.venv-browser HARNESS_SCREENSHOTS=screenshots \
		$(BIN)/python -m pytest -m browser tests/browser

install: .venv/.installed
install-test: .venv/.installed-test
install-mergekit: .venv-mergekit/.installed
install-browser: .venv-browser/.installed

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

.venv-mergekit/.installed: constraints.txt tests/mergekit/constraints.txt
	$(PYTHON) -m venv .venv-mergekit
	$(KIT_PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(KIT_PIP) mergekit
	touch $@

.venv-browser/.installed: tests/browser/constraints.txt
	$(PYTHON) -m venv .venv-browser
	PIP_CONSTRAINT=tests/browser/constraints.txt .venv-browser/bin/python -m pip install \
		--quiet --disable-pip-version-check playwright
	touch $@

clean:
	rm -rf .venv .venv-mergekit .venv-browser demo screenshots
