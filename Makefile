# `make` lists the targets. They need Python 3.11 or 3.12 with venv and pip, make and git, and install into .venv.

.DEFAULT_GOAL := help

# The first Python that fits; PYTHON=<path> names another.
fits := 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))'
PYTHON ?= $(firstword $(foreach name,python3 python3.12 python3.11,$(shell $(name) -c $(fits) 2>/dev/null && echo $(name))))
EXTRAS ?= dev
EXPERIMENT ?= embodied
ALGORITHM ?=
SEED ?=
ARGS ?=
ONLY ?=

BIN := .venv/bin
INSTALLED := .venv/installed-$(EXTRAS)
# Pytest keeps the rewritten tests for the other process and the next call, also where nothing else keeps bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Files start in the order of their paths: the longest, which are those of tests/chaos, first, and not at the end alone.
FILES := --dist loadfile --no-loadscope-reorder
# While a run starts and ends it leaves one of two cores idle.
TWO_AT_ONCE := $(FILES) --numprocesses 2
# A unit test waits for a third of its time: for processes that it starts, for limits of time and for disks.
THREE_AT_ONCE := $(FILES) --numprocesses 3
# A busy machine may be too slow for a limit of time, or end a server that tests share. Such a test runs once more, and
# the summary names it.
BUSY := TimeoutExpired TimeoutError pytest-timeout not.over.after nothing.answers.there did.not.answer
ONCE_MORE := --reruns 1 -r aR $(foreach sign,$(BUSY),--only-rerun $(sign))

.PHONY: help install run up down test test-all slow chaos bench lint clean rendering

help:  ## list the targets
	@echo 'Targets; all but help, down and clean install what is missing:'
	@sed -n "s/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p" $(MAKEFILE_LIST) | expand -t 20
	@echo 'For example: make run EXPERIMENT=push SEED=3 ARGS="iterations=5 trainer.epochs=2"'

install: $(INSTALLED)  ## install into .venv; EXTRAS=dev,libero adds extras

run: install  ## run an experiment on a local Ray and Prefect, show the result, stop everything
	@$(BIN)/embodyflow run --experiment $(EXPERIMENT) $(if $(SEED),--seed $(SEED)) \
		$(if $(ALGORITHM),algorithm=$(ALGORITHM)) $(ARGS)

up: install  ## start the local stack: Ray, Prefect server, Prefect worker, deployments
	@$(BIN)/embodyflow up $(ARGS)

down:  ## stop the local stack
	@$(BIN)/embodyflow down

test: install  ## run the unit tests and a slice of the integration tests, eight minutes on two cores
	$(PYTEST) tests/unit -m "not slow and not gpu" $(THREE_AT_ONCE)
	$(PYTEST) tests/chaos tests/integration -m "core and not slow and not gpu" $(TWO_AT_ONCE) $(ONCE_MORE)

test-all: install  ## run the integration and chaos tests that `make test` leaves out
	$(PYTEST) tests/chaos tests/integration -m "not core and not slow and not gpu" $(TWO_AT_ONCE) \
		$(ONCE_MORE) --durations=12

slow: install  ## run the tests that CI leaves out, about an hour and a half
	$(PYTEST) tests/unit tests/integration -m "slow and not gpu" $(TWO_AT_ONCE)

chaos: install  ## kill every part of a run at every node: 260 tests, about two hours on two cores
	$(PYTEST) tests/chaos --numprocesses 2

bench: install  ## compare speed with peers, at most 20 minutes; ONLY="vector_env planning" runs some of it
	@$(BIN)/python -m benchmarks.suite $(if $(ONLY),--only $(ONLY))

lint: install  ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: docs
docs: install  ## build the documentation into site/, strictly: no dead link, no undocumented key
	$(BIN)/python -m docs.generator
	$(BIN)/zensical build --strict
	$(BIN)/python -m docs.generator.links

clean:  ## stop the stack and remove everything that was installed or built
	-@$(BIN)/embodyflow down
	rm -rf .venv .embodyflow build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- Installing -----------------------------------------------------------------------------------------------------
