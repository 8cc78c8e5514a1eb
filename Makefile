# Everything a person or CI does, one word each. Nothing but Python 3.11+ with venv is needed beforehand.
#   make run            set up, start, send one request from zero, keep serving (PORT=9000, ONCE=1)
#   make test           set up and pass every test (ARGS="-k ingress" for some, TESTERS=0 for one after the other)
#   make e2e            the whole platform on a real Knative: the kit beside the checkout, or KUBECONFIG's cluster; SKIPPED without
#   make check          lint, format and types
#   make bench          the measured tables of bench/
#   make fuzz           a million broken requests, and half an hour of schemathesis (FUZZ=100000 for fewer)
#   make build          the wheel
#   make images         the functions' images, with docker or buildah, and their sizes (ARGS=--cuda for that one)
# The system's before one that was compiled here: distributions let the compiler go by a profile of Python, pyenv does
# not by itself, and what a request takes of Python is then a fifth to a third longer (bench/README.md).
PYTHON ?= $(shell for each in /usr/bin/python3.11 python3.11; do \
  if $$each -c 'import ensurepip' 2>/dev/null; then command -v $$each && exit; fi; done; command -v python3)
VENV   ?= .venv
PORT   ?= 8080
BIN    := $(VENV)/bin
# Test files that run at a time: most wait for processes, not for a core.
TESTERS ?= 4
KERNELS := $(wildcard functions/sie_bundle/engine/kernels/*.h functions/sie_bundle/engine/kernels/*.cpp tests/bundle/*.h)
C_STYLE := --style=file:functions/sie_bundle/engine/kernels/.clang-format
MODEL  := sentence-transformers/all-MiniLM-L6-v2

# torch from PyPI brings several GB of CUDA packages. Without an NVIDIA driver its CPU index is used where it is reached;
# TORCH_INDEX= (empty) or TORCH_INDEX=URL overrides.
CPU_INDEX := https://download.pytorch.org/whl/cpu
ifndef TORCH_INDEX
TORCH_INDEX := $(shell command -v nvidia-smi >/dev/null 2>&1 || \
  { curl -sfI --max-time 3 $(CPU_INDEX)/torch/ >/dev/null 2>&1 && echo $(CPU_INDEX); })
endif
PIP := $(BIN)/python -m pip install -q -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: install run test e2e check format bench fuzz build images clean
.DELETE_ON_ERROR:

install: $(VENV)/.local

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing sie-knative into $(VENV) (torch is about 200 MB) ..."
	$(PIP) -e '.[local]'
	@echo "Kernels for this CPU:" && $(BIN)/python -m sie_bundle.compiling
	@touch $@

$(VENV)/.dev: $(VENV)/.local
	$(PIP) -e '.[local,dev]'
	@touch $@

run: $(VENV)/.local
	@$(BIN)/sie fetch $(MODEL)
	@$(BIN)/sie tour --port $(PORT) $(if $(ONCE),--once) $(if $(STATE),--state $(STATE))

test: $(VENV)/.dev
	@$(BIN)/sie fetch $(MODEL)
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadfile $(ARGS)

e2e: $(VENV)/.dev
	@$(BIN)/sie fetch $(MODEL)
	@$(BIN)/python -m tests.cluster $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format $(C_STYLE) --dry-run -Werror $(KERNELS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format $(C_STYLE) -i $(KERNELS)

bench: $(VENV)/.dev
	@$(BIN)/sie fetch $(MODEL)
	$(BIN)/python -m bench $(ARGS)

FUZZ ?= 1000000
fuzz: $(VENV)/.dev
	SIE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/fuzz tests/e2e/test_openapi.py --timeout 0 $(ARGS)

build: $(VENV)/.dev
	$(BIN)/python -m pip wheel -q --no-deps --wheel-dir dist .

images:
	@$(PYTHON) knative/images/build.py $(ARGS)

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache
