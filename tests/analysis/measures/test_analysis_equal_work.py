"""The check that frameworks and strategies did the same work: verdicts, bounds, and where differences are shown."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from typing import Any

import pytest
from study_builder import CREATED, DATASET, Logs, StudyBuilder, arrays, resume, spec_of

from analysis.measures.equal_work import COLUMNS, EqualWork, equal_work
from analysis.measures.network import FIRST_GRADIENT, GRADIENTS, LOGITS, LOSSES
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.data.csv_tables import csv_text
from harness.core.spec import DALI, STRONG, DatasetSpec, InputSpec, OptimizerSpec

JUST_BELOW, JUST_ABOVE = 0.999, 1.001  # of a bound
ONLY_THE_GRADIENT = "not checked: only the first gradient was compared; verify=true was not asked for"


def compared(study: StudyBuilder) -> EqualWork:
    read = read_study(study.folder)
    return equal_work(read.folder, read.runs)


def verdicts(study: StudyBuilder) -> dict[tuple[str, str, int], str]:
    return {(row["framework"], row["strategy"], row["gpus"]): row["verdict"] for row in compared(study).rows}


def row_of(study: StudyBuilder, framework: str) -> dict[str, Any]:
    (row,) = [row for row in compared(study).rows if row["framework"] == framework]
    return dict(row)


def marks(study: StudyBuilder) -> dict[tuple[str, int], tuple[str, ...]]:
    read = read_study(study.folder)
    points = points_of(read.runs, equal_work(read.folder, read.runs).differing)
    return {(row.framework, row.gpus): row.marks for row in points}


def test_equal_network_and_equal_first_gradient_are_equal_work(study: StudyBuilder) -> None:
    study.verified(2)
    study.verified(2, framework="jax")
    assert verdicts(study) == {("pytorch", "allreduce", 2): "reference", ("jax", "allreduce", 2): "equal"}
    assert compared(study).problems == ()
    row = row_of(study, "jax")
    assert (row["reference_framework"], row["reference_strategy"], row["reference_gpus"]) == ("pytorch", "allreduce", 2)
    assert (row["gradient_bound"], row["logits_bound"], row["gradients_bound"], row["losses_bound"]) == (
        *(FIRST_GRADIENT, 2 * LOGITS, GRADIENTS, LOSSES),
    )
    assert all(row[name] == 0 for name in row if name.endswith("_difference"))


def test_without_verify_only_the_first_gradient_is_compared(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(2, framework="jax")
    assert row_of(study, "jax")["verdict"] == ONLY_THE_GRADIENT
    study.verified(2)
    assert row_of(study, "jax")["verdict"] == ONLY_THE_GRADIENT


def test_one_framework_with_one_strategy_is_not_compared(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2, strategy_options={"bucket_mb": 1})
    study.completed(2, strategy_options={"bucket_mb": 25})
    assert compared(study).rows == ()
    assert csv_text(compared(study).rows, COLUMNS) == ",".join(COLUMNS) + "\n"


def test_other_parameters_differ(study: StudyBuilder) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(parameters=658_600))
    assert row_of(study, "jax")["verdict"] == "differs: parameters"
    assert compared(study).problems == (
        "JAX allreduce, resnet44 on cifar10, 2 GPUs, global batch 256: "
        "its work differs from that of PyTorch DDP: 658,600 parameters instead of 658,586",
    )


@pytest.mark.parametrize(("part", "differs"), [(JUST_BELOW, False), (JUST_ABOVE, True)])
@pytest.mark.parametrize("of_the_sum", [True, False])
def test_first_gradient_is_held_to_its_bound(study: StudyBuilder, part: float, differs: bool, of_the_sum: bool) -> None:
    off = part * FIRST_GRADIENT * 640  # of the reference's magnitude
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(gradients=(-9.0 + off, 640.0) if of_the_sum else (-9.0, 640.0 + off)))
    row = row_of(study, "jax")
    shown = row["gradient_sum_difference"], row["gradient_magnitude_difference"]
    assert shown == pytest.approx((part * FIRST_GRADIENT, 0) if of_the_sum else (0, part * FIRST_GRADIENT))
    assert row["verdict"] == ("differs: first gradient" if differs else ONLY_THE_GRADIENT)


def test_everything_that_differs_is_named_with_how_much(study: StudyBuilder) -> None:
    study.verified(2)
    spec = spec_of(2, framework="jax", verify=True)
    logs = Logs(parameters=7, gradients=(-73.0, 640.0), verify=arrays(logits=[[2.0, math.nan]] * 2, g001=None))
    study.add(spec, logs)
    assert row_of(study, "jax")["verdict"] == "differs: parameters, first gradient, logits, gradients"
    (problem,) = compared(study).problems
    # |-73 + 9| / 640; NaN logits are not equal; a network with other arrays has other gradients.
    assert problem.endswith(
        "7 parameters instead of 658,586; first gradient by 1.0e-01 (bound 1.0e-03); logits by ∞ (bound 2.0e-04); "
        f"gradients by ∞ (bound {GRADIENTS:.1e})"
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_first_gradient_of_lower_precision_is_shown_and_not_judged(study: StudyBuilder, precision: str) -> None:
    study.verified(2, precision=precision)
    spec = spec_of(2, framework="jax", precision=precision, verify=True)
    study.add(spec, Logs(gradients=(-9.0, 672.0), verify=arrays()))
    row = row_of(study, "jax")
    assert row["gradient_magnitude_difference"] == 0.05
    assert row.get("gradient_bound") is None
    why = f"in {precision} the first gradient is shown, not judged"
    assert row["verdict"] == f"not checked: only the network was compared; {why}"
    assert compared(study).differing == frozenset()


def test_other_number_of_gpus_leaves_the_network_to_be_compared(study: StudyBuilder) -> None:
    study.verified(2)
    study.verified(4, framework="jax")
    why = "pytorch ran with a different number of GPUs"
    assert verdicts(study) == {
        ("pytorch", "allreduce", 2): "not checked: jax ran with a different number of GPUs",
        ("jax", "allreduce", 4): f"not checked: only the network was compared; {why}",
    }
    assert row_of(study, "jax")["reference_gpus"] == 2
    study.verified(8, arrays(logits=[[2.0, 0.0], [0.5, 0.0]]), framework="mxnet")
    assert row_of(study, "mxnet")["verdict"] == "differs: logits"


def test_other_number_of_gpus_without_verify_leaves_nothing(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(4, framework="jax")
    why = "pytorch ran with a different number of GPUs; verify=true was not asked for"
    assert row_of(study, "jax")["verdict"] == f"not checked: {why}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": DatasetSpec(**{**vars(DATASET), "augment": False})}, "settings of the data set"),
        ({"optimizer": OptimizerSpec(momentum=0.0)}, "optimiser"),
        ({"precision": "bf16"}, "precision"),
        ({"scaling": STRONG, "global_batch": 64, "batch_per_gpu": 32}, "global batch"),
    ],
)
def test_other_settings_are_named(study: StudyBuilder, changes: dict[str, Any], words: str) -> None:
    study.completed(2)
    study.completed(2, framework="jax", **changes)
    assert f"pytorch ran with a different {words}" in row_of(study, "jax")["verdict"]


def test_first_gradients_are_compared_seed_by_seed(study: StudyBuilder) -> None:
    for framework in ("pytorch", "jax"):
        for seed in (1, 2):
            study.add(spec_of(2, framework=framework, seed=seed), Logs(gradients=(seed, 640.0)))
    assert row_of(study, "jax")["verdict"] == ONLY_THE_GRADIENT
    assert (row_of(study, "jax")["seeds"], row_of(study, "jax")["runs"]) == ("1, 2", 2)
    study.add(spec_of(2, framework="jax", seed=2, repeat=1), Logs(gradients=(66.0, 640.0)))
    row = row_of(study, "jax")
    assert (row["verdict"], row["gradient_sum_difference"]) == ("differs: first gradient", 0.1)  # the largest


def test_seed_that_the_reference_lacks_is_said(study: StudyBuilder) -> None:
    study.completed(2, seed=1)
    study.completed(2, seed=1, framework="jax")
    study.completed(2, seed=3, framework="jax")
    why = "PyTorch DDP has no completed run of seed 3; verify=true was not asked for"
    assert row_of(study, "jax")["verdict"] == f"not checked: {why}"


def test_verify_with_different_seeds_is_said(study: StudyBuilder) -> None:
    study.verified(2, seed=1)
    study.completed(2, seed=2)
    study.verified(2, seed=2, framework="jax")
    why = "verify=true was asked for with different seeds"
    assert row_of(study, "jax")["verdict"] == f"not checked: only the first gradient was compared; {why}"


def test_run_without_gradients_in_its_log_is_not_judged(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(later=False))
    study.completed(2, framework="jax")
    study.add(spec_of(2, framework="mxnet"), Logs(gradients=(None, None)))
    why = "not checked: not every run logged a finite first gradient; verify=true was not asked for"
    assert [row["verdict"] for row in compared(study).rows] == ["reference", why, why]


def test_first_gradient_is_that_of_step_0_also_of_a_continued_run(study: StudyBuilder) -> None:
    study.completed(2)
    cut = Logs([1.0], checkpoints={20: 0.5}, ends=False)
    rest = Logs([8.0] * 3, resume=resume(20, 1), gradients=(500.0, 900.0), begin=CREATED + 100)
    run_dir = study.attempts(spec_of(2, framework="jax"), cut, rest)
    assert row_of(study, "jax")["verdict"] == ONLY_THE_GRADIENT
    for path in (run_dir / "attempt-1").iterdir():
        path.unlink()
    assert "not every run logged a finite first gradient" in row_of(study, "jax")["verdict"]


def test_failed_runs_leave_nothing_to_compare_with(study: StudyBuilder) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), None, result={"status": "failed", "reason": "killed"})
    study.completed(4)
    why = "no other framework has completed runs"
    assert verdicts(study) == dict.fromkeys((("pytorch", "allreduce", n) for n in (2, 4)), f"not checked: {why}")


def test_failed_strategy_leaves_nothing_to_compare_with(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(4)  # no other strategy was requested there
    study.add(spec_of(2, strategy="horovod"), None, result={"status": "failed", "reason": "killed"})
    why = "nothing else has completed with these settings"
    assert verdicts(study) == {("pytorch", "allreduce", 2): f"not checked: {why}"}


def test_network_is_compared_also_where_the_reference_failed_with_these_settings(study: StudyBuilder) -> None:
    study.verified(2)
    study.verified(4, arrays(logits=[[2.0, 0.0], [0.5, 0.0]]), framework="jax")
    study.add(spec_of(4), None, result={"status": "failed", "reason": "out of memory"})
    assert verdicts(study)["jax", "allreduce", 4] == "differs: logits"


def test_strategies_of_one_framework_are_compared_with_the_nearest_to_the_framework(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    for gpus in (1, 2):
        for strategy in ("horovod", "allreduce"):
            study.completed(gpus, strategy=strategy)
    study.completed(4)
    found = [(r["gpus"], r["strategy"], r.get("reference_strategy")) for r in compared(study).rows]
    assert found == [
        (1, "plain", None),
        (1, "allreduce", "plain"),
        (1, "horovod", "plain"),
        (2, "allreduce", None),
        (2, "horovod", "allreduce"),
    ]


def test_reference_is_pytorch_and_the_same_strategy_where_they_are_there(study: StudyBuilder) -> None:
    for framework in ("tensorflow", "jax"):
        for strategy in ("allreduce", "horovod", "mpi"):
            study.completed(2, framework=framework, strategy=strategy)
    for strategy in ("horovod", "mpi"):
        study.completed(4, framework="pytorch", strategy=strategy)
        study.completed(4, framework="tensorflow", strategy=strategy)
    study.completed(4, framework="tensorflow")
    found = {
        (r["gpus"], r["framework"], r["strategy"]): (r.get("reference_framework"), r.get("reference_strategy"))
        for r in compared(study).rows
    }
    assert found == {
        (2, "jax", "allreduce"): ("pytorch", "horovod"),  # on 4 GPUs: the network
        (2, "jax", "horovod"): ("jax", "allreduce"),
        (2, "jax", "mpi"): ("jax", "allreduce"),
        (2, "tensorflow", "allreduce"): ("jax", "allreduce"),
        (2, "tensorflow", "horovod"): ("jax", "horovod"),
        (2, "tensorflow", "mpi"): ("jax", "mpi"),
        (4, "pytorch", "horovod"): (None, None),
        (4, "pytorch", "mpi"): ("pytorch", "horovod"),
        (4, "tensorflow", "allreduce"): ("pytorch", "horovod"),
        (4, "tensorflow", "horovod"): ("pytorch", "horovod"),
        (4, "tensorflow", "mpi"): ("pytorch", "mpi"),
    }


def test_other_models_and_machines_are_compared_among_themselves(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(2, framework="jax", model="resnet20")
    assert compared(study).rows == ()


def test_verify_makes_no_point_of_its_own(study: StudyBuilder) -> None:
    study.verified(2, repeat=0)
    study.completed(2, repeat=1)
    study.completed(1)
    rows = points_of(read_study(study.folder).runs)
    assert [(row.gpus, row.runs_completed) for row in rows] == [(1, 1), (2, 2)]
    assert len({row.series for row in rows}) == 1


def test_start_up_is_not_stated_where_verify_took_its_time(study: StudyBuilder) -> None:
    study.verified(1)
    (run,) = read_study(study.folder).runs
    assert (run["startup_seconds"], run["first_step_seconds"]) == (None, None)
    assert run["notes"] == "start-up not stated: verify=true takes its time there"


def test_point_with_different_work_and_points_relative_to_it_are_marked(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        study.completed(gpus)
        study.completed(gpus, framework="mxnet")
    study.add(spec_of(1, framework="jax"), Logs(gradients=(-9.0, 64.0)))
    study.completed(2, framework="jax")
    assert marks(study) == {
        ("jax", 1): ("work differs", "single run"),
        ("jax", 2): ("single run", "baseline work differs"),
        ("mxnet", 1): ("single run",),
        ("mxnet", 2): ("single run",),
        ("pytorch", 1): ("single run",),
        ("pytorch", 2): ("single run",),
    }


def test_csv_holds_every_row_with_its_bounds(study: StudyBuilder) -> None:
    study.verified(2)
    run_dir = study.verified(2, arrays(g001=None), framework="jax")
    reference, row = csv.DictReader(io.StringIO(csv_text(compared(study).rows, COLUMNS)))
    assert (reference["verdict"], reference["gradient_bound"], reference["reference_framework"]) == (
        "reference",
        "",
        "",
    )
    assert (row["verdict"], row["gradients_difference"], row["run_ids"]) == ("differs: gradients", "inf", run_dir.name)
    assert float(row["gradient_bound"]) == FIRST_GRADIENT
    assert row["reference_parameters"] == "658586"


def test_gradient_behind_other_statistics_of_batchnorm_is_shown_and_not_judged(study: StudyBuilder) -> None:
    options = {"stages": None, "microbatches": 4, "schedule": "1f1b"}
    pipeline = {"strategy": "pipeline", "strategy_options": options}
    samples = Logs(gradients=(-9.0, 64.0), samples=50 * 256)  # every rank of a pipeline trains on all samples
    for model in ("resnet44", "cnn_small"):
        study.completed(2, model=model)
        study.add(spec_of(2, model=model, **pipeline), samples)
    rows = [row for row in compared(study).rows if row["strategy"] == "pipeline"]
    verdict = {row["model"]: row["verdict"] for row in rows}
    said = "BatchNorm takes its statistics from 64 samples at once, and in PyTorch DDP from 128"
    assert said in verdict["resnet44"]
    assert verdict["cnn_small"] == "differs: first gradient"


def test_gradients_of_other_shares_of_the_shards_are_shown_and_not_judged(study: StudyBuilder) -> None:
    shards = dataclasses.replace(spec_of().dataset, reader="shards", shuffle_buffer=64)
    options = {"stages": None, "microbatches": 4, "schedule": "1f1b"}
    shared = {"model": "cnn_small", "dataset": shards}
    study.completed(2, **shared)
    study.add(spec_of(2, strategy="zero1", **shared), Logs(gradients=(-9.0, 64.0)))
    samples = Logs(gradients=(-9.0, 64.0), samples=50 * 256)
    study.add(spec_of(2, strategy="pipeline", strategy_options=options, **shared), samples)
    verdict = {row["strategy"]: row["verdict"] for row in compared(study).rows}
    # Two copies of the model read two shares of the data; one copy on two ranks reads one.
    assert "reads the data in 1 share, and PyTorch DDP in 2: other samples" in verdict["pipeline"]
    assert verdict["zero1"] == "differs: first gradient"


def test_gradients_of_images_that_dali_decoded_are_shown_and_not_judged(study: StudyBuilder) -> None:
    folders = {"model": "cnn_small", "dataset": dataclasses.replace(spec_of().dataset, reader="imagefolder")}
    study.completed(2, **folders)
    for framework, strategy, pipeline in (("jax", "allreduce", "harness"), ("pytorch", "zero1", DALI)):
        spec = spec_of(2, framework=framework, strategy=strategy, data=InputSpec(pipeline), **folders)
        study.add(spec, Logs(gradients=(-9.0, 64.0)))
    verdict = {(row["framework"], row["strategy"]): row["verdict"] for row in compared(study).rows}
    assert verdict["jax", "allreduce"] == "differs: first gradient"
    assert "NVIDIA DALI decodes its images: slightly other pixel values" in verdict["pytorch", "zero1"]


def test_runs_with_dali_are_a_reference_only_without_others(study: StudyBuilder) -> None:
    folders = {"model": "cnn_small", "dataset": dataclasses.replace(spec_of().dataset, reader="imagefolder")}
    study.completed(2, data=InputSpec(DALI), **folders)
    study.completed(2, framework="jax", **folders)
    (row,) = [row for row in compared(study).rows if row["framework"] == "jax"]
    assert "NVIDIA DALI decodes the images of PyTorch DDP" in row["verdict"]
    study.completed(2, strategy="zero1", **folders)
    (row,) = [row for row in compared(study).rows if row["framework"] == "jax"]
    assert (row["reference_strategy"], row["verdict"]) == ("zero1", ONLY_THE_GRADIENT)
    study.completed(2, strategy="fsdp", data=InputSpec(DALI), **folders)
    (row,) = [row for row in compared(study).rows if row["strategy"] == "fsdp"]
    assert (row["reference_strategy"], row["verdict"]) == ("allreduce", ONLY_THE_GRADIENT)
