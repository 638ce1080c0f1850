# Thin: every target is a script or a preset that can be run by itself.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-all test-torch cross fuzz check format clean uninstall
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
export PYTHON
PRESET ?= release
BUILD := build/$(PRESET)
# Nothing is written outside this folder: the compiler cache neither.
export CCACHE_DIR ?= $(CURDIR)/.cache/ccache

help: ## This list
	@echo 'opfuse speeds up a PyTorch training script from outside. Start with: make demo'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'
	@echo
	@echo 'Settings: PYTHON=python3.12   TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu   PIP_INDEX_URL=...'
	@echo 'Everything stays in this folder, Debian packages apart. More: docs/building.md'

setup: ## Say what is missing and install it: Debian packages, .venv, PyTorch
	@tools/bootstrap.sh

build: setup ## Build the program, libopfuse_torch.so and libopfuse_ops.so
	@tools/build.sh $(PRESET) opfuse opfuse_torch opfuse_torch_ops

demo: build ## Tune EfficientNet-B0 training and prove it: a few minutes, quick the second time
	@if [ -x tools/demo.sh ]; then tools/demo.sh; \
	else echo 'make demo: expected tools/demo.sh, found none' >&2; exit 1; fi

test: ## All tests: C++, then Python and the browser; half an hour on 2 cores
	@tools/bootstrap.sh test
	@tools/build.sh $(PRESET) all
	@tools/test.sh $(PRESET)

test-all: ## The tests, convergence too, the C++ tests again under the sanitizers, and fuzzing
	@OPFUSE_TEST_ALL=1 $(MAKE) test
	@tools/build.sh asan all
	@ctest --preset asan --progress
	@if command -v clang++ >/dev/null; then tools/fuzz.sh; \
	else echo 'make test-all: no clang++, so the readers of trace files are not fuzzed'; fi

cross: ## Cross-compile the core for aarch64 and run its tests under qemu-user: many minutes
	@tools/cross_aarch64.sh

test-torch: ## Build against another torch, VERSION=2.14.1, and run the quick tests there
	@tools/test_torch.sh $(VERSION)

fuzz: ## Fuzz each reader of trace files for 10 minutes (clang++)
	@tools/fuzz.sh

check: ## What is not a test: layers, format, paths of this machine
	@tools/bootstrap.sh check
	@.venv/bin/python tools/check_layers.py
	@.venv/bin/python tools/check_paths.py
	@tools/check_format.sh

format: ## Format C++ and Python as `make check` wants them
	@tools/bootstrap.sh check
	@tools/check_format.sh --fix

clean: ## Remove what was built and what the demo wrote
	rm -rf build dist examples/imagenet/.work .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

uninstall: clean ## Remove .venv, caches and the fetched model source; name the Debian packages
	@if [ -s .cache/apt-installed.txt ]; then \
	  echo 'Debian packages that were installed for this folder; remove them if nothing else needs them:'; \
	  echo "  apt-get remove $$(sort -u .cache/apt-installed.txt | tr '\n' ' ')"; fi
	rm -rf .venv .cache examples/imagenet/efficientnet_pytorch
