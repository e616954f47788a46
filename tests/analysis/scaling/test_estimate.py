"""`python -m analysis estimate`: estimates from nominal figures alone, and the usual error of each level."""

from __future__ import annotations

import csv
import json
import re
import statistics

import pytest
from project import PROJECT
from study_builder import Logs, StudyBuilder, spec_of

from analysis.__main__ import main
from analysis.measures.flops import device_called, peak_of, training_flops_per_sample
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.scaling.prediction import predict_series
from analysis.scaling.reference_errors import CALIBRATED_ERROR, FITTED_ERROR, ROOFLINE_SHARE
from analysis.scaling.roofline import Machine, Work, roofline, work_of
from analysis.scaling.series import Size
from analysis.scaling.study_series import study_series
from harness.core.spec import Placement
from models import catalog

PUBLISHED = PROJECT / "benchmarks/published/throughput.csv"
# One sample is 1 ms of computing; 10 MB of gradients.
MACHINE = Machine(gpus_per_node=4, flops=1e12, memory=1e11, gpu_link=1e11, link=1e10)
WORK = Work(flops=1e9, activation_bytes=1e6, parameters=2_500_000, batch=10)


def test_roofline_by_hand() -> None:
    one = roofline(WORK, MACHINE, Size(1, 1), None)
    assert one.compute == pytest.approx(0.010)
    # 2 passes over 10 samples of 1 MB, 8 passes over 10 MB of weights, at 100 GB/s.
    assert one.memory == pytest.approx((2 * 10e6 + 8 * 10e6) / 1e11)
    assert (one.limit, one.inside, one.between) == ("compute", 0.0, 0.0)
    assert one.bound == one.exposed == pytest.approx(1000)
    eight = roofline(WORK, MACHINE, Size(8, 2), ROOFLINE_SHARE)
    assert eight.inside == pytest.approx(2 * 3 / 4 * 10e6 / 1e11)  # 0.15 ms
    assert eight.between == pytest.approx(2 * 1 / 2 * 10e6 / 1e10)  # 1 ms
    assert eight.bound == pytest.approx(8000)  # 1.15 ms are hidden behind 6.67 ms of backward
    assert eight.exposed == pytest.approx(80 / 0.01115)
    assert eight.low == pytest.approx(80 / (0.010 / ROOFLINE_SHARE.low + 0.00115))
    assert eight.high == pytest.approx(8000 * ROOFLINE_SHARE.high)


def test_a_slow_memory_limits_and_a_slow_link_cannot_be_hidden() -> None:
    slow = Machine(4, 1e12, 1e9, 1e11, 1e9)
    found = roofline(WORK, slow, Size(8, 2), None)
    assert found.limit == "memory"
    assert found.bound == pytest.approx(80 / 0.1)  # 100 MB at 1 GB/s; 10 ms of communication behind 67 ms
    fast = roofline(WORK, Machine(4, 1e12, None, 1e11, 1e9), Size(8, 2), None)
    assert fast.bound == pytest.approx(80 / (0.010 + 0.01015 - 0.010 * 2 / 3))
    unknown = roofline(WORK, Machine(4, 1e12, None, 1e11, None), Size(8, 2), ROOFLINE_SHARE)
    assert (unknown.between, unknown.exposed, unknown.low) == (None, None, None)
    assert unknown.bound == pytest.approx(8000)


def test_share_of_the_roofline_is_that_of_the_published_lines() -> None:
    names = {"ResNet50 V1.5": "resnet50", "ResNet-50": "resnet50", "AlexNet": "alexnet", "VGG-16": "vgg16"}
    gpus = {"V100-SXM2": 900e9, "P100": 732e9}  # bytes per second of the memory, NVIDIA's datasheets
    dataset = {"channels": 3, "classes": 1000, "image_size": 224}
    shares = []
    for line in csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines()):
        gpu = next((name for name in gpus if name in line["system"]), None)
        if line["gpus"] != "1" or line["model"] not in names or gpu is None:
            continue
        model = names[line["model"]]
        flops = training_flops_per_sample(model, dataset)
        # The P100s of a DGX-1 are SXM2, which the table does not state.
        peak = peak_of("cuda", [gpu if "SXM2" in gpu else f"{gpu}-SXM2"], "fp32", None).tflops
        assert flops is not None
        assert peak is not None
        layers = catalog.network(model).layers(3, 1000, 224)
        work = work_of(layers, flops, 3, 224, False, int(line["batch_per_gpu"]))
        bound = roofline(work, Machine(8, peak * 1e12, gpus[gpu], None, None), Size(1, 1), None).bound
        shares.append(float(line["samples_per_second"]) / bound)
    assert len(shares) == ROOFLINE_SHARE.lines
    found = min(shares), statistics.median(shares), max(shares)
    assert found == pytest.approx((ROOFLINE_SHARE.low, ROOFLINE_SHARE.median, ROOFLINE_SHARE.high), abs=6e-4)


