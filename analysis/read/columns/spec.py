"""Columns from a run's spec.json, including checks of values that parsing the spec does not make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.base.constants import NO_FAULT
from analysis.base.text import printable, text_or_none
from analysis.base.values import is_count, number_of
from harness.core.serialization import to_plain
from harness.core.spec import NSYS, STRONG, WEAK, RunSpec, Site
from harness.core.strategies import info
from harness.core.workload.spec import COMMAND, SCRIPT, WorkloadSpec


def asked_columns(spec: RunSpec, site: Site, run_id: Any) -> dict[str, Any]:
    """Return the columns of spec.json. Raises ValueError for a value of the wrong type or out of range."""
    columns = {
        "framework": spec.framework,
        "strategy": spec.strategy,
        "model": spec.model,
        "dataset": spec.dataset.name,
        "precision": spec.precision,
        "scaling": spec.scaling,
        "cluster": spec.cluster.name,
        "device": spec.cluster.device,
        "environment": spec.environment,
        "code_version": site.code_version,
    }
    counts = {
        "gpus": spec.gpus,
        "nodes": spec.placement.nodes,
        "ranks_per_node": spec.placement.ranks_per_node,
        "global_batch": spec.global_batch,
        "batch_per_gpu": spec.batch_per_gpu,
    }
    # `from_plain` checks the structure of a spec, not the types of its values.
    for name, value in columns.items():
        if not isinstance(value, str):
            raise ValueError(f"spec.json: {name} is {value!r}, expected a text")
    for name, n in counts.items():
        if not is_count(n, 1):
            raise ValueError(f"spec.json: {name} is {n!r}, expected a whole number from 1 on")
    plain = to_plain(spec)
    for name in ("seed", "repeat"):
        if not is_count(plain.pop(name), 0):
            raise ValueError(f"spec.json: {name} is {getattr(spec, name)!r}, expected a whole number from 0 on")
    if ranks_option := info(spec.strategy).ranks_option:
        _check_replicas(spec, ranks_option)
    if not isinstance(plain.pop("verify"), bool):
        raise ValueError(f"spec.json: verify is {spec.verify!r}, expected true or false")
    if not isinstance(spec.trace, str):
        raise ValueError(f"spec.json: trace is {spec.trace!r}, expected a text")
    del plain["trace_steps"]
    if spec.trace != NSYS:  # only nsys affects the measurement
        del plain["trace"]
    if spec.workload is None:  # as in older specs
        del plain["workload"]
    else:
        _check_workload(spec.workload)
    point = json.dumps(plain, sort_keys=True)
    for name in ("gpus", "placement", *_batch_that_follows(spec.scaling)):
        del plain[name]
    if spec.workload is not None and spec.scaling == WEAK:
        del plain["workload"]["samples_per_step"]
    return (
        {name: printable(value) for name, value in columns.items()}
        | counts
        | {"seed": spec.seed, "repeat": spec.repeat, "verify": spec.verify}
        | {"point": point, "series": json.dumps(plain, sort_keys=True)}
        | {"oversubscribed": text_or_none(site.oversubscribed)}
        | _nominal_columns(spec, site)
        | {"fault": None if spec.fault.name == NO_FAULT else printable(str(spec.fault.name))}
        | {"spec_run_id": text_or_none(run_id)}
    )


def _nominal_columns(spec: RunSpec, site: Site) -> dict[str, Any]:
    """Return the machine's nominal rates from the cluster's configuration; None unless a positive number."""
    links = {"link_gb_per_s": site.link_gb_per_s, "gpu_link_gb_per_s": site.gpu_link_gb_per_s}
    peaks = site.peak_tflops if isinstance(site.peak_tflops, Mapping) else {}
    return {name: number_of(links, name) or None for name in links} | {
        "peak_tflops": number_of(peaks, spec.precision) or None
    }


def _check_workload(workload: WorkloadSpec) -> None:
    """Raise ValueError for values that figures are computed or named from."""
    if workload.kind not in (SCRIPT, COMMAND):
        raise ValueError(f"spec.json: workload.kind is {workload.kind!r}, expected {SCRIPT!r} or {COMMAND!r}")
    if not is_count(workload.samples_per_step, 1):
        given = workload.samples_per_step
        raise ValueError(f"spec.json: workload.samples_per_step is {given!r}, expected a whole number from 1 on")
    if not isinstance(workload.unit, str):
        raise ValueError(f"spec.json: workload.unit is {workload.unit!r}, expected a text")


def _check_replicas(spec: RunSpec, ranks_option: str) -> None:
    """Raise ValueError if the ranks per replica are invalid."""
    options = spec.strategy_options
    for name in (ranks_option, "microbatches"):
        n = options.get(name, 1) if isinstance(options, Mapping) else options
        if n is not None and not is_count(n, 1):
            raise ValueError(f"spec.json: strategy_options.{name} is {n!r}, expected a whole number from 1 on")
    if spec.gpus % spec.ranks_per_replica:
        raise ValueError(f"spec.json: {spec.gpus} ranks cannot be replicas of {spec.ranks_per_replica} ranks")


def _batch_that_follows(scaling: str) -> tuple[str, ...]:
    """Return which of the two batches varies with the number of GPUs within a series."""
    return {WEAK: ("global_batch",), STRONG: ("batch_per_gpu",)}.get(scaling, ())
