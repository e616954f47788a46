"""What each framework supports. Its strategies are listed in harness/core/strategies.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.core.spec import DALI, DEVICE, FRAMEWORK, HARNESS
from models.catalog import IMAGES, TEXT


@dataclass(frozen=True)
class FrameworkCapabilities:
    """What a framework's adapter implements."""

    # Numeric precisions of training: precision=
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16", "fp16")
    # Input pipelines: data.pipeline=
    pipelines: tuple[str, ...] = (HARNESS,)
    # Inputs of its networks: images, text
    inputs: tuple[str, ...] = (IMAGES,)
    # optimizer.name=
    optimizers: tuple[str, ...] = ("sgd",)
    # Options without effect in this framework, by strategy; they must keep their defaults.
    no_effect: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_OF_DDP = ("compress", "first_bucket_mb", "bucket_view", "static_graph")
CAPABILITIES: dict[str, FrameworkCapabilities] = {
    "pytorch": FrameworkCapabilities(
        pipelines=(HARNESS, FRAMEWORK, DEVICE, DALI), inputs=(IMAGES, TEXT), optimizers=("sgd", "adam", "lars")
    ),
    **dict.fromkeys(
        ("tensorflow", "keras"),
        FrameworkCapabilities(pipelines=(HARNESS, FRAMEWORK), no_effect={"allreduce": ("overlap", *_OF_DDP)}),
    ),
    "mxnet": FrameworkCapabilities(
        precisions=("fp32", "fp16"),
        pipelines=(HARNESS, FRAMEWORK),
        no_effect={"allreduce": ("bucket_mb", "overlap", *_OF_DDP)},
    ),
    "jax": FrameworkCapabilities(no_effect={"allreduce": ("bucket_mb", "overlap", *_OF_DDP)}),
    "emulated": FrameworkCapabilities(precisions=("fp32",), inputs=(IMAGES, TEXT), no_effect={"allreduce": _OF_DDP}),
}
