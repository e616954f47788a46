"""Logs of trainings as a table: one log is one run, whose steps a pattern reads (harness/core/workload/patterns.py).

The number of GPUs and the batch are read where the program of a preset prints them, else from the name of the file. The
warm-up is left out by the rule of docs/method.md, but for at most half of a log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from analysis.base.errors import StudyError
from analysis.base.text import listed, printable, shortened
from analysis.read.columns.steadiness import steadiness_columns
from analysis.read.imported_columns import (
    BATCH,
    BATCH_PER_GPU,
    GPUS,
    LEAST,
    MOST,
    MOST_COUNT,
    SAMPLES,
    TOKENS,
    Reading,
)
from analysis.read.log.values import MEASURE, PATTERN, Block
from harness.core.errors import UserError
from harness.core.measuring.steady_state import WINDOW, is_stationary
from harness.core.workload.patterns import (
    COLOURS,
    LINE_END,
    NUMBER,
    RANK,
    RATES,
    TIMES,
    Observed,
    Pattern,
    Reader,
    number,
    parse,
)

TABLES = (".csv", ".tsv", ".parquet")
MOST_LOGS, MOST_BYTES = 10_000, 100_000_000
WARMUP_STEPS, BLOCK_STEPS = 20, 10  # as conf/measure/default.yaml
MOST_NAMED = 5
# Not columns, but what follows from them: tokens or micro-batches, and whether each process shows its own rate.
TOKENS_PER_SAMPLE, MICRO_BATCHES, SEPARATE = "tokens_per_sample", "micro_batches", "separate"
COUNT = r"(\d[\d,]*)"
# Where the programs print what a run is about; groups are factors.
FACTS: Mapping[str, Mapping[str, str]] = {
    # megatron/training/arguments.py and training.py
    "megatron": {GPUS: rf"\busing world size: {COUNT}", BATCH: rf"elapsed time per .*\bglobal batch size:\s*{COUNT}"},
    # torchtitan/distributed/parallel_dims.py and train.py, since 2024
    "torchtitan": {
        GPUS: r"Building (?:device mesh with parallelism: pp=(\d+), dp_replicate=(\d+), dp_shard=(\d+), cp=(\d+)"
        r"(?:, tp=(\d+))?|\d+-D device mesh with \[[^]]*\], \[([\d, ]+)\])",
        BATCH: rf"\bglobal batch size {COUNT}",
        TOKENS_PER_SAMPLE: rf"\bsequence length {COUNT}",
    },
    "nanogpt": {BATCH: rf"tokens per iteration will be: {COUNT}"},
    # transformers/trainer.py
    "hf_trainer": {
        BATCH: rf"Total train batch size \(w\. parallel, distributed & accumulation\) = {COUNT}",
        BATCH_PER_GPU: rf"Instantaneous batch size per device = {COUNT}",
        MICRO_BATCHES: rf"Gradient Accumulation steps = {COUNT}",
    },
    "lightning": {GPUS: rf"All distributed processes registered. Starting with {COUNT} processes"},
    # benchmark_cnn.py, print_info
    "tf_cnn_benchmarks": {
        BATCH: rf"Batch size:\s+{COUNT} global",
        BATCH_PER_GPU: rf"^\s+({NUMBER}) per device",
        SEPARATE: r"Variables:\s+(horovod)",
    },
    "horovod_synthetic": {GPUS: rf"^Number of [CG]PUs: {COUNT}", BATCH_PER_GPU: rf"^Batch size: {COUNT}"},
    # deepspeed/runtime/config.py, print
    "deepspeed": {GPUS: rf"\bworld_size \.+ {COUNT}", BATCH: rf"\btrain_batch_size \.+ {COUNT}"},
}
RATE_NAMES = {
    **dict.fromkeys(("torchtitan", "nanogpt"), TOKENS),
    **dict.fromkeys(("tf_cnn_benchmarks", "horovod_synthetic"), "images_per_second"),
}
# Of tqdm's bars; a log does not say when they moved.
ELAPSED = re.compile(r"\[(?:(\d+):)?(\d+):(\d+)<")
BARS = ("hf_trainer", "lightning")


class Unusable(Exception):
    """Why a log is not read."""


@dataclass
class Logs:
    """Logs as a table.

    Attributes:
        headers, rows: as of a table, where each row is named by its log.
        measured: columns of `Run` by the name of the log.
        unused: why, by the name of the log.
        remarks: on how they were read.
    """

    headers: tuple[str, ...]
    rows: list[tuple[str, Sequence[str]]] = field(default_factory=list)
    measured: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        if not self.unused:
            return []
        alike: dict[str, list[str]] = {}
        for name, why in self.unused.items():
            alike.setdefault(why, []).append(name)
        reasons = [f"{_some(names)}: {why}" for why, names in alike.items()]
        n = len(self.unused) + len(self.rows)
        return [f"{len(self.unused)} of {n} logs not used: {'; '.join(reasons[:MOST_NAMED])}"]


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return listed([*names[:MOST_NAMED], *more], "and")


def is_log_path(path: Path, reading: Reading) -> bool:
    """Return whether the pattern is meant for this file or folder."""
    return bool(reading.pattern) and path.suffix not in TABLES


def read_pattern_logs(path: Path, reading: Reading) -> Logs:
    """Read every log of a folder, or one. Raises OSError, and StudyError if none could be used."""
    pattern, name = _pattern(reading.pattern), _expression(reading.file_name)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    files = [file for file in files if not file.name.startswith(".") and file.suffix not in TABLES]
    if not files or len(files) > MOST_LOGS:
        raise StudyError(f"{path} holds {len(files):,} logs; give a folder with one log per run, at most {MOST_LOGS:,}")
    own = [group for group in name.groupindex if group not in (GPUS, BATCH, BATCH_PER_GPU)]
    rate = _rate_name(pattern)
    logs = Logs((GPUS, rate, BATCH, *own), remarks=_remarks(path, rate, reading))
    for file in files:
        shown = printable(file.name)
        try:
            facts = _facts_of_name(file, name)
            values, logs.measured[shown] = _read_log(file, pattern, reading, facts)
            logs.rows.append((shown, [*values, *(facts[group] for group in own)]))
        except Unusable as why:
            logs.unused[shown] = str(why)
    if not logs.rows:
        raise StudyError(f"{path} has no log that --pattern={reading.pattern} can be used on: {logs.problems[0]}")
    return logs


def _pattern(text: str) -> Pattern:
    try:
        pattern = parse(text, "tokens" if text == "torchtitan" or "tokens_per_second" in text else "samples")
    except UserError as error:
        raise StudyError(str(error).replace("workload.pattern", "--pattern")) from None
    if not {*TIMES, *RATES} & set(pattern.regex.groupindex) and pattern.name not in BARS:
        raise StudyError(f"--pattern={text}: a log does not say when a line came; add a group such as ms or it_per_s")
    return pattern


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise StudyError(
            f"--file-name={text} is not a regular expression: {error}; give one such as '(?P<gpus>\\d+)gpu'"
        ) from None


def _rate_name(pattern: Pattern) -> str:
    tokens = any(name.startswith("tokens") for name in pattern.regex.groupindex)
    return TOKENS if tokens else RATE_NAMES.get(pattern.name, SAMPLES)


def _remarks(path: Path, rate: str, reading: Reading) -> tuple[str, ...]:
    """Language models are mostly configured in sequences, which a batch given here must not be."""
    given = [f"{name}={value:g}" for name, value in _given(reading) if value is not None]
    if rate != TOKENS or not given:
        return ()
    return (
        f"{path.name}: throughput and batch are in tokens, so {listed(given, 'and')} is taken as tokens; if you meant "
        "sequences, give sequences x tokens of each",
    )


def _given(reading: Reading) -> tuple[tuple[str, float | None], ...]:
    return ("--batch", reading.batch), ("--batch-per-gpu", reading.batch_per_gpu)


def _facts_of_name(file: Path, name: re.Pattern[str]) -> dict[str, str]:
    match = name.search(file.name)
    if match is None:
        raise Unusable("its name does not match --file-name")
    return {group: value or "" for group, value in match.groupdict().items()}


def _read_log(
    file: Path, pattern: Pattern, reading: Reading, named: Mapping[str, str]
) -> tuple[list[str], Mapping[str, Any]]:
    """Return the values of the columns GPUS, the rate and BATCH; and columns of `Run`."""
    if file.stat().st_size > MOST_BYTES:
        raise Unusable(f"it has more than {MOST_BYTES:,} bytes")
    lines = LINE_END.split(file.read_bytes())
    try:
        gpus, batch, separate = _work(lines, pattern, reading, named)
    except Unusable:
        _check_matches(lines, Reader(pattern, 1.0, 1, 1), pattern)
        raise
    # Without a batch, a step counts as one sample: what a rate says of time per sample is the same.
    reader = Reader(pattern, batch or 1.0, gpus, gpus if separate else 1)
    observed = _check_matches(lines, reader, pattern)
    if batch is None and not set(RATES) & set(pattern.regex.groupindex):
        raise Unusable("it does not say the batch; give --batch or --batch-per-gpu")
    blocks = _blocks(observed, batch)
    warm, stationary = _warmup(blocks)
    measured = [replace(block, phase=MEASURE) for block in blocks[warm:]]
    if not measured:
        raise Unusable(f"lines that matched: {reader.matches}, and none is left after the warm-up; give longer logs")
    seconds = math.fsum(block.seconds for block in measured)
    rate = sum(block.n for block in measured) * (batch or 1.0) / seconds
    if not LEAST <= rate <= MOST:
        raise Unusable(f"a throughput of {rate:g} is not credible")
    found = steadiness_columns(measured)
    blocks_json = found.pop("blocks")
    warmup_steps = blocks[warm - 1].end
    notes = f"measured by a pattern over its log, '{pattern.name}', after {warmup_steps:,} steps of warm-up"
    notes += "; too few lines to test whether its step time was steady" if stationary is None else ""
    columns = {"blocks_json": blocks_json, "stationary": stationary, "warmup_steps": warmup_steps, "method": PATTERN}
    return [str(gpus), repr(rate), "" if batch is None else repr(batch)], {**found, **columns, "notes": notes}


def _check_matches(lines: Iterable[bytes], reader: Reader, pattern: Pattern) -> list[Observed]:
    """Return the steps that the reader observes. Raises Unusable if no line matches."""
    observed = _observed(reader, lines, pattern)
    if not reader.matches:
        last = printable(reader.last_lines[-1]) if reader.last_lines else "nothing"
        raise Unusable(f"no line matched; the last was: {shortened(last, 100)}")
    return observed


def _observed(reader: Reader, lines: Iterable[bytes], pattern: Pattern) -> list[Observed]:
    if pattern.name not in BARS:
        return [observed for line in lines for observed in reader.feed(line + b"\n", 0.0)]
    found: list[Observed] = []
    shown = None
    for line in lines:
        elapsed = ELAPSED.search(line.decode("utf-8", errors="replace"))
        # Time is shown in whole seconds: only where it changes is it known.
        if elapsed is None or elapsed[0] != shown:
            shown = elapsed[0] if elapsed else shown
            hours, minutes, seconds = (int(part or 0) for part in elapsed.groups()) if elapsed else (0, 0, 0)
            found += reader.feed(line + b"\n", hours * 3600.0 + minutes * 60 + seconds)
    return found


def _blocks(observed: Sequence[Observed], batch: float | None) -> list[Block]:
    """Blocks as `workload.pattern` makes them: the first line alone, then at least BLOCK_STEPS each."""
    blocks: list[Block] = []
    part: list[Observed] = []
    per_step = int(batch) if batch is not None and batch == int(batch) else 1
    for each in observed:
        part.append(each)
        if not blocks or each.end - blocks[-1].end >= BLOCK_STEPS:
            n = sum(one.n for one in part)
            seconds = math.fsum(one.seconds for one in part)
            blocks.append(Block("warmup", each.end - n, n, seconds, n * per_step))
            part = []
    return blocks


def _warmup(blocks: Sequence[Block]) -> tuple[int, bool | None]:
    """Return how many blocks are warm-up, and whether the step time was steady at its end; None: not tested."""
    most = max(1, len(blocks) // 2)
    per_step = [block.seconds / block.n for block in blocks]
    for warm in range(1, most + 1):
        # The first line holds the first step, which compiles.
        if blocks and blocks[warm - 1].end >= WARMUP_STEPS and is_stationary(per_step[1:warm]):
            return warm, True
    return most, False if most > WINDOW else None


def _work(
    lines: Sequence[bytes], pattern: Pattern, reading: Reading, named: Mapping[str, str]
) -> tuple[int, float | None, bool]:
    """Return GPUs, samples of a step over all of them if known, and whether each process shows its own rate."""
    said = _said(lines, FACTS.get(pattern.name, {}))
    facts: dict[str, float] = {}
    options = {BATCH: reading.batch, BATCH_PER_GPU: reading.batch_per_gpu}
    for name in (GPUS, BATCH, BATCH_PER_GPU, TOKENS_PER_SAMPLE, MICRO_BATCHES):
        values = [said.get(name, set()), {_count(named[name])} if named.get(name) else set()]
        values.append({given} if (given := options.get(name)) else set())
        if name == BATCH and TOKENS_PER_SAMPLE in said:
            values[0] = {a * b for a in values[0] for b in said[TOKENS_PER_SAMPLE]}
        found = set().union(*values)
        if len(found) > 1:
            raise Unusable(f"it is said to have {' and '.join(f'{value:,g}' for value in sorted(found))} as its {name}")
        facts.update((name, value) for value in found)
    batch = facts.get(BATCH)
    per_gpu = facts.get(BATCH_PER_GPU, 0) * facts.get(MICRO_BATCHES, 1)
    gpus = facts.get(GPUS) or (batch / per_gpu if batch and per_gpu else None)
    if not gpus or gpus != int(gpus) or gpus > MOST_COUNT:
        raise Unusable(
            "it does not say on how many GPUs it ran; put that into its name, and give --file-name '(?P<gpus>\\d+)gpu'"
        )
    if batch and reading.batch_per_gpu and not math.isclose(batch, per_gpu * gpus):
        unit = "tokens" if _rate_name(pattern) == TOKENS else "samples"
        raise Unusable(
            f"its batch is {batch:,g} {unit} on {gpus:g} GPUs, which is {batch / gpus:,g} and not "
            f"--batch-per-gpu={reading.batch_per_gpu:g} of each; leave the option out"
        )
    separate = pattern.name not in FACTS or SEPARATE in said
    return int(gpus), batch or (per_gpu * gpus or None), separate


def _said(lines: Iterable[bytes], facts: Mapping[str, str]) -> dict[str, set[float]]:
    """Return all values of each fact; a word counts as 1."""
    found: dict[str, set[float]] = {}
    expressions = {name: re.compile(text) for name, text in facts.items()}
    for line in lines if facts else ():
        text = COLOURS.sub("", line.decode("utf-8", errors="replace"))
        if prefix := RANK.match(text):
            text = text[prefix.end() :]
        for name, expression in expressions.items():
            if match := expression.search(text):
                found.setdefault(name, set()).add(math.prod(_factors(match.groups())))
    return found


def _factors(groups: Iterable[str | None]) -> Iterable[float]:
    for group in groups:
        # Sizes of a mesh are a list; a thousands separator has no space.
        for part in (group or "").split(", "):
            yield _count(part) if part[:1].isdigit() else 1.0


def _count(text: str) -> float:
    try:
        value = number(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST:
        raise Unusable(f"{shortened(printable(text), 30)!r} is not a number above 0")
    return value
