"""`python -m analysis estimate model=resnet50 gpus=1,8 cluster=iris`: estimate throughput without measurements."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import analysis
from analysis.base.errors import StudyError
from analysis.base.settings import positive, settings_of, whole

CONF = Path(analysis.__file__).resolve().parent.parent / "conf"
NUMBERS = {
    "peak_tflops": "10^12 operations per second of a GPU, in that precision",
    "memory_gb_per_s": "of a GPU's memory, 10^9 bytes per second",
    "gpu_link_gb_per_s": "of a GPU to those of its node, one way",
    "link_gb_per_s": "of a node to the others, one way",
    "gpus_per_node": "GPUs of a node",
}
SETTINGS = {
    "model": "of the catalogue, such as resnet50",
    "gpus": "numbers of GPUs, such as 1,8,32",
    "cluster": "conf/cluster/<name>.yaml, or a file of your own: <path>.yaml; it says the figures below",
    "gpu_type": "such as v100 or h100-pcie: its peak and its memory, if neither the cluster nor you give them",
    "dataset": "conf/dataset/<name>.yaml (default: cifar10, as in the harness)",
    "batch": "samples per GPU and step (default: 128, as in the harness)",
    "precision": "fp32, bf16 or fp16 (default: fp32)",
    **{name: f"{what}, in place of the cluster's" for name, what in NUMBERS.items()},
}


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Estimates throughput from a network of the catalogue and the nominal figures of a machine alone, "
        "before anything has run there (docs/prediction.md)."
    )
    parser.epilog = "settings: " + "; ".join(f"{name}=: {what}" for name, what in SETTINGS.items())
    parser.add_argument(
        "settings", nargs="+", metavar="name=value", help="model=resnet50 gpus=1,8 and others, see below"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the estimates. Raises StudyError for errors the user can fix."""
    _estimate(_settings(options.settings), options.json)
    return 0


def _settings(texts: list[str]) -> dict[str, str]:
    values = settings_of(texts, SETTINGS)
    for name in ("model", "gpus"):
        if name not in values:
            raise StudyError(f"{name}= is missing: {SETTINGS[name]}")
    return values


