# Start with `make demo`, then `make test`.
PYTHON ?= python3
export PYTHON
# Python keeps what it has compiled, whatever the shell says: tests start it thousands of times.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv/bin/python
# Environments to build, one per framework; keras uses the one of tensorflow.
ENVS ?= pytorch tensorflow mxnet jax
# Parallel tests. Many mostly wait, so 5 suit 2 cores; each worker starts its own cluster.
WORKERS ?= 5
# Package sets of sbatch/system-packages.sh.
SETS ?= slurm browser latex
# Minutes of faults in a soak, and their seed.
SOAK_MINUTES ?= 60
SOAK_SEED ?= 1

# A demo needs neither Horovod nor the tests' packages; environments that have them keep them.
AS_IT_IS = HOROVOD=$(or $(HOROVOD),keep) EXTRAS=$(or $(EXTRAS),keep)

.PHONY: help demo demo-cluster test test-options test-matrices test-workloads test-torch lint docs gallery bench soak envs login data system format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: ## train on 1 and 2 ranks of this machine and write the report
	$(MAKE) --no-print-directory -j 2 login envs ENVS=pytorch $(AS_IT_IS)
	$(MAKE) --no-print-directory data
	$(VENV) -m harness -m gpus=1,2 +experiment=demo cluster=local
	$(VENV) -m analysis results/demo

demo-cluster: SETS = slurm
demo-cluster: system ## as root: a sweep on a temporary Slurm cluster that survives the loss of a node
	$(MAKE) --no-print-directory -j 2 login envs ENVS=pytorch $(AS_IT_IS)
	$(MAKE) --no-print-directory data
	sbatch/demo-cluster.sh

test: export DALI = 1
test: system login envs data ## all tests; SYSTEM=0: install no system packages, skip the Slurm tests
	$(VENV) -m pytest -m quiet; quiet=$$?; \
	$(VENV) -m pytest -m "not quiet" -n $(WORKERS) --dist loadgroup --durations 15 && exit $$quiet

test-options: login envs ## train every valid pair of options on 1 and 2 ranks and compare with a plain reference
	$(VENV) -m pytest --whole -m whole tests/options -n 2 --durations 20

test-matrices: export DALI = 1
test-matrices: system login envs data ## the whole of the matrices of which `make test` runs a selection, but for the options
	$(VENV) -m pytest --whole -m "whole and quiet" --durations 20; quiet=$$?; \
	$(VENV) -m pytest --whole -m "whole and not quiet" --ignore tests/options --ignore tests/workloads -n 2 \
		--dist loadgroup --durations 20 && exit $$quiet

test-workloads: ENVS = pytorch tensorflow jax mxnet
test-workloads: system login envs ## measure other people's training libraries (Lightning, Transformers, DeepSpeed, ...), on Slurm too
	sbatch/env/workloads.sh
	$(VENV) -m pytest --whole tests/workloads --durations 20

test-torch: login data ## the PyTorch tests on another torch: TORCH=/path/to/environment
	tests/on_torch.sh "$(TORCH)"

lint: login ## linters and type checker
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m mypy
	.venv/bin/lint-imports

docs: login ## documentation in build/site/index.html; warnings are errors
	$(VENV) -m sphinx -b html -n -W --keep-going -q -d build/doctrees docs build/site

gallery: login ## renew docs/gallery/ and the README's figure from recorded studies; needs Chromium
	$(VENV) -m benchmarks.gallery

bench: system login envs data ## measure the harness's own overhead; writes benchmarks/RESULTS.md
	$(VENV) -m benchmarks

soak: ENVS = pytorch
soak: SETS = slurm
soak: system login envs ## as root: an hour of random faults on a virtual Slurm cluster; SOAK_MINUTES=60 SOAK_SEED=1 REPLAY=schedule.json
	$(VENV) -m benchmarks soak --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED) $(if $(REPLAY),--replay $(REPLAY)) --record

system: ## as root on Debian/Ubuntu: install Slurm, Open MPI, Chromium and LaTeX for the tests
	sbatch/system-packages.sh $(SETS)

login: ## build the environment of harness and analysis in .venv
	sbatch/env/login.sh

# Two at a time: one downloads while another compiles Horovod.
envs: ## build framework environments in .envs/<name>; ENVS="pytorch jax": only these; HOROVOD=0: no compiler needed; DALI=1
	[ -n "$(filter 0 keep,$(HOROVOD))" ] || sbatch/system-packages.sh compiler
	printf "%s\n" $(ENVS:%=sbatch/env/%.sh) | xargs -r -P 2 -n 1 bash

data: ## download Fashion-MNIST to data/fashion-mnist
	sbatch/data/fashion-mnist.sh

format: login ## format the code
	$(VENV) -m ruff check --fix .
	$(VENV) -m ruff format .

clean: ## remove environments and caches; keep data/ and results/
	rm -rf .venv .envs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