def test_usual_errors_are_those_of_the_benchmark() -> None:
    results = (PROJECT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    for what, said in (("all; mean", FITTED_ERROR), ("several nodes from one node", CALIBRATED_ERROR)):
        row = next(line for line in results.splitlines() if line.startswith(f"| {what}"))
        mean = re.search(r"mean (\d+\.\d+) %", row)
        median = row.split(" | ")[1].split()[0]
        assert mean is not None
        assert (float(mean[1]), float(median)) == pytest.approx((100 * said.mean, 100 * said.median), abs=0.051)
        assert row.endswith(f"| {said.series} |")


def test_command_reads_the_cluster_and_marks_every_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["model=resnet50", "gpus=1,8,32", "cluster=iris", "dataset=synthetic_imagenet"]
    assert main(["estimate", *asked]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "estimated, not measured" in printed
    assert "14 published lines" in printed
    assert main(["estimate", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mark"] == "estimated, not measured"
    one, _, many = found["estimates"]
    # 3 x 8.18 GFLOP (He et al. 2015 count 3.8 x 10^9 multiply-adds of v1) at 15.7 TFLOP/s.
    assert one["bound"] == pytest.approx(15.7e12 / 24.535e9, rel=1e-3)
    assert many["size"] == {"gpus": 32, "nodes": 8}
    assert many["between"] == pytest.approx(2 * 7 / 8 * 4 * 25_557_032 / 12.5e9)
    assert many["inside"] == pytest.approx(2 * 3 / 4 * 4 * 25_557_032 / 150e9)


def test_unknown_facts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["model=gpt2", "gpus=2", "dataset=synthetic_text", "precision=fp16", "peak_tflops=125", "batch=8", "--json"]
    assert main(["estimate", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["estimates"][0]["low"], found["estimates"][0]["exposed"]) == (None, None)
    said = " ".join(found["remarks"])
    for name in ("memory_gb_per_s", "gpu_link_gb_per_s", "link_gb_per_s", "gpus_per_node"):
        assert f"{name} is not known" in said
    assert "What is usual is not known" in said


@pytest.mark.parametrize(
    ("gpu_type", "words"),
    [
        ("v100", ["V100", "SXM2"]),
        ("Tesla_V100-PCIE-32GB", ["V100", "PCIE"]),
        ("v100s", ["V100S"]),
        ("a100", ["A100"]),
        ("nvidia_a100_80gb_pcie", ["A100", "80GB"]),
        ("h100", ["H100", "HBM3"]),
        ("gh200", None),
    ],
)
def test_the_type_of_a_gpu_stands_for_its_figures(gpu_type: str, words: list[str] | None) -> None:
    found = device_called(gpu_type)
    assert (found and found["words"]) == words


def test_figures_of_the_type_are_those_given_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "model=resnet44", "gpus=1", "--json"]
    assert main([*asked, "gpu_type=v100"]) == 0
    named = capsys.readouterr().out
    assert main([*asked, "peak_tflops=15.7", "memory_gb_per_s=900"]) == 0
    assert capsys.readouterr().out == named


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gpus=8 peak_tflops=1", "model= is missing"),
        ("model=resnet50 gpus=8 gpu_type=k80", "gpu_type=k80 is not known; there are h200,"),
        ("model=resnet50 gpus=8 gpu_type=v100 precision=bf16", "gpu_type=v100 has no bf16"),
        ("model=resnet50 gpus=8", "the peak of a GPU is not known: give gpu_type=v100, or peak_tflops="),
        ("model=resnet50 gpus=8 cluster=iris precision=bf16", "cluster=iris has none in bf16"),
        ("model=resnet51 gpus=8 cluster=iris", "model 'resnet51' is not in the catalogue"),
        ("model=resnet50 gpus=8 cluster=nowhere", "cluster=nowhere: there is no such file; there are cpu, gpu8"),
        ("model=alexnet gpus=8 cluster=iris", "has images of 32 pixels, and alexnet needs 63"),
        ("model=gpt2 gpus=8 cluster=iris", "dataset=cifar10 holds images, and gpt2 takes text"),
        ("model=resnet50 gpus=7 cluster=iris", "gpus=7: cannot be placed evenly on 2 nodes of 4 GPUs"),
        ("model=resnet50 gpus=8 cluster=iris link_gb_per_s=0", "link_gb_per_s=0: give a number above 0"),
        ("model=resnet50 gpus=0 cluster=iris", "gpus=0: give whole numbers"),
        ("model=resnet50 gpus=8 nodes=2", "'nodes=2' is no setting"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(asked: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *asked.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_predict_takes_the_link_of_the_configuration_beyond_a_node(study: StudyBuilder) -> None:

    site = {"link_gb_per_s": 0.026}  # an allreduce of the gradients between two nodes takes as long as a step of 0.1 s
    study.add(spec_of(4), Logs(), site=site)
    read = read_study(study.folder)
    (source,) = study_series(points_of(read.runs))
    found = predict_series(source, (8,), None, None)
    beyond = found.predicted[-1]
    assert beyond.size == Size(8, 2)
    assert beyond.rate is not None
    assert beyond.rate.median < 0.8 * beyond.flat
    assert any("cluster.link_gb_per_s" in line for line in found.basis)
    assert any(line.startswith("level: calibrated") for line in found.basis)


def test_predict_from_two_numbers_of_nodes_is_the_fitted_level(study: StudyBuilder) -> None:
    for gpus in (4, 8):
        study.completed(gpus, placement=Placement(gpus // 4, 4))
    read = read_study(study.folder)
    (source,) = study_series(points_of(read.runs))
    assert any(line.startswith("level: fitted") for line in predict_series(source, (16,), None, None).basis)
