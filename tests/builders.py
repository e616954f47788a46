"""Builds values that many tests need from the real classes."""

from __future__ import annotations

from typing import Any

from harness.core.spec import ClusterSpec, DatasetSpec, MeasureSpec, OptimizerSpec, Placement, RunSpec, Site
from harness.plan.plan import Request, Resources

SYNTHETIC = DatasetSpec(
    name="synthetic",
    reader="synthetic",
    classes=10,
    channels=3,
    image_size=32,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    train_samples=256,
    test_samples=64,
)


TEXT = DatasetSpec(
    name="synthetic_text",
    reader="synthetic",
    classes=256,
    channels=0,
    image_size=0,
    mean=(),
    std=(),
    augment=False,
    train_samples=256,
    test_samples=64,
    context=24,
)


def make_spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {
        "framework": "pytorch",
        "framework_options": {"compile": False, "channels_last": True},
        "environment": "pytorch",
        "strategy": "allreduce",
        "strategy_options": {"bucket_mb": 25.0},
        "model": "resnet20",
        "dataset": SYNTHETIC,
        "precision": "fp32",
        "gpus": 2,
        "placement": Placement(1, 2),
        "scaling": "weak",
        "global_batch": 16,
        "batch_per_gpu": 8,
        "seed": 0,
        "repeat": 0,
        "optimizer": OptimizerSpec(),
        "measure": MeasureSpec(warmup_steps=1, steps=4, block_steps=2, probe_steps=1, evaluate_samples=64),
        "cluster": ClusterSpec(name="local", device="cpu", cpus_per_gpu=1),
    }
    return RunSpec(**{**values, **changes})


def make_site(**changes: Any) -> Site:
    values: dict[str, Any] = {
        "python": "/envs/pytorch/bin/python",
        "data_root": "/data",
        "project": "/project",
        "code_version": "0123456789ab",
        "oversubscribed": None,
        "visible_gpus": None,
        "timeout_seconds": 600.0,
    }
    return Site(**{**values, **changes})


def make_request(gpus: int = 2, nodes: int = 1, **changes: Any) -> Request:
    placement = Placement(nodes, gpus // nodes)
    resources = Resources(scheduler="slurm", placement=placement, cpus_per_gpu=4, timeout_minutes=30)
    return Request(make_spec(gpus=gpus, placement=placement, **changes), make_site(), resources)
