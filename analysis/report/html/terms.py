"""Definitions behind the "?" next to a term; the last section of the page, which is printed too, lists them once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from analysis.report.sentences import GOODPUT_NOTE, interval_note
from analysis.tables.point import Point

_USED = re.compile(r'href="#term-([a-z_]+)"')
# A percentage or an interval, which no line break divides.
_FIGURE = re.compile(r"\(?\d[\d.,]*(?:–\d[\d.,]*(?: %|×)?| %)\)?")


@dataclass(frozen=True)
class Term:
    """name: heading of the definition. about: the definition. phrases: words that get the "?" in sentences."""

    name: str
    about: str
    phrases: tuple[str, ...] = ()


# By the name of a column, where it is one.
TERMS: Mapping[str, Term] = {
    "point": Term(
        "Point",
        "All runs that differ only in seed and repeat. Its figures are those of the completed runs; a step takes as "
        "long as its slowest rank.",
    ),
    "interval": Term("95 % interval", "", ("95 % interval",)),
    "prediction_interval": Term(
        "90 % prediction interval",
        "The range expected to hold a measurement of that size in 9 of 10 cases, derived from the errors of the same "
        "law on other systems (docs/prediction.md).",
        ("90 % prediction interval",),
    ),
    "speedup": Term(
        "Speedup",
        "Throughput divided by that of the baseline: the smallest size of the series, or with baseline=plain the "
        "framework alone. Each speedup names its baseline.",
        ("speedup",),
    ),
    "efficiency": Term(
        "Efficiency",
        "Speedup divided by the factor of GPUs. The gap to 100 % is the sum of the losses in the breakdown.",
        ("efficiency",),
    ),
    "goodput": Term("Goodput", GOODPUT_NOTE.removeprefix("Goodput: ").capitalize()),
    "global_batch": Term("Global batch", "Samples per step of all ranks together."),
    "test_accuracy": Term(
        "Test accuracy",
        "Share of the test samples classified correctly after training, mean of the runs. Compare only points that "
        "were trained on the same number of samples.",
    ),
    "test": Term(
        "Test",
        "Welch's t test on the logarithm of seconds per sample, between the runs of two points that did the same work, "
        "Holm-corrected over all pairs of the report. Series without a shown difference are not shown to be equal.",
        ("test",),
    ),
    "data_stall_seconds": Term(
        "Data stall", "A full step minus a step on a batch that is already on the device.", ("data stall",)
    ),
    "exposed_communication_seconds": Term(
        "Exposed synchronisation",
        "A step on a batch that is already on the device minus the same without synchronisation: messages that compute "
        "does not hide, waiting for other ranks and, unless shown as gradient bucketing, copies of gradients.",
        ("exposed synchronisation",),
    ),
    "bucketing_seconds": Term(
        "Gradient bucketing",
        "Time that DDP's buckets and hooks take in a process group of one rank.",
        ("gradient bucketing",),
    ),
    "imbalance_seconds": Term(
        "Imbalance", "A step without synchronisation of the slowest rank minus the mean of all ranks.", ("imbalance",)
    ),
    "compute_seconds": Term(
        "Compute",
        "A step without synchronisation, mean of the ranks. Slower compute: the time it takes beyond that of the "
        "baseline.",
        ("slower compute",),
    ),
    "unexplained_seconds": Term(
        "Unexplained", "Time of the timed steps beyond that of the full step in the probes.", ("unexplained",)
    ),
    "startup_seconds": Term(
        "Start-up",
        "Imports, data, rendezvous and building the network: the sum of these parts on the slowest rank. Not stated "
        "for runs with verify=true, whose checks run in between.",
    ),
    "first_step_seconds": Term(
        "First step",
        "From the start of the job's ranks to the end of the first step of the slowest one. Not stated for runs with "
        "verify=true.",
    ),
    "first_block_seconds": Term(
        "Compile and autotune", "The first step itself, on the slowest rank. No throughput includes it."
    ),
    "overlap": Term("Overlap", "The least share of an allreduce of all gradients that a step hides behind compute."),
    "bus_gb_per_s": Term("Bus bandwidth", "Of an allreduce of all gradients, timed alone, as nccl-tests defines it."),
    "tflops_per_gpu": Term(
        "TFLOP/s", "Three times the arithmetic of the forward pass, from the catalogue, per GPU and second."
    ),
    "model_flops_utilisation": Term("MFU", "TFLOP/s divided by the nominal peak of the device."),
    "parallel_efficiency": Term(
        "Parallel efficiency",
        "Load balance × communication, as the POP Centre of Excellence defines them. Data is a separate factor.",
    ),
    "serial_fraction": Term("Serial fraction", "By Karp and Flatt, from the speedup."),
    "marginal_efficiency": Term(
        "Marginal efficiency",
        "Throughput added by the GPUs beyond the next smaller size, per GPU and relative to one GPU.",
    ),
    "epoch_gpu_hours": Term(
        "GPU-hours of an epoch",
        "Time of the steps of an epoch × GPUs; rank-hours on CPUs. Without evaluations and start-up.",
        ("GPU-hours", "rank-hours"),
    ),
    "epoch_front": Term(
        "On the front",
        "Pareto-optimal: no other point of the same model and data set takes both less time and fewer GPU-hours. "
        "An epoch with another batch size does not train the network equally well.",
    ),
    "outlier_blocks": Term(
        "Outside the fences",
        "Blocks farther than 1.5 interquartile ranges from the quartiles of their run (Tukey). They count in every "
        "figure.",
    ),
    "staleness_mean": Term(
        "Staleness",
        "Number of other updates that a parameter server applied between a worker's reading of the weights and the "
        "update computed from them. 0 is synchronous.",
    ),
}


def question_mark(key: str) -> Markup:
    """A link to the definition, which the page shows where the link stands; empty if the term has none."""
    if key not in TERMS:
        return Markup()
    return Markup('<a class="what" href="#term-{0}" aria-label="What is {1}?">?</a>').format(key, TERMS[key].name)


def with_terms(sentence: str) -> Markup:
    """The sentence, with a question mark after the first mention of each term."""
    found: dict[int, str] = {}  # by where the term ends
    taken: list[tuple[int, int]] = []
    phrases = [(phrase, key) for key, term in TERMS.items() for phrase in term.phrases]
    for phrase, key in sorted(phrases, key=lambda one: -len(one[0])):
        match = re.search(rf"(?i)\b{re.escape(phrase)}\b", sentence)
        if match and key not in found.values() and not any(a < match.end() and match.start() < b for a, b in taken):
            found[match.end()] = key
            taken.append(match.span())
    html, begin = Markup(), 0
    for end in sorted(found):
        word = max(begin, sentence.rfind(" ", 0, end) + 1)  # the last of the term: its question mark stays beside it
        html += _undivided(sentence[begin:word])
        html += Markup('<span class="term">{}{}</span>').format(sentence[word:end], question_mark(found[end]))
        begin = end
    return html + _undivided(sentence[begin:])


def _undivided(text: str) -> Markup:
    html, begin = Markup(), 0
    for figure in _FIGURE.finditer(text):
        html += escape(text[begin : figure.start()]) + Markup('<span class="figure">{}</span>').format(figure[0])
        begin = figure.end()
    return html + escape(text[begin:])


def used_terms(html: str, points: Iterable[Point]) -> Sequence[tuple[str, Term]]:
    """The terms that the page refers to, by name. points: of the study, for what its intervals count."""
    used = set(_USED.findall(html))
    interval = Term(TERMS["interval"].name, interval_note(points).removeprefix("95 %: "))
    terms = {**TERMS, "interval": interval}
    return sorted(((key, term) for key, term in terms.items() if key in used), key=lambda one: one[1].name.lower())
