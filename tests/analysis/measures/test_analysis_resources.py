"""Energy, memory, device, network and files in the report. Figures are calculated by hand for four blocks of ten steps,
one second each, 1,280 samples per rank and block; 50,000 training samples; machines with 64 cores."""

from __future__ import annotations

from typing import Any

import pytest
from seen import Seen, Tags, words
from study_builder import Logs, StudyBuilder, spec_of

from harness.core.serialization import write_json
from harness.core.spec import ClusterSpec, Placement

SAMPLES = 4 * 10 * 128
CPU = ClusterSpec("atlas", "cpu", 8)


def resources(**changes: Any) -> dict[str, Any]:
    return {
        "steps": 40,
        "seconds": 4.0,
        "processor_seconds": 6.0,
        "host_peak_bytes": 1000,
        "host_peak_children_bytes": 0,
        "device_peak_bytes": None,
        "device_reserved_peak_bytes": None,
        "device_peak_source": "none",
        "read_call_bytes": 400,
        "read_storage_bytes": None,
        "network_bytes": None,
        "processors_joules": None,
        "nccl": None,
        **changes,
    }


def only(study: StudyBuilder) -> dict[str, str]:
    (row,) = Seen(study).resources
    return row


def test_joules_of_gpus_are_measured_and_per_sample_and_epoch(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(energy=("GPU-{rank}", 640.0), resources=[resources(), resources()]))
    row = only(study)
    assert (row["energy"], row["energy_of"], row["energy_reason"]) == ("measured", "GPUs", "")
    # Two ranks, each 640 J for the 1,280 samples of a block.
    assert float(row["joules_per_sample"]) == pytest.approx(0.5)
    assert float(row["joules_per_epoch"]) == pytest.approx(25_000)


@pytest.mark.parametrize(
    ("start", "basis", "why"),
    [
        ({"cpus": [*range(64)]}, "measured", ""),
        ({"cpus": [0, 1]}, "estimated", "had 2 of 64 cores"),
        ({}, "estimated", "which cores the ranks had was not logged"),
        ({"cpus": [*range(64)], "energy_basis": "power"}, "estimated", "added up"),
    ],
    ids=["own machine", "shared machine", "older log", "samples of power"],
)
def test_shared_or_integrated_energy_is_estimated(
    study: StudyBuilder, start: dict[str, Any], basis: str, why: str
) -> None:
    study.add(spec_of(1, cluster=CPU), Logs(energy=("processors", 1280.0), start=start, resources=[resources()]))
    row = only(study)
    assert (row["energy"], row["energy_of"]) == (basis, "processors")
    assert why in row["energy_reason"]
    assert float(row["joules_per_sample"]) == pytest.approx(1.0)
    assert f">{basis}</span>" in Seen(study).html


@pytest.mark.parametrize(
    "energy",
    [None, ("GPU-{rank}", None), ("GPU-{rank}", 1.7e308)],
    ids=["no meter", "not readable", "damaged: the sum is beyond a double"],
)
def test_energy_that_is_not_known_is_absent_and_not_zero(
    study: StudyBuilder, energy: tuple[str, float | None] | None
) -> None:
    joules = None if energy is None else energy[1]
    study.add(spec_of(1), Logs(energy=energy, resources=[resources(processors_joules=joules)]))
    row = only(study)
    assert (row["energy"], row["joules_per_sample"], row["joules_per_epoch"]) == ("absent", "", "")
    assert row["energy_reason"]
    assert ">absent</span>" in Seen(study).html


def test_one_run_without_a_counter_leaves_its_point_without_a_figure(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(energy=("GPU-{rank}", 1280.0)))
    study.add(spec_of(1, repeat=1), Logs())
    row = only(study)
    assert (row["runs"], row["energy"], row["joules_per_sample"]) == ("2", "absent", "")


def test_rank_resources_are_summed_and_peaks_are_maxima(study: StudyBuilder) -> None:
    first = resources(
        host_peak_bytes=3000,
        device_peak_bytes=70,
        device_peak_source="torch.cuda.max_memory_allocated",
        network_bytes={"lo sent": 8000, "lo received": 8000, "eth0 sent": 5, "eth0 received": 5},
        processors_joules=1024.0,
    )
    second = resources(device_peak_bytes=90, device_peak_source="torch.cuda.max_memory_allocated", seconds=5.0)
    study.add(spec_of(2), Logs(resources=[first, second]))
    row = only(study)
    assert (row["host_peak_bytes"], row["device_peak_bytes"]) == ("3000", "90")
    assert float(row["network_bytes_per_step"]) == 8000 / 40
    # One node: its loopback interface. An allreduce of 2,634,344 bytes over two ranks sends each byte twice.
    assert row["interfaces"] == "lo"
    assert float(row["network_required_bytes_per_step"]) == 2 * 2_634_344
    assert float(row["read_call_bytes_per_second"]) == 800 / 5
    assert row["read_storage_bytes_per_second"] == ""
    assert float(row["cores_busy_per_rank"]) == pytest.approx(12 / (5 * 2))
    assert float(row["processors_joules_per_sample"]) == pytest.approx(1024 / (2 * SAMPLES))
    text = words(Tags(Seen(study).html).text)
    assert "an allreduce needs 5.02 MiB" in text
    assert "torch.cuda.max_memory_allocated" in text


