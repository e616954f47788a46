"""The published studies as presets: the runs that each requests, in full and in its short form."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import pytest
from project import PROJECT, Cli

from harness.config import composition
from harness.plan.request import StudyRequest, study_request

pytestmark = pytest.mark.xdist_group("experiments")  # so that a study is composed once

STUDIES = [
    *("frameworks_v100", "indoor_model_sizes", "sync_async_mixed", "data_vs_model_parallel"),
    *("time_to_accuracy", "time_to_accuracy_resnet9"),
]


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composition.register()
    monkeypatch.chdir(tmp_path)


@functools.cache
def asked(study: str, *overrides: str) -> StudyRequest:
    """Compose a preset with an interpreter for every framework and without data, since nothing is run."""
    fixed = ("cluster=iris", f"framework.environment={sys.executable}", "data.check=false")
    return study_request(composition.compose([f"+experiment={study}", *overrides, *fixed], True, "config", None))


def test_frameworks_v100_is_the_published_grid_with_a_fixed_batch_per_gpu() -> None:
    specs = [request.spec for request in asked("frameworks_v100").requests]
    grid = {(spec.framework, spec.strategy, spec.model, spec.gpus) for spec in specs}
    # TensorFlow, Keras, MXNet, PyTorch x native, Horovod x ResNet-20/32/44/56/110 x 1, 2, 4, 8, 12 GPUs.
    assert len(specs) == len(grid) == 4 * 2 * 5 * 5
    assert {spec.gpus for spec in specs} == {1, 2, 4, 8, 12}
    assert {spec.model for spec in specs} == {f"resnet{depth}" for depth in (20, 32, 44, 56, 110)}
    assert {(spec.dataset.name, spec.scaling) for spec in specs} == {("cifar10", "weak")}
    assert all((spec.batch_per_gpu, spec.global_batch) == (128, 128 * spec.gpus) for spec in specs)
    # 12 GPUs are three nodes of four.
    assert {spec.placement.nodes for spec in specs if spec.gpus == 12} == {3}


@pytest.mark.parametrize("study", ["time_to_accuracy", "time_to_accuracy_resnet9"])
def test_time_to_accuracy_is_one_recipe_in_the_same_steps_on_every_number_of_gpus(study: str) -> None:
    found = asked(study)
    specs = [request.spec for request in found.requests]
    assert found.target_accuracy == 0.94
    assert {(spec.gpus, spec.seed) for spec in specs} == {(gpus, seed) for gpus in (1, 2, 4, 8) for seed in (0, 1, 2)}
    assert len({(spec.global_batch, spec.measure, spec.optimizer, spec.model, spec.dataset) for spec in specs}) == 1
    # It ends with the learning-rate schedule, to within a step.
    samples = specs[0].measure.most_steps * specs[0].global_batch
    assert 0 <= samples - specs[0].optimizer.lr_end_samples < 5000


def test_time_to_accuracy_has_the_published_settings() -> None:
    """Jordan 2024, arXiv 2404.00498, section 3, and its published program, whose settings have their own units:
    learning rate 11.5 and weight decay 0.0153 for 1,024 samples with summed losses, momentum 0.85, both divided by
    1,024 x (1 + 1 / (1 - 0.85)), the decay not multiplied by the learning rate; decay of the slow weights 0.95^5."""
    [spec, *_] = [request.spec for request in asked("time_to_accuracy").requests]
    optimizer, batch = spec.optimizer, spec.global_batch
    assert (spec.framework, spec.model, batch, optimizer.name) == ("pytorch", "airbench94", 1024, "sgd")
    scale = 1 + 1 / (1 - 0.85)
    rates = [optimizer.learning_rate(batch, step) for step in range(spec.measure.most_steps)]
    assert max(rates) == pytest.approx(11.5 / scale, rel=0.01)
    assert max(rates) * optimizer.weight_decay == pytest.approx(0.0153 / scale, rel=0.01)
    assert rates.index(max(rates)) / len(rates) == pytest.approx(0.23, abs=0.003)
    assert (rates[0], rates[-1]) == pytest.approx((0.2 * 1.5, 0.07 * 1.5), rel=0.03)
    assert (optimizer.lookahead_steps, optimizer.lookahead_decay) == (5, pytest.approx(0.95**5, rel=1e-3))
    assert (optimizer.norm_bias_factor, optimizer.label_smoothing) == (64, 0.2)
    data = spec.dataset
    assert (data.augment, data.crop_pixels, data.crop_reflect, data.alternating_flip) == (True, 2, True, True)
    assert spec.measure.evaluate_views == 6
    assert spec.measure.most_steps * batch == pytest.approx(9.9 * 50000, rel=0.01)


def test_the_older_recipe_is_one_of_every_framework_and_its_rate_that_of_its_source() -> None:
    frameworks = ("pytorch", "tensorflow", "keras", "mxnet", "jax")
    specs = [r.spec for r in asked("time_to_accuracy_resnet9", f"framework={','.join(frameworks)}").requests]
    assert {spec.framework for spec in specs} == set(frameworks)
    optimizer, batch = specs[0].optimizer, specs[0].global_batch
    rates = [optimizer.learning_rate(batch, step) for step in range(specs[0].measure.most_steps)]
    # Page 2018, part 4: a peak of 0.4 after 5 of 24 epochs of 50,000 samples; 0 at both ends.
    assert max(rates) == pytest.approx(0.4, rel=2e-3)
    assert rates.index(max(rates)) == pytest.approx(5 * 50000 / batch, abs=1)
    assert rates[0] < 0.001
    assert rates[24 * 50000 // batch - 1] < 0.001
    assert rates[2] - rates[1] == pytest.approx(rates[1] - rates[0])


def test_indoor_model_sizes_asks_for_every_size_and_batch_on_one_gpu_and_on_two() -> None:
    specs = [request.spec for request in asked("indoor_model_sizes").requests]
    grid = {(spec.model, spec.batch_per_gpu, spec.gpus) for spec in specs}
    assert len(specs) == len(grid) == 4 * 3 * 2
    assert {(spec.framework, spec.dataset.name, spec.scaling) for spec in specs} == {("pytorch", "indoor67", "weak")}
    # Without BatchNorm these networks do not learn at the default rate.
    assert {spec.optimizer.lr for spec in specs} == {0.01}


def test_sync_async_mixed_has_equal_global_batches_on_1_and_16_nodes() -> None:
    specs = [request.spec for request in asked("sync_async_mixed").requests]
    grid = {(spec.strategy, spec.model, spec.gpus, spec.seed) for spec in specs}
    assert len(specs) == len(grid) == 3 * 2 * 5 * 3
    assert {spec.placement.nodes for spec in specs} == {1, 2, 4, 8, 16}
    assert {(spec.scaling, spec.global_batch) for spec in specs} == {("strong", 256)}


def test_data_vs_model_parallel_takes_equal_steps_in_every_strategy_with_and_without_a_failure() -> None:
    specs = [request.spec for request in asked("data_vs_model_parallel").requests]
    assert {(spec.scaling, spec.global_batch, spec.dataset.reader) for spec in specs} == {("strong", 64, "shards")}
    found = {(spec.strategy, spec.gpus, spec.replicas, spec.fault.name) for spec in specs}
    # One GPU alone; four copies of the model, one in four stages, one divided by four, and two in two stages.
    shapes = {("plain", 1, 1), ("allreduce", 4, 4), ("pipeline", 4, 1), ("tensor", 4, 1), ("pipeline", 4, 2)}
    assert found == {(*shape, fault) for shape in shapes for fault in ("none", "kill_rank")}
    assert {request.site.max_restarts for request in asked("data_vs_model_parallel").requests} == {1}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_a_short_form_and_a_section(study: str) -> None:
    full = asked(study)
    # The failure must occur within the few steps.
    short = asked(study, "measure=smoke", *(["fault.step=5"] if study == "data_vs_model_parallel" else []))
    assert len(short.requests) == len(full.requests)
    assert all(request.spec.measure.steps < 10 for request in short.requests)
    assert full.name == study
    page = (PROJECT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert f"(#{study})" in page
    [section] = re.findall(rf"^## {study}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert f"{len({request.spec.run_id for request in full.requests})} runs" in section
    # tests/test_docs.py runs it.
    [block] = re.findall(r"^```bash\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    assert f"+experiment={study} " in block
    assert "measure=smoke" in block


def test_every_preset_is_a_study_or_a_demonstration() -> None:
    presets = {path.stem for path in (PROJECT / "conf" / "experiment").glob("*.yaml")}
    assert presets == {*STUDIES, "demo", "demo_cluster"}


@pytest.mark.torch
def test_the_demonstrations_run_in_their_short_form(
    cli: Cli, tmp_path: Path, torch_python: Path, fashion_mnist: Path
) -> None:
    """On one rank. They define their own `measure`, which measure=smoke would not change."""
    steps = ("warmup_steps=2", "steps=4", "block_steps=2", "probe_steps=1", "evaluate_samples=64")
    for preset in ("demo", "demo_cluster"):
        here = ("cluster=local", "cluster.device=cpu", f"data.root={fashion_mnist}", "batch=16")
        done = cli("harness", f"+experiment={preset}", *here, *(f"measure.{key}" for key in steps))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 completed, 0 failed" in done.stdout
