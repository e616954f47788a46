"""`python -m analysis compare A B`: reports significant regressions, and only those."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from harness.core.spec import ClusterSpec


def study_of(folder: Path, seconds: dict[int, list[float]], **changes: object) -> StudyBuilder:
    """Build a study with one repeat for each duration of blocks, in seconds, by number of GPUs."""
    study = StudyBuilder(folder, folder.name)
    for gpus, repeats in seconds.items():
        for repeat, value in enumerate(repeats):
            study.completed(gpus, value, repeat=repeat, **changes)
    return study


BEFORE = {1: [1.0, 1.01, 0.99], 2: [1.10, 1.11, 1.09], 4: [1.2, 1.21, 1.19]}


def test_a_regression_is_named_with_its_interval_and_ends_with_1(tmp_path: Path, analyse) -> None:
    before = study_of(tmp_path / "before", BEFORE)
    after = study_of(tmp_path / "after", {**BEFORE, 2: [1.30, 1.31, 1.29]})
    done = analyse("compare", before.folder, after.folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 points in both, 3 tested, 1 worse" in done.stdout
    # Equal samples in 1.1 s and 1.3 s.
    assert "2 GPUs: regression, 0.846×" in done.stdout
    assert done.stdout.count("no difference shown") == 2
    # The other way round it is an improvement, and exits with 0.
    back = analyse("compare", after.folder, before.folder, "--json")
    assert back.returncode == 0, back.stderr
    [faster] = [pair for pair in json.loads(back.stdout)["pairs"] if pair["verdict"] == "faster"]
    assert faster["ratio"] == pytest.approx(1.3 / 1.1)
    assert faster["low"] < faster["ratio"] < faster["high"]


def test_change_below_the_threshold_is_not_a_regression(tmp_path: Path, analyse) -> None:
    before = study_of(tmp_path / "before", {1: [1.0, 1.0001, 0.9999]})
    after = study_of(tmp_path / "after", {1: [1.01, 1.0101, 1.0099]})
    done = analyse("compare", before.folder, after.folder)
    assert (done.returncode, "below the threshold" in done.stdout) == (0, True), done.stdout
    assert analyse("compare", before.folder, after.folder, "--threshold", "0.005").returncode == 1


def test_single_runs_are_not_tested_and_that_is_no_success(tmp_path: Path, analyse) -> None:
    before, after = (study_of(tmp_path / name, {1: [value]}) for name, value in (("a", 1.0), ("b", 2.0)))
    done = analyse("compare", before.folder, after.folder)
    assert done.returncode == 3, done.stdout
    assert "not tested, 0.500×" in done.stdout


def test_a_point_that_no_longer_completes_is_as_bad_as_a_slow_one(tmp_path: Path, analyse) -> None:
    before = study_of(tmp_path / "before", BEFORE)
    after = study_of(tmp_path / "after", {1: BEFORE[1]})
    after.add(spec_of(2), Logs(), result={"status": "failed", "reason": "rank 1: out of memory"})
    done = analyse("compare", before.folder, after.folder)
    assert done.returncode == 1
    assert "2 GPUs: lost" in done.stdout
    assert "device names: NVIDIA H100 | unknown" in done.stdout  # no run got so far as to log it
    assert "4 GPUs: only in before" in done.stdout


def test_two_machines_are_compared_and_what_differs_is_said(tmp_path: Path, analyse) -> None:
    before = study_of(tmp_path / "old", {1: BEFORE[1]})
    after = StudyBuilder(tmp_path / "new", "new")
    cluster = dataclasses.replace(spec_of(1).cluster, name="zeus")
    for repeat, seconds in enumerate((0.5, 0.51, 0.49)):
        logs = Logs(block_seconds=[seconds] * 4, device_name="NVIDIA H200")
        after.add(spec_of(1, repeat=repeat, cluster=cluster), logs)
    done = analyse("compare", before.folder, after.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faster, 2.00×" in done.stdout
    assert "cluster: atlas | zeus" in done.stdout
    assert "NVIDIA H100 | NVIDIA H200" in done.stdout
    assert isinstance(cluster, ClusterSpec)


def test_studies_with_nothing_in_common_are_refused_in_a_sentence(tmp_path: Path, analyse) -> None:
    before, after = study_of(tmp_path / "a", {1: [1.0]}), study_of(tmp_path / "b", {1: [1.0]}, model="resnet20")
    for arguments, words in (
        ((before.folder, after.folder), "can be compared with one of"),
        ((before.folder, tmp_path / "nowhere"), "nowhere"),
        ((before.folder, before.folder, "--threshold", "7"), "--threshold 7"),
    ):
        done = analyse("compare", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_the_key_that_differs_is_named_and_can_be_ignored(tmp_path: Path, analyse) -> None:
    lr = dataclasses.replace(spec_of(1).optimizer, lr=0.3)
    before, after = study_of(tmp_path / "old", BEFORE), study_of(tmp_path / "new", BEFORE, optimizer=lr)
    refused = analyse("compare", before.folder, after.folder)
    assert refused.returncode == 2
    own = spec_of(1).optimizer.lr
    assert f"differs in optimizer.lr ({own} | 0.3)" in refused.stderr
    done = analyse("compare", before.folder, after.folder, "--ignore", "optimizer.lr")
    assert (done.returncode, "3 points in both" in done.stdout) == (0, True), done.stderr
    unknown = analyse("compare", before.folder, after.folder, "--ignore", "lr")
    assert unknown.returncode == 2
    assert "--ignore lr: no point has it; there are" in unknown.stderr


def test_ambiguous_point_is_not_reported_as_missing(tmp_path: Path, analyse) -> None:
    before, after = study_of(tmp_path / "old", {1: [1.0]}), study_of(tmp_path / "new", {1: [1.0]})
    after.add(spec_of(1, cluster=dataclasses.replace(spec_of(1).cluster, name="zeus")), Logs())
    done = analyse("compare", before.folder, after.folder)
    assert done.returncode == 2
    assert "1 GPU: not compared: a study measured it in several ways" in done.stderr
    assert "only in" not in done.stderr