#
# Which build of torch? With an NVIDIA GPU, the index's own (CUDA). Without, a CPU build where an index or find-links
# of pip's configuration has one (2.13.0+cpu counts as newer than 2.13.0), else whatever suits this machine's driver
# by uv's own knowledge of PyTorch's indexes, else the index's own, which works without a GPU but is large.
# `make install TORCH_INDEX=<address>` adds an index that has the build you want. TORCH_BACKEND is uv's name for one of
# PyTorch's builds, such as cpu or cu130, for images that are built on another machine than they run on.
TORCH_INDEX ?=
TORCH_BACKEND ?= auto
GPU := $(if $(filter auto,$(TORCH_BACKEND)),$(shell nvidia-smi -L 2>/dev/null | head -1),$(filter cu%,$(TORCH_BACKEND)))

# uv resolves our pyproject.toml's [tool.uv], which pip cannot, but it does not read pip's configuration. Whoever has
# set up pip on this machine has said where packages come from: that is handed on.
pip_option = $(or $(PIP_$2),$(shell $(PYTHON) -m pip config list 2>/dev/null \
	| sed -n "s/^\(global\|install\)\.$1='\(.*\)'$$/\2/p" | sed 's/\\n/ /g' | tail -1))
# pip takes a second to answer, so a variable asks it at its first use alone.
once = $(eval $1 := $$(strip $2))$($1)
find_links = $(call once,find_links,$$(call pip_option,find-links,FIND_LINKS))
default_index = $(call once,default_index,$$(call pip_option,index-url,INDEX_URL))
more_indexes = $(call once,more_indexes,$$(TORCH_INDEX) $$(call pip_option,extra-index-url,EXTRA_INDEX_URL))
certificates = $(call once,certificates,$$(call pip_option,cert,CERT))
# pip takes the best version of all indexes; uv by default the first index that has the package.
uv_settings = UV_INDEX_STRATEGY=unsafe-best-match $(if $(find_links),UV_FIND_LINKS="$(find_links)") \
	$(if $(default_index),UV_DEFAULT_INDEX="$(default_index)") $(if $(more_indexes),UV_INDEX="$(more_indexes)") \
	$(if $(certificates),SSL_CERT_FILE="$(certificates)")

# Compiling all bytecode now makes every process of a run start in half the time. uv's option leaves out this folder's
# packages, and where PYTHONDONTWRITEBYTECODE is set no process keeps what it compiles.
OWN := embodyflow flows pipelines tasks envs deployments
uv_install = $(uv_settings) $(BIN)/uv pip install --python $(BIN)/python --compile-bytecode \
	-c constraints.txt $(if $(GPU),'torch!=2.13.0+cpu',$(if $(TORCH_INDEX),,--override overrides-cpu.txt)) -e '.[$(EXTRAS)]'

# With nothing configured, uv is asked for the build of this machine; without a way to PyTorch's index, PyPI's does.
configured = $(strip $(find_links)$(default_index)$(more_indexes))
install_packages = $(if $(configured),$(uv_install),UV_TORCH_BACKEND=$(TORCH_BACKEND) $(uv_install) || { \
	echo "note: PyTorch's own index is out of reach: the default index's build of torch then"; $(uv_install); })

$(INSTALLED): pyproject.toml constraints.txt overrides-cpu.txt | rendering
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed; PYTHON=<path> says where it is"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt uv
	@$(install_packages)
	$(BIN)/python -m compileall -q $(OWN)
	@touch '$@'

# MuJoCo draws episode videos through the first three, Graphviz draws graphs; nothing else needs them.
RENDERING := libegl1 libgles2 libgl1 graphviz
rendering:
	@if ! command -v dpkg >/dev/null || dpkg -s $(RENDERING) >/dev/null 2>&1; then exit 0; fi; \
	packages="$(RENDERING)"; \
	if [ "$$(id -u)" = 0 ]; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $$packages >/dev/null && exit 0; \
	fi; \
	echo "note: no episode videos and no drawn graphs until root runs: apt-get install $$packages"