def _estimate(values: dict[str, str], as_json: bool) -> None:
    from analysis.report.terminal.estimate import print_rooflines, rooflines_json
    from analysis.report.terminal.tables import terminal
    from analysis.scaling.reference_errors import ROOFLINE_SHARE
    from analysis.scaling.roofline import roofline
    from analysis.scaling.series import Size

    precision = values.get("precision", "fp32")
    if precision not in ("fp32", "bf16", "fp16"):
        raise StudyError(f"precision={precision}: give fp32, bf16 or fp16")
    gpus = sorted({whole("gpus", text) for text in values["gpus"].split(",")})
    work, title = _work(values, precision)
    machine, missing = _machine(values, precision)
    share = ROOFLINE_SHARE if precision == "fp32" else None  # reference measurements exist for fp32 only
    found = []
    for n in gpus:
        nodes = 1 if machine.gpus_per_node is None else -(-n // machine.gpus_per_node)
        if n % nodes:
            raise StudyError(f"gpus={n}: cannot be placed evenly on {nodes} nodes of {machine.gpus_per_node} GPUs")
        found.append(roofline(work, machine, Size(n, nodes), share))
    if as_json:
        print(json.dumps(rooflines_json(title, work, machine, found, missing), indent=1, allow_nan=False))
    else:
        print_rooflines(terminal(sys.stdout), title, work, machine, found, missing)


def _work(values: dict[str, str], precision: str) -> tuple[Any, str]:
    """Return what one GPU computes (Work), and a title for it."""
    from analysis.measures.flops import training_flops_per_sample
    from analysis.scaling.roofline import work_of
    from models import catalog

    model, dataset_name = values["model"], values.get("dataset", "cifar10")
    try:
        network = catalog.network(model)
    except ValueError as error:
        raise StudyError(str(error)) from None
    dataset = _read("dataset", dataset_name)
    context, side = dataset.get("context") or 0, dataset.get("image_size") or 0
    holds, size = (catalog.TEXT, context) if context else (catalog.IMAGES, side)
    if holds != network.inputs:
        raise StudyError(
            f"dataset={dataset_name} holds {holds}, and {model} takes {network.inputs}: give another dataset="
        )
    if size < network.min_image_size:
        raise StudyError(
            f"dataset={dataset_name} has images of {size} pixels, and {model} needs {network.min_image_size}: give "
            "another dataset=, such as synthetic_imagenet"
        )
    flops = training_flops_per_sample(model, dataset)
    if flops is None:
        raise StudyError(f"dataset={dataset_name}: its file lacks channels, classes, or the size of a sample")
    batch = whole("batch", values.get("batch", "128"))
    layers = network.layers(dataset["channels"], dataset["classes"], size)
    work = work_of(layers, flops, dataset["channels"], size, precision != "fp32", batch)
    what = f"{size} x {size} pixels" if holds == catalog.IMAGES else f"{size} tokens"
    return work, f"{model} on {dataset_name} ({what}), {precision}, batch {batch} per GPU"


def _machine(values: dict[str, str], precision: str) -> tuple[Any, tuple[str, ...]]:
    """Return the nominal hardware figures (Machine), and one sentence for each missing figure."""
    from analysis.scaling.roofline import Machine

    name = values.get("cluster")
    described = {} if name is None else _read("cluster", name)
    peaks = described.get("peak_tflops")
    described = {**described, "peak_tflops": peaks.get(precision) if isinstance(peaks, dict) else None}
    device = _device(values, described.get("gpu_type"), precision)
    figures: dict[str, float | None] = {}
    for key in NUMBERS:
        text = values.get(key, described.get(key))
        text = device.get(key) if text is None else text
        figures[key] = None if text is None else positive(key, str(text))
    if figures["peak_tflops"] is None:
        where = f"cluster={name} has none in {precision}: " if name is not None else ""
        raise StudyError(f"the peak of a GPU is not known: {where}give gpu_type=v100, or peak_tflops=15.7")
    per_node = figures["gpus_per_node"]
    missing = [
        f"{key} is not known ({NUMBERS[key]}): {so}"
        for key, so in (
            ("memory_gb_per_s", "bound by computing alone"),
            ("gpu_link_gb_per_s", "communication inside a node is not counted"),
            ("link_gb_per_s", "communication between nodes is not counted"),
            ("gpus_per_node", "all GPUs are taken to be on one node"),
        )
        if figures[key] is None
    ]

    def rate(key: str) -> float | None:
        value = figures[key]
        return None if value is None else value * 1e9

    machine = Machine(
        None if per_node is None else whole("gpus_per_node", f"{per_node:g}"),
        figures["peak_tflops"] * 1e12,
        *(rate(key) for key in ("memory_gb_per_s", "gpu_link_gb_per_s", "link_gb_per_s")),
    )
    return machine, tuple(missing)


def _device(values: dict[str, str], of_cluster: object, precision: str) -> dict[str, float | None]:
    """Return peak and memory of the type of GPU, as its maker publishes them; empty if the cluster's is not known."""
    from analysis.measures.flops import device_called, device_types

    asked = values.get("gpu_type")
    found = device_called(asked or str(of_cluster or ""))
    if found is None:
        if asked is not None:
            raise StudyError(
                f"gpu_type={asked} is not known; there are {', '.join(device_types())}, or give peak_tflops= and "
                "memory_gb_per_s="
            )
        return {}
    peak = found["peak_tflops"].get(precision)
    if asked is not None and peak is None and "peak_tflops" not in values:
        raise StudyError(f"gpu_type={asked} has no {precision}: give another precision=")
    return {"peak_tflops": peak, "memory_gb_per_s": found["memory_gb_per_s"]}


def _read(kind: str, name: str) -> dict[str, Any]:
    """Read a file of conf/<kind>/, or the user's own, as plain YAML. Raises StudyError if it is missing or invalid."""
    import yaml

    path = Path(name) if name.endswith((".yaml", ".yml")) else CONF / kind / f"{name}.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        known = ", ".join(sorted(each.stem for each in (CONF / kind).glob("*.yaml")))
        raise StudyError(f"{kind}={name}: there is no such file; there are {known}, or give <path>.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise StudyError(f"{kind}={name}: {path.name} is not YAML") from None
    if not isinstance(found, dict):
        raise StudyError(f"{kind}={name}: {path.name} does not hold keys and values")
    return found
