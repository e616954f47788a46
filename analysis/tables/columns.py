"""The columns of points: identity, throughput, speedup, accuracy, goodput and times."""

from __future__ import annotations

from analysis.base.column import COUNT, INTERVAL, REAL, TEXT, Column, figure, table
from analysis.base.text import count, duration, number, percent, size, tenths, times

POINT = table(
    Column(
        "series", TEXT, "name of the series: framework, strategy, network, data set, scaling, batch", optional=False
    ),
    Column("detail", TEXT, "what distinguishes the series from others with the same name"),
    Column("framework", TEXT, "value of framework=", optional=False),
    Column("strategy", TEXT, "value of strategy=", optional=False),
    Column("model", TEXT, "value of model=", optional=False),
    Column("dataset", TEXT, "value of dataset=", optional=False),
    Column("precision", TEXT, "fp32, bf16, fp16", optional=False),
    Column(
        "scaling", TEXT, "strong: the same global batch at every size; weak: the same batch per GPU", optional=False
    ),
    Column("cluster", TEXT, "value of cluster=", optional=False),
    Column("device", TEXT, "cuda or cpu; on cpu, 'GPU' means a CPU rank", optional=False),
    Column("device_names", TEXT, "names of the GPUs or processors, joined by ';'"),
    Column("communication", TEXT, "library and transport that carried the gradients", "Communication"),
    Column("versions", TEXT, "of the framework and its libraries"),
    Column("code_versions", TEXT, "versions of this program, joined by ';'"),
    Column("gpus", COUNT, "GPUs, one rank each; CPU ranks if device is cpu", "GPUs", count, least=1),
    Column("nodes", COUNT, "number of nodes", "Nodes", count, least=1),
    Column("ranks_per_node", COUNT, "ranks per node", least=1),
    Column("global_batch", COUNT, "samples per step, all ranks together", "Global batch", count, "Batch", least=1),
    Column("batch_per_gpu", COUNT, "samples per step per rank", "Batch per GPU", count, "Per GPU", least=1),
    Column("status", TEXT, "'completed', or the number of runs with each status", optional=False),
    Column("runs_completed", COUNT, "completed runs", "Runs", count),
    Column("runs_all", COUNT, "all runs"),
    Column("reasons", TEXT, "reasons of the runs that did not complete, joined by '; '"),
    Column("oversubscribed", TEXT, "why its ranks shared GPUs or cores; null if they did not"),
    Column("notes", TEXT, "remarks on steadiness, joined by '; '", "Notes"),
    Column(
        "relative_to_gpus",
        COUNT,
        "GPUs of the baseline of speedup and efficiency; null if there is none",
        "Relative to",
        short="Relative",
        least=1,
    ),
    Column("relative_to_strategy", TEXT, "strategy of the baseline"),
    Column("blocks", COUNT, "timed blocks of steps, all completed runs together", "Blocks", count),
    Column(
        "outlier_blocks",
        COUNT,
        "blocks outside Tukey's fences; every figure includes them",
        "Outside the fences",
        count,
    ),
    Column("attempts", COUNT, "attempts of all completed runs together"),
    Column("test_samples", COUNT, "number of test samples"),
    Column("samples_seen", COUNT, "training samples seen before the accuracy was measured; null if the runs differ"),
    Column(
        "staleness_max", COUNT, "largest staleness of a gradient in updates, with parameter servers", "Largest", count
    ),
    figure(
        "samples_per_second",
        "samples/s",
        "total throughput of all ranks",
        "Samples/s",
        number,
        (*INTERVAL, "min", "max"),
    ),
    figure("speedup", "1", "throughput / throughput of the baseline", "Speedup", times, INTERVAL),
    figure("ideal_speedup", "1", "the speedup at 100 % efficiency"),
    figure("efficiency", "1", "speedup / ideal speedup", "Efficiency", percent, INTERVAL, short="Eff."),
    figure(
        "test_accuracy",
        "1",
        "test accuracy after training, as a fraction",
        "Test accuracy",
        tenths,
        INTERVAL,
        short="Test acc.",
    ),
    figure("goodput", "1", "useful step time / allocated time", "Goodput", percent, INTERVAL),
    figure("step_seconds", "s", "time of a step, mean of the runs", "Step", duration),
    figure("cached_batch_seconds", "s", "step time on a batch cached on the device"),
    figure("no_sync_seconds", "s", "time of such a step without synchronisation"),
    figure("startup_seconds", "s", "imports, data, rendezvous and building of the network", "Start-up", duration),
    figure(
        "first_step_seconds", "s", "from the start of the ranks to the end of the first step", "First step", duration
    ),
    figure("first_block_seconds", "s", "duration of the first step", "Compile and autotune", duration),
    figure(
        "staleness_mean",
        "updates",
        "mean staleness of the gradients in updates, with parameter servers",
        "Mean staleness",
    ),
    Column("label", TEXT),
    Column("data_stall_seconds", REAL),
    Column("exposed_communication_seconds", REAL),
    Column("marks", TEXT, heading="Warnings"),
    Column("run_ids", TEXT),
)
# Of an allreduce alone.
MESSAGE = table(
    Column("bytes", COUNT, heading="Message", show=size), Column("seconds", REAL, heading="Per message", show=duration)
)
# What has no column of a file.
WHAT = Column("what", TEXT, heading="What")
CONFIDENCE_INTERVAL = Column("interval", TEXT, heading="95 % interval", short="95 %")
BASIS = Column("basis", TEXT, heading="95 % from", short="95 % of")
SPREAD = Column("range", TEXT, heading="Range")
# A point's identity as tables about points begin with it.
SERIES = tuple(POINT[name] for name in ("framework", "strategy", "model", "dataset", "precision", "scaling", "detail"))
PLACE = (POINT["cluster"], POINT["device"])
RUNS = Column("runs", COUNT)
LAST = (POINT["marks"], POINT["run_ids"])


def of_point(*names: str) -> list[Column]:
    """The columns of a point with these names."""
    return [POINT[name] for name in names]
