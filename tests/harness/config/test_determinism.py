"""deterministic=true: rejected combinations, and its place in the spec."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_performance_options import point, spec

from harness.config import composition, determinism
from harness.core.errors import UserError


@pytest.fixture(autouse=True)
def _registered() -> None:
    composition.register()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["framework=emulated"],
            "not offered by framework 'emulated'; it is offered by: pytorch, tensorflow, keras, mxnet, jax",
        ),
        (
            ["framework=tensorflow", "framework.options.jit_compile=true", "model=cnn_small"],
            "not offered with framework.options.jit_compile=true and model 'cnn_small'",
        ),
        (["framework=jax", "model=cnn_small"], "not offered with framework 'jax' and model 'cnn_small': on GPUs, XLA"),
        (["framework=mxnet", "gpus=3", "batch=3"], "'mxnet' and strategy 'allreduce' is offered on gpus=1,2 only"),
        (["framework=mxnet", "strategy=ps_sync", "gpus=3", "batch=3"], "KVStore add gradients in the order in which"),
        (
            ["framework=jax", "+cluster.env.XLA_FLAGS='--xla_dump_to=x'"],
            "sets XLA_FLAGS itself; leave cluster.env.XLA_FLAGS=--xla_dump_to=x out",
        ),
        (["strategy=ps_async"], "not offered with strategy 'ps_async', whose servers apply updates in the order in"),
        (["strategy=ps_mixed"], "it is offered with: plain, allreduce, hierarchical, hybrid, zero1"),
        (["strategy=ssp"], "not offered with strategy 'ssp'"),
        (["strategy=horovod", "gpus=3", "batch=3"], "on gpus=3 needs strategy.options.fusion_mb=0"),
        (["strategy=horovod", "strategy.options.autotune=true"], "not offered with strategy.options.autotune=true"),
        (
            ["+cluster.env.CUBLAS_WORKSPACE_CONFIG=':16:8'"],
            "sets CUBLAS_WORKSPACE_CONFIG itself; leave cluster.env.CUBLAS_WORKSPACE_CONFIG=:16:8 out",
        ),
    ],
)
def test_nondeterministic_combinations_are_rejected_by_name(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        spec(tmp_path, "deterministic=true", *overrides)
    assert str(caught.value).startswith("deterministic=true ")
    assert message in str(caught.value)


def test_dali_is_refused() -> None:
    asked = point("deterministic=true", "data.pipeline=dali")
    assert "not offered with data.pipeline=dali" in str(determinism.unsupported(asked))


HOROVOD = ["strategy=horovod", "gpus=3", "batch=3", "strategy.options.fusion_mb=0"]


COMPILED = ["framework=tensorflow", "framework.options.jit_compile=true", "model=resnet20"]


MXNET = ["framework=mxnet", "gpus=2"]


@pytest.mark.parametrize(
    "overrides",
    [["strategy=ps_sync"], HOROVOD, COMPILED, ["framework=keras"], MXNET, ["framework=jax", "gpus=3", "batch=3"]],
)
def test_supported_determinism_is_a_separate_run(overrides: list[str], tmp_path: Path) -> None:
    plain, deterministic = spec(tmp_path, *overrides), spec(tmp_path, "deterministic=true", *overrides)
    assert (plain.deterministic, deterministic.deterministic) == (False, True)
    assert plain.run_id != deterministic.run_id
