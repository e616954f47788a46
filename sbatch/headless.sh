#!/bin/bash
#SBATCH --job-name=harness-headless
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --open-mode=append
# The whole study inside ONE allocation, for sites where the login node may not run Python for long, and without submitit:
# every run of the plan is a step of srun in here, one after another on the same nodes. Sizes that do not fit are refused.
#
#   sbatch --nodes=3 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=7 --time=2:00:00 sbatch/headless.sh \
#     -m gpus=1,2,4,8,12 cluster=slurm
#
# What follows the script is exactly what would follow `python -m harness`. Options of sbatch come before it.
# When the job is preempted, or reaches its wall limit, it saves, goes back into the queue, and goes on where it was.
# HARNESS_PYTHON names another interpreter than the project's .venv/bin/python; modules that it needs: HARNESS_MODULES="lang/Python ...".
set -euo pipefail

# Slurm runs a copy of this file, so the project is where sbatch was called, unless HARNESS_PROJECT says otherwise.
PROJECT=${HARNESS_PROJECT:-${SLURM_SUBMIT_DIR:-$PWD}}
PYTHON=${HARNESS_PYTHON:-$PROJECT/.venv/bin/python}

fail() {
  echo "error: $*" >&2
  exit 2
}

[ -n "${SLURM_JOB_ID:-}" ] || fail "start it through sbatch: sbatch [options of sbatch] sbatch/headless.sh key=value ..."
[ -d "$PROJECT/harness" ] || fail "$PROJECT is not the project: call sbatch in its folder, or set HARNESS_PROJECT"
[ -z "${HARNESS_MODULES:-}" ] || for module in $HARNESS_MODULES; do module load "$module"; done
[ -x "$PYTHON" ] || fail "no Python at $PYTHON: build it with sbatch/env/login.sh, or set HARNESS_PYTHON"

export PYTHONPATH=$PROJECT${PYTHONPATH:+:$PYTHONPATH}
# exec: the signals that Slurm sends to the batch script reach the harness.
exec "$PYTHON" -u -m harness "$@" cluster.scheduler=allocation
