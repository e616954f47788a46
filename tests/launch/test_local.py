"""Real studies on this machine: real ranks, real gloo."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from processes import wait_for, workers
from project import PROJECT, Cli
from studies import EMULATED, SMALL, logged, read_json, run_dirs, started, steps_done

from harness.core import events

pytestmark = pytest.mark.torch

SHORT = ("cluster=local", *SMALL, "batch=16", "measure.evaluate_samples=101")
UNTRAINED = (*SHORT, *EMULATED)
ENDLESS = (*UNTRAINED, "measure=default", "measure.steps=100000", "measure.precision=null")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def validate(document: Any, schema: str) -> None:
    jsonschema.validate(document, read_json(PROJECT / "harness" / "schemas" / f"{schema}.schema.json"))


def test_a_sweep_runs_and_its_files_follow_their_schemas(cli: Cli, tmp_path: Path) -> None:
    asked = time.time()
    done = cli("harness", "-m", "gpus=1,2", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 completed, 0 failed" in done.stdout
    validate(read_json(tmp_path / "results/scaling/study.json"), "study")
    assert len(run_dirs(tmp_path)) == 2
    for run_dir in run_dirs(tmp_path):
        spec = read_json(run_dir / "spec.json")
        validate(spec, "spec")
        validate(read_json(run_dir / "attempt-1" / "env.json"), "env")
        result = read_json(run_dir / "result.json")
        validate(result, "result")
        assert result["status"] == "completed"
        checksums = set()
        for rank in range(spec["spec"]["gpus"]):
            log = events.read_events(run_dir / "attempt-1" / f"events.rank{rank}.jsonl")
            assert log.unreadable_lines == 0
            for event in log.events:
                validate(event, "events")
            kinds = [event["ev"] for event in log.events]
            before = ["start", "steps", "gradients", *["steps"] * 4, "resources", "checkpoint", "protocol"]
            probes = len({event["probe"] for event in log.events if event["ev"] == "probe"})
            assert probes == 5
            rounds = kinds.count("probe") // probes
            assert rounds > 0
            # If /sys has the processors' state, device events come in between.
            told = [kind for kind in kinds if kind != "device"]
            assert told == [*before, "eval", "end", *["probe"] * probes * rounds, "probes", "ceiling"]
            assert log.events[-1]["reason"] is None, "the ceilings were measured"
            start = log.events[0]
            assert start["world_size"] == spec["spec"]["gpus"]
            assert start["threads"] == 1
            # From the start of the process on, without gaps. Rank 0's supervisor records when the attempt began.
            laps, begun = start["startup_seconds"], read_json(run_dir / "attempt-1" / "begin.json")
            assert list(laps) == ["interpreter", "imports", "data", "rendezvous", "build", "facts"]
            assert all(seconds > 0 for seconds in laps.values())
            assert (asked if rank else begun["t"] - 0.1) < start["t"] - sum(laps.values()) < begun["t"] + 60
            validate(begun, "begin")
            # All 101 test samples are scored once, although 101 is odd and there are two ranks.
            assert next(e["samples"] for e in log.events if e["ev"] == "eval") == 101
            checksums.add(next(e["weights_checksum"] for e in log.events if e["ev"] == "end"))
        assert len(checksums) == 1, "the ranks' weights differ"


def test_rerun_runs_only_missing_runs_and_repeats_give_the_same_weights(cli: Cli, tmp_path: Path) -> None:
    first = cli("harness", "gpus=1", *SHORT)
    assert first.returncode == 0, first.stdout + first.stderr
    (run_dir,) = run_dirs(tmp_path)
    before = (run_dir / "result.json").read_bytes()
    again = cli("harness", "gpus=1", *SHORT)
    assert "1 run is completed already" in again.stdout
    assert again.returncode == 0
    more = cli("harness", "-m", "gpus=1", "repeat=0,1", *SHORT)
    assert "plan: 1 run in 1 array" in more.stdout
    assert "1 completed, 0 failed, 1 were completed before" in more.stdout
    assert (run_dir / "result.json").read_bytes() == before
    assert len(read_json(tmp_path / "results/scaling/study.json")["invocations"]) == 3
    once, twice = (logged(run_dir, "end")[0] for run_dir in run_dirs(tmp_path))
    assert once["weights_checksum"] == twice["weights_checksum"]
    # A damaged result is named and not overwritten.
    (run_dir / "result.json").write_text('{"v": 1')
    damaged = cli("harness", "gpus=1", *SHORT)
    assert damaged.returncode == 2
    assert "result.json is not JSON" in damaged.stderr
    assert "Traceback" not in damaged.stderr
    assert (run_dir / "result.json").read_text() == '{"v": 1'


@pytest.mark.quiet
def test_a_killed_rank_ends_the_run_within_seconds_and_the_sweep_goes_on(cli: Cli, tmp_path: Path) -> None:
    def ranks() -> dict[int, int]:
        return workers(tmp_path, gpus=2)

    with started(tmp_path, "-m", "gpus=2", "seed=0,1", *ENDLESS) as process:
        wait_for(lambda: steps_done(tmp_path, gpus=2, rank=1))
        victims = ranks()
        os.kill(victims[1], signal.SIGKILL)
        killed = time.monotonic()
        (first,) = wait_for(lambda: list(tmp_path.glob("results/*/runs/*/result.json")), 15)
        assert time.monotonic() - killed < 10
        result = read_json(first)
        validate(result, "result")
        assert result["status"] == "failed"
        assert result["reason"] == "rank 1 was ended by signal 9 (SIGKILL)"
        assert (result["failed_rank"], result["exit_code"]) == (1, -9)
        # The second run has started with new ranks.
        assert wait_for(lambda: len(ranks()) == 2 and not set(ranks().values()) & set(victims.values()))
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=120)
    # With fewer steps the same command is another run; with the same ones it retries the failed run.
    assert read_json(first)["status"] == "failed"


@pytest.mark.whole
def test_a_rank_that_crashes_is_named_and_its_core_file_is_kept(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    if limits[1] == 0 or Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("this machine writes no core files into the working directory")
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        with started(tmp_path, "gpus=2", *ENDLESS) as process:
            wait_for(lambda: steps_done(tmp_path, gpus=2, rank=1))
            os.kill(workers(tmp_path, gpus=2)[1], signal.SIGSEGV)
            process.communicate(timeout=120)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["reason"] == "rank 1 was ended by signal 11 (SIGSEGV)"
    core = run_dir / "attempt-1" / "core.rank1"
    assert core.stat().st_size > 0
    assert result["stderr_tail"][-1] == f"core file: {core}"
    assert not list(tmp_path.glob("core*"))


def test_an_exception_in_a_rank_is_in_the_result_and_is_tried_again(cli: Cli, tmp_path: Path) -> None:
    # A data set that exists but cannot be read: real files, too short.
    root = tmp_path / "data" / "cifar10"
    root.mkdir(parents=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (root / name).write_bytes(b"\0" * 3072)
    broken = (*UNTRAINED, "dataset=cifar10", "gpus=2")
    done = cli("harness", *broken)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "1 failed" in done.stdout
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert result["status"] == "failed"
    assert re.match(r"rank \d exited with code 1: .*data_batch_1.bin.*3073", result["reason"])
    assert any("data_batch_1.bin" in line and "3073" in line for line in result["stderr_tail"])
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (root / name).write_bytes((b"\1" + bytes(range(256)) * 12) * 64)
    again = cli("harness", *broken)
    assert again.returncode == 0, again.stdout + again.stderr
    assert read_json(run_dir / "result.json")["attempt"] == 2
    assert read_json(run_dir / "attempt-1" / "result-of-this-attempt.json") == result


def test_interrupted_study_leaves_no_rank_and_resumes_without_loss(cli: Cli, tmp_path: Path) -> None:
    first = cli("harness", "gpus=1", *UNTRAINED)
    assert first.returncode == 0, first.stdout + first.stderr
    for attempt, whom in enumerate(("terminal", "process", "terminate"), 1):
        with started(tmp_path, "gpus=2", *ENDLESS) as process:
            wait_for(lambda attempt=attempt: steps_done(tmp_path, gpus=2, attempt=attempt, rank=1))
            if whom == "terminal":  # Ctrl-C reaches every process of the terminal
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT if whom == "process" else signal.SIGTERM)
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, whom
        assert "Traceback" not in output, whom
        assert "the same command resumes the study" in output, whom
        assert wait_for(lambda: not workers(tmp_path, gpus=2), 10)
    finished = [d for d in run_dirs(tmp_path) if (d / "result.json").exists()]
    assert [d.name.split("-")[3] for d in finished] == ["1gpu"], (
        "an interrupted run has no result, a finished one keeps it"
    )


def test_a_run_over_its_time_limit_is_ended_and_said_so(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "gpus=2", *ENDLESS, "cluster.timeout_minutes=0.15")
    assert done.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    assert "the run took longer than 9 s" in read_json(run_dir / "result.json")["reason"]
    assert not workers(tmp_path, gpus=2)


def test_a_second_command_on_the_same_study_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "scaling"
    (folder / "runs").mkdir(parents=True)
    with open(folder / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = cli("harness", "gpus=1", *SHORT)
    assert done.returncode == 2
    assert "another harness command is using" in done.stderr


def test_more_ranks_than_cores_are_marked_in_the_result(cli: Cli, tmp_path: Path) -> None:
    ranks = (os.cpu_count() or 1) + 1
    done = cli("harness", f"gpus={ranks}", *UNTRAINED)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert f"{ranks} ranks" in read_json(run_dir / "result.json")["oversubscribed"]
    assert "oversubscribed" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        [
            *("optimizer.name=lars", "optimizer.lr_rule=sqrt", "framework.options.channels_last=false"),
            *("precision=bf16", "model=cnn_small"),
        ],
        ["deterministic=true", "framework.options.compile=true", "model=cnn_small"],
    ],
    ids=str,
)
def test_options_reach_the_framework(cli: Cli, tmp_path: Path, options: list[str]) -> None:
    if "framework.options.compile=true" in options and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on the CPU: no g++ on the PATH")
    done = cli("harness", "gpus=1", *SHORT, *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole  # in CI, `make demo` trains on them
def test_training_on_real_images_learns(cli: Cli, tmp_path: Path, fashion_mnist: Path) -> None:
    done = cli(
        "harness", "gpus=2", *SHORT, "dataset=fashion_mnist", f"data.root={fashion_mnist}", "batch=32",
        "measure.steps=60", "measure.evaluate_samples=500", "optimizer.lr=0.05",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    accuracy = logged(run_dir, "eval")[0]["accuracy"]
    # Ten classes: chance is 0.10; four standard errors of 500 samples above it is 0.154.
    assert accuracy > 0.3
