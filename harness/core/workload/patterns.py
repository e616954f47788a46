"""Step times from the output of the user's own training: a regular expression with named groups, or a preset.

Standard library only, Python 3.8 syntax: also read by the analysis, for logs from elsewhere.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from typing import Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional

from harness.core.errors import UserError

# What a value describes: the mean over the steps since the previous line, the latest step alone, or the mean over all
# steps so far.
INTERVAL, LATEST, CUMULATIVE = "interval", "latest", "cumulative"
TIMES = ("seconds", "ms", "it_per_s", "elapsed_seconds")
RATES = tuple(
    f"{counted}_per_second{scope}" for counted in ("samples", "tokens") for scope in ("", "_per_gpu", "_per_process")
)
OTHERS = ("step", "total", "loss")
NUMBER = r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?"
SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}

COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07)")
# Ranks in front of a line: of mpirun, horovodrun and torchrun ('[1,0]<stdout>:', '[0]<stdout>:', '[default0]:',
# '[rank0]:'), and of `srun --label` ('0: '), which may also be part of the line.
RANK = re.compile(r"\s*\[(?:\d+,|default|rank)?(\d+)\](?:<std\w+>)?:\s?")
LABEL = re.compile(r"\s*(\d+): ")
LINE_END = re.compile(rb"[\r\n]+")
# A line without an end is not kept beyond this size.
LONGEST_LINE = 100_000


@dataclass(frozen=True)
class Pattern:
    """How to read step times from lines.

    Attributes:
        name: the preset, or the expression.
        regex: with named groups of TIMES, RATES and OTHERS. Without one of TIMES and RATES, the time is when a line
            arrives.
        kind: what a value describes.
        steps: optimiser steps per unit of `step`.
        unmeasured: CUMULATIVE: steps at the start that the mean leaves out.
    """

    name: str
    regex: "re.Pattern[str]"
    kind: str = INTERVAL
    steps: int = 1
    unmeasured: int = 0


class Observed(NamedTuple):
    """Steps whose time is known.

    Attributes:
        end: steps done at their end, since the start.
        n: number of steps timed.
        seconds: their duration.
        loss: training loss; None if not shown or not finite.
    """

    end: int
    n: int
    seconds: float
    loss: Optional[float]


def _preset(name: str, regex: str, kind: str = INTERVAL, steps: int = 1, unmeasured: int = 0) -> Pattern:
    return Pattern(name, re.compile(regex), kind, steps, unmeasured)


# Each expression fits the lines in tests/harness/core/test_patterns.py.
PRESETS: Dict[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        # megatron/training/training.py, training_log: elapsed time since the previous line / iterations.
        _preset(
            "megatron",
            rf"iteration\s+(?P<step>\d+)/\s*\S+ \|.*?elapsed time per iteration \(ms\): (?P<ms>{NUMBER})"
            rf"(?:.*?\blm loss: (?P<loss>{NUMBER}|nan|inf))?",
        ),
        # torchtitan/components/metrics.py: tokens since the previous line, per device; formerly `wps`.
        _preset(
            "torchtitan",
            rf"(?<!validate )\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NUMBER}|nan|inf)"
            rf".*?\b(?:tps|wps): (?P<tokens_per_second_per_gpu>{NUMBER})",
        ),
        # nanoGPT train.py: the time of the iteration that is logged.
        _preset("nanogpt", rf"^iter (?P<step>\d+): loss (?P<loss>{NUMBER}|nan|inf), time (?P<ms>{NUMBER})ms", LATEST),
        # transformers' progress bar, the only one without a description; its rate is smoothed, so it is not used.
        _preset("hf_trainer", r"^\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \["),
        # Lightning's TQDMProgressBar; bars of validation have other descriptions.
        _preset("lightning", r"^Epoch \d+:\s+\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \["),
        # tf_cnn_benchmarks' get_perf_timing: batch / mean of all step times; a worker of Horovod shows its own.
        _preset(
            "tf_cnn_benchmarks",
            rf"(?:^|\s)(?P<step>\d+)\s+images/sec: (?P<samples_per_second_per_process>{NUMBER}) \+/- .*?\)"
            rf"(?:\s+(?P<loss>{NUMBER}|nan|inf))?",
            CUMULATIVE,
        ),
        # Horovod's *_synthetic_benchmark.py with the default of 10 batches per iteration.
        _preset(
            "horovod_synthetic",
            rf"\bIter #(?P<step>\d+): (?P<samples_per_second_per_gpu>{NUMBER}) img/sec per",
            steps=10,
        ),
        # deepspeed/utils/timer.py, ThroughputTimer: starts after two steps.
        _preset(
            "deepspeed",
            rf"(?:global_step=|timer\.py:\d+:stop\] \d+/)(?P<step>\d+), "
            rf"RunningAvgSamplesPerSec=(?P<samples_per_second>{NUMBER})",
            CUMULATIVE,
            unmeasured=2,
        ),
    )
}


def parse(text: str, unit: str) -> Pattern:
    """Return the preset of this name, or a pattern from a regular expression. Raises UserError.

    Args:
        text: `workload.pattern`.
        unit: `workload.unit`, which the pattern's rates must count.
    """
    if text in PRESETS:
        pattern = PRESETS[text]
    elif re.fullmatch(r"\w+", text):
        raise UserError(
            f"workload.pattern={text} is not a preset; presets are {', '.join(sorted(PRESETS))}; or give a regular "
            f"expression with named groups, such as {EXAMPLE}"
        )
    else:
        pattern = _own(text)
    counted = {name.split("_")[0] for name in pattern.regex.groupindex if name in RATES}
    if counted == {"tokens"} and unit != "tokens":
        raise UserError(
            f"workload.pattern={text} reads tokens per second, but workload.unit={unit}; set workload.unit=tokens and "
            "workload.samples_per_step to the tokens of an optimiser step over all ranks"
        )
    if counted == {"samples"} and unit == "tokens":
        raise UserError(
            f"workload.pattern={text} reads samples per second, but workload.unit=tokens; leave workload.unit out, and "
            "set workload.samples_per_step to the samples of an optimiser step over all ranks"
        )
    return pattern


EXAMPLE = r"'step (?P<step>\d+): (?P<ms>[\d.]+) ms'"


def _own(text: str) -> Pattern:
    valid = f"valid names are {', '.join((*OTHERS, *TIMES, *RATES))}"
    try:
        regex = re.compile(text)
    except re.error as error:
        raise UserError(
            f"workload.pattern={text} is not a regular expression: {error}; an example is {EXAMPLE}"
        ) from None
    names = set(regex.groupindex)
    if unknown := sorted(names - {*OTHERS, *TIMES, *RATES}):
        raise UserError(f"workload.pattern={text} has a group named {unknown[0]}; {valid}")
    if not names - {"total", "loss"}:
        raise UserError(f"workload.pattern={text} has no group for steps or times, such as in {EXAMPLE}; {valid}")
    if "elapsed_seconds" in names and "step" not in names:
        raise UserError(f"workload.pattern={text} has elapsed_seconds without step; add a group named step")
    return Pattern(text, regex, CUMULATIVE if "elapsed_seconds" in names else INTERVAL)


class Reader:
    """Reads the output of one process, or of several whose lines are mixed, in pieces of any size.

    Lines end with CR or LF; colours and ranks in front are removed. If lines name their rank, only those of the rank
    that matched first count.

    Attributes:
        matches: number of lines that matched.
        last_lines: the latest lines, for a message.
    """

    def __init__(self, pattern: Pattern, samples_per_step: float, gpus: int, processes: int) -> None:
        """processes: number of processes that share the work of `gpus` GPUs."""
        self._pattern = pattern
        self._samples_per_step = samples_per_step
        self._scopes = {"": 1, "_per_gpu": gpus, "_per_process": processes}
        self._pending: Dict[int, bytes] = {}
        self._arrived: Dict[int, float] = {}
        self._rank: Optional[str] = None
        self._total: Optional[str] = None
        self._zero_based: Optional[bool] = None
        self._before = 0  # steps of finished epochs, whose numbers start again
        self._done = 0  # of this epoch
        self._first: Optional[int] = None  # shown by the first line
        self._started = False
        self._elapsed = 0.0
        self._arrival: Optional[float] = None  # of the line that showed `_done`
        # The latest steps whose time is when lines arrive: more lines may have arrived at that time.
        self._held: List[Observed] = []
        self._by_arrival = False
        self.matches = 0
        self.last_lines: Deque[str] = deque(maxlen=3)

    def feed(self, data: bytes, seconds: float, stream: int = 0) -> List[Observed]:
        """Read a piece of output that arrived at `seconds` on any clock. stream: tells stdout from stderr."""
        *lines, rest = LINE_END.split(self._pending.get(stream, b"") + data)
        found = []
        for index, line in enumerate(lines):
            # What a progress bar showed earlier ends only with its next update.
            earlier = index == 0 and self._pending.get(stream) and LINE_END.match(data)
            found.append(self._line(line, self._arrived.get(stream, seconds) if earlier else seconds))
        self._pending[stream], self._arrived[stream] = rest[-LONGEST_LINE:], seconds
        return self._together(found)

    def close(self) -> List[Observed]:
        """Read what is left without a line's end."""
        found = self._together([self._line(rest, self._arrived[stream]) for stream, rest in self._pending.items()])
        self._pending.clear()
        return found + self._held

    def _together(self, found: Iterable[Optional[Observed]]) -> List[Observed]:
        """Give the time of lines that arrived together to all of their steps."""
        joined = self._held
        for each in found:
            if each is None:
                continue
            if each.seconds > 0:
                joined.append(each)
            elif joined and joined[-1].end == each.end - each.n:
                joined[-1] = Observed(each.end, joined[-1].n + each.n, joined[-1].seconds, each.loss)
        self._held = joined[-1:] if self._by_arrival else []
        return joined[: len(joined) - len(self._held)]

    def _line(self, line: bytes, arrival: float) -> Optional[Observed]:
        text = COLOURS.sub("", line.decode("utf-8", errors="replace"))
        if not text.strip():
            return None
        self.last_lines.append(text.strip()[:200])
        rank = None
        if prefix := RANK.match(text):
            rank, text = prefix[1], text[prefix.end() :]
        match = self._pattern.regex.search(text)
        if match is None and (prefix := LABEL.match(text)):
            rank, match = prefix[1], self._pattern.regex.search(text[prefix.end() :])
        if match is None:
            return None
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        self._rank = rank if self._rank is None else self._rank
        self._total = groups.get("total") if self._total is None else self._total
        if rank != self._rank or groups.get("total") != self._total:
            return None
        self.matches += 1
        try:
            return self._observed(groups, arrival)
        except (ValueError, ZeroDivisionError, OverflowError):
            return None

    def _observed(self, groups: Mapping[str, str], arrival: float) -> Optional[Observed]:
        pattern = self._pattern
        step_seconds = self._step_seconds(groups)
        timed = step_seconds is not None or "elapsed_seconds" in groups
        if "step" in groups:
            step = int(number(groups["step"]))
            if self._zero_based is None:
                # A line about step 0 with its time has seen one step; a progress bar at 0 has seen none.
                self._zero_based = step == 0 and timed
            done = (step + self._zero_based) * pattern.steps
        else:
            done = self._done + pattern.steps
        self._first = done if self._first is None else self._first
        if self._first < done < self._done:  # another process is behind
            return None
        if done < self._done:  # a new epoch
            self._before += self._done
            self._done, self._elapsed, self._arrival = 0, 0.0, None
        elif done == self._done and self._started:
            return None
        if timed and not self._valid(step_seconds, groups):
            return None
        n, seconds, since = done - self._done, 0.0, self._arrival
        if not timed:
            seconds = arrival - since if since is not None else 0.0
        elif pattern.kind == LATEST:
            assert step_seconds is not None
            n, seconds = 1, step_seconds
        elif pattern.kind == INTERVAL:
            assert step_seconds is not None
            seconds = n * step_seconds
        else:
            measured = done - pattern.unmeasured
            elapsed = number(groups["elapsed_seconds"]) if step_seconds is None else measured * step_seconds
            if self._elapsed == 0.0:
                n = measured
            seconds = elapsed - self._elapsed
            if seconds <= 0 or n <= 0:
                return None
            self._elapsed = elapsed
        self._done, self._arrival, self._started = done, arrival, True
        self._by_arrival = not timed
        known = n > 0 and (timed or since is not None)
        return Observed(self._before + done, n, seconds, _loss(groups)) if known else None

    def _step_seconds(self, groups: Mapping[str, str]) -> Optional[float]:
        """Seconds per optimiser step, from whichever group is there; None if there is none."""
        if "seconds" in groups:
            return number(groups["seconds"])
        if "ms" in groups:
            return number(groups["ms"]) / 1000
        if "it_per_s" in groups:
            return 1 / number(groups["it_per_s"])
        for name in RATES:
            if name in groups:
                scope = self._scopes[name.partition("per_second")[2]]
                return self._samples_per_step / (number(groups[name]) * scope)
        return None

    @staticmethod
    def _valid(step_seconds: Optional[float], groups: Mapping[str, str]) -> bool:
        value = number(groups["elapsed_seconds"]) if step_seconds is None else step_seconds
        return math.isfinite(value) and value > 0


def number(text: str) -> float:
    """Read a number with thousands separators and a suffix: '1,234.5', '12.3k', '4M'. Raises ValueError."""
    text = text.strip().replace(",", "").replace("_", "")
    if text[-1:] in SUFFIXES:
        return float(text[:-1]) * SUFFIXES[text[-1]]
    return float(text)


def _loss(groups: Mapping[str, str]) -> Optional[float]:
    try:
        loss = float(groups.get("loss", "nan"))
    except ValueError:
        return None
    return loss if math.isfinite(loss) else None
