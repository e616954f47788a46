"""trace=true and trace=nsys in real studies on this machine."""

from __future__ import annotations

import csv
import gzip
import json
import os
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from project import Cli
from studies import SMALL, logged, losses, program, read_json, run_dirs, study_dir
from test_local import validate

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SHORT = ("cluster=local", *SMALL, "model=cnn_small")
STEPS, MORE_STEPS = 2, 9
TRACED = (*SHORT, "trace=true")
# Their messages are PyTorch's own, and all of one step are in its trace on a CPU.
SEEN = ("allreduce", "fsdp", "zero1", "hybrid", "pipeline", "tensor")
OF_EVERY_STEP = ("step", "data", "to_device", "train")
# A fake nsys: runs the given command and passes on its exit code and output. The report is not a real one.
NSYS = """#!/bin/sh
test "$1" = profile || exit 64
for word in "$@"; do
    shift
    case $word in
        --output=*) report=${word#--output=} ;;
        --*|profile) ;;
        *) set -- "$word" "$@"; break ;;
    esac
done
"$@"
code=$?
echo none > "$report.nsys-rep"
exit $code
"""


def ranges(path: Path) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Return how often each range begins in the trace, and all events."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return Counter(event["name"] for event in events if event.get("ph") in ("X", "b", "B")), events


def hidden_of_each_step(parts_of: Any, events: list[dict[str, Any]]) -> list[float]:
    """The part of each step's communication that computation covers."""
    shares = []
    for step in (event for event in events if event["name"] == "step" and event["ph"] == "X"):
        parts = parts_of([*events, {**step, "name": "this step"}], "this step")
        assert parts["communication"] > 0
        shares.append(1 - parts["exposed_communication"] / parts["communication"])
    return shares


def test_a_trace_of_each_rank_is_written_after_all_that_is_measured(
    torch_python: Path, cli: Cli, tmp_path: Path
) -> None:
    done = cli("harness", "-m", "gpus=2", *SHORT, "trace=true,false", f"trace_steps={STEPS}")
    assert done.returncode == 0, done.stdout + done.stderr
    by_mode = {read_json(d / "spec.json")["spec"]["trace"]: d for d in run_dirs(tmp_path)}
    run_dir = by_mode["chrome"]
    validate(read_json(run_dir / "spec.json"), "spec")
    exposed: list[float] = []
    for rank in (0, 1):
        [event] = logged(run_dir, "trace", rank=rank)
        validate(event, "events")
        file = f"trace.rank{rank}.json.gz"
        assert (event["file"], event["steps"], event["profiler"], event["reason"]) == (
            file, STEPS, "torch.profiler", None,
        )  # fmt: skip
        names, events = ranges(run_dir / "attempt-1" / file)
        for name in (*OF_EVERY_STEP, "forward", "backward", "optimizer"):
            assert names[name] == STEPS, (rank, name)
        assert names["fence"] == 1
        # Seconds per step: the parts add up to the range around the traced steps and their fence.
        parts = event["parts"]
        [around] = (e for e in events if e["name"] == "traced steps")
        assert parts.pop("window") == pytest.approx(around["dur"] / 1e6 / STEPS, rel=1e-6)
        assert 0 < parts["exposed_communication"] <= parts["communication"]
        exposed.append(parts["exposed_communication"])
        waited = sum(e["dur"] for e in events if e["name"] == "data") / 1e6 / STEPS
        assert parts["data_wait"] == pytest.approx(waited, rel=0.01, abs=1e-6)
        parts.pop("communication")
        assert sum(parts.values()) == pytest.approx(around["dur"] / 1e6 / STEPS, rel=1e-6)
        # torch's own ranges: an operator of the network, and gloo's messages.
        assert names["aten::convolution"] > 0
        assert any("allreduce" in name for name in names), names
        # The trace is the last event: all measurements were logged before it began.
        kinds = [json.loads(line)["ev"] for line in (run_dir / f"attempt-1/events.rank{rank}.jsonl").open()]
        assert kinds[-1] == "trace"
        assert kinds.count("trace") == 1
        # Nested on one time line.
        spans = {e["name"]: e for e in events if e["ph"] == "X" and e["name"] in ("step", "train", "backward")}
        step, train, backward = (spans[name] for name in ("step", "train", "backward"))
        assert step["ts"] <= train["ts"] <= backward["ts"]
        assert backward["ts"] + backward["dur"] <= step["ts"] + step["dur"]
    # Training and measurements are the same as without a trace.
    assert losses(run_dir) == losses(by_mode["none"])
    assert logged(run_dir, "end")[0]["weights_checksum"] == logged(by_mode["none"], "end")[0]["weights_checksum"]
    assert not [*run_dir.glob("attempt-1/.trace*")]
    # And it is the same point.
    report = cli("analysis", "results/scaling", "--only", "html,csv")
    assert report.returncode == 0, report.stdout + report.stderr
    with (study_dir(tmp_path) / "breakdown.csv").open() as table:
        [row] = csv.DictReader(table)
    assert float(row["traced_exposed_communication_seconds"]) == pytest.approx(sum(exposed) / 2)
    assert f"trace of {STEPS} steps on 2 ranks: " in row["notes"]
    page = (study_dir(tmp_path) / "report.html").read_text()
    for rank in (0, 1):
        assert f"runs/{run_dir.name}/attempt-1/trace.rank{rank}.json.gz" in page
    assert "2 runs" in report.stdout


