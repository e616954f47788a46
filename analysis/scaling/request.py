"""Parses the name=value settings of a prediction: sizes, machine, and the training whose cost is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.base.errors import StudyError
from analysis.base.settings import positive, settings_of, whole

SETTINGS = {
    "gpus": "numbers of GPUs to predict, such as 16,32,64; left out with a budget: up to 8 times the largest measured",
    "cluster": "only the series measured on this cluster",
    "gpus_per_node": "GPUs of a node (default: as many as the study measured on one)",
    "bandwidth_gbit": "Gb/s between two nodes, for a study of one node",
    "samples": "samples to train on, for hours and GPU-hours",
    "epochs": "epochs to train, instead of samples",
    "budget_gpu_hours": "GPU-hours that may be spent on these samples or epochs; names the size to ask for",
    "efficiency": "the least efficiency of that size, such as 0.7",
}


@dataclass(frozen=True)
class Limits:
    """Of a size: gpu_hours: budget. efficiency: the least, relative to the smallest measured size."""

    gpu_hours: float
    efficiency: float = 0.0


@dataclass(frozen=True)
class Request:
    """gpus: empty: those of `analysis.scaling.budget.sizes_to_consider`."""

    gpus: tuple[int, ...]
    cluster: str | None
    gpus_per_node: int | None
    bandwidth_gbit: float | None
    samples: float | None
    epochs: float | None
    limits: Limits | None = None

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.bandwidth_gbit is None else self.bandwidth_gbit * 1e9 / 8


def request_of(settings: list[str]) -> Request:
    """Parse the settings. Raises StudyError for an unknown setting or an invalid value."""
    values = settings_of(settings, SETTINGS)
    if not {"gpus", "budget_gpu_hours"} & set(values):
        raise StudyError(
            "no number of GPUs is given to predict; add one or several, such as gpus=16,32,64, or a budget, such as "
            "epochs=90 budget_gpu_hours=5000"
        )
    if "samples" in values and "epochs" in values:
        raise StudyError("samples= and epochs= are given; give one of them")
    if "budget_gpu_hours" in values and not {"samples", "epochs"} & set(values):
        raise StudyError("budget_gpu_hours= is for a training of so many samples or epochs: give samples= or epochs=")
    per_node = whole("gpus_per_node", values["gpus_per_node"]) if "gpus_per_node" in values else None
    bandwidth, samples, epochs = (positive(name, values.get(name)) for name in ("bandwidth_gbit", "samples", "epochs"))
    return Request(
        tuple(dict.fromkeys(whole("gpus", text) for text in values["gpus"].split(","))) if "gpus" in values else (),
        values.get("cluster"),
        per_node,
        bandwidth,
        samples,
        epochs,
        limits_of(values),
    )


def limits_of(values: Mapping[str, str]) -> Limits | None:
    """Parse budget_gpu_hours= and efficiency=; None without a budget. Raises StudyError."""
    budget, efficiency = (positive(name, values.get(name)) for name in ("budget_gpu_hours", "efficiency"))
    if efficiency is not None and efficiency > 1:
        raise StudyError(f"efficiency={efficiency:g}: give a share of ideal scaling up to 1, such as 0.7")
    if budget is None:
        if efficiency is not None:
            raise StudyError("efficiency= limits the size that a budget allows: add budget_gpu_hours=")
        return None
    return Limits(budget, efficiency or 0.0)
