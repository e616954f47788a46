"""Runs that are interrupted, fail, or are requested again, on this machine with real ranks and real gloo."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from processes import wait_for, workers
from project import Cli
from studies import EMULATED, UNPROBED, logged, losses, read_json, run_dirs, started

from harness.core.seals import sealed

pytestmark = pytest.mark.torch

TRAINED = ("cluster=local", *UNPROBED, "measure.block_steps=1")
SHORT = (*TRAINED, *EMULATED)
# The parts of a fast recipe that have state or depend on progress.
RECIPE = (
    *("model=airbench94", "dataset.train_samples=120", "dataset.alternating_flip=true", "dataset.crop_reflect=true"),
    *("optimizer.lr=0.01", "optimizer.nesterov=true", "optimizer.norm_bias_factor=4", "optimizer.lr_end_samples=288"),
    *(
        "optimizer.lookahead_steps=3",
        "optimizer.lookahead_decay=0.8",
        "measure.evaluate_views=2",
        "measure.evaluate_samples=16",
    ),
)


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


@pytest.mark.parametrize(
    ("recipe", "interruptions"),
    # The default's state is part of the recipe's.
    [pytest.param((), 2, marks=pytest.mark.whole, id="default"), pytest.param(RECIPE, 1, id="slow weights")],
)
def test_interrupted_run_has_the_losses_of_an_uninterrupted_one(
    cli: Cli, tmp_path: Path, recipe: tuple[str, ...], interruptions: int
) -> None:
    """Bit-identical on three ranks: with more than two, a sum depends on the order of summation."""
    # Slow, so that it can be interrupted in time.
    slow = ("fault=slow_rank", "fault.seconds=0.2")
    given = ("gpus=3", *TRAINED, "measure.steps=20", "measure.warmup_steps=4", "optimizer.momentum=0.9", *slow, *recipe)
    arguments = tuple(argument for argument in given if not recipe or argument != "model=resnet20")
    interrupted = range(1, interruptions + 1)
    for cut in interrupted:
        with started(tmp_path, *arguments) as process:
            wait_for(lambda cut=cut: any(len(logged(d, "steps", cut)) >= 8 for d in tmp_path.glob("results/*/runs/*")))
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
    (run_dir,) = run_dirs(tmp_path)
    assert not (run_dir / "result.json").exists()
    last = cli("harness", *arguments)
    assert last.returncode == 0, last.stdout + last.stderr
    for attempt in interrupted:
        left = {logged(run_dir, "leave", attempt, rank)[0]["step"] for rank in range(3)}
        assert len(left) == 1, "all ranks leave at the same step"
        (resume,) = logged(run_dir, "resume", attempt + 1)
        assert (resume["step"], resume["lost_steps"], resume["from_attempt"]) == (left.pop(), 0, attempt)
        assert resume["idle_seconds"] > 0
    phases = [block["phase"] for block in logged(run_dir, "steps", 2)]
    assert phases[:5] == ["first", "rewarm", "rewarm", "rewarm", "measure"]

    uncut = tmp_path / "uncut"
    uncut.mkdir()
    whole = cli("harness", *arguments, f"results={uncut}/results")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (whole_dir,) = run_dirs(uncut)
    assert len(losses(whole_dir)) == 3 * 24
    assert losses(run_dir) == losses(whole_dir)
    for event, key in (("end", "weights_checksum"), ("eval", "loss")):
        assert logged(run_dir, event, interruptions + 1)[0][key] == logged(whole_dir, event, 1)[0][key]


def test_killed_rank_restarts_as_often_as_allowed_and_fails_once(cli: Cli, tmp_path: Path) -> None:
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=1", "checkpoint.interval_steps=2")
    done = cli("harness", "-m", "gpus=2", *SHORT, *fault, "checkpoint.max_restarts=1")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert read_json(run_dir / "attempt-1" / "again.json")["by"] == "failure"
    assert [event["step"] for event in logged(run_dir, "fault", 1, 1)] == [5]
    assert logged(run_dir, "resume", 2)[0]["step"] == 4
    assert read_json(run_dir / "result.json")["attempt"] == 2
    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0
    assert "continued" in report.stdout
    assert "fault" in report.stdout


def test_without_restarts_a_fault_is_a_failure_that_the_same_command_continues(cli: Cli, tmp_path: Path) -> None:
    arguments = ("gpus=1", *SHORT, "fault=kill_rank", "fault.step=5", "checkpoint.interval_steps=2")
    first = cli("harness", *arguments)
    assert first.returncode == 1
    assert "was ended by signal 9 (SIGKILL)" in first.stdout
    kept = cli("harness", *arguments, "retry=none")
    assert kept.returncode == 0
    assert "not retried, because of retry=none: 1 failed run" in kept.stdout
    assert "1 failed before and were not retried" in kept.stdout
    again = cli("harness", *arguments)
    assert again.returncode == 0, again.stdout
    (run_dir,) = run_dirs(tmp_path)
    assert read_json(run_dir / "attempt-1" / "result-of-this-attempt.json")["status"] == "failed"
    assert logged(run_dir, "resume", 2)[0]["step"] == 4


def test_retry_all_measures_again_from_the_start_and_keeps_the_old_result(cli: Cli, tmp_path: Path) -> None:
    arguments = ("gpus=1", *SHORT, "checkpoint.keep=true")
    assert cli("harness", *arguments).returncode == 0
    (run_dir,) = run_dirs(tmp_path)
    assert [path.name for path in (run_dir / "checkpoint").iterdir()] == ["step-8"]
    done = cli("harness", *arguments, "retry=all")
    assert done.returncode == 0, done.stdout
    assert "1 completed" in done.stdout
    assert read_json(run_dir / "attempt-1" / "result-of-this-attempt.json")["status"] == "completed"
    assert [block["step"] for block in logged(run_dir, "steps", 2)] == list(range(8))


def test_checkpoints_of_other_code_are_ignored_and_mixed_code_is_reported(cli: Cli, tmp_path: Path) -> None:
    arguments = ("-m", "gpus=1", "seed=0", *SHORT, "checkpoint.interval_steps=2")
    done = cli("harness", *arguments, "fault=kill_rank", "fault.step=5")
    assert done.returncode == 1
    for run_dir in run_dirs(tmp_path):
        about = run_dir / "checkpoint" / "step-4" / "about.json"
        about.write_text(json.dumps({**read_json(about), "code_version": "0000000"}))
    again = cli("harness", *arguments, "fault=kill_rank", "fault.step=5")
    assert again.returncode == 0, again.stdout
    for run_dir in run_dirs(tmp_path):
        (resume,) = logged(run_dir, "resume", 2)
        assert resume["step"] == 0
        assert "written by code 0000000" in resume["ignored"]
        # As if it had been measured before the code was edited.
        spec = read_json(run_dir / "spec.json")
        spec["site"]["code_version"] = "0000000"
        (run_dir / "spec.json").write_text(json.dumps(sealed(spec)))
    more = cli("harness", "-m", "gpus=1", "seed=0,1", *SHORT, "checkpoint.interval_steps=2", "fault=kill_rank",
               "fault.step=5", "plan_only=true")  # fmt: skip
    assert "warning: some of the 1 completed runs were measured with code 0000000" in " ".join(more.stdout.split())


@pytest.mark.whole  # in CI, on Slurm
def test_a_rank_that_hangs_is_ended_with_its_stacks_shown(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "gpus=2", *TRAINED, "fault=hang", "fault.step=4", "fault.rank=1", "heartbeat=60")
    assert done.returncode == 1
    assert "rank 1: no progress for 60 s (heartbeat)" in done.stdout, "not rank 0, which waits for it"
    (run_dir,) = run_dirs(tmp_path)
    assert "in _hang" in (run_dir / "attempt-1" / "stderr.rank1").read_text()
    assert "loop.py" in (run_dir / "attempt-1" / "stderr.rank0").read_text()
    assert not workers(tmp_path, gpus=2)


def test_a_slow_rank_holds_up_all_of_them(cli: Cli, tmp_path: Path) -> None:
    slow = ("fault=slow_rank", "fault.rank=1", "fault.seconds=2", "fault.step=5")
    done = cli("harness", "gpus=2", *SHORT, *slow)
    assert done.returncode == 0, done.stdout
    (run_dir,) = run_dirs(tmp_path)
    seconds = {block["step"]: block["seconds"] for block in logged(run_dir, "steps", rank=0)}
    assert min(seconds[step] for step in (5, 6, 7)) > 1.7, "rank 0 waits for rank 1"
    assert min(seconds[step] for step in (1, 2, 3, 4)) < 1
    report = cli("analysis", "results/scaling", "--only", "csv")
    assert "fault injected" in " ".join(report.stdout.split()), "wherever the line is broken"


def test_the_plan_expects_what_earlier_runs_took_and_keeps_to_a_budget(cli: Cli, tmp_path: Path) -> None:
    assert cli("harness", "gpus=1", *SHORT).returncode == 0
    plan = cli("harness", "-m", "gpus=1", "seed=0,1,2", *SHORT, "plan_only=true")
    assert "(2 from earlier runs of the same point)" in plan.stdout
    other_study = cli("harness", "-m", "gpus=2", *SHORT, "study=other", "plan_only=true")
    assert "1 estimated from the same model at other sizes" in other_study.stdout
    # With 125 times the steps, start-up is counted once.
    longer = cli("harness", "gpus=1", *SHORT, "measure.steps=1000", "plan_only=true", "cluster.timeout_minutes=6000")
    (hours,) = re.findall(r"expected: ([\d.]+) node-hours", longer.stdout)
    result = read_json(run_dirs(tmp_path)[0] / "result.json")
    took = result["ended"] - result["started"]
    startup = sum(logged(run_dirs(tmp_path)[0], "start")[0]["startup_seconds"].values())
    assert float(hours) == pytest.approx((startup + (took - startup) * 1002 / 8) / 3600, abs=0.006)
    unknown = cli("harness", "gpus=1", *(word for word in SHORT if "resnet20" not in word), "plan_only=true")
    assert "expected: unknown, no earlier run" in unknown.stdout
    refused = cli("harness", "-m", "gpus=1", "seed=1,2", *SHORT, "budget_node_hours=0.9")
    assert refused.returncode == 2
    assert "can take 1.00 node-hours, more than budget_node_hours=0.9" in refused.stderr
    assert len(run_dirs(tmp_path)) == 1, "nothing was launched"
    allowed = cli("harness", "-m", "gpus=1", "seed=1", *SHORT, "budget_node_hours=0.5")
    assert allowed.returncode == 0, allowed.stderr


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("fault=kill_rank", "fault.rank=2"), "fault.rank=2: with gpus=2 there are ranks 0 to 1"),
        (("fault=kill_rank", "fault.step=99"), "fault.step=99 never comes: the run has 8 steps"),
        (("fault=hang", "fault.step=3", "heartbeat=null"), "would hang until the wall limit"),
        (("fault=melt",), "there is no 'melt' in 'fault'. Valid: hang,"),
        (("heartbeat=0",), "heartbeat=0.0: give a number above 0"),
        (("retry=maybe",), "retry"),
        (("wait=false",), "wait=false needs cluster.scheduler=slurm"),
        (("pack=true",), "pack=true needs cluster.scheduler=slurm"),
        (("results=",), "results= is empty: name the folder for studies"),
        (("results=r%j-%u",), "submitit would expand the % in r%j-%u/scaling, where its logs are"),
        (("gpus=100000", "batch=1"), "too little to start as many processes; use fewer, or cluster=slurm"),
        (("budget_node_hours=-1",), "budget_node_hours=-1.0: give a number above 0"),
        (("checkpoint.interval_steps=-1",), "checkpoint.interval_steps=-1: give a number of at least 0"),
    ],
)
def test_mistakes_are_one_sentence(cli: Cli, tmp_path: Path, wrong: tuple[str, ...], sentence: str) -> None:
    done = cli("harness", "gpus=2", *TRAINED, *wrong)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()
