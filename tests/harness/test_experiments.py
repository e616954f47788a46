"""The published studies as presets: what each of them asks for, in full and in its short form."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import PROJECT

from harness import config
from harness.request import StudyRequest, study_request

STUDIES = ["frameworks_v100", "indoor_model_sizes", "sync_async_mixed"]


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.register()
    monkeypatch.chdir(tmp_path)


def asked(study: str, tmp_path: Path, *overrides: str) -> StudyRequest:
    """With an interpreter for every framework, and without the data: nothing is run."""
    python = tmp_path / "python"
    python.touch(mode=0o755)
    fixed = ("cluster=iris", f"framework.environment={python}", "data.check=false")
    return study_request(config.compose([f"+experiment={study}", *overrides, *fixed], True, "config", None))


def test_frameworks_v100_is_the_published_grid_with_a_fixed_batch_per_gpu(tmp_path: Path) -> None:
    specs = [request.spec for request in asked("frameworks_v100", tmp_path).requests]
    grid = {(spec.framework, spec.strategy, spec.model, spec.gpus) for spec in specs}
    # Issue 5: TensorFlow, Keras, MXNet, PyTorch x native, Horovod x ResNet-20/32/44/56/110 x 1, 2, 4, 8, 12 GPUs.
    assert len(specs) == len(grid) == 4 * 2 * 5 * 5
    assert {spec.gpus for spec in specs} == {1, 2, 4, 8, 12}
    assert {spec.model for spec in specs} == {f"resnet{depth}" for depth in (20, 32, 44, 56, 110)}
    assert {(spec.dataset.name, spec.scaling) for spec in specs} == {("cifar10", "weak")}
    assert all((spec.batch_per_gpu, spec.global_batch) == (128, 128 * spec.gpus) for spec in specs)
    # 12 GPUs are three nodes of four.
    assert {spec.placement.nodes for spec in specs if spec.gpus == 12} == {3}


def test_indoor_model_sizes_asks_for_every_size_and_batch_on_one_gpu_and_on_two(tmp_path: Path) -> None:
    specs = [request.spec for request in asked("indoor_model_sizes", tmp_path).requests]
    grid = {(spec.model, spec.batch_per_gpu, spec.gpus) for spec in specs}
    assert len(specs) == len(grid) == 4 * 3 * 2
    assert {(spec.framework, spec.dataset.name, spec.scaling) for spec in specs} == {("pytorch", "indoor67", "weak")}
    # These networks do not learn with the default of those that have BatchNorm.
    assert {spec.optimizer.lr for spec in specs} == {0.01}


def test_sync_async_mixed_sees_the_same_samples_in_each_step_on_one_node_and_on_sixteen(tmp_path: Path) -> None:
    specs = [request.spec for request in asked("sync_async_mixed", tmp_path).requests]
    grid = {(spec.strategy, spec.model, spec.gpus, spec.seed) for spec in specs}
    assert len(specs) == len(grid) == 3 * 2 * 5 * 3
    assert {spec.placement.nodes for spec in specs} == {1, 2, 4, 8, 16}
    assert {(spec.scaling, spec.global_batch) for spec in specs} == {("strong", 256)}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_a_short_form_and_a_page(study: str, tmp_path: Path) -> None:
    full, short = asked(study, tmp_path), asked(study, tmp_path, "measure=smoke")
    assert len(short.requests) == len(full.requests)
    assert all(request.spec.measure.steps < 10 for request in short.requests)
    assert full.name == study
    page = (PROJECT / "docs" / "studies" / f"{study}.md").read_text(encoding="utf-8")
    assert f"{len(full.requests)} runs" in page
    assert f"({study}.md)" in (PROJECT / "docs" / "studies" / "README.md").read_text(encoding="utf-8")
