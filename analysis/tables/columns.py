"""The columns of points: identity, throughput, speedup, accuracy, goodput and times."""

from __future__ import annotations

from analysis.base.column import COUNT, INTERVAL, REAL, TEXT, Column, figure, table
from analysis.base.text import count, duration, number, percent, size, tenths, times

POINT = table(
    Column(
        "series", TEXT, "name of the series: framework, strategy, network, data set, scaling, batch", optional=False
    ),
    Column("detail", TEXT, "in what the series differs from others of that name"),
    Column("framework", TEXT, "as framework= names it", optional=False),
    Column("strategy", TEXT, "as strategy= names it", optional=False),
    Column("model", TEXT, "as model= names it", optional=False),
    Column("dataset", TEXT, "as dataset= names it", optional=False),
    Column("precision", TEXT, "fp32, bf16, fp16", optional=False),
    Column("scaling", TEXT, "strong: one global batch for all sizes; weak: one batch per GPU", optional=False),
    Column("cluster", TEXT, "as cluster= names it", optional=False),
    Column("device", TEXT, "cuda, or cpu: what is called GPU is then a CPU rank", optional=False),
    Column("device_names", TEXT, "of the GPUs or processors, joined by ';'"),
    Column("communication", TEXT, "what carried the gradients", "Communication"),
    Column("versions", TEXT, "of the framework and its libraries"),
    Column("code_versions", TEXT, "of this program, joined by ';'"),
    Column("gpus", COUNT, "GPUs, one rank each; CPU ranks where device is cpu", "GPUs", count, least=1),
    Column("nodes", COUNT, "machines, as placed", "Nodes", count, least=1),
    Column("ranks_per_node", COUNT, "ranks on each", least=1),
    Column("global_batch", COUNT, "samples per step, all ranks together", "Global batch", count, "Batch", least=1),
    Column("batch_per_gpu", COUNT, "samples per step of a rank", "Batch per GPU", count, "Per GPU", least=1),
    Column("status", TEXT, "'completed', or how many of its runs ended how", optional=False),
    Column("runs_completed", COUNT, "completed runs", "Runs", count),
    Column("runs_all", COUNT, "all runs"),
    Column("reasons", TEXT, "of the runs that are not completed, joined by '; '"),
    Column("oversubscribed", TEXT, "why its ranks shared GPUs or cores; null: they did not"),
    Column("notes", TEXT, "on how steady it was, joined by '; '", "Notes"),
    Column(
        "relative_to_gpus",
        COUNT,
        "GPUs of the point that speedup and efficiency are relative to; null: there is none",
        "Relative to",
        short="Relative",
        least=1,
    ),
    Column("relative_to_strategy", TEXT, "strategy of that point"),
    Column("blocks", COUNT, "timed blocks of steps, all completed runs together", "Blocks", count),
    Column(
        "outlier_blocks",
        COUNT,
        "of these outside Tukey's fences; they count in every figure",
        "Outside the fences",
        count,
    ),
    Column("attempts", COUNT, "attempts of all completed runs together"),
    Column("test_samples", COUNT, "test samples that the accuracy is of"),
    Column("samples_seen", COUNT, "training samples seen until then; null: runs differ"),
    Column(
        "staleness_max", COUNT, "the most updates that a gradient was late, with parameter servers", "Largest", count
    ),
    figure(
        "samples_per_second",
        "samples/s",
        "throughput of all ranks together",
        "Samples/s",
        number,
        (*INTERVAL, "min", "max"),
    ),
    figure("speedup", "1", "throughput by that of the point it is relative to", "Speedup", times, INTERVAL),
    figure("ideal_speedup", "1", "the speedup at 100 % efficiency"),
    figure("efficiency", "1", "speedup by the ideal one", "Efficiency", percent, INTERVAL, short="Eff."),
    figure(
        "test_accuracy",
        "1",
        "fraction of the test samples that are right after training",
        "Test accuracy",
        tenths,
        INTERVAL,
        short="Test acc.",
    ),
    figure("goodput", "1", "seconds of the steps that count by all allocated seconds", "Goodput", percent, INTERVAL),
    figure("step_seconds", "s", "time of a step, mean of the runs", "Step", duration),
    figure("cached_batch_seconds", "s", "of a step on a batch that stays on the device"),
    figure("no_sync_seconds", "s", "of such a step without synchronisation"),
    figure("startup_seconds", "s", "imports, data, rendezvous and building of the network", "Start-up", duration),
    figure(
        "first_step_seconds", "s", "from the start of the ranks to the end of the first step", "First step", duration
    ),
    figure("first_block_seconds", "s", "of the first step, alone", "Compile and autotune", duration),
    figure(
        "staleness_mean", "updates", "by how many updates gradients were late, with parameter servers", "Mean staleness"
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
