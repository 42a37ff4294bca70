# make reproduce   set up and run the whole laptop reproduction (preset tiny)
# make watch       in another terminal: the table of make status, live
# make status      every cell: state, step, reward, mismatch, last evaluation, lag, time spent and left
# make plan        before anything is launched: tokens, GPU-hours, wall time, memory and disk of every cell (PRESET=full)
# make test        set up what the tests need and run them
# make help        all targets
PYTHON ?= python3
VENV ?= .venv
CORES ?= $(shell getconf _NPROCESSORS_ONLN)
# SEEDS=3 and PRESET=... are passed on only where they are given; otherwise config.yaml decides
CONFIG = $(strip $(if $(PRESET),preset=$(PRESET)) $(if $(SEEDS),seeds=$(SEEDS)) $(ABLATIONS))
RUN = $(VENV)/bin/snakemake --cores $(CORES) --rerun-incomplete --keep-going --nolock --quiet=rules $(if $(CONFIG),--config $(CONFIG))
SHOWN = $(or $(PRESET),tiny)
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: help setup engines reproduce rehearse ablations report reference watch status plan doctor check test test-cluster test-slurm test-report lint bench clean

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(VENV)/.ready

$(VENV)/.ready: envs/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r envs/cpu.txt
	touch $@

$(VENV)/.ready-test: envs/test.txt $(VENV)/.ready
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r envs/test.txt
	touch $@

# --nolock: a killed run leaves no lock to remove by hand; cells are guarded by their own leases in state/
reproduce: setup
	$(RUN)
	@echo "Open results/$(SHOWN)/report.html"

# make ablations   the other uncorrected rows and the rest of the Figure-1 reading as well
ablations: ABLATIONS = ablations=true
ablations: setup
	$(RUN)

# make report      assemble the table, figures, diff and report from the cells there are, finished or not
report: setup
	$(VENV)/bin/python -m pipeline assemble --preset $(SHOWN)

# make reference   copy what results/tiny-reference shows from results/tiny (or PRESET=...)
KEPT = table1.md table1.csv diff.md diff.csv diff.json cells.csv report.md report.html
reference:
	mkdir -p results/$(SHOWN)-reference/figures
	cp $(KEPT:%=results/$(SHOWN)/%) results/$(SHOWN)-reference/
	cp results/$(SHOWN)/figures/*.png results/$(SHOWN)-reference/figures/

watch status: setup
	$(VENV)/bin/python -m pipeline $@ --preset $(SHOWN)

plan: setup
	$(VENV)/bin/python -m pipeline plan --preset $(or $(PRESET),full)

# make check       while editing: lint and the fast unit tests, half a minute
FAST = objective_advantages objective_ratios objective_parts objective_trust_region config identity rooms links records schedule
check: $(VENV)/.ready-test
	$(VENV)/bin/ruff check --quiet . && $(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/snakefmt --check Snakefile
	$(VENV)/bin/python -m pytest --numprocesses $(CORES) --dist loadgroup $(FAST:%=tests/unit/test_%.py)

test: $(VENV)/.ready-test
	$(VENV)/bin/python -m pytest --numprocesses $(CORES) --dist loadgroup

# make engines     what GPU nodes run beside the controller: SGLang, Megatron-core, Transformer Engine, lm-eval (needs CUDA 13, g++)
ENGINES = .venv-engines
CUDA ?= $(or $(CUDA_HOME),$(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc))),/usr/local/cuda)
NVIDIA = $(abspath $(ENGINES))/lib/python3.11/site-packages/nvidia
engines: $(ENGINES)/.ready

$(ENGINES)/.ready: envs/cluster-gpu.txt envs/cluster-gpu-te.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	    { echo "Python 3.11 is needed; try: make engines PYTHON=python3.11"; exit 1; }
	@printf '2.34\n%s\n' "$$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" | sort -CV || \
	    { echo "glibc 2.34 or newer is needed, here is $$(getconf GNU_LIBC_VERSION); build the image envs/cluster-gpu.def"; exit 1; }
	@test -x $(CUDA)/bin/nvcc || { echo "no $(CUDA)/bin/nvcc: load a module with CUDA 13, or see envs/cluster-gpu.yaml"; exit 1; }
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check --no-deps -r envs/cluster-gpu.txt
	CUDA_HOME=$(CUDA) CPATH=$(NVIDIA)/cudnn/include:$(NVIDIA)/nccl/include:$$CPATH MAX_JOBS=8 NVTE_NO_LOCAL_VERSION=1 \
	    NVTE_PYTORCH_FORCE_BUILD=TRUE $(ENGINES)/bin/pip install --disable-pip-version-check --no-deps --no-build-isolation \
	    -r envs/cluster-gpu-te.txt
	touch $@

# make rehearse    the cluster's engines, SGLang and Megatron-core, on this CPU: set up, train, score by lm-eval, report
CLUSTER = .venv-cluster
$(CLUSTER)/.ready: envs/cluster-cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/pip install --quiet --disable-pip-version-check --no-deps -r envs/cluster-cpu.txt
	touch $@

# one cell at a time: a server, its helpers and two ranks are enough for a few cores
rehearse: $(CLUSTER)/.ready
	OMP_NUM_THREADS=1 $(CLUSTER)/bin/snakemake --cores 1 --rerun-incomplete --nolock --quiet=rules \
	    --config preset=rehearsal $(if $(SEEDS),seeds=$(SEEDS)) $(REHEARSAL)
	$(CLUSTER)/bin/python -m pipeline sources --preset rehearsal
	$(CLUSTER)/bin/python -m pipeline protocols results/rehearsal/cells/sat-gspo-r3/lag8/seed0
	@echo "Open results/rehearsal/report.html"

# make test-slurm  cells on a private SLURM of this machine, brought up and down by the tests; root, installs Debian's slurm-wlm and munge
test-slurm: $(CLUSTER)/.ready
	$(CLUSTER)/bin/python -m pytest tests/slurm

# make test-cluster   the tests that need SGLang, Megatron-core or lm-eval
test-cluster: $(CLUSTER)/.ready
	$(CLUSTER)/bin/python -m pytest tests/cluster tests/lm_eval

# make doctor      whether this node can run preset full (or PRESET=...)
doctor: setup
	$(VENV)/bin/python -m pipeline doctor --preset $(or $(PRESET),full)

# make bench       our engines and loss beside transformers, TRL and other graders (ratios, printed)
BENCH = .venv-bench/bin/python
bench: setup
	test -x $(BENCH) || ($(PYTHON) -m venv .venv-bench && .venv-bench/bin/pip install --quiet -r envs/bench.txt)
	MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_MMAP_THRESHOLD_=1000000000 $(BENCH) -m benchmarks.sat_cost
	$(BENCH) benchmarks/engines.py
	$(BENCH) benchmarks/trl_updates.py
	$(BENCH) -m benchmarks.graders
	$(BENCH) -m benchmarks.prepare_full_size

# make test-report   the report in headless Chromium, which is installed from Debian where there is none
CHROMIUM = command -v chromium || command -v chromium-browser || command -v google-chrome
test-report: $(VENV)/.ready-test
	@($(CHROMIUM)) >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
	$(VENV)/bin/python -m pytest tests/report

# make lint        ruff, snakefmt and pyright
lint: $(VENV)/.ready-test
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/snakefmt --check Snakefile && $(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

# make clean       remove the results and the state of preset tiny (or PRESET=...)
clean:
	rm -rf results/$(SHOWN) state/$(SHOWN)
