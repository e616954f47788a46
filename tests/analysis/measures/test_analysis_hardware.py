"""Achieved rates of network and devices, compared with nominal ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from seen import Seen, words
from study_builder import DATASET, GRADIENT_BYTES, Logs, StudyBuilder, spec_of
from test_analysis_breakdown import losses, of, rounds, steps

from analysis.measures.bandwidth import hidden
from analysis.measures.flops import peak_of, training_flops_per_sample
from analysis.stats.intervals import Interval
from harness.core.serialization import to_plain
from harness.core.spec import ClusterSpec, Placement
from models import catalog

GB = 1e9


def add(study: StudyBuilder, gpus: int, alone: float, site: dict[str, Any] | None = None, **spec: Any) -> Path:
    probes: dict[str, Any] = rounds(exposed=0.03, computing=(0.1,) * gpus)
    probes["allreduce"] = [[alone] * gpus] * 8
    return study.add(spec_of(gpus, **spec), Logs(rounds=probes, block_seconds=steps(0.13)), site=site)


def test_bandwidths_are_those_of_nccl_tests(study: StudyBuilder) -> None:
    add(study, 4, alone=0.05)
    network = of(losses(study), 4).network
    # doc/PERFORMANCE.md of nccl-tests: busbw = algbw x 2 (n - 1) / n, which is 1.5 for four ranks.
    assert network.algorithm_gb_per_s == pytest.approx(GRADIENT_BYTES / 0.05 / GB)
    assert network.bus_gb_per_s == pytest.approx(1.5 * GRADIENT_BYTES / 0.05 / GB)
    assert network.overlap is not None
    assert network.overlap[:3] == pytest.approx((0.4, 0.4, 0.4))
    assert network.bus_of_nominal is None
    assert network.notes == ("no nominal rate of the link in the cluster's configuration",)


@pytest.mark.parametrize(("nodes", "nominal"), [(1, 300.0), (2, 12.5)])
def test_the_link_is_that_between_nodes_where_there_are_several(
    study: StudyBuilder, nodes: int, nominal: float
) -> None:
    site = {"link_gb_per_s": 12.5, "gpu_link_gb_per_s": 300.0}
    add(study, 2, alone=0.05, site=site, placement=Placement(nodes, 2 // nodes))
    network = of(losses(study), 2).network
    assert network.nominal_gb_per_s == nominal
    assert network.bus_of_nominal == pytest.approx(GRADIENT_BYTES / 0.05 / GB / nominal)
    assert network.notes == ()


@pytest.mark.parametrize(
    ("strategy", "options", "overlap", "bus"),
    [
        ("horovod", {"compress": "none"}, True, True),
        ("allreduce", {"compress": "bf16"}, False, True),
        ("local_sgd", {"sync_every": 8}, False, True),
        ("zero1", {}, False, True),
        ("ps_sync", {"servers": 1}, True, False),
    ],
)
def test_only_like_is_compared_with_like(
    study: StudyBuilder, strategy: str, options: dict[str, Any], overlap: bool, bus: bool
) -> None:
    add(study, 2, alone=0.05, strategy=strategy, strategy_options=options)
    network = of(losses(study), 2, strategy).network
    assert (network.overlap is not None, network.bus_gb_per_s is not None) == (overlap, bus)
    reasons = " ".join(network.notes)
    assert overlap or "no overlap: a step exchanges other messages than the allreduce alone" in reasons
    assert bus or "no bus bandwidth: the message goes through parameter servers" in reasons


def test_an_impossible_overlap_is_replaced_by_the_reason() -> None:
    alone = Interval(0.76e-3)
    # 1 - 4.4 / 0.76 would be -480 %.
    assert hidden(Interval(4.4e-3), alone) == (
        "no overlap: exposed synchronisation, 4.40 ms, is longer than the allreduce alone, 760 µs: it holds more than "
        "messages"
    )
    assert hidden(Interval(-1e-4), alone) == (
        "no overlap: steps with and without synchronisation differ by noise (-100 µs)"
    )
    found = hidden(Interval(0.38e-3, -0.1e-3, 0.9e-3), alone)
    assert found[:3] == pytest.approx((0.5, 0.0, 1.0))


def test_one_rank_has_no_network(study: StudyBuilder) -> None:
    add(study, 1, alone=0.05)
    network = of(losses(study), 1).network
    assert (network.overlap, network.bus_gb_per_s, network.notes) == (None, None, ())


def test_flops_are_three_times_the_forward_pass_of_the_catalogue(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(block_seconds=steps(0.1), device_name="Tesla V100-SXM2-16GB"))
    loss = of(losses(study), 2)
    forward = catalog.forward_flops(catalog.network("resnet44").layers(3, 10, 32), 32)
    # 128 samples on each GPU in 100 ms.
    assert loss.tflops == pytest.approx(3 * forward * 1280 / 1e12)
    assert loss.peak.tflops == 15.7
    assert loss.utilisation == pytest.approx(3 * forward * 1280 / 15.7e12)
    # Known without a probe.
    assert "of 15.7 TFLOP/s: NVIDIA V100 datasheet" in words(Seen(study).html)


def test_text_sample_is_a_sequence() -> None:
    text = to_plain(dataclasses.replace(DATASET, context=64, channels=0, image_size=0, classes=256, mean=(), std=()))
    model = next(name for name, row in catalog.CATALOG.items() if row.inputs == catalog.TEXT)
    layers = catalog.network(model).layers(0, 256, 64)
    assert training_flops_per_sample(model, text) == 3 * catalog.forward_flops(layers, 64)
    assert training_flops_per_sample("none of ours", text) is None


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("Tesla P100-SXM2-16GB", "fp16", 21.2),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp32", 14),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", None),
        ("NVIDIA H100", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA A100-SXM4-40GB;Tesla V100-SXM2-16GB", "fp32", None),
    ],
)
def test_peaks_are_of_the_device_as_nvidia_smi_names_it(name: str, precision: str, tflops: float | None) -> None:
    assert peak_of("cuda", name.split(";"), precision, None).tflops == tflops


def test_a_peak_that_the_cluster_gives_wins_and_a_cpu_has_none_else(study: StudyBuilder) -> None:
    assert peak_of("cuda", ["NVIDIA H200"], "fp32", 60.0) == (60.0, "cluster.peak_tflops")
    assert peak_of("cpu", ["some CPU"], "fp32", None).tflops is None
    site = {"peak_tflops": {"fp32": 2.0, "bf16": 4.0}}
    spec = spec_of(1, cluster=ClusterSpec("atlas", "cpu", 8))
    study.add(spec, Logs(block_seconds=steps(0.1), device_name="some CPU"), site=site)
    loss = of(losses(study), 1)
    assert (loss.peak.tflops, loss.utilisation) == (2.0, pytest.approx(loss.tflops / 2.0))  # type: ignore[operator]


def test_emulated_runs_have_no_flops(study: StudyBuilder) -> None:
    study.add(spec_of(1, framework="emulated"), Logs(block_seconds=steps(0.1)))
    loss = of(losses(study), 1)
    assert (loss.tflops, loss.utilisation, loss.peak.source) == (None, None, "emulated: nothing was computed")
