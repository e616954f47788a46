# Every command a newcomer needs. `make demo` first, `make test` second.
PYTHON ?= python3
export PYTHON
VENV := .venv/bin/python
# The environments that are built; each serves a framework, and tensorflow serves keras too.
ENVS ?= pytorch tensorflow mxnet jax
# Tests at a time. Those on Slurm mostly wait, so that 3 suit 2 cores; each worker starts a cluster of its own.
WORKERS ?= 3
# Sets of sbatch/system-packages.sh.
SETS ?= slurm browser latex

.PHONY: help demo demo-cluster test test-options test-torch lint docs gallery bench envs login data system format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: ENVS = pytorch
demo: login envs data ## a study of real training on this machine, 1 and 2 ranks, and its report
	$(VENV) -m harness -m gpus=1,2 +experiment=demo cluster=local
	$(VENV) -m analysis results/demo

demo-cluster: ENVS = pytorch
demo-cluster: SETS = slurm
demo-cluster: system login envs data ## root: a throw-away Slurm cluster, a sweep on it, a node killed, continued
	sbatch/demo-cluster.sh

test: export DALI = 1
test: system login envs data ## all tests; SYSTEM=0 installs no system packages and leaves out the Slurm tests
	$(VENV) -m pytest -m quiet; quiet=$$?; \
	$(VENV) -m pytest -m "not quiet" -n $(WORKERS) --dist load --maxschedchunk 1 --durations 15 && exit $$quiet

test-options: login envs ## trains every pair of options that the plan accepts, on 1 and 2 ranks, against a plain reference
	$(VENV) -m pytest --all-options tests/options --durations 20

test-torch: login data ## the PyTorch tests on another torch: TORCH=/path/to/its/environment
	tests/on_torch.sh "$(TORCH)"

lint: login ## linters and the type checker
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m mypy
	.venv/bin/lint-imports

docs: login ## the documentation site: build/site/index.html; a warning is an error
	$(VENV) -m sphinx -b html -n -W --keep-going -q -d build/doctrees docs build/site

gallery: login ## docs/gallery/ and the README's picture, from the recorded studies; needs Chromium
	$(VENV) -m benchmarks.gallery

bench: system login envs data ## what this program itself costs; writes benchmarks/RESULTS.md
	$(VENV) -m benchmarks

system: ## Debian/Ubuntu as root: what the tests use of it: Slurm, Open MPI, Chromium, LaTeX
	sbatch/system-packages.sh $(SETS)

login: ## the environment of the harness and the analysis: .venv
	sbatch/env/login.sh

envs: ## the environment of every framework: .envs/<name>; ENVS="pytorch jax" for some, HOROVOD=0 for no compiler; DALI=1
	[ "$(HOROVOD)" = 0 ] || sbatch/system-packages.sh compiler
	set -e; for env in $(ENVS); do sbatch/env/$$env.sh; done

data: ## the real Fashion-MNIST: data/fashion-mnist
	sbatch/data/fashion-mnist.sh

format: login ## format the code
	$(VENV) -m ruff check --fix .
	$(VENV) -m ruff format .

clean: ## removes environments and caches; keeps data/ and results/
	rm -rf .venv .envs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
