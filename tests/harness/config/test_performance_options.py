"""Options that make a step faster: rejected combinations, and their place in the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import composition, performance_options
from harness.config.schema import Config
from harness.core.errors import UserError
from harness.core.spec import ClusterSpec, RunSpec
from harness.plan.request import study_request
from harness.worker.record import capture

LOOKAHEAD = ("optimizer.lookahead_steps=5", "optimizer.lookahead_decay=0.5", "optimizer.lr_end_samples=9")
COMPILE, MODE = ("framework.options.compile=true",), "framework.options.compile_mode="
HALF, FP16 = "framework.options.half_weights=true", ("precision=fp16", "framework.options.fused=true")
GRAPH = ("framework.options.cuda_graph=true", "framework.options.fused=true")


@pytest.fixture(autouse=True)
def _registered() -> None:
    composition.register()


def point(*overrides: str) -> Config:
    [found] = composition.compose([*overrides, "cluster=local", "dataset=synthetic"], False, "config", None)
    return found


def spec(tmp_path: Path, *overrides: str) -> RunSpec:
    python = tmp_path / "python"
    python.touch(mode=0o755)
    found = study_request([point("cluster.device=cpu", f"framework.environment={python}", *overrides)])
    return found.requests[0].spec


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["framework.options.fused=true", "optimizer.name=lars"], "fused=true is for optimizer.name=sgd and adam"),
        (["framework.options.fused=true", "strategy=ps_sync"], "fused=true is not offered with strategy 'ps_sync'"),
        ([GRAPH[0]], "cuda_graph=true needs framework.options.fused=true"),
        ([*GRAPH, "strategy=mpi"], "not offered with strategy 'mpi'; supported with: plain, allreduce"),
        ([*GRAPH, "framework.options.compile=true"], "not offered with framework.options.compile=true"),
        ([*GRAPH, "strategy.options.compress=fp16"], "needs strategy.options.overlap=true and compress=none"),
        ([*GRAPH, "measure=smoke"], "measure.warmup_steps=2: the first 11 steps are taken without the graph; give at"),
        (
            ["strategy=horovod", "strategy.options.cycle_ms=2", "+cluster.env.HOROVOD_CYCLE_TIME='5'"],
            "strategy.options.cycle_ms=2.0 and cluster.env.HOROVOD_CYCLE_TIME=5 both set it",
        ),
        (GRAPH, "cuda_graph=true needs a GPU"),
        (["framework.options.channels_last=nhwc"], "channels_last=nhwc: give true, false or auto"),
        ([HALF], "half_weights=true is for precision=fp16, and precision=fp32 was asked for"),
        ([HALF, "precision=fp16", "optimizer.name=adam"], "half_weights=true is for optimizer.name=sgd"),
        ([HALF, "precision=fp16"], "half_weights=true needs framework.options.fused=true"),
        (
            [HALF, *FP16, "strategy=mpi"],
            "half_weights=true is not offered with strategy 'mpi'; supported with: plain, all",
        ),
        ([HALF, *FP16, "strategy.options.compress=bf16"], "half_weights=true needs strategy.options.compress=none"),
        ([HALF, *FP16], "precision=fp16 needs a GPU"),
        ([MODE + "reduce-overhead"], "compile_mode=reduce-overhead needs framework.options.compile=true"),
        (
            [*COMPILE, MODE + "reduce-overhead"],
            "uses CUDA graphs, which need a GPU; on device cpu take default or max",
        ),
        (
            [*COMPILE, "strategy=allreduce", "strategy.options.bucket_mb=0.5"],
            "after a first bucket of 1 MB, and later ones may not be smaller; take bucket_mb=1 or more",
        ),
        ([*COMPILE, MODE + "max-autotune"], "compile_mode=max-autotune uses CUDA graphs, which need a GPU"),
        (
            [*COMPILE, MODE + "max-autotune", "strategy=zero1"],
            "not offered with strategy 'zero1'; supported with: plain, allreduce; take default or max-autotune-no-cuda",
        ),
        (
            [*COMPILE, MODE + "max-autotune-no-cudagraphs", "deterministic=true"],
            "chooses kernels by their time, which deterministic=true rules out; take default",
        ),
        ([*GRAPH, *COMPILE, MODE + "reduce-overhead"], "cuda_graph=true is not offered with framework.options.compile"),
        (
            ["framework=mxnet", "precision=bf16"],
            "precision=bf16 is not offered by framework 'mxnet'; mxnet offers: fp32, f",
        ),
        (["framework=mxnet", "precision=fp16"], "precision=fp16 needs a GPU"),
        (["framework=jax", "precision=fp16"], "precision=fp16 needs a GPU"),
        (["framework=mxnet", "strategy=ps_async", "precision=fp16"], "precision=fp16 is not offered by strategy 'ps_a"),
        (["framework=jax", "strategy=ssp", "precision=fp16"], "precision=fp16 is not offered by strategy 'ssp'"),
        (["precision=tf32"], "precision=tf32 needs the tensor cores of a GPU"),
        (["strategy.options.first_bucket_mb=0"], "strategy.options.first_bucket_mb=0.0: give a number above 0"),
        (["framework=jax", "strategy.options.static_graph=true"], "static_graph has no effect in framework 'jax'"),
        (["optimizer.lr_peak_samples=9", "optimizer.lr_end_samples=9"], "until the second, which must be larger"),
        (
            ["optimizer.lr_end_samples=9", "optimizer.warmup_steps=2"],
            "leave warmup_steps at 0, and give lr_peak_samples",
        ),
        (["optimizer.label_smoothing=1"], "optimizer.label_smoothing=1: give a share from 0 on and below 1"),
        (
            ["framework=jax", "optimizer.label_smoothing=0.1"],
            "not offered by framework 'jax'; framework=pytorch offers",
        ),
        (["optimizer.lr_start_factor=0.2"], "lr_start_factor=0.2 has no effect without optimizer.lr_peak_samples"),
        (["optimizer.lr_end_factor=2"], "optimizer.lr_end_factor=2: give a share of the learning rate, from 0 to 1"),
        (["optimizer.norm_bias_factor=0"], "optimizer.norm_bias_factor=0: give a number above 0"),
        (["optimizer.norm_bias_factor=2", "optimizer.name=lars"], "norm_bias_factor=2 is for optimizer.name=sgd"),
        (["optimizer.norm_bias_factor=2", "model=cnn_small"], "has no effect: model 'cnn_small' has no BatchNorm"),
        (
            ["optimizer.norm_bias_factor=2", "strategy=fsdp"],
            "not offered with strategy 'fsdp'; supported with: plain, allr",
        ),
        (["optimizer.norm_bias_factor=2", "framework=jax"], "not offered by framework 'jax'; framework=pytorch offers"),
        (["optimizer.lookahead_steps=5"], "lookahead_steps=5 and optimizer.lookahead_decay=0: give a number of steps"),
        (["optimizer.lookahead_decay=0.5"], "lookahead_steps=0 and optimizer.lookahead_decay=0.5: give a number of"),
        ([*LOOKAHEAD[:2]], "lookahead_steps=5: its decay rises until optimizer.lr_end_samples, which is 0"),
        ([*LOOKAHEAD, "strategy=local_sgd"], "lookahead_steps=5 is not offered with strategy 'local_sgd'"),
        ([*LOOKAHEAD, "framework=mxnet"], "lookahead_steps=5 is not offered by framework 'mxnet'"),
        (["framework=mxnet", "precision=tf32"], "precision=tf32 is not offered by framework 'mxnet'"),
    ],
)
def test_unsupported_options_are_rejected_in_one_sentence(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        spec(tmp_path, *overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_gpus_without_tensor_cores_for_a_precision_are_not_asked_for_it(precision: str) -> None:
    asked = point(f"precision={precision}", "cluster.gpu_type=Tesla-V100")
    assert "GPUs before Ampere have no tensor cores for it; take fp16" in str(
        performance_options.on_device(asked, "cuda")
    )
    assert performance_options.on_device(point(f"precision={precision}", "cluster.gpu_type=a100"), "cuda") is None


def test_a_cuda_graph_is_offered_with_loss_scaling() -> None:
    assert performance_options.unsupported(point(*GRAPH, "precision=fp16")) is None


def test_option_changes_the_run_and_its_default_keeps_old_ids(tmp_path: Path) -> None:
    plain = spec(tmp_path)
    assert plain.framework_options == {"compile": False, "channels_last": True}
    assert "static_graph" not in plain.strategy_options
    fused = spec(tmp_path, "framework.options.fused=true")
    bucket = spec(tmp_path, "strategy.options.first_bucket_mb=2")
    assert fused.framework_options["fused"] is True
    assert bucket.strategy_options["first_bucket_mb"] == 2.0
    tuned = spec(tmp_path, *COMPILE, MODE + "max-autotune-no-cudagraphs")
    assert tuned.framework_options["compile_mode"] == "max-autotune-no-cudagraphs"
    assert "compile_mode" not in spec(tmp_path, *COMPILE).framework_options
    assert len({plain.run_id, fused.run_id, bucket.run_id, tuned.run_id}) == 4


@pytest.mark.parametrize(
    ("precision", "device", "value"),
    # As in NVIDIA's DeepLearningExamples: NHWC for tensor cores, NCHW for fp32.
    [
        *(("fp32", "cuda", False), ("tf32", "cuda", True), ("bf16", "cuda", True), ("fp16", "cuda", True)),
        *(("fp32", "cpu", True), ("bf16", "cpu", True)),
    ],
)
def test_channels_last_auto_is_resolved_by_precision_and_device(precision: str, device: str, value: bool) -> None:
    asked = point(f"precision={precision}")
    assert asked.framework.options.channels_last == "auto"
    assert performance_options.resolved(asked.framework.options, precision, device).channels_last is value
    said = performance_options.became(asked, device)
    assert said == "" if device == "cpu" else f"auto is {str(value).lower()} with precision={precision}" in said


def test_a_run_is_the_same_whether_channels_last_was_given_or_resolved(tmp_path: Path) -> None:
    asked, given, other = (
        spec(tmp_path, *overrides)
        for overrides in ([], ["framework.options.channels_last=true"], ["framework.options.channels_last=false"])
    )
    assert asked.framework_options["channels_last"] is True
    assert asked.run_id == given.run_id != other.run_id


def test_bf16_on_a_processor_without_instructions_for_it_is_said(tmp_path: Path) -> None:
    asked = spec(tmp_path, "precision=bf16")
    assert asked.cluster == ClusterSpec("local", "cpu", 1)
    [said] = capture.emulated_precision(asked, "flags\t\t: fpu avx2 avx512f\n")
    assert said.startswith("precision=bf16 was emulated: ")
    assert capture.emulated_precision(asked, "flags\t\t: fpu avx512f avx512_bf16\n") == []
    assert capture.emulated_precision(asked, "Features\t: fp asimd bf16\n") == []
    assert capture.emulated_precision(spec(tmp_path), "flags\t\t: fpu\n") == []
