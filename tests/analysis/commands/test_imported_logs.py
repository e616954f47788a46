"""A folder of logs with a pattern, through the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.__main__ import main
from analysis.base.errors import StudyError
from analysis.measures.speedup import points_of
from analysis.read.imported import read_imported
from analysis.read.imported_columns import Reading
from analysis.tables.point import Point
from harness.core.workload.patterns import PRESETS

LINES = 40
# In the formats that the programs print; the first two log lines are slow. What is expected: samples (or tokens) per
# second of the steady part, and the batch.
Format = Callable[[int, int, float], str]
SLOW = {1: 5.0, 2: 2.0}


def log(head: Iterable[str], line: Format, gpus: int, per_line: int = 10) -> str:
    """A log whose steps take 0.5 s, and on two GPUs 0.625 s."""
    seconds = 0.5 if gpus == 1 else 0.625
    lines = [line(number, number * per_line, SLOW.get(number, 1.0) * seconds) for number in range(1, LINES + 1)]
    return "\n".join([*head, *lines, ""])


def megatron(gpus: int) -> str:
    return log(
        [f"using world size: {gpus}, data-parallel size: {gpus}, context-parallel size: 1, "],
        lambda _, step, s: (
            f" [2026-01-02 03:04:05] iteration {step:8d}/     500 | consumed samples: {step * 8 * gpus:12d} | "
            f"elapsed time per iteration (ms): {1000 * s:.1f} | global batch size: {8 * gpus:5d} | lm loss: 7.0E+00 |"
        ),
        gpus,
    )


def torchtitan(gpus: int) -> str:
    rate = lambda s: 4 * 1024 / s  # noqa: E731, of one device
    head = [
        f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={gpus}, cp=1, tp=1, ep=1, etp=1",
        f"Trainer is initialized with local batch size 4, global batch size {4 * gpus}, gradient accumulation steps 1, "
        "sequence length 1024, total steps 400 (warmup 2)",
    ]
    return log(
        [f"[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - {text}" for text in head],
        lambda _, step, s: (
            f"[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.5  "
            f"\x1b[33mmemory:  1.49GiB(1.57%)  \x1b[34mtps: {rate(s):,.1f}  \x1b[36mtflops: 0.03\x1b[39m"
        ),
        gpus,
    )


def deepspeed(gpus: int) -> str:
    """The mean of all steps after the first two; here all but the warm-up are alike."""
    seconds = 0.5 if gpus == 1 else 0.625
    config = "[2026-01-02 03:04:05,678] [INFO] [config.py:1009:print]   "
    return log(
        [f"{config}train_batch_size ............. {8 * gpus}", f"{config}world_size ................... {gpus}"],
        lambda _, step, s: (
            "[2026-01-02 03:04:05,678] [INFO] [timer.py:215:stop] epoch=0/"
            f"micro_step={step}/global_step={step}, RunningAvgSamplesPerSec={8 * gpus / seconds}, CurrSamplesPerSec=1.0"
        ),
        gpus,
    )


def nanogpt(gpus: int) -> str:
    return log(
        [f"tokens per iteration will be: {12288 * gpus:,}"],
        lambda _, step, s: f"iter {step}: loss 4.0, time {1000 * s:.2f}ms, mfu 10.00%",
        gpus,
    )


def horovod_synthetic(gpus: int) -> str:
    return log(
        ["Model: resnet50", "Batch size: 8", f"Number of GPUs: {gpus}", "Running benchmark..."],
        lambda number, _, s: f"[1,0]<stdout>:Iter #{number - 1}: {8 / s:.3f} img/sec per GPU",
        gpus,
    )


def tf_cnn_benchmarks(gpus: int) -> str:
    seconds = 0.5 if gpus == 1 else 0.625
    return log(
        [f"Batch size:  {8 * gpus} global", "             8 per device", "Variables:   replicated"],
        lambda _, step, s: f"{step}\timages/sec: {8 * gpus / seconds} +/- 0.0 (jitter = 0.0)\t7.6",
        gpus,
    )


def bar(description: str) -> Callable[[int, int, float], str]:
    """A progress bar, whose time is in whole seconds: a log line every 10 steps of 0.5 s, or of 0.6 s on two GPUs."""
    return lambda _, step, seconds: (
        f"\r{description} {step // 4}%|███       | {step}/400 [{int(step * seconds) // 60:02d}:"
        f"{int(step * seconds) % 60:02d}<01:00,  2.00it/s]"
    )


def hf_trainer(gpus: int) -> str:
    head = [
        "***** Running training *****",
        "  Instantaneous batch size per device = 4",
        f"  Total train batch size (w. parallel, distributed & accumulation) = {8 * gpus}",
        "  Gradient Accumulation steps = 2",
    ]
    seconds = 0.5 if gpus == 1 else 0.6
    return "\n".join([*head, *(bar("")(0, step, seconds) for step in range(0, 401, 10)), ""])


def lightning(gpus: int) -> str:
    head = ["distributed_backend=nccl", f"All distributed processes registered. Starting with {gpus} processes"]
    seconds = 0.5 if gpus == 1 else 0.6
    return "\n".join([*head, *(bar("Epoch 0: ")(0, step, seconds) for step in range(0, 401, 10)), ""])


# The log, what its throughput counts, its batch per GPU, and what is not in it.
FORMATS: dict[str, tuple[Callable[[int], str], str, int, dict[str, Any]]] = {
    "megatron": (megatron, "samples", 8, {}),
    "torchtitan": (torchtitan, "tokens", 4096, {}),
    "deepspeed": (deepspeed, "samples", 8, {}),
    "nanogpt": (nanogpt, "tokens", 12288, {"file_name": r"_(?P<gpus>\d+)gpu"}),
    "horovod_synthetic": (horovod_synthetic, "images", 8, {}),
    "tf_cnn_benchmarks": (tf_cnn_benchmarks, "images", 8, {}),
    "hf_trainer": (hf_trainer, "samples", 8, {}),
    "lightning": (lightning, "samples", 8, {"batch_per_gpu": 8}),
}


def folder_of(tmp_path: Path, write: Callable[[int], str], sizes: Iterable[int] = (1, 2)) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for gpus in sizes:
        (folder / f"run_{gpus}gpu.log").write_text(write(gpus))
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def points(folder: Path, pattern: str, **options: Any) -> list[Point]:
    return points_of(read_imported(folder, Reading(pattern, **options)).runs)


def test_every_preset_is_tested() -> None:
    assert set(FORMATS) == set(PRESETS)


@pytest.mark.parametrize("preset", FORMATS)
def test_sizes_batches_and_throughputs_are_read_from_logs(preset: str, tmp_path: Path) -> None:
    write, unit, batch, options = FORMATS[preset]
    one, two = points(folder_of(tmp_path, write), preset, **options)
    assert [point.gpus for point in (one, two)] == [1, 2]
    assert {point.unit for point in (one, two)} == {unit}
    assert [point.global_batch for point in (one, two)] == [batch, 2 * batch]
    # A second is 4 % of the shortest bar's timed part.
    tolerance = 0.04 if preset in ("hf_trainer", "lightning") else 1e-4
    seconds = 0.6 if preset in ("hf_trainer", "lightning") else 0.625
    assert one.samples_per_second == pytest.approx(batch / 0.5, rel=tolerance)
    assert two.samples_per_second == pytest.approx(2 * batch / seconds, rel=tolerance)
    assert all({"imported", "single run"} <= set(point.marks) for point in (one, two))


def test_the_report_says_how_logs_were_read_and_which_were_not(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path, megatron, (1, 2, 4))
    (folder / "slurm.out").write_text("module load cuda\n")
    (folder / "short.log").write_text("\n".join(megatron(8).splitlines()[:2]))
    (folder / "two.log").write_text(megatron(1) + megatron(2))
    (folder / ".hidden").write_text("x")
    assert main([str(folder), "--pattern", "megatron", "--only", "html"]) == 0
    printed = capsys.readouterr()
    said = " ".join(printed.out.split())
    assert "logs: imported; steps read by a pattern over its output, world size not verified." in said
    assert "logs reaches 3.20× speedup on 4 GPUs" in said  # 4 * 0.5 / 0.625
    for text in (printed.err, said):
        assert "3 of 6 logs not used: short.log: lines that matched: 1, and none is left after the warm-up" in text
        assert "slurm.out: no line matched; the last was: module load cuda" in text
        assert "two.log: it is said to have 1 and 2 as its gpus" in text
    assert "two.log: it is said to have" in (folder.with_name("logs_report") / "report.html").read_text()


def test_the_warm_up_ends_where_the_steps_are_steady(tmp_path: Path) -> None:
    runs = [point.members[0] for point in points(folder_of(tmp_path, megatron), "megatron")]
    # The first line, then a window of six from the second on, whose halves have the same median.
    assert [(run.warmup_steps, run.stationary) for run in runs] == [(70, True)] * 2


def test_a_log_that_never_gets_steady_is_marked(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [f"step {n}: {n:.3f} ms" for n in range(10, 410, 10)]
    (folder / "a_1.log").write_text("\n".join(lines))
    pattern = r"step (?P<step>\d+): (?P<ms>[\d.]+) ms"
    (point,) = points(folder, pattern, file_name=r"(?P<gpus>\d+)\.log", batch=32)
    assert "not stationary" in point.marks


def test_groups_of_the_name_tell_series_apart_and_give_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for net in ("small", "large"):
        for gpus in (1, 2):
            (folder / f"{net}-{gpus}n.log").write_text(megatron(gpus))
    found = points(folder, "megatron", file_name=r"(?P<net>\w+)-(?P<nodes>\d+)n")
    assert [(point.detail, point.gpus, point.nodes) for point in found] == [
        *[("net=large", 1, 1), ("net=large", 2, 2)],
        *[("net=small", 1, 1), ("net=small", 2, 2)],
    ]


def test_a_batch_given_for_a_log_in_tokens_is_said_to_be_tokens(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path, lambda gpus: nanogpt(gpus).split("\n", 1)[1])
    read = ["--pattern", "nanogpt", "--file-name", r"_(?P<gpus>\d+)gpu", "--batch-per-gpu", "12"]
    assert main([str(folder), "--only", "csv", *read]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "--batch-per-gpu=12 is taken as tokens; if you meant sequences" in said


def test_a_batch_that_contradicts_the_log_is_not_read_past(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path, nanogpt, [2])
    read = ["--pattern", "nanogpt", "--file-name", r"_(?P<gpus>\d+)gpu", "--batch-per-gpu", "12"]
    said = refusal(capsys, folder, *read)
    assert "its batch is 24,576 tokens on 2 GPUs, which is 12,288 and not --batch-per-gpu=12 of each" in said


def test_every_command_takes_the_folder(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path, torchtitan)
    read = ["--pattern", "torchtitan", "--gpus-per-node", "2"]
    assert main(["predict", str(folder), "gpus=4", *read]) == 0
    assert "tokens/s" in capsys.readouterr().out
    assert main(["next", str(folder), "gpus=4", *read]) == 0
    assert main(["proposal", str(folder), "gpus=2", "runs=3", "hours=1", *read]) == 0
    assert main(["export", str(folder), "mlperf", *read]) == 0
    assert main(["compare", str(folder), str(folder), *read]) == 3
    assert "2 points in both" in capsys.readouterr().out
    assert "not simulated" in refusal(capsys, "simulate", folder, "gpus=16", *read)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pattern", "nemo"], "--pattern=nemo is not a preset; presets are deepspeed, hf_trainer"),
        (["--pattern", r"step (?P<step>\d+)"], "a log does not say when a line came; add a group such as ms"),
        (["--pattern", "("], "is not a regular expression"),
        (["--pattern", "megatron", "--file-name", "("], "--file-name=( is not a regular expression"),
        (["--pattern", "megatron", "--file-name", r"\d(?P<gpus>[a-z]+)"], "'gpu' is not a number"),
        (["--pattern", "megatron", "--file-name", "x"], "its name does not match --file-name"),
        (["--pattern", "megatron", "--batch", "9"], "it is said to have 8 and 9 as its batch"),
        (["--pattern", "megatron", "--batch", "-1"], "--batch -1: give a number above 0"),
        (["--pattern", "nanogpt"], "run_1gpu.log: no line matched; the last was: [2026-01-02"),
        (["--pattern", r"(?P<step>\d+)/.*\(ms\): (?P<ms>[\d.]+)"], "it does not say on how many GPUs it ran; put that"),
        (
            ["--pattern", r"(?P<step>\d+)/.*\(ms\): (?P<ms>[\d.]+)", "--file-name", r"(?P<gpus>\d)"],
            "it does not say the batch; give --batch or --batch-per-gpu",
        ),
    ],
)
def test_a_mistake_is_one_sentence(options: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert message in refusal(capsys, folder_of(tmp_path, megatron, [1]), *options)


PIECES = [
    "using world size: ",
    "iteration ",
    "elapsed time per iteration (ms): ",
    "global batch size: ",
    " | ",
    "/ 9 |",
]
PIECE = st.one_of(
    st.sampled_from(PIECES), st.integers(0, 10**20).map(str), st.sampled_from(["\n", "1e999", "nan", "\r"])
)


@settings(max_examples=100)
@given(st.lists(PIECE, max_size=12), st.binary(max_size=50))
def test_any_log_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, pieces: list[str], end: bytes) -> None:
    path = tmp_path_factory.mktemp("logs") / "run_4.log"
    line = "".join(pieces).encode()
    path.write_bytes(megatron(4).encode() + line + b"\n" + end)
    steps = r"iteration (?P<step>\S+).*: (?P<ms>\S+)"
    for reading in (Reading("megatron"), Reading(steps, file_name=r"(?P<gpus>\d)", batch=8)):
        refused = ""
        try:
            read_imported(path, reading)
        except StudyError as error:
            refused = str(error)
        assert refused == "" or refused.isprintable()


def test_options_of_tables_are_refused_for_a_study_and_an_empty_folder(tmp_path: Path, capsys) -> None:
    assert "holds 0 logs; give a folder with one log per run" in refusal(capsys, tmp_path, "--pattern", "megatron")
    (tmp_path / "study.json").write_text("{}")
    assert "--pattern is for tables and logs of your own" in refusal(capsys, tmp_path, "--pattern", "megatron")