@pytest.mark.parametrize(
    "asked",
    [
        ("strategy=allreduce", "strategy.options.overlap=false"),
        *(
            pytest.param(asked, marks=pytest.mark.whole)
            for asked in (
                ("strategy=fsdp,hierarchical",),
                ("strategy=zero1,hybrid,pipeline,tensor,local_sgd,ps_sync,ps_async,ps_mixed,ssp,horovod,mpi",),
                ("strategy=allreduce", "strategy.options.compress=fp16,bf16,powersgd"),
                ("strategy=allreduce", "strategy.options.compress=powersgd", "strategy.options.overlap=false"),
                ("strategy=allreduce", "strategy.options.static_graph=true"),
                ("strategy=allreduce", "framework.options.compile=true"),
                ("strategy=local_sgd", "strategy.options.sync_every=1"),
            )
        ),
    ],
    ids=" ".join,
)
def test_parts_are_told_of_traces_that_show_all_messages(
    torch_python: Path, cli: Cli, trace_parts: Any, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    """gloo's messages from other threads, averages every eighth step, sockets of servers and MPI are not all seen."""
    done = cli("harness", "-m", "gpus=2", *TRACED, f"trace_steps={MORE_STEPS}", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    for run_dir in run_dirs(tmp_path):
        spec = read_json(run_dir / "spec.json")["spec"]
        strategy, options = spec["strategy"], spec["strategy_options"]
        for rank in (0, 1):
            [event] = logged(run_dir, "trace", rank=rank)
            validate(event, "events")
            seen = strategy in SEEN or options.get("sync_every") == 1
            assert (event["reason"], "parts" in event) == (None, seen), strategy
            names, events = ranges(run_dir / "attempt-1" / event["file"])
            assert names["step"] == MORE_STEPS
            if strategy == "tensor" or options.get("overlap") is False:  # nothing hides their messages
                # On a busy machine, gloo's thread may be stopped between a message's end and its record of it, and
                # the step goes on: in some steps, not in most.
                shares = hidden_of_each_step(trace_parts.parts_of, events)
                assert len(shares) == MORE_STEPS
                assert statistics.median(shares) < 0.1, shares


@pytest.mark.parametrize(
    ("framework", "profiler"),
    [
        ("jax", "jax.profiler"),
        pytest.param("tensorflow", "tf.profiler", marks=pytest.mark.whole),
        pytest.param("mxnet", "mxnet.profiler", marks=pytest.mark.whole),
    ],
)
def test_every_other_framework_traces_by_its_own_profiler(
    environments: None, cli: Cli, tmp_path: Path, framework: str, profiler: str
) -> None:
    asked = (f"framework={framework}", *TRACED, "model=cnn_small", f"trace_steps={STEPS}")
    done = cli("harness", "gpus=1", *asked, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    [run_dir] = run_dirs(tmp_path)
    [event] = logged(run_dir, "trace")
    assert (event["profiler"], event["reason"]) == (profiler, None)
    names, _ = ranges(run_dir / "attempt-1" / event["file"])
    for name in OF_EVERY_STEP:
        assert names[name] == STEPS, name
    assert names["fence"] == 1
    # And the framework's own ranges.
    assert len(names) > 20, names


def test_nsys_starts_each_rank_and_says_what_it_cannot_show(torch_python: Path, cli: Cli, tmp_path: Path) -> None:
    """nsys is not on the tests' machines; a fake one starts the rank."""
    program(tmp_path / "bin" / "nsys", NSYS)
    found = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = cli("harness", "gpus=2", *SHORT, "trace=nsys", env=found)
    assert done.returncode == 0, done.stdout + done.stderr
    [run_dir] = run_dirs(tmp_path)
    for rank in (0, 1):
        file = f"trace.rank{rank}.nsys-rep"
        assert (run_dir / "attempt-1" / file).is_file()
        [event] = logged(run_dir, "trace", rank=rank)
        validate(event, "events")
        assert (event["file"], event["steps"], event["profiler"]) == (file, None, "nsys")
        # A CPU build of torch, or a machine without CUDA, lacks NVTX: reported, but not a failure.
        assert event["reason"] is None or "no ranges of the harness" in event["reason"]
    report = cli("analysis", "results/scaling", "--only", "html")
    assert report.returncode == 0, report.stdout + report.stderr
    assert "profiled" in report.stdout


def test_nsys_that_is_nowhere_is_refused_in_the_plan(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    without = {**os.environ, "PATH": str(tmp_path / "empty")}
    done = cli("harness", "gpus=1", *SHORT, "trace=nsys", env=without)
    assert done.returncode == 2
    assert "there is no nsys on the PATH" in done.stderr
    assert "trace=true" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