def test_between_nodes_the_network_counts_and_the_loopback_interface_does_not(study: StudyBuilder) -> None:
    sent = {"lo sent": 9000, "lo received": 9000, "ib0/1 sent": 4000, "ib0/1 received": 4000}
    on_nodes = [resources(network_bytes=sent), resources(), resources(network_bytes=sent), resources()]
    study.add(spec_of(4, placement=Placement(2, 2)), Logs(resources=on_nodes))
    row = only(study)
    assert float(row["network_bytes_per_step"]) == 2 * 4000 / 40
    assert (row["interfaces"], float(row["network_required_bytes_per_step"])) == ("ib0/1", 2 * 2_634_344)


def test_the_state_of_the_device_counts_at_ends_of_measured_blocks(study: StudyBuilder) -> None:
    def state(busy: float | None, clock: int, throttle: list[str]) -> dict[str, Any]:
        return {
            "source": "nvml",
            "gpu_utilisation": busy,
            "clocks_sm_mhz": clock,
            "clocks_sm_max_mhz": 1980,
            "power_w": 600.0,
            "temperature_c": 60,
            "throttle": throttle,
        }

    devices = {10: state(0.0, 300, []), 20: state(0.9, 1900, []), 50: state(1.0, 1500, ["sw_power_cap"])}
    study.add(spec_of(1), Logs(devices=devices, resources=[resources()]))
    row = only(study)
    assert (row["device_samples"], row["clocks_max_mhz"], row["throttle"]) == ("2", "1980.0", "sw_power_cap")
    assert float(row["gpu_utilisation"]) == pytest.approx(0.95)
    assert float(row["clocks_mhz"]) == pytest.approx(1700)
    assert float(row["throttled"]) == pytest.approx(0.5)
    assert "throttled in 50 % of 2 samples: sw_power_cap" in words(Tags(Seen(study).html).text)


@pytest.mark.parametrize(
    ("said", "energy", "joules"),
    [
        ({"joules": 5000, "reason": None}, "estimated", "5000.0"),
        ({"joules": None, "reason": "no plugin"}, "absent", ""),
    ],
)
def test_slurm_energy_is_of_whole_nodes(study: StudyBuilder, said: dict[str, Any], energy: str, joules: str) -> None:
    run_dir = study.add(spec_of(1), Logs(resources=[resources()]))
    write_json(run_dir / "attempt-1" / "slurm_energy.json", {"v": 1, "plugin": "acct_gather_energy/rapl", **said})
    row = only(study)
    assert (row["slurm_energy"], row["slurm_joules_per_run"]) == (energy, joules)
    assert row["slurm_reason"] == (said["reason"] or "")


def test_nccl_choices_are_reported(study: StudyBuilder) -> None:
    chosen = {"version": "2.21", "network": "IB", "channels": 16, "transports": {"NET/IB": 4}, "algorithms": {}}
    study.add(
        spec_of(2), Logs(resources=[resources(nccl=chosen), resources(nccl={**chosen, "transports": {"P2P": 2}})])
    )
    assert only(study)["nccl"] == "network IB; via NET/IB, P2P; 16 channels"


@pytest.mark.parametrize(
    "damaged",
    [
        {"nccl": [], "network_bytes": 3, "processor_seconds": "x", "host_peak_bytes": -1},
        {"network_bytes": {"": None, "lo sent": 1.5}, "nccl": {"transports": [], "channels": -1, "network": 7}},
        {"device_peak_source": None, "read_call_bytes": 2**70},
    ],
)
def test_a_damaged_event_costs_no_report(study: StudyBuilder, damaged: dict[str, Any]) -> None:
    whole = resources()
    bare = {name: whole[name] for name in ("steps", "seconds")}
    study.add(spec_of(2), Logs(resources=[{**whole, **damaged}, bare], devices={20: {"throttle": 5, "power_w": "x"}}))
    assert only(study)["runs"] == "1"


def test_logs_without_these_events_have_no_section_and_an_empty_row(study: StudyBuilder) -> None:
    study.completed(1)
    seen = Seen(study)
    assert "<h2>Resources</h2>" not in seen.html
    assert [row["energy"] for row in seen.resources] == ["absent"]
