"""Patterns on lines that the programs print, as found in their sources and in published logs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.errors import UserError
from harness.core.workload.patterns import PRESETS, Observed, Reader, number, parse

LINES = {
    # NVIDIA/Megatron-LM, megatron/training/training.py; the first as printed in April 2025.
    "megatron": [
        " [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:          160 | "
        "elapsed time per iteration (ms): 1147.6 | learning rate: 0.000000E+00 | global batch size:    16 | "
        "loss scale: 8388608.0 |",
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1464.33154296875 | max allocated: 1464.3408203125",
        " [2025-04-13 23:41:20] iteration       20/    1000 | consumed samples:          320 | "
        "elapsed time per iteration (ms): 820.7 | learning rate: 4.000000E-05 | global batch size:    16 | "
        "lm loss: 1.072453E+01 | loss scale: 131072.0 | grad norm: 3.874 |",
    ],
    # pytorch/torchtitan, torchtitan/components/metrics.py, with its colours.
    "torchtitan": [
        "[rank0]:[titan] 2025-03-01 10:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1376  "
        "\x1b[33mmemory:  1.49GiB(1.57%)  \x1b[34mtps: 4,096  \x1b[36mtflops: 0.03  \x1b[35mmfu: 0.01%\x1b[39m",
        "[rank0]:[titan] 2025-03-01 10:00:05,123 - root - INFO - validate step:  5  loss:  8.0  memory:  1.4GiB(1%)  "
        "tps: 1,000",
        "[rank0]:[titan] 2025-03-01 10:00:09,123 - root - INFO - \x1b[31mstep: 11  \x1b[32mloss:  7.5000  "
        "\x1b[33mmemory:  1.49GiB(1.57%)  \x1b[34mtps: 8,192  \x1b[36mtflops: 0.03  \x1b[35mmfu: 0.01%\x1b[39m",
    ],
    # karpathy/nanoGPT, train.py
    "nanogpt": [
        "step 0: train loss 10.9, val loss 10.9",
        "iter 0: loss 10.9886, time 5000.00ms, mfu -100.00%",
        "iter 10: loss 10.3041, time 250.50ms, mfu 17.21%",
    ],
    # tensorflow/benchmarks; a run on one GPU, published with the results.
    "tf_cnn_benchmarks": [
        "Step\tImg/sec\ttotal_loss",
        "1\timages/sec: 127.9 +/- 0.0 (jitter = 0.0)\t7.608",
        "10\timages/sec: 126.4 +/- 0.2 (jitter = 0.4)\t7.849",
        "total images/sec: 124.99",
    ],
    # horovod/examples/pytorch/pytorch_synthetic_benchmark.py under horovodrun
    "horovod_synthetic": [
        "[1,0]<stdout>:Iter #0: 64.0 img/sec per GPU",
        "[1,0]<stdout>:Iter #1: 128.0 img/sec per GPU",
        "[1,0]<stdout>:Img/sec per GPU: 600.0 +-3.8",
    ],
    # deepspeed/utils/timer.py in two versions
    "deepspeed": [
        "[2023-08-02 00:41:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/global_step=10, "
        "RunningAvgSamplesPerSec=64.0, CurrSamplesPerSec=222.88787331278564, MemAllocated=0.07GB, "
        "MaxMemAllocated=1.36GB",
        "[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=72.0, "
        "CurrSamplesPerSec=227.48090316379353, MemAllocated=0.36GB, MaxMemAllocated=15.06GB",
    ],
}
# One optimiser step is 64 samples (tokens for torchtitan: 16384) on two GPUs, with one process for each.
EXPECTED = {
    "megatron": [Observed(10, 10, 11.476, None), Observed(20, 10, 8.207, 10.72453)],
    "torchtitan": [Observed(1, 1, 2.0, 8.1376), Observed(11, 10, 10.0, 7.5)],
    "nanogpt": [Observed(1, 1, 5.0, 10.9886), Observed(11, 1, 0.2505, 10.3041)],
    # Two workers: 255.8, then 252.8 images per second on average over ten steps.
    "tf_cnn_benchmarks": [Observed(1, 1, 64 / 255.8, 7.608), Observed(10, 9, 640 / 252.8 - 64 / 255.8, 7.849)],
    "horovod_synthetic": [Observed(10, 10, 5.0, None), Observed(20, 10, 2.5, None)],
    # Eight steps of 1 s, then eighteen in 16 s.
    "deepspeed": [Observed(10, 8, 8.0, None), Observed(20, 10, 8.0, None)],
}


def read(name: str, lines: Sequence[str], unit: str = "samples", samples: int = 64, end: str = "\n") -> list[Observed]:
    reader = Reader(parse(name, unit), samples, gpus=2, processes=2)
    return [*reader.feed("".join(line + end for line in lines).encode(), 0.0), *reader.close()]


@pytest.mark.parametrize("name", LINES)
def test_presets_read_what_the_programs_print(name: str) -> None:
    unit, samples = ("tokens", 16384) if name == "torchtitan" else ("samples", 64)
    found = read(name, LINES[name], unit, samples)
    assert [(o.end, o.n, o.loss) for o in found] == [(o.end, o.n, o.loss) for o in EXPECTED[name]]
    assert [o.seconds for o in found] == pytest.approx([o.seconds for o in EXPECTED[name]])


BARS = {
    # transformers' bar on stderr; mapping the data set and evaluation have bars of their own.
    "hf_trainer": (
        [
            (0.0, "\rMap: 100%|██████████| 9/9 [00:00<00:00, 1000.00 examples/s]\n"),
            (1.0, "\r  0%|          | 0/100 [00:00<?, ?it/s]"),
            (1.5, "\r  1%|          | 1/100 [00:00<00:45,  2.00it/s]"),
            (2.5, "\r  5%|▌         | 5/100 [00:01<00:30,  3.33it/s]"),
            (3.0, "\r 50%|█████     | 4/8 [00:01<00:01,  4.00it/s]"),
            (4.5, "\r 10%|█         | 10/100 [00:03<00:30,  3.33it/s]\n"),
        ],
        [(1, 1, 0.5), (5, 4, 1.0), (10, 5, 2.0)],
    ),
    # Lightning's bar on stdout, one for each epoch.
    "lightning": (
        [
            (0.0, "\rSanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00,  6.94it/s]"),
            (1.0, "\rEpoch 0:   0%|          | 0/2 [00:00<?, ?it/s]"),
            (1.5, "\rEpoch 0:  50%|█████     | 1/2 [00:00<00:00,  2.00it/s, v_num=0]"),
            (2.5, "\rEpoch 0: 100%|██████████| 2/2 [00:01<00:00,  1.33it/s, v_num=0]"),
            (4.0, "\rEpoch 0: 100%|██████████| 2/2 [00:01<00:00,  1.33it/s, v_num=0, val_loss=2.0]"),
            (6.0, "\rEpoch 1:   0%|          | 0/2 [00:00<?, ?it/s, v_num=0, val_loss=2.0]"),
            (6.5, "\rEpoch 1:  50%|█████     | 1/2 [00:00<00:00,  2.00it/s, v_num=0]\n"),
        ],
        [(1, 1, 0.5), (2, 1, 1.0), (3, 1, 0.5)],
    ),
}


@pytest.mark.parametrize("name", BARS)
def test_progress_bars_are_timed_on_arrival_without_pauses_between_epochs(name: str) -> None:
    reader = Reader(parse(name, "samples"), 64, gpus=2, processes=2)
    found = [o for seconds, text in BARS[name][0] for o in reader.feed(text.encode(), seconds)] + reader.close()
    assert [(o.end, o.n, round(o.seconds, 9)) for o in found] == BARS[name][1]


def test_lines_that_arrive_together_share_the_time() -> None:
    reader = Reader(parse(r"step (?P<step>\d+)", "samples"), 64, gpus=1, processes=1)
    arrivals = ((0.0, (1, 2)), (3.0, (3, 4, 5)), (4.0, (6,)), (4.0, (7,)), (9.0, (1, 2)), (10.0, (3,)))
    texts = [(seconds, "".join(f"step {step}\n" for step in steps)) for seconds, steps in arrivals]
    found = [o for seconds, text in texts for o in reader.feed(text.encode(), seconds)] + reader.close()
    # What came with the first line of an epoch has no known time.
    assert [(o.end, o.n, o.seconds) for o in found] == [(5, 3, 3.0), (7, 2, 1.0), (10, 1, 1.0)]


def test_every_preset_is_tested() -> None:
    assert {*LINES, *BARS} == set(PRESETS)


def test_pieces_of_any_size_give_the_same() -> None:
    data = "".join(line + "\r\n" for line in LINES["megatron"]).encode()
    reader = Reader(PRESETS["megatron"], 64, 1, 1)
    found = [o for at in range(len(data)) for o in reader.feed(data[at : at + 1], 0.0)]
    assert found == read("megatron", LINES["megatron"])


@pytest.mark.parametrize(
    ("pattern", "line", "seconds"),
    [
        (r"step (?P<step>\d+) (?P<seconds>\S+)", "step 4 0.25", 1.0),
        (r"step (?P<step>\d+) (?P<it_per_s>\S+) it/s", "step 4 2 it/s", 2.0),
        (r"step (?P<step>\d+): (?P<samples_per_second>\S+)", "step 4: 1.28k", 0.2),
        (r"(?P<step>\d+) (?P<tokens_per_second_per_gpu>\S+)", "4 0.000064M", 2.0),
        (r"(?P<step>\d+) after (?P<elapsed_seconds>\S+)", "4 after 1,000.5", 1000.5),
        # A label of srun, and a line that only looks like one.
        (r"^step (?P<step>\d+) (?P<seconds>\S+)", "0: step 4 0.25", 1.0),
        (r"^(?P<step>\d+): (?P<seconds>\S+)", "4: 0.25", 1.0),
        (r"took (?P<ms>\S+)", "took 250", 0.25),
    ],
)
def test_groups_of_an_own_pattern(pattern: str, line: str, seconds: float) -> None:
    (found,) = read(pattern, [line], "tokens" if "tokens" in pattern else "samples")
    assert found.seconds == pytest.approx(seconds)


def test_only_one_rank_counts() -> None:
    lines = [f"[rank{rank}]: step {step} {0.1 * (1 + rank)}" for step in (1, 2, 3) for rank in (1, 0)]
    found = read(r"step (?P<step>\d+) (?P<seconds>\S+)", lines)
    assert [o.seconds for o in found] == pytest.approx([0.2] * 3)


def test_ranks_without_prefix_count_once() -> None:
    found = read(r"step (?P<step>\d+) (?P<seconds>\S+)", [f"step {step} 1" for step in (1, 1, 2, 3, 2, 4, 3, 4)])
    assert [o.end for o in found] == [1, 2, 3, 4]


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "x"])
def test_a_value_that_is_no_time_is_left_out(value: str) -> None:
    pattern = r"step (?P<step>\d+) (?P<seconds>\S+)"
    assert read(pattern, [f"step 1 {value}", "step 2 0.5"]) == [Observed(2, 2, 1.0, None)]


@pytest.mark.parametrize(
    ("pattern", "unit", "message"),
    [
        ("megatrn", "samples", "workload.pattern=megatrn is not a preset; presets are deepspeed, "),
        (r"step (?P<step>\d+", "samples", "is not a regular expression"),
        (r"step (?P<stp>\d+)", "samples", "has a group named stp; valid names are step, total, loss, seconds, ms"),
        (r"step (\d+)", "samples", "has no group for steps or times"),
        ("torchtitan", "samples", "reads tokens per second, but workload.unit=samples; set workload.unit=tokens"),
        ("deepspeed", "tokens", "reads samples per second, but workload.unit=tokens"),
    ],
)
def test_a_pattern_that_cannot_work_says_why(pattern: str, unit: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parse(pattern, unit)


@pytest.mark.parametrize(("text", "value"), [("1,234.5", 1234.5), ("12.3k", 12300), ("4M", 4e6), ("1e-3", 0.001)])
def test_numbers(text: str, value: float) -> None:
    assert number(text) == value
