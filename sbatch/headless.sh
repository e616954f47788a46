#!/bin/bash
#SBATCH --job-name=harness-headless
#SBATCH --requeue
#SBATCH --signal=USR2@60
#SBATCH --open-mode=append
# Runs a whole study inside one allocation, for sites that do not allow long-running Python on the login node. Each run of
# the plan is an srun step, one after another on the same nodes. Sizes that do not fit are refused.
#
#   sbatch --nodes=3 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=7 --time=2:00:00 sbatch/headless.sh \
#     -m gpus=1,2,4,8,12 cluster=slurm
#
# Arguments after the script are those of `python -m harness`; sbatch options come before it.
# When the job is preempted or reaches its wall limit, it saves, is requeued, and resumes.
# HARNESS_PYTHON: interpreter to use instead of the project's .venv/bin/python. HARNESS_MODULES="lang/Python ...": modules it needs.
set -euo pipefail

# Slurm runs a copy of this file, so the project is the working directory of sbatch unless HARNESS_PROJECT is set.
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
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  options+=("$1")
  shift
done
# What follows -- is the command of a training. exec, so that signals sent to the batch script reach the harness.
exec "$PYTHON" -u -m harness "${options[@]}" cluster.scheduler=allocation "$@"
