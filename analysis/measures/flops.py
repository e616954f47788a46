"""Achieved floating-point operations per second of a GPU, and model FLOPs utilisation (MFU).

Operations are those that the network needs by the catalogue's arithmetic, not those that a library executes: a training
step takes 3 x the forward pass (the forward pass and two products of the same size backward). MFU is the achieved rate
divided by the device's peak (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from models import catalog

TERA = 1e12
TRAINING_BY_FORWARD = 3
# Names of parts of a GPU.
SLICE = re.compile(r"\b(MIG|GRID)\b")


class Peak(NamedTuple):
    """tflops: 10^12 operations per second of one GPU; None if unknown, for the reason in `source`."""

    tflops: float | None
    source: str


def training_flops_per_sample(model: str, dataset: Mapping[str, Any]) -> int | None:
    """Floating-point operations per sample of a training step; None if the catalogue lacks the model.

    dataset: fields of a DatasetSpec. A sample of text is a sequence.
    """
    try:
        size = dataset.get("context") or dataset["image_size"]
        layers = catalog.network(model).layers(dataset["channels"], dataset["classes"], size)
    except (KeyError, TypeError, ValueError):
        return None
    return TRAINING_BY_FORWARD * catalog.forward_flops(layers, size)


def peak_of(device: str | None, device_names: Sequence[str], precision: str, configured: float | None) -> Peak:
    """Peak of one GPU. device_names: of the runs of a point. configured: TFLOP/s from the cluster's configuration,
    which take precedence."""
    if configured is not None:
        return Peak(configured, "cluster.peak_tflops")
    if device == "cpu":
        return Peak(None, "no peak of CPUs is known: set cluster.peak_tflops")
    if len(device_names) != 1:
        return Peak(None, "no one device" if device_names else "the device is not known")
    (name,) = device_names
    if SLICE.search(name):
        return Peak(None, f"{name} is a part of a GPU")
    for known in _devices():
        # Whole words: GH200 is not H200.
        if all(re.search(rf"\b{word}\b", name, re.IGNORECASE) for word in known["words"]):
            tflops = known["peak_tflops"].get(precision)
            return Peak(tflops, known["source"] if tflops else f"no peak of {name} in {precision} is known")
    return Peak(None, f"no peak of {name} is known: set cluster.peak_tflops")


def device_called(gpu_type: str) -> dict[str, Any] | None:
    """Return the entry of devices.json for a site's name of a GPU, such as v100 or h100_pcie; None if unknown."""

    def has(word: str) -> bool:
        return re.search(rf"(?<![a-z0-9]){word}(?![a-z])|{word}(?=\d*gb)", gpu_type, re.IGNORECASE) is not None

    whole = [known for known in _devices() if all(map(has, known["words"]))]
    usual = [known for known in _devices() if known.get("usual") and has(known["words"][0])]
    return next(iter((*whole, *usual)), None)


def device_types() -> list[str]:
    """The names that `device_called` knows, without forms."""
    return list(dict.fromkeys(known["words"][0].lower() for known in _devices()))


@cache
def _devices() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("devices.json")
    devices: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["devices"]
    return devices
