# The two commands: `make demo` and `make test`. Both are idempotent.
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP := PIP_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check
KIT_PIP := PIP_CONSTRAINT="constraints.txt tests/mergekit/constraints.txt" \
	.venv-mergekit/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-fast test-pythons test-lowest test-studies test-designs docs fuzz simulate test-mergekit test-browser test-tex test-slurm install install-test install-mergekit
.PHONY: install-browser lint types clean

demo: install
	$(BIN)/harness demo --out $(DEMO)

test: install-test lint types
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# Every study of leaderboards on made-up rows: is every board made, and all of it?
test-studies: install-test
	rm -rf reproduced-toy
	$(BIN)/python leaderboards/toy.py reproduced-toy

# Every design of a paper on made-up rows.
test-designs: install-test
	$(BIN)/python -m pytest -m designs --numprocesses auto tests/test_designs.py

# The install, the demo and the fast tests on every one of these that is there, each in an environment
# of its own. For pyenv: PYENV_VERSION=3.10.13:3.13.0 make test-pythons
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
test-pythons:
	@tried=; failed=; \
	for python in $(PYTHONS); do \
		$$python -c '' 2> /dev/null || { echo "$$python is not here"; continue; }; \
		tried="$$tried $$python"; venv=.venv-$${python##*/}; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=$$venv DEMO=$$venv/demo demo test-fast \
			|| failed="$$failed $$python"; \
	done; \
	echo "tried:$${tried:- none}; failed:$${failed:- none}"; \
	[ -n "$$tried" ] && [ -z "$$failed" ]

# What another Python, or the versions of libraries that it takes, breaks: imports, the command line,
# files of every format, arrays, tokenizers, training, a merge from folder to folder, pictures, and what
# transformers calls the tensors of its models. Properties and agreement of methods are the same
# arithmetic everywhere.
FAST := $(addprefix tests/test_,$(addsuffix .py,architecture checkpoints clip console data decoders \
	demo embeddings encoders evaluate exports families figures images_generic metrics merging \
	own_tasks plugins settings t5 tasks verbalizer vit weights wheel))
test-fast: install-test
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal $(FAST)

# The oldest releases that pyproject.toml allows, as an environment that has been in use holds them; of
# torch the pinned one. What they warn of is no fault.
test-lowest: LOWEST := .venv-lowest.txt
test-lowest:
	(sed -n 's/^  "\(.*\)>=\(.*\)",$$/\1==\2/p' pyproject.toml | grep -v '^torch=='; \
		grep '^torch==' constraints.txt) > $(LOWEST)
	$(MAKE) --no-print-directory VENV=.venv-lowest CONSTRAINTS=$(LOWEST) install-test
	.venv-lowest/bin/harness demo --out .venv-lowest/demo
	.venv-lowest/bin/python -m pytest --numprocesses auto --maxprocesses 8 -o filterwarnings= $(FAST)

# The page of all public names, from their docstrings, and what methods.md has of each method.
docs: install
	$(BIN)/python docs/api.py
	$(BIN)/python docs/methods.py

# Ten thousand spoilt files, and two hundred runs of every kind and as many of a study that are killed:
# half an hour, seven minutes for the study, and half an hour with workers of its own.
fuzz: install-test
	$(BIN)/python -m tests.fuzz --count 10000
	$(BIN)/python -m tests.crash --kills 200
	$(BIN)/python -m tests.crash --kills 200 --case "study run"
	$(BIN)/python -m tests.crash --kills 20 --case "study run --jobs 2"

# Intervals and tests where the truth is known, 4,000 times each: the table of docs/statistics.md, in
# ten minutes.
simulate: install-test
	$(BIN)/python -m tests.simulations

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

# Boards, those of made-up records and all committed ones, set by the system's pdflatex; skipped with a
# reason where there is none (Debian's: texlive-latex-base and texlive-latex-recommended).
test-tex: install-test
	$(BIN)/python -m pytest -m tex tests/test_latex.py

# A study as arrays of a real Slurm, which is started for the tests and taken down after them; skipped
# with a reason where none is installed (Debian's: apt-get install --no-install-recommends slurm-wlm
# munge), or who runs it is not root.
test-slurm: install-test
	$(BIN)/python -m pytest -m slurm tests/slurm

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test
install-mergekit: .venv-mergekit/.installed
install-browser: .venv-browser/.installed

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

# pip comes first: the one that Python 3.10 brings cannot build seqeval, which has no wheel. Then
# torch, pinned: a range would take a build with several gigabytes of CUDA where a plain CPU build of
# the pinned version is at hand.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	touch $@

.venv-mergekit/.installed: constraints.txt tests/mergekit/constraints.txt
	$(PYTHON) -m venv .venv-mergekit
	$(KIT_PIP) --upgrade pip
	$(KIT_PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(KIT_PIP) mergekit
	touch $@

.venv-browser/.installed: tests/browser/constraints.txt
	$(PYTHON) -m venv .venv-browser
	PIP_CONSTRAINT=tests/browser/constraints.txt .venv-browser/bin/python -m pip install \
		--quiet --disable-pip-version-check playwright
	touch $@

clean:
	rm -rf .venv .venv-* demo screenshots reproduced-toy
