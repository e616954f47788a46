"""Parses the name=value settings of a prediction: sizes, machine, and the training whose cost is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.base.errors import StudyError
from analysis.base.settings import positive, settings_of, whole

SETTINGS = {
    "gpus": "numbers of GPUs to predict, such as 16,32,64",
    "cluster": "only the series measured on this cluster",
    "gpus_per_node": "GPUs of a node (default: as many as the study measured on one)",
    "bandwidth_gbit": "Gb/s between two nodes, for a study of one node",
    "samples": "samples to train on, for hours and GPU-hours",
    "epochs": "epochs to train, instead of samples",
    "budget_gpu_hours": "GPU-hours that may be spent on these samples or epochs",
}


@dataclass(frozen=True)
class Request:
    gpus: tuple[int, ...]
    cluster: str | None
    gpus_per_node: int | None
    bandwidth_gbit: float | None
    samples: float | None
    epochs: float | None
    budget_gpu_hours: float | None

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.bandwidth_gbit is None else self.bandwidth_gbit * 1e9 / 8


def request_of(settings: list[str]) -> Request:
    """Parse the settings. Raises StudyError for an unknown setting or an invalid value."""
    values = settings_of(settings, SETTINGS)
    if "gpus" not in values:
        raise StudyError("no number of GPUs is given to predict; add one or several, such as gpus=16,32,64")
    if "samples" in values and "epochs" in values:
        raise StudyError("samples= and epochs= are given; give one of them")
    if "budget_gpu_hours" in values and not {"samples", "epochs"} & set(values):
        raise StudyError("budget_gpu_hours= is for a training of so many samples or epochs: give samples= or epochs=")
    per_node = whole("gpus_per_node", values["gpus_per_node"]) if "gpus_per_node" in values else None
    return Request(
        tuple(dict.fromkeys(whole("gpus", text) for text in values["gpus"].split(","))),
        values.get("cluster"),
        per_node,
        *(positive(name, values.get(name)) for name in ("bandwidth_gbit", "samples", "epochs", "budget_gpu_hours")),
    )
