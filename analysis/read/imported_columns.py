"""The columns of a table from elsewhere: which say what, by their own names or those of W&B, MLflow and others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.base.errors import StudyError
from analysis.base.text import listed, printable, shortened

GPUS, NODES, GPUS_PER_NODE, RUN, STATUS = "gpus", "nodes", "gpus_per_node", "run", "status"
SAMPLES, TOKENS, SECONDS = "samples_per_second", "tokens_per_second", "seconds_per_step"
BATCH, BATCH_PER_GPU = "batch", "batch_per_gpu"
# What a throughput counts, by its column; the first one that a table has is read.
RATES = {SAMPLES: "samples", TOKENS: "tokens", SECONDS: "samples"}
# Other names of these columns, after `_simplified`.
NAMES: Mapping[str, tuple[str, ...]] = {
    GPUS: ("num_gpus", "n_gpus", "ngpus", "gpu_count", "world_size", "ranks"),
    NODES: ("num_nodes", "n_nodes", "nnodes", "node_count"),
    GPUS_PER_NODE: ("ranks_per_node", "nproc_per_node"),
    SAMPLES: ("samples_per_sec", "train_samples_per_second", "images_per_second"),
    TOKENS: ("tokens_per_sec", "train_tokens_per_second"),
    SECONDS: ("step_seconds", "sec_per_step", "step_time"),
    BATCH: ("global_batch", "global_batch_size", "total_train_batch_size"),
    BATCH_PER_GPU: ("per_device_train_batch_size", "per_device_batch_size", "per_gpu_batch_size"),
    RUN: ("name", "run_name", "run_id", "id", "repeat", "seed"),
    STATUS: ("state",),
}
# What W&B and MLflow keep of every run besides what it is about.
KEPT_OF_RUNS = (
    *("notes", "user", "tags", "created", "runtime", "sweep", "start_time", "end_time", "duration", "date", "time"),
    *(
        "timestamp",
        "source_type",
        "source_name",
        "source_version",
        "experiment_id",
        "artifact_uri",
        "group",
        "job_type",
    ),
)
# Parts of names that say that a column was measured, or is kept of runs, and not asked for.
MEASURED_PREFIXES = ("metrics.", "summary.", "tags.", "train/", "eval/", "system/", "_", "#")
ASKED_PREFIXES = ("params.", "config.")
MOST_COUNT, LEAST, MOST = 10_000_000, 1e-9, 1e15
FEWEST_VALUES = 4  # all different and fractional: measured, not asked for


@dataclass(frozen=True)
class Reading:
    """How the user wants tables and logs to be read.

    Attributes:
        pattern: of steps in logs (harness/core/workload/patterns.py); empty: there are no such logs.
        file_name: regular expression over a log's name, whose groups are columns; empty: none.
        batch, batch_per_gpu: samples of a step over all GPUs, or of one, where it is not stated; None: not given.
        gpus_per_node: where neither it nor the number of nodes is stated; None: not given.
        series: columns that tell series apart, whatever they look like.
        ignore: columns that are not read.
    """

    pattern: str = ""
    file_name: str = ""
    batch: float | None = None
    batch_per_gpu: float | None = None
    gpus_per_node: int | None = None
    series: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


AS_IT_IS = Reading()


@dataclass(frozen=True)
class Table:
    """A table whose columns are known.

    Attributes:
        headers: as the file has them.
        columns: index of each column that is read, by its name here.
        rate: the column of throughputs, one of RATES.
        lines: where each row is, in words.
    """

    path: Path
    headers: tuple[str, ...]
    columns: Mapping[str, int]
    rate: str
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]

    @property
    def unit(self) -> str:
        return "images" if "images" in self.header(self.rate).lower() else RATES[self.rate]

    def header(self, name: str) -> str:
        """The name of the column in the file."""
        return printable(self.headers[self.columns[name]]) if name in self.columns else name

    def value(self, row: int, name: str) -> str:
        """Empty if there is no such column."""
        if name in self.columns:
            return self.rows[row][self.columns[name]].strip()
        return self.rows[row][self.headers.index(name)].strip() if name in self.headers else ""

    def error(self, row: int, message: str) -> StudyError:
        return StudyError(f"{self.path}, {self.lines[row]}: {message}")


Rows = tuple[Sequence[str], Sequence[tuple[str, Sequence[str]]]]


def named_columns(path: Path, read: Rows, reading: Reading = AS_IT_IS) -> Table:
    """Find the columns. Raises StudyError if one is missing, ambiguous or there twice."""
    headers, lines = tuple(text.strip() for text in read[0]), read[1]
    for option, names in (("--series-columns", reading.series), ("--ignore-columns", reading.ignore)):
        if absent := [name for name in names if name not in headers]:
            raise StudyError(f"{option}: {path} has no column {absent[0]!r}; it has {_some(headers)}")
    twice = [name for name, n in Counter(headers).items() if n > 1 and name]
    if twice:
        raise StudyError(f"{path}: column {printable(shortened(twice[0], 50))!r} is there twice; keep one")
    columns: dict[str, int] = {}
    for index, header in enumerate(headers):
        name = _known(header)
        if name is None or header in (*reading.series, *reading.ignore):
            continue
        if name in columns and name != RUN:
            both = [printable(headers[at]) for at in (columns[name], index)]
            raise StudyError(f"{path}: columns {both[0]!r} and {both[1]!r} both mean {name}; keep one")
        columns.setdefault(name, index)
    rate = next((name for name in RATES if name in columns), None)
    missing = [] if GPUS in columns else [GPUS]
    missing += [] if rate else [f"{SAMPLES}, {TOKENS} or {SECONDS}"]
    if rate == SECONDS and not {BATCH, BATCH_PER_GPU} & set(columns):
        missing.append(f"{BATCH} (samples of a step over all GPUs), which {SECONDS} needs")
    if missing:
        raise StudyError(f"{path}: no column {listed(missing, 'and')} in its first line; it has {_some(headers)}")
    assert rate is not None
    if not lines:
        raise StudyError(f"{path} has no measurement, only its first line; give one row per run")
    where, rows = zip(*((at, tuple(row)) for at, row in lines), strict=True)
    return Table(path, headers, columns, rate, rows, where)


def _some(headers: Sequence[str]) -> str:
    return ", ".join(shortened(printable(header), 30) for header in headers[:12]) or "none"


def identity_columns(table: Table, reading: Reading = AS_IT_IS) -> tuple[list[str], list[str]]:
    """Return the headers of the columns that tell series apart, and a remark on those that look like results."""
    read = set(table.columns.values())
    kept: list[str] = []
    results: list[str] = []
    for index, header in enumerate(table.headers):
        if header in reading.series:
            kept.append(header)
            continue
        if index in read or not header or header in reading.ignore or _known(header) or _is_result(header):
            continue
        values = [row[index].strip() for row in table.rows]
        if not any(values):
            continue
        (results if _all_fractions(values) else kept).append(header)
    if not results:
        return kept, []
    named = listed([repr(printable(shortened(name, 30))) for name in results[:5]], "and")
    return kept, [
        f"{table.path.name}: taken for results, since every row has another fraction: {named}; --series-columns makes "
        "them tell series apart, --ignore-columns leaves them out"
    ]


def _known(header: str) -> str | None:
    simple = simplified(header)
    return next((name for name, others in NAMES.items() if simple == name or simple in others), None)


def simplified(header: str) -> str:
    """'metrics.Samples per second' as 'samples_per_second'."""
    text = header.strip().lower()
    for prefix in (*ASKED_PREFIXES, *MEASURED_PREFIXES[:2]):
        text = text.removeprefix(prefix)
    return re.sub(r"[\s\-]+", "_", text.rsplit("/", 1)[-1])


def _is_result(header: str) -> bool:
    text = header.strip().lower()
    return text.startswith(MEASURED_PREFIXES) or simplified(text) in KEPT_OF_RUNS


def _all_fractions(values: Sequence[str]) -> bool:
    """Return True if all values are distinct numbers, at least one of them not whole."""
    if len(values) < FEWEST_VALUES or len(set(values)) < len(values):
        return False
    try:
        return any(not float(value).is_integer() for value in values)
    except (ValueError, OverflowError):
        return False
