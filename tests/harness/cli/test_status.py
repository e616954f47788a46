"""`harness.status` and `harness.cancel` on real studies of this machine; with Slurm: tests/cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from processes import wait_for, workers
from project import PROJECT, Cli
from studies import EMULATED, SMALL, started, steps_done

SHORT = ("cluster=local", *SMALL, *EMULATED, "framework.options.compute_ms=100")


def valid(text: str) -> dict[str, Any]:
    document = json.loads(text)
    jsonschema.validate(document, json.loads((PROJECT / "harness/schemas/status.schema.json").read_text()))
    return document


def move(attempt: Path, seconds: float) -> None:
    """Let the attempt have run on another machine, whose clock is ahead by this."""
    job = attempt / "job.json"
    job.write_text(json.dumps(json.loads(job.read_text()) | {"host": "another"}))
    for path in attempt.iterdir():
        then = path.stat().st_mtime + seconds
        if path.suffix in (".json", ".jsonl"):
            text = re.sub(r'(?<="t":)\s*([0-9.]+)', lambda found: f"{float(found[1]) + seconds}", path.read_text())
            path.write_text(text)
        os.utime(path, (then, then))


@pytest.mark.torch
def test_a_study_as_it_goes_on_and_after_it(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    with started(tmp_path, "gpus=2", *SHORT, "measure.steps=400") as process:
        wait_for(lambda: steps_done(tmp_path, gpus=2))
        (run,) = valid(cli("harness.status", "results/scaling", "--json").stdout)["runs"]
        assert (run["state"], run["gpus"], run["nodes"], run["attempts"]) == ("running", 2, 1, 1)
        assert 0 < run["steps_done"] < run["steps"] == 402
        assert run["samples_per_second"] > 0
        assert run["eta_seconds"] > 0
        with started(tmp_path, "results/scaling", "--json", "--watch=1", module="harness.status") as watching:
            assert watching.stdout is not None
            seen: list[int] = []
            while len(set(seen)) < 2:
                line = watching.stdout.readline()
                assert line, "it looks until it is told to end"
                seen.append(valid(line)["runs"][0]["steps_done"])
            assert seen == sorted(seen)
            watching.send_signal(signal.SIGINT)
            rest, _ = watching.communicate(timeout=60)
        assert all(map(valid, rest.splitlines())), "nothing else is said"
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    (run,) = valid(cli("harness.status", "results/scaling", "--json").stdout)["runs"]
    assert run["steps_done"] > 0
    cancelled = cli("harness.cancel", "results/scaling")
    assert (cancelled.returncode, cancelled.stdout) == (0, "nothing of study scaling is running on this machine\n")

    done = cli("harness", "gpus=2", *SHORT, "measure.steps=400")
    assert done.returncode == 0, done.stdout + done.stderr
    # This one may end sooner: its number of steps is not known in advance.
    done = cli("harness", "gpus=1", *SHORT, "measure.steps=32", "measure.precision=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    adaptive = next(
        r for r in valid(cli("harness.status", "results/scaling", "--json").stdout)["runs"] if r["gpus"] == 1
    )
    assert adaptive["fixed"] is False
    assert 0 < adaptive["steps_done"] <= adaptive["steps"]
    shown = cli("harness.status", "results/scaling")
    assert "study scaling: 2 completed; node-hours:" in shown.stdout
    assert "402/402" in shown.stdout
    assert "≤" not in shown.stdout, "completed runs took what they took"
    assert "attempt 2" in shown.stdout
    watched = cli("harness.status", "--watch", "results/scaling")
    assert watched.returncode == 0, "nothing is left to watch"
    assert "2 completed" in watched.stdout


@pytest.mark.torch
def test_runs_of_this_machine_stop_by_cancel_and_with_their_command(
    cli: Cli, tmp_path: Path, torch_python: Path
) -> None:
    def status(folder: str = "results/scaling") -> dict[str, Any]:
        (run,) = valid(cli("harness.status", folder, "--json").stdout)["runs"]
        return dict(run)

    with started(tmp_path, "gpus=1", *SHORT, "measure.steps=100000", "measure.precision=null") as process:
        wait_for(lambda: steps_done(tmp_path))
        assert status()["state"] == "running"
        cancelled = cli("harness.cancel", "results/scaling")
        assert cancelled.returncode == 0, cancelled.stderr
        assert "stopped study scaling on this machine" in cancelled.stdout
        assert "interrupted; 0 runs completed" in process.communicate(timeout=30)[0]
    assert not workers(tmp_path, gpus=1)
    first = status()
    assert (first["state"], first["attempts"]) == ("stopped", 1)
    with started(tmp_path, "gpus=1", *SHORT, "measure.steps=100000", "measure.precision=null") as process:
        wait_for(lambda: status()["attempts"] == 2 and status()["steps_done"] > first["steps_done"])
        # As when the connection to a login node is lost: the ranks save and end too.
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        wait_for(lambda: not workers(tmp_path, gpus=1), 60)
        wait_for(lambda: status()["state"] == "stopped", 10)
    # What was used is read from the files, not from the files' times.
    used = status()["node_hours"]
    shutil.copytree(tmp_path / "results" / "scaling", tmp_path / "copy")
    assert (status("copy")["node_hours"], status("copy")["state"]) == (used, "stopped")
    # The same, had another machine run it, whose clock may be wrong: only there it is known to have stopped.
    for hours, state in ((1, "unknown"), (-1, "unknown"), (-48, "stopped")):
        moved = shutil.copytree(tmp_path / "copy", tmp_path / f"copy{hours}")
        move(next(moved.glob("runs/*/attempt-2")), 3600.0 * hours)
        shown = status(moved.name)
        assert (shown["state"], "ask there" in (shown["note"] or "")) == (state, state == "unknown")
        assert shown["node_hours"] == pytest.approx(used)


@pytest.mark.parametrize("command", ["harness.status", "harness.cancel"])
def test_a_folder_that_is_no_study(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "results" / "one" / "study.json").write_text("{")
    for folder, sentence in (
        ("nowhere", "nowhere is not a study, it has no study.json; give a folder such as results/<study>"),
        ("results", "studies in it: one"),
        ("results/one", "is not a study.json of version 1"),
        ("results/one/study.json/x", "error: results/one/study.json is a file; give a study's folder"),
    ):
        done = cli(command, folder)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_every_state_that_the_files_alone_can_show(cli: Cli, tmp_path: Path) -> None:
    """A study with one run damaged and the other missing."""
    study = tmp_path / "results" / "scaling"
    planned = cli("harness", "-m", "gpus=1,2", "cluster=local", *SMALL, "plan_only=true")
    assert planned.returncode == 0, planned.stderr
    names = [word.rstrip(":") for word in planned.stdout.split() if word.startswith("pytorch-")]
    damaged, missing = names
    (study / "runs" / damaged / "attempt-1").mkdir(parents=True)
    (study / "runs" / damaged / "spec.json").write_text('{"spec": {}}')
    invocation = {"runs": names, "arrays": [], "cluster": "local", "t": 0, "command": [], "code_version": "x"}
    (study / "study.json").write_text(
        json.dumps({"v": 1, "study": "scaling", "created": 0, "invocations": [invocation]})
    )
    runs = {run["run_id"]: run for run in valid(cli("harness.status", str(study), "--json").stdout)["runs"]}
    assert runs[missing]["state"] == "missing"
    assert runs[missing]["note"] == "not submitted yet"
    assert runs[damaged]["state"] == "missing"
    assert "spec.json cannot be read" in runs[damaged]["note"]
    bad = cli("harness.status", str(study), "--watch=0")
    assert bad.returncode == 2
    assert "give seconds of at least 0.5" in bad.stderr


@pytest.mark.parametrize("status", ["unheard-of", ["completed"], None])
def test_a_result_of_an_unknown_status_is_one_row_that_says_so(cli: Cli, tmp_path: Path, status: object) -> None:
    with tarfile.open(PROJECT / "benchmarks/recorded/studies/data_vs_model_parallel.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = next((tmp_path / "data_vs_model_parallel" / "runs").glob("*/result.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}))
    sentence = f"result.json has the unknown status {status!r}; the study's command repeats this run"
    shown = cli("harness.status", "data_vs_model_parallel", "--all")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert sentence in " ".join(shown.stdout.split())
    runs = valid(cli("harness.status", "data_vs_model_parallel", "--json").stdout)["runs"]
    (note,) = [run["note"] for run in runs if run["run_id"] == path.parent.name]
    assert sentence in note
    assert len([run for run in runs if run["state"] == "stopped"]) == 1
