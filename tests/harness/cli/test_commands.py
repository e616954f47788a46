"""The command tree of `harness`: help, dispatch, and output whose reader has exited."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import PROJECT, Cli

import analysis.__main__ as analysis
from harness.cli.help import KEYS

PLAN = ("plan_only=true", "dataset=synthetic", "framework.environment=/usr/bin/env", "cluster=local")
CONF = PROJECT / "conf"


def test_help_fits_two_screens_and_names_every_choice_and_command(cli: Cli) -> None:
    done = cli("harness", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100
    words = set(done.stdout.split())
    assert {path.stem for path in CONF.glob("*/*.yaml")} <= words
    assert {"run", "status", "cancel", "doctor", "data", "shards", *analysis.COMMANDS} <= words
    assert cli("harness", "run", "--help").stdout == done.stdout


def test_help_names_the_users_own_choices(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    (tmp_path / "mine" / "cluster" / "lakeside.yaml").touch()
    assert "lakeside" in cli("harness", "--config-dir", "mine", "--help").stdout.split()


def test_defaults_in_the_help_are_those_of_the_configuration(cli: Cli) -> None:
    done = cli("harness", "--cfg", "job", "--resolve", "cluster=slurm")
    assert done.returncode == 0, done.stderr
    found = {}
    for text in KEYS:
        key, _, default = text.partition("=")
        value = yaml.safe_load(done.stdout)
        for name in key.split("."):
            value = value[name]
        found[key] = (value, yaml.safe_load(default))
    assert {key: value for key, (value, _) in found.items()} == {key: default for key, (_, default) in found.items()}
    shown = cli("harness", "--help").stdout
    for group, option in yaml.safe_load(done.stdout).items():
        if isinstance(option, dict) and option.get("name") and group not in ("cluster", "optimizer"):
            assert re.search(rf"^  {group} +{option['name']}\b", shown, re.MULTILINE), group


@pytest.mark.parametrize("command", ["run", "status", "cancel", "doctor", "data", "shards", *analysis.COMMANDS])
def test_each_command_says_how_it_is_used(cli: Cli, command: str) -> None:
    done = cli("harness", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("usage: harness " + command in done.stdout) == (command != "run")


def test_a_run_may_be_named(cli: Cli) -> None:
    named, plain = cli("harness", "run", "-m", "gpus=1,2", *PLAN), cli("harness", "-m", "gpus=1,2", *PLAN)
    assert named.returncode == 0, named.stderr
    assert "plan: 2 runs" in named.stdout
    assert named.stdout == plain.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("harness.status", "nowhere"), ("harness", "status", "nowhere")),
        (("harness.cancel", "nowhere"), ("harness", "cancel", "nowhere")),
        (("harness.shards", "dataset=x"), ("harness", "shards", "dataset=x")),
        (("harness.doctor", "--only=gpus"), ("harness", "doctor", "--only=gpus")),
        (("analysis", "nowhere"), ("harness", "report", "nowhere")),
        (("analysis", "predict", "nowhere", "gpus=0"), ("harness", "predict", "nowhere", "gpus=0")),
    ],
    ids=str,
)
def test_a_command_of_the_tree_is_the_program_of_its_own(cli: Cli, old: list[str], new: list[str]) -> None:
    theirs, ours = cli(*old), cli(*new)
    assert theirs.returncode == ours.returncode == 2
    assert theirs.stdout == ours.stdout == ""
    assert theirs.stderr.partition(": ")[2] == ours.stderr.partition(": ")[2]


def test_a_command_that_there_is_not(cli: Cli) -> None:
    done = cli("harness", "statsu", "results/x")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no command 'statsu'. Did you mean 'status'? Commands: run, status,")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("harness", "--help"),
        ("harness", "--cfg", "job"),
        ("harness", "-m", "gpus=1,2", *PLAN),
        ("harness", "status", "--help"),
        ("harness.status", "--help"),
        ("harness.doctor", "--help"),
        ("analysis", "--help"),
        ("harness", "estimate", "model=resnet20", "gpus=1,8", "peak_tflops=15", "--json"),
    ],
    ids=str,
)
def test_closed_pipe_ends_output_silently(tmp_path: Path, command: tuple[str, ...]) -> None:
    """As with `| head`, which may exit before the first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) in (0, 1)


@pytest.mark.parametrize(
    "command", [("harness", "gpus=1,2"), ("harness.status", "nowhere"), ("analysis", "--help"), ("analysis", "nowhere")]
)
def test_a_forked_command_does_what_one_does_that_is_started(
    cli: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    forked, started = cli(*command), cli(*command, env=dict(os.environ))
    said = [(done.returncode, done.stdout, done.stderr) for done in (forked, started)]
    assert said[0] == said[1]
