from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from builders import make_site, make_spec
from project import PROJECT

from harness.core import events, spec
from harness.core.workload.spec import OWN, SCRIPT, WorkloadSpec


def test_equal_requests_have_equal_ids_whatever_the_order_of_options() -> None:
    a = make_spec(framework_options={"compile": False, "channels_last": True})
    b = make_spec(framework_options={"channels_last": True, "compile": False})
    assert a.run_id == b.run_id


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"repeat": 1}, {"precision": "bf16"}, {"batch_per_gpu": 64}, {"env": {"NCCL_ALGO": "Ring"}}],
    ids=str,
)
def test_every_field_that_determines_the_measurement_changes_the_id(change: dict[str, object]) -> None:
    assert dataclasses.replace(make_spec(), **change).run_id != make_spec().run_id  # type: ignore[arg-type]


def test_run_id_does_not_change_between_versions_of_the_code() -> None:
    # Recorded when the format was fixed; a different value would make every existing study run again.
    assert make_spec().run_id == "pytorch-allreduce-resnet20-2gpu-7e091d891838"


def test_options_of_an_optimiser_change_the_id_of_what_has_them() -> None:
    adam = dataclasses.replace(make_spec().optimizer, name="adam", momentum=0.0)
    assert make_spec(optimizer=adam).run_id != make_spec().run_id
    other = make_spec(optimizer=dataclasses.replace(adam, beta2=0.99))
    assert other.run_id != make_spec(optimizer=adam).run_id


def test_later_field_changes_the_id_only_if_set() -> None:
    asked = dataclasses.replace(make_spec().measure, evaluate_every_samples=32)
    assert make_spec(measure=asked).run_id != make_spec().run_id
    assert make_spec(measure=dataclasses.replace(asked, evaluate_every_samples=0)).run_id == make_spec().run_id


def test_spec_survives_the_file(tmp_path: Path) -> None:
    spec.write_run(tmp_path, make_spec(), make_site())
    assert spec.read_run(tmp_path) == (make_spec(), make_site())


def test_spec_json_follows_its_schema(tmp_path: Path) -> None:
    schema = json.loads((PROJECT / "harness/schemas/spec.schema.json").read_text())
    path = spec.write_run(tmp_path, make_spec(), make_site())
    jsonschema.validate(json.loads(path.read_text()), schema)


def test_the_spec_of_a_workload_survives_the_file_and_follows_its_schema(tmp_path: Path) -> None:
    workload = WorkloadSpec(SCRIPT, "train", ("train.py", "--lr", "{lr}"), {"lr": 0.1}, "0123abc", samples_per_step=64)
    made = make_spec(framework=SCRIPT, strategy=OWN, model="train", workload=workload)
    schema = json.loads((PROJECT / "harness/schemas/spec.schema.json").read_text())
    path = spec.write_run(tmp_path, made, make_site())
    jsonschema.validate(json.loads(path.read_text()), schema)
    assert spec.read_run(tmp_path)[0] == made
    assert made.run_id.startswith("script-own-train-")
    other = dataclasses.replace(workload, params={"lr": 0.2})
    assert dataclasses.replace(made, workload=other).run_id != made.run_id


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"v": 99}', '{"v": 1}', '{"v": 1, "spec": {}, "site": {}}'])
def test_a_foreign_spec_json_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(ValueError, match=r"spec\.json is not a run's spec\.json"):
        spec.read_run(tmp_path)


def test_learning_rate_follows_linear_scaling_with_warm_up() -> None:
    # Goyal et al. 2017: k times the batch, k times the rate; warm-up ramps linearly to it.
    optimizer = spec.OptimizerSpec(lr=0.1, lr_batch=128, lr_rule="linear", warmup_steps=4)
    assert optimizer.learning_rate(512, 100) == pytest.approx(0.4)
    assert [optimizer.learning_rate(512, step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert dataclasses.replace(optimizer, lr_rule="constant").learning_rate(512, 100) == pytest.approx(0.1)
    # Krizhevsky 2014: k times the batch, the root of k times the rate; the same warm-up.
    root = dataclasses.replace(optimizer, lr_rule="sqrt")
    assert [root.learning_rate(512, step) for step in (0, 3, 100)] == pytest.approx([0.05, 0.2, 0.2])


def test_one_cycle_rates_and_decay_of_slow_weights() -> None:
    cycle = spec.OptimizerSpec(lr=1.0, lr_rule="constant", lr_peak_samples=40, lr_end_samples=140)
    assert [cycle.learning_rate(10, step) for step in (0, 3, 4, 13, 14)] == pytest.approx([0.125, 0.875, 0.95, 0.05, 0])
    partly = dataclasses.replace(cycle, lr_start_factor=0.2, lr_end_factor=0.1)
    # 0.2 + 0.8 x 1/8, 0.2 + 0.8 x 7/8, 0.1 + 0.9 x 0.95, 0.1 + 0.9 x 0.05, and no less than 0.1.
    rates = [partly.learning_rate(10, step) for step in (0, 3, 4, 13, 14, 99)]
    assert rates == pytest.approx([0.3, 0.9, 0.955, 0.145, 0.1, 0.1])
    slow = dataclasses.replace(cycle, lookahead_steps=7, lookahead_decay=0.8)
    # After every seventh step: half of 140 samples, all, and never more than all.
    assert {step: slow.slow_share(10, step) for step in range(21) if slow.slow_share(10, step) is not None} == {
        6: pytest.approx(0.1),
        13: pytest.approx(0.8),
        20: pytest.approx(0.8),
    }
    assert cycle.slow_share(10, 6) is None


def test_first_of_two_results_is_kept(tmp_path: Path) -> None:
    assert events.write_result(tmp_path, {"v": 1, "status": "completed"})
    assert not events.write_result(tmp_path, {"v": 1, "status": "failed"})
    assert events.read_result(tmp_path) == {"v": 1, "status": "completed"}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_torn_last_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.rank0.jsonl"
    writer = events.EventWriter(path, rank=0)
    writer.write("steps", phase="measure", step=0, n=1, seconds=0.5, samples=8, loss=float("nan"))
    writer.close()
    with open(path, "a") as file:
        file.write('{"v":1,"t":1.0,"rank":0,"ev":"st')
    log = events.read_events(path)
    assert [event["ev"] for event in log.events] == ["steps"]
    assert log.events[0]["loss"] is None
    assert log.unreadable_lines == 1


def test_a_log_of_another_major_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.rank0.jsonl"
    path.write_text('{"v":2,"t":1.0,"rank":0,"ev":"start"}\n')
    with pytest.raises(events.UnknownVersion, match="schema version 2; this code reads version 1"):
        events.read_events(path)
