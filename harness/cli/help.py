"""Text of `harness --help`, at most two screens."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from analysis.__main__ import COMMANDS as ANALYSIS_COMMANDS
from harness.cli.commands import COMMANDS

CONF = Path(__file__).resolve().parents[2] / "conf"
COLUMNS = 100
# The most used keys with their defaults.
KEYS = {
    "study=scaling": "the folder results/<study>; the same command again resumes it",
    "gpus=1": "ranks in all, one per GPU",
    "batch=128": "samples per step: per GPU with scaling=weak, in all with strong",
    "scaling=weak": "weak | strong",
    "precision=fp32": "fp32 | tf32 | bf16 | fp16",
    "repeats=null": "3: each point in three separate jobs, for intervals and tests",
    "seed=0": "seed of the weights and of the order of the samples",
    "baseline=wrapped": "on one GPU: wrapped in the strategy, plain without it, or both",
    "optimizer.name=sgd": "sgd | adam | lars",
    "optimizer.lr=0.1": "learning rate for a batch of 128; larger batches raise it",
    "data.root=data": "folder with the data sets",
    "measure.steps=1000": "maximum number of measured steps of a run",
    "workload.python=null": "environment of your own training, such as a venv's folder",
    "framework.options.compile=false": "true: torch.compile",
    "cluster.partition=null": "Slurm's; also cluster.account, cluster.qos",
    "cluster.timeout_minutes=30": "wall-clock limit of a run",
    "budget_node_hours=null": "refuse a plan that could take more",
    "wait=true": "false: submit and return",
    "retry=failed": "runs of the study to repeat: failed | none | all",
    "skip_unsupported=false": "true: a sweep leaves out combinations that do not exist",
    "plan_only=false": "true: print the plan and its cost, launch nothing",
}
HEAD = """\
harness: how does my training scale on this machine, what limits it, what will the next size cost?

  harness key=value ...            measure one point
  harness -m key=value,value ...   measure every combination of the listed values
  harness [-m] workload=script [key=value ...] -- train.py ...   the same for your own training
  harness <command> ...            one of the commands below; harness <command> --help says more
Not installed: python -m harness ...

Examples
  harness -m gpus=1,2,4,8 workload=script -- train.py --batch-size {batch_per_gpu}
  harness -m gpus=1,2,4,8 plan_only=true                      the plan and its cost; nothing runs
  harness -m gpus=1,2,4,8 framework=pytorch,jax repeats=3     a study of two frameworks
  harness -m gpus=1,2 model=resnet20 dataset=synthetic measure=smoke cluster=local   a quick try
  harness report results/scaling                              its report
  harness predict results/scaling gpus=16,32                  larger sizes
"""
REST = """\
Everything else
  harness --cfg job [key=value ...]      every key with its value; conf/ has a comment on each
  harness --config-dir DIR ...           clusters, data sets and experiments of your own
  eval "$(harness -sc install=bash)"     tab completion
  docs/quickstart.md                     worked examples
  docs/your-training.md                  your own training
"""


def help_text(config_dir: str | None) -> str:
    """config_dir: the user's --config-dir, with additional choices."""
    folders = [CONF, Path(config_dir)] if config_dir else [CONF]
    parts = [
        HEAD,
        "Commands\n" + _listed({name: what for name, (_, what) in COMMANDS.items()} | ANALYSIS_COMMANDS),
        "Choices: group=option; the first is the default, except for +experiment=option\n" + _choices(folders),
        "Keys used most, with their defaults\n" + _listed(KEYS),
        REST,
    ]
    return "\n".join(parts)


def _listed(lines: dict[str, str]) -> str:
    width = max(map(len, lines))
    return "".join(f"  {name:<{width}}  {what}\n" for name, what in lines.items())


def _choices(folders: list[Path]) -> str:
    defaults = dict(re.findall(r"^  - (\w+): (\w+)", (CONF / "config.yaml").read_text(encoding="utf-8"), re.MULTILINE))
    defaults |= {"cluster": "slurm" if shutil.which("sbatch") else "local", "+experiment": None}
    lines = []
    for group, default in defaults.items():
        names = {path.stem for folder in folders for path in (folder / group.lstrip("+")).glob("*.yaml")}
        words = " ".join(sorted(names, key=lambda name: (name != default, name)))
        lines += textwrap.wrap(words, COLUMNS, initial_indent=f"  {group:<13}", subsequent_indent=" " * 15)
    return "".join(f"{line}\n" for line in lines)
