"""Check that the frameworks and strategies of a study did the same work: each point against a reference.

All runs start from the same weights and see the same samples in the same order. So two runs with equal seed, number of
GPUs and global batch have the same first gradient, whatever computes and communicates it. With verify=true a run also
records what its network computes, alone and in fp32 (harness/worker/checks/verify.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.base.column import COUNT, REAL, TEXT, Column, table
from analysis.base.numbers import relative
from analysis.base.text import count, gpus_text, listed, scientific
from analysis.measures.network import BOUNDS, FIRST_GRADIENT, Files
from analysis.read.row import Run
from analysis.tables.columns import PLACE, RUNS, of_point
from analysis.tables.references import NETWORK_SETTINGS, Candidate, Pair, pairs_of
from harness.core.strategies import info

EQUAL, REFERENCE, DIFFERS, NOT_CHECKED = "equal", "reference", "differs", "not checked"
JUDGED_PRECISION = "fp32"

COLUMNS = table(
    *of_point("framework", "strategy", "detail", "model", "dataset", "precision", "scaling"),
    *PLACE,
    *of_point("gpus", "global_batch"),
    RUNS,
    Column("seeds", TEXT),
    Column("reference_framework", TEXT, heading="Compared with"),
    Column("reference_strategy", TEXT),
    *(Column(name, COUNT) for name in ("reference_gpus", "reference_global_batch")),
    Column("parameters", COUNT, heading="Parameters", show=count),
    Column("reference_parameters", COUNT, heading="Of reference", show=count),
    Column("gradient_sum_difference", REAL, show=scientific),
    Column("gradient_magnitude_difference", REAL, heading="First gradient", show=scientific),
    Column("gradient_bound", REAL, heading="Bound", show=scientific),
    *(
        Column(f"{name}_{end}", REAL, heading=heading, show=scientific)
        for name, words in BOUNDS.items()
        for end, heading in (("difference", words.capitalize()), ("bound", "Bound"))
    ),
    Column("verdict", TEXT, heading="Verdict"),
    *of_point("run_ids"),
    Column("reference_run_ids", TEXT),
)


@dataclass(frozen=True)
class EqualWork:
    """rows: keys of COLUMNS, one per point to compare. differing: keys of the points whose work differs from their
    reference. problems: one sentence on each of them."""

    rows: tuple[Mapping[str, Any], ...]
    differing: frozenset[str]
    problems: tuple[str, ...]


@dataclass
class _Findings:
    """columns: the figures. differing: what differs, with a few words on how much. gradient, network: why they were
    not checked; None if they were."""

    columns: dict[str, Any] = field(default_factory=dict)
    differing: dict[str, str] = field(default_factory=dict)
    gradient: str | None = None
    network: str | None = None

    @property
    def verdict(self) -> str:
        if self.differing:
            return f"{DIFFERS}: {', '.join(self.differing)}"
        if self.gradient and self.network:
            return f"{NOT_CHECKED}: {'; '.join(dict.fromkeys((self.gradient, self.network)))}"
        if self.network:
            return f"{NOT_CHECKED}: only the first gradient was compared; {self.network}"
        if self.gradient:
            return f"{NOT_CHECKED}: only the network was compared; {self.gradient}"
        return EQUAL


def equal_work(folder: Path, runs: Iterable[Run]) -> EqualWork:
    """Compares the points of the study in this folder that have completed runs."""
    rows, differing, problems = [], set(), []
    files = Files(folder)
    for pair in pairs_of(runs):
        point, reference = pair.point, pair.reference
        if reference is point:
            rows.append({**_columns(point), "verdict": REFERENCE})
        elif reference is None:
            rows.append({**_columns(point), "verdict": f"{NOT_CHECKED}: {pair.why_not}"})
        else:
            findings = _compared(pair, reference, files)
            compared = {f"reference_{name}": value for name, value in _columns(reference).items()}
            rows.append({**compared, **_columns(point), **findings.columns, "verdict": findings.verdict})
            if findings.differing:
                differing.add(point.key)
                problems.append(_problem(point, reference, findings.differing))
    return EqualWork(tuple(rows), frozenset(differing), tuple(problems))


def differs(row: Mapping[str, Any]) -> bool:
    return bool(row["verdict"].startswith(DIFFERS))


def _columns(point: Candidate) -> dict[str, Any]:
    kept = ("framework", "strategy", "model", "dataset", "precision", "scaling", "cluster", "device")
    parameters = _parameters(point)
    return {
        **{name: point.row[name] for name in (*kept, "gpus", "global_batch")},
        "detail": point.detail or None,
        "runs": len(point.runs),
        "seeds": ", ".join(map(str, sorted(_seeds(point)))),
        "parameters": parameters[0] if len(parameters) == 1 else None,
        "run_ids": tuple(run.run_id for run in point.runs),
    }


def _compared(pair: Pair, reference: Candidate, files: Files) -> _Findings:
    point, findings = pair.point, _Findings()
    unlike = point.unlike(reference)
    if "dataset" not in unlike:
        _compare_parameters(findings, point, reference)
    if unlike:
        findings.gradient = pair.why_not
    else:
        _compare_first_gradients(findings, point, reference)
    if any(name in unlike for name in NETWORK_SETTINGS):
        findings.network = pair.why_not
    else:
        _compare_networks(findings, point, reference, files)
    return findings


def _compare_parameters(findings: _Findings, point: Candidate, reference: Candidate) -> None:
    own, other = _parameters(point), _parameters(reference)
    if own and other and own != other:
        texts = [listed(map(count, numbers), "and") for numbers in (own, other)]
        findings.differing["parameters"] = f"{texts[0]} parameters instead of {texts[1]}"


def _parameters(point: Candidate) -> list[int]:
    return sorted({run.parameters for run in point.runs if run.parameters is not None})


def _other_gradient(point: Candidate, reference: Candidate) -> str | None:
    """Return why the first gradients of two synchronous points may differ; None if they may not."""
    if point.normalised != reference.normalised:
        return (
            f"BatchNorm takes its statistics from {point.normalised} samples at once, and in {reference} from "
            f"{reference.normalised}"
        )
    if point.shares != reference.shares:
        shares = f"{point.shares} share{'s' * (point.shares != 1)}"
        return f"it reads the data in {shares}, and {reference} in {reference.shares}: other samples"
    if point.decoded_by_dali != reference.decoded_by_dali:
        whose = "its images" if point.decoded_by_dali else f"the images of {reference}"
        return f"NVIDIA DALI decodes {whose}: slightly other pixel values"
    return None


def _compare_first_gradients(findings: _Findings, point: Candidate, reference: Candidate) -> None:
    """Compare every run with the reference's run of the same seed; the largest difference counts."""
    names, precision = ("gradient_sum", "gradient_magnitude"), point.row["precision"]
    pairs = _of_equal_seed(point.runs, reference.runs)
    known = [pair for pair in pairs if all(run[name] is not None for run in pair for name in names)]
    for name in names if known else ():
        differences = (relative(abs(own[name] - other[name]), other["gradient_magnitude"]) for own, other in known)
        findings.columns[f"{name}_difference"] = max(differences)
    apart = {p.strategy for p in (point, reference) if not info(p.strategy).synchronous}
    if lacking := sorted(_seeds(point) - _seeds(reference)):
        findings.gradient = f"{reference} has no completed run of seed {listed(map(str, lacking), 'and')}"
    elif apart:
        findings.gradient = f"with {listed(sorted(apart), 'and')} the ranks take their steps apart"
    elif why := _other_gradient(point, reference):
        findings.gradient = why
    elif len(known) < len(pairs):
        findings.gradient = "not every run logged a finite first gradient"
    elif precision != JUDGED_PRECISION:
        findings.gradient = f"in {precision} the first gradient is shown, not judged"
    comparable = not apart and not _other_gradient(point, reference)
    if known and precision == JUDGED_PRECISION and comparable:
        findings.columns["gradient_bound"] = FIRST_GRADIENT
        worst = max(findings.columns[f"{name}_difference"] for name in names)
        if worst > FIRST_GRADIENT:
            findings.differing["first gradient"] = _excess("first gradient", worst, FIRST_GRADIENT)


