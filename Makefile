# `make lab` opens the course, `make test` runs everything that CI runs. Both make the environment .venv first.
# PYTHON=...    the Python (3.11 or newer) to build .venv with; looked for when not given
# CHROMIUM=...  the browser for `make test`; looked for when not given
# ARGS=...      options handed on to JupyterLab: make lab ARGS="--no-browser --port=8899"

SHELL := /bin/sh
PYTHON ?=
CHROMIUM ?=
ARGS ?=

venv := .venv/bin/python
# One thread a process: two of them run at a time, and small problems are slower with two threads each.
tested := PATH="$(CURDIR)/.venv/bin:$$PATH" OMP_NUM_THREADS=1 $(venv)
pytest := $(tested) -m pytest -q
notebooks := --nbval-lax --nbval-current-env --nbval-cell-timeout=120 -n 2 --dist loadfile
# An environment whose Python is gone, or that was made for a clone elsewhere, is made again.
usable := $(shell $(venv) -P -c 'import os, labkit as l; print(os.path.samefile(l.__file__, "labkit/__init__.py"))' 2>/dev/null)

# Packages are installed uncompiled, which halves the time; Python then keeps what it compiles on first use.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lab test lessons verify bench picture clean rebuild
.DELETE_ON_ERROR:

help:
	@echo "make lab       open JupyterLab on the first lesson"
	@echo "make test      run every test: style, notebooks, units, panels, browser (a few minutes)"
	@echo "make lessons   make lessons/ anew from solutions/"
	@echo "make verify    reproduce the numbers of the theory notes (minutes; goes on where it was stopped)"
	@echo "make bench     time the panels and the solvers (goes on where it was stopped; ARGS=--anew starts afresh)"
	@echo "make picture   make the picture of README.md anew"
	@echo "make clean     remove .venv and what tests leave behind"

lab: .venv/ready
	@echo "==> opening JupyterLab on the first lesson (Ctrl-C here ends it)"
	@$(venv) -m labkit.course.command lab $(ARGS)

test: .venv/ready
	@CHROMIUM="$(CHROMIUM)"; \
	for name in chromium chromium-browser google-chrome; do \
	  [ -n "$$CHROMIUM" ] || CHROMIUM=$$(command -v $$name || true); \
	done; \
	if ! CHROMIUM=$$(command -v "$$CHROMIUM"); then \
	  echo "The tests need the browser Chromium: install it (Debian and Ubuntu: apt-get install chromium) or say make test CHROMIUM=/path/to/it" >&2; exit 1; \
	fi; \
	export CHROMIUM; set -e; \
	echo "==> style: ruff";                          $(venv) -m ruff check .; $(venv) -m ruff format --check .; \
	echo "==> lessons/ agree with solutions/";       $(venv) -m labkit.course.command build --check; \
	echo "==> units and examples";                   $(pytest) -n 2 --dist loadfile $(units); \
	echo "==> panels and browser, one at a time";    $(pytest) $(serial); \
	echo "==> every lesson runs as it is handed out"; LABKIT_PROFILE=quick $(pytest) $(notebooks) lessons; \
	echo "==> every solution solves its exercises";  LABKIT_PROFILE=quick LABKIT_STRICT=1 $(pytest) $(notebooks) solutions; \
	echo "==> all tests passed"

serial := tests/lessons tests/browser
units := labkit tests --ignore=tests/lessons --ignore=tests/browser --ignore=tests/benchmarks

lessons: .venv/ready
	@$(venv) -m labkit.course.command build

verify: .venv/ready
	@echo "==> reproducing the numbers that the course relies on (each run is kept: stop and go on at will)"
	@$(tested) -m tests.verify $(ARGS)

bench: .venv/ready
	@echo "==> timing, on one thread (about three minutes; leave the computer alone meanwhile)"
	@$(tested) -m tests.benchmarks $(ARGS)

picture: .venv/ready
	@$(tested) -m labkit.course.command picture

clean:
	rm -rf .venv .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: an installation that failed half-way is tried again. A torch that is already in .venv is
# kept when its version fits, whatever its build. torch goes first and alone: asked for by another package, without a
# version, it may bring a CUDA build of several GB.
.venv/ready: pyproject.toml constraints.txt $(if $(findstring True,$(usable)),,rebuild)
	@rm -f $@; python="$(PYTHON)"; \
	if ! { $(venv) -m pip --version && $(venv) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; } >/dev/null 2>&1; then \
	  old=; bare=; \
	  for name in $${python:-python3.11 python3.12 python3.13 python3.14 python3 python}; do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { old=$$name; continue; }; \
	    "$$name" -c 'import ensurepip, venv' >/dev/null 2>&1 || { bare=$$name; continue; }; \
	    found=$$name; break; \
	  done; \
	  if [ -z "$$found" ] && [ -n "$$bare" ]; then \
	    echo "The course needs the venv module of Python, and $$bare lacks it: install it (Debian and Ubuntu: apt-get install python3-venv) and try again." >&2; exit 1; \
	  elif [ -z "$$found" ]; then \
	    echo "The course needs Python 3.11 or newer, and $${python:+$$python is not one}$${python:-none was found}: install it from python.org or say make PYTHON=/path/to/python3.11" >&2; exit 1; \
	  fi; \
	  echo "==> creating .venv with $$found (with the packages: a minute or more, 1.6 GB)"; \
	  rm -rf .venv; "$$found" -m venv .venv || exit 1; \
	fi; \
	install() { \
	  echo "==> installing $$1"; shift; \
	  $(venv) -m pip install --no-compile --disable-pip-version-check $$([ -t 1 ] || echo -q) "$$@" 2>.venv/errors.log && return; \
	  if grep -qE 'NewConnection|NameResolution|Temporary failure|ConnectTimeout|ReadTimeout|ProxyError|Network is unreachable' .venv/errors.log; then \
	    echo "The packages could not be downloaded: connect this computer to the internet and try again." >&2; \
	  else \
	    echo "The packages could not be installed: $$(grep ERROR .venv/errors.log | tail -1) (all messages: .venv/errors.log)" >&2; \
	  fi; exit 1; \
	}; \
	install "$$(grep ^torch= constraints.txt)" "$$(grep ^torch= constraints.txt)" && \
	install "labkit and what it needs" -e ".[test]" -c constraints.txt && \
	touch $@
