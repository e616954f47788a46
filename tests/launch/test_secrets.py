"""Secrets of a command reach the training, and no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import command_lines
from project import Cli
from studies import program, read_json, run_dirs

VALUES = {
    "in the environment": "value-of-token-1",
    "listed": "value-of-login-2",
    "listed, of this shell": "value-of-shell-3",
    "option": "value-of-key-4",
    "next word": "value-of-password-5",
    "assignment": "value of wandb 6",
    "parameter": "value-of-param-7",
}
LOCAL = ("cluster=local", "cluster.device=cpu", "gpus=1", "batch=16", "workload=command")
MEASURE = ("measure.warmup_steps=10", "measure.steps=50", "measure.block_steps=10", "measure.precision=null")
# Prints what it was told, also in two pieces, and then its steps.
TRAIN = """#!/bin/sh
echo "told: $* $MY_TOKEN $SITE_LOGIN $SHELL_LOGIN"
echo "$* $MY_TOKEN $SITE_LOGIN $SHELL_LOGIN" >> "$TOLD"
printf 'value-of-'; sleep 0.2; printf 'key-4\\n'
echo "warning: value-of-key-4" >&2
step=0
while [ $step -lt 200 ]; do step=$((step + 1)); sleep 0.01; echo "step $step: 10.0 ms"; done
exit ${EXIT:-0}
"""


@pytest.mark.parametrize("shell", [False, True], ids=["words", "shell"])
@pytest.mark.parametrize("fails", [False, True], ids=["completes", "fails"])
def test_no_written_file_has_a_secret(cli: Cli, tmp_path: Path, shell: bool, fails: bool) -> None:
    told = tmp_path / "told"
    # A pattern that nothing matches: the failure's reason shows the last lines.
    seen = "workload.pattern='nothing (?P<step>\\d+): (?P<ms>\\S+) ms'" if fails else None
    pattern = seen or "workload.pattern='step (?P<step>\\d+): (?P<ms>\\S+) ms'"
    program(tmp_path / "train.sh", TRAIN)
    keys = (
        *(f"+cluster.env.MY_TOKEN={VALUES['in the environment']}", f"+cluster.env.SITE_LOGIN={VALUES['listed']}"),
        *("cluster.secret_env=[SITE_LOGIN,SHELL_LOGIN]", f"+cluster.env.TOLD={told}"),
        *(f"+workload.params.my_api_key={VALUES['parameter']}", f"workload.shell={str(shell).lower()}"),
    )
    words = [
        *("./train.sh", f"--api-key={VALUES['option']}", "--password", VALUES["next word"], "--max-tokens", "7"),
        *(f"WANDB_API_KEY={VALUES['assignment']}", "--key", "{my_api_key}", "--pad-token", "[PAD]"),
    ]
    if shell:
        words = [" ".join(w if " " not in w else w.replace("=", "='", 1) + "'" for w in words)]
    env = {**os.environ, "SHELL_LOGIN": VALUES["listed, of this shell"]}
    done = cli("harness", *LOCAL, *MEASURE, pattern, *keys, "--", *words, env=env)
    assert done.returncode == (1 if fails else 0), done.stdout + done.stderr
    said = told.read_text()
    for value in VALUES.values():
        assert value in said
        assert value not in done.stdout + done.stderr
    told.unlink()
    report = cli("analysis", "results/scaling")
    assert report.returncode in (0, 1), report.stderr
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert len(written) > 10
    found = {
        (path.relative_to(tmp_path), value)
        for path in written
        for value in VALUES.values()
        if value.encode() in path.read_bytes()
    }
    assert not found
    (run_dir,) = run_dirs(tmp_path)
    (stdout,) = run_dir.glob("attempt-1/stdout.rank0")
    assert "told: --api-key=*** --password *** --max-tokens 7 WANDB_API_KEY=***" in stdout.read_text()
    assert "warning: ***" in (run_dir / "attempt-1" / "stderr.rank0").read_text()


def test_an_exported_secret_is_on_no_command_line_and_another_only_where_it_was_typed(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", TRAIN)
    pattern = "workload.pattern='step (?P<step>\\d+): (?P<ms>\\S+) ms'"
    keys = ("cluster.secret_env=[SHELL_LOGIN]", f"+cluster.env.TOLD={tmp_path / 'told'}")
    words = ("--", "./train.sh", f"--api-key={VALUES['option']}")
    env = {**os.environ, "SHELL_LOGIN": VALUES["listed, of this shell"], "MY_TOKEN": "", "SITE_LOGIN": ""}
    with command_lines("value-of-") as seen:
        done = cli("harness", *LOCAL, *MEASURE, pattern, *keys, *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert VALUES["listed, of this shell"] in (tmp_path / "told").read_text()
    assert not [line for line in seen if VALUES["listed, of this shell"] in line]
    typed = {line for line in seen if VALUES["option"] in line}
    assert any("-m harness" in line for line in typed)
    assert [line for line in typed if "-m harness" not in line], "its own arguments: the training asked for them"
    assert all(f"./train.sh --api-key={VALUES['option']}" in line for line in typed)


def test_a_secret_is_no_part_of_a_runs_identity(cli: Cli, tmp_path: Path) -> None:
    program(tmp_path / "train.sh", "#!/bin/sh\n")
    for value in ("one-value", "another-value"):
        pattern = "workload.pattern=megatron"
        done = cli("harness", *LOCAL, pattern, "--", "./train.sh", f"--api-key={value}")
        assert "0 completed, 1 failed" in done.stdout, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert read_json(run_dir / "spec.json")["spec"]["workload"]["command"] == ["./train.sh", "--api-key={secret_1}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cluster.secret_env=[NO_SUCH_NAME]",), "cluster.secret_env lists NO_SUCH_NAME, which neither"),
        (("--", "./train.sh", "{secret_1}"), "the command has {secret_1}: placeholders of this name"),
        (("-m", "+workload.params.a_token=one,two", "--", "./train.sh", "{a_token}"), "cannot be swept"),
    ],
)
def test_a_secret_that_cannot_be_passed_on_is_refused(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    program(tmp_path / "train.sh", "#!/bin/sh\n")
    command = () if "--" in arguments else ("--", "./train.sh")
    done = cli("harness", *LOCAL, "workload.pattern=megatron", *arguments, *command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert said in done.stderr
