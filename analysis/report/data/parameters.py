"""Divides a run's columns into settings and results, for programs that separate the two."""

from __future__ import annotations

from analysis.report.data.history import ExportedRun

SETTINGS = (
    *("framework", "framework_options", "strategy", "strategy_options", "model", "dataset", "precision", "scaling"),
    *("optimizer", "base_learning_rate", "cluster", "device", "device_names", "communication", "environment"),
    *("versions", "code_version", "fault", "gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu"),
    *("seed", "repeat"),
)
METRICS = (
    *("samples_per_second", "step_seconds", "measured_seconds", "measured_steps", "measured_samples"),
    *("cached_batch_seconds", "no_sync_seconds", "startup_seconds", "first_step_seconds", "first_block_seconds"),
    *("test_accuracy", "test_loss", "samples_seen", "energy_joules", "goodput", "allocated_seconds", "attempts"),
    *("lost_steps", "outlier_blocks", "drift_fraction", "staleness_mean", "staleness_max", "parameters"),
)


def parameters_of(run: ExportedRun) -> dict[str, str | float]:
    """Return the run's known settings."""
    return {name: run.row[name] for name in SETTINGS if run.row[name] is not None}