def _compare_networks(findings: _Findings, point: Candidate, reference: Candidate, files: Files) -> None:
    """Compare files of verify=true; one pair of runs with the same seed is enough."""
    own, other = ([run for run in p.runs if run.verify] for p in (point, reference))
    pairs = _of_equal_seed(own, other)
    if not own or not other:
        findings.network = "verify=true was not asked for"
    elif not pairs:
        findings.network = "verify=true was asked for with different seeds"
    else:
        try:
            compared = [files.differences(*pair) for pair in pairs]
        except ValueError as error:
            findings.network = str(error)
            return
        for name, words in BOUNDS.items():
            worst = max((differences[name] for differences in compared), key=lambda difference: difference.excess)
            findings.columns |= {f"{name}_difference": worst.value, f"{name}_bound": worst.bound}
            if worst.excess > 1:
                findings.differing[words] = _excess(words, worst.value, worst.bound)


def _of_equal_seed(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Each run with the first of the others that has its seed."""
    first = {run.seed: run for run in reversed(others)}
    return [(run, first[run.seed]) for run in runs if run.seed in first]


def _seeds(point: Candidate) -> set[int]:
    return {run.seed for run in point.runs if run.seed is not None}


def _excess(what: str, value: float, bound: float) -> str:
    return f"{what} by {scientific(value)} (bound {scientific(bound)})"


def _problem(point: Candidate, reference: Candidate, differing: Mapping[str, str]) -> str:
    row, detail = point.row, f" [{point.detail}]" if point.detail else ""
    settings: Sequence[str] = (
        f"{row['model']} on {row['dataset']}",
        gpus_text(row["gpus"], row["device"]),
        f"global batch {count(row['global_batch'])}",
    )
    how = "; ".join(differing.values())
    return f"{point}{detail}, {', '.join(settings)}: its work differs from that of {reference}: {how}"
