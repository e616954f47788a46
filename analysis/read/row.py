"""One run of a study as a value: its spec, how it ended, and what its ranks measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from analysis.read.log.packed import Blocks, unpacked
from analysis.stats.stability import Trend
from harness.core.events import COMPLETED

_NESTED = "_json"  # suffix of fields with several values, kept as JSON text as in the cache


@dataclass(frozen=True, eq=False)
class Run:
    """One run; absent or unknown values are None. The fields are the columns of `analysis/runs.parquet`, in order.
    Columns with several values are JSON, which the properties below parse on access.
    Units are in the names; the modules of analysis/read/columns document the contents.
    """

    run_id: str
    status: str
    reason: str | None = None
    notes: str | None = None
    series: str | None = None
    point: str | None = None
    framework: str | None = None
    strategy: str | None = None
    spec_run_id: str | None = None
    model: str | None = None
    dataset: str | None = None
    precision: str | None = None
    scaling: str | None = None
    cluster: str | None = None
    device: str | None = None
    environment: str | None = None
    fault: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    global_batch: int | None = None
    batch_per_gpu: int | None = None
    seed: int | None = None
    repeat: int | None = None
    verify: bool | None = None
    code_version: str | None = None
    oversubscribed: str | None = None
    job_id: str | None = None
    stderr_tail_json: str | None = None
    attempt: int | None = None
    failed_rank: int | None = None
    exit_code: int | None = None
    unreadable_lines: int | None = None
    left_out_blocks: int | None = None
    started: float | None = None
    ended: float | None = None
    attempts: int | None = None
    lost_steps: int | None = None
    continued: bool | None = None
    code_changed: bool | None = None
    useful_seconds: float | None = None
    allocated_seconds: float | None = None
    idle_seconds: float | None = None
    checkpoint_seconds: float | None = None
    device_names_json: str | None = None
    communication: str | None = None
    versions_json: str | None = None
    startup_json: str | None = None
    allreduce_json: str | None = None
    steps: int | None = None
    samples: int | None = None
    test_samples: int | None = None
    samples_seen: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    cached_batch_seconds: float | None = None
    no_sync_seconds: float | None = None
    startup_seconds: float | None = None
    accuracy: float | None = None
    link_gb_per_s: float | None = None
    gpu_link_gb_per_s: float | None = None
    peak_tflops: float | None = None
    first_step_seconds: float | None = None
    gradient_sum: float | None = None
    gradient_magnitude: float | None = None
    verify_file: str | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    train_samples: int | None = None
    evaluations_json: str | None = None
    traces_json: str | None = None
    first_block_seconds: float | None = None
    relative_half_width: float | None = None
    precision_asked: float | None = None
    probe_share: float | None = None
    probes_json: str | None = None
    stopped: str | None = None
    probes_skipped: str | None = None
    blocks_json: str | None = None
    stationary: bool | None = None
    warmup_steps: int | None = None
    probe_rounds: int | None = None
    outlier_blocks: int | None = None
    drift: float | None = None
    drift_probability: float | None = None
    blocks_error: float | None = None
    blocks_freedom: float | None = None
    autocorrelation_times: float | None = None
    resources_json: str | None = None
    gradient_bytes: int | None = None
    fallbacks_json: str | None = None
    damage_json: str | None = None
    startup_split_json: str | None = None
    measured_blocks: int | None = None
    ceilings_json: str | None = None
    env_file: str | None = None
    env_digest: str | None = None
    hosts: str | None = None
    issue_seconds: float | None = None
    issue_share: float | None = None
    method: str | None = None
    unit: str | None = None
    samples_per_step: float | None = None
    stated_cost: float | None = None
    data_waits_json: str | None = None
    left_out_seconds: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Run:
        """Build a run from a row of the cache or of `read_run_row`."""
        values = dict(row)
        for column, field in _RENAMED:
            if column in values:
                values[field] = values.pop(column)
        run = cls.__new__(cls)
        # __init__ sets a hundred fields one by one, which takes a second for ten thousand runs.
        object.__setattr__(run, "__dict__", values)
        return run

    def __getitem__(self, column: str) -> Any:
        """Return a column by its name in the table."""
        return getattr(self, _FIELDS.get(column, column))

    def columns(self) -> dict[str, Any]:
        """Return all columns by their names in the table."""
        values = vars(self)
        return {column: values.get(field) for column, field in _FIELDS.items()}

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def seconds_per_sample(self) -> float:
        """Cost per sample of a completed run, on which intervals and tests are computed."""
        if self.stated_cost is not None:
            return self.stated_cost
        return _known(self.seconds) / _known(self.samples)

    @property
    def samples_per_second(self) -> float:
        """Throughput of a completed run."""
        if self.stated_cost is not None:
            return 1 / self.stated_cost
        return _known(self.samples) / _known(self.seconds)

    @property
    def step_seconds(self) -> float:
        """Mean duration of the timed steps of a completed run; of an imported one, as its batch says."""
        if self.stated_cost is not None:
            return self.stated_cost * _known(self.samples_per_step)
        return _known(self.seconds) / _known(self.steps)

    @property
    def trend(self) -> Trend | None:
        """Trend over the measured blocks; None if there are too few."""
        return None if self.drift is None else Trend(self.drift, _known(self.drift_probability))

    @property
    def blocks(self) -> Blocks:
        """The measured blocks."""
        return unpacked(self.blocks_json)

    @property
    def block_step_seconds(self) -> list[float]:
        """Seconds per step of each measured block, in time order."""
        blocks = self.blocks
        return [seconds / n for seconds, n in zip(blocks.seconds, blocks.steps, strict=True)]

    @cached_property
    def device_names(self) -> list[str]:
        return self._read(self.device_names_json, [])

    @cached_property
    def versions(self) -> Mapping[str, str]:
        return self._read(self.versions_json, {})

    @property
    def stderr_tail(self) -> list[str]:
        """The last lines of stderr, from result.json."""
        return self._read(self.stderr_tail_json, [])

    @property
    def allreduce(self) -> list[Mapping[str, Any]]:
        """analysis/read/columns/protocol.py"""
        return self._read(self.allreduce_json, [])

    @property
    def probes(self) -> Mapping[str, Any]:
        """analysis/read/columns/protocol.py"""
        return self._read(self.probes_json, {})

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """analysis/read/columns/evaluations.py"""
        return self._read(self.evaluations_json, [])

    @property
    def traces(self) -> list[Mapping[str, Any]] | None:
        """analysis/read/columns/traces.py; None if no traces were requested."""
        return self._read(self.traces_json, None)

    @property
    def resources(self) -> Mapping[str, Any]:
        """analysis/read/columns/resources.py"""
        return self._read(self.resources_json, {})

    @cached_property
    def fallbacks(self) -> list[str]:
        """Deviations from what the run requested."""
        return self._read(self.fallbacks_json, [])

    @property
    def startup_split(self) -> Mapping[str, Any]:
        """analysis/read/columns/startup.py"""
        return self._read(self.startup_split_json, {})

    @property
    def ceilings(self) -> Mapping[str, Any]:
        """analysis/read/columns/roofline_probe.py"""
        return self._read(self.ceilings_json, {})

    @property
    def data_waits(self) -> list[float]:
        """analysis/read/columns/workload.py"""
        return self._read(self.data_waits_json, [])

    @staticmethod
    def _read(text: str | None, absent: Any) -> Any:
        return json.loads(text) if text else absent


def _known(value: float | None) -> float:
    assert value is not None, "a completed run has figures"
    return value


_KINDS = {"str": "string", "int": "Int64", "float": "Float64", "bool": "boolean"}
# Names of the fields by column name.
_FIELDS = {field.name.removesuffix(_NESTED): field.name for field in fields(Run)}
_RENAMED = [(column, field) for column, field in _FIELDS.items() if column != field]
# Pandas types by column name.
COLUMNS = {field.name.removesuffix(_NESTED): _KINDS[str(field.type).split(" ")[0]] for field in fields(Run)}
