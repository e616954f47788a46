"""The input pipelines, and the settings that affect each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.config import composition
from harness.core.errors import UserError
from harness.core.spec import InputSpec, RunSpec
from harness.plan import memory
from harness.plan.request import study_request

FIXED = ("cluster=slurm", "cluster.device=cuda", "cluster.gpus_per_node=4", "data.check=false")
DALI = ("data.pipeline=dali", "dataset=indoor67", "model=resnet18")


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composition.register()
    monkeypatch.chdir(tmp_path)


def spec(*overrides: str) -> RunSpec:
    anywhere = f"framework.environment={sys.executable}"
    [request] = study_request(composition.compose([*FIXED, anywhere, *overrides], False, "config", None)).requests
    return request.spec


def test_ineffective_settings_are_not_in_the_pipelines_spec() -> None:
    assert spec("data.pipeline=harness").data == InputSpec()
    assert spec("data.pipeline=framework", "data.workers=3").data == InputSpec("framework", 3, 4)
    assert spec("data.pipeline=framework", "data.workers=0").data == InputSpec("framework", 0, 0)
    asked = ("data.pipeline=harness", "data.pin=false", "data.prefetch=2")
    assert spec(*asked).data == InputSpec("harness", 1, 2, pin=False)
    assert spec("data.pipeline=device").data == InputSpec("device", 0, 0, samples=50_000)
    loaded = "cluster.modules=[dali]"  # visible only inside a job
    assert spec(*DALI, loaded, "data.workers=3").data == InputSpec("dali", 3, 4)


ON_GPUS = [
    ((), InputSpec("device", 0, 0, samples=50_000)),
    (("cluster.gpu_memory_gb=1.5",), InputSpec("device", 0, 0, samples=50_000)),
    # 10 % of it is 0.10 GB; 50,000 images of 3,072 bytes are 0.14 GB.
    (("cluster.gpu_memory_gb=1",), InputSpec("framework", 1, 4)),
    # If the memory is unknown, 1 GB: 349,525 such images.
    (("dataset.train_samples=349525",), InputSpec("device", 0, 0, samples=349_525)),
    (("dataset.train_samples=349526",), InputSpec("framework", 1, 4)),
    (("dataset.train_samples=349526", "cluster.gpu_memory_gb=80"), InputSpec("device", 0, 0, samples=349_526)),
    (("dataset.train_samples=0",), InputSpec("framework", 1, 4)),
    (("dataset=indoor67", "model=resnet18"), InputSpec("framework", 1, 4)),
    (("dataset=text", "model=gpt_tiny", "dataset.train_samples=5000"), InputSpec("device", 0, 0, samples=5000)),
    (("data.workers=3",), InputSpec("framework", 3, 4)),
    (("data.prefetch=2",), InputSpec("framework", 1, 2)),
    (("data.pin=false",), InputSpec("framework", 1, 4, pin=False)),
    (("data.workers=0",), InputSpec("harness", 0, 0)),
    (("dataset.reader=shards",), InputSpec()),
    (("framework=tensorflow",), InputSpec()),
    (("framework=keras",), InputSpec()),
    (("framework=mxnet",), InputSpec()),
    (("framework=jax",), InputSpec()),
    (("cluster.device=cpu",), InputSpec()),
]


@pytest.mark.parametrize(("overrides", "becomes"), ON_GPUS, ids=str)
def test_auto_becomes_the_device_where_the_samples_fit_else_a_process(
    overrides: tuple[str, ...], becomes: InputSpec
) -> None:
    found = spec(*overrides)
    assert found.data == becomes
    explicit = [f"data.pipeline={becomes.pipeline}"]
    assert found.run_id == spec(*overrides, *explicit).run_id, "the id is that of what it became"


def test_real_and_made_data_are_compared_with_the_same_pipeline() -> None:
    asked = (
        *FIXED,
        "dataset=indoor67",
        "model=resnet18",
        "data=both",
        "dataset.train_samples=90",
        "dataset.test_samples=9",
    )
    pair = study_request(
        composition.compose([*asked, f"framework.environment={sys.executable}"], False, "config", None)
    )
    assert {request.spec.data.pipeline for request in pair.requests} == {"framework"}
    assert len(pair.requests) == 2


def test_the_plan_says_what_auto_became_and_why() -> None:
    def said(*overrides: str) -> list[str]:
        anywhere = f"framework.environment={sys.executable}"
        asked = study_request(composition.compose([*FIXED, anywhere, *overrides], False, "config", None))
        return [note for note in asked.notes if note.startswith("data.pipeline=auto")]

    assert said() == ["data.pipeline=auto is device: the samples of data set 'cifar10' fit on each GPU"]
    [why] = said("dataset=indoor67", "model=resnet18")
    assert why.startswith("data.pipeline=auto is framework: worker processes prepare the batches, since ")
    assert said("data.pipeline=device") == said("framework=jax") == said("cluster.device=cpu") == []


def test_the_default_pipeline_on_cpus_leaves_a_run_its_id() -> None:
    cpu = ("cluster.device=cpu",)
    assert spec(*cpu).run_id == spec(*cpu, "data.pipeline=harness", "data.workers=1", "data.prefetch=4").run_id
    assert len({spec(f"data.pipeline={name}").run_id for name in ("harness", "framework", "device")}) == 3


def test_the_samples_on_the_device_count_as_its_memory() -> None:
    plain, held = (memory.estimate(spec(f"data.pipeline={name}")) for name in ("harness", "device"))
    assert held.total - plain.total == 50_000 * 32 * 32 * 3  # bytes of CIFAR-10's training images


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("framework=jax", "data.pipeline=framework"), "'jax' has no loader of its own; it offers: harness"),
        (
            ("framework=mxnet", "data.pipeline=device"),
            "not offered by framework 'mxnet'; it offers: harness, framework",
        ),
        (("data.pipeline=framework", "dataset.reader=shards"), "which each rank reads in sequence"),
        (("data.workers=2", "data.pipeline=harness"), "data.pipeline=harness has one thread"),
        (("data.workers=2", "cluster.device=cpu"), "data.pipeline=harness has one thread"),
        (("data.pipeline=device", "data.workers=2"), "data.workers=2 has no effect with data.pipeline=device"),
        (("data.workers=0", "data.prefetch=2"), "data.prefetch=2 has no effect with data.workers=0"),
        (("data.workers=-1",), "data.workers=-1: give a number of at least 0"),
        (("data.prefetch=0",), "data.prefetch=0: give a number of at least 1"),
        (("framework=tensorflow", "data.pin=false"), "data.pin=false has no effect with framework=tensorflow"),
        (("data.pipeline=device", "data.pin=false"), "data.pin=false has no effect"),
        (("data.pipeline=device", "dataset.train_samples=0"), "set dataset.train_samples"),
        (
            # 10 million images of 224 x 224 x 3 bytes.
            (
                *("data.pipeline=device", "dataset=indoor67", "dataset.train_samples=10000000"),
                *("model=resnet50", "cluster.gpu_memory_gb=80"),
            ),
            "are 1401.9 GB, in addition to 0.3 GB for model 'resnet50'; each GPU has 80 GB",
        ),
        (("data.pipeline=own",), "is one of auto, harness, framework, device, dali"),
        (("framework=tensorflow", *DALI), "not offered by framework 'tensorflow'; it offers: harness, framework"),
        (("data.pipeline=dali",), "data set 'cifar10' has dataset.reader=cifar10; take data.pipeline=harness"),
        ((*DALI, "data=synthetic"), "data set 'indoor67' has dataset.reader=synthetic; take data.pipeline=harness"),
        ((*DALI, "dataset.reader=shards"), "which each rank reads in sequence"),
        ((*DALI, "dataset.crop_reflect=true"), "NVIDIA DALI pads images with black only"),
        ((*DALI, "data.workers=0"), "data.pipeline=dali works with threads of its own; give at least 1"),
        ((*DALI, "data.pin=false"), "data.pin=false has no effect"),
        # The harness's own environment has no DALI.
        (DALI, "NVIDIA DALI is not in the environment of .*; build that with `DALI=1 sbatch/env/pytorch.sh`"),
    ],
    ids=str,
)
def test_unsupported_combination_gets_one_sentence(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(*overrides)
