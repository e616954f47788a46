"""Random faults on a virtual Slurm cluster while two studies run: is any run lost, run twice, or wrongly reported?

`python -m benchmarks soak --minutes 60 --seed 1` (`make soak`) starts a cluster of its own (sbatch/slurm-cluster.sh)
with four nodes whose results folder is a file system of its own. Two studies run at the same time, each by its
command, which is given again whenever it ends:

    single   200 runs on one node: framework=emulated, a few seconds each; their weights are the class frequencies of
             the samples trained on, so they tell which samples a run has used
    pair     8 runs on two nodes: a small network trained by PyTorch's DistributedDataParallel over gloo

Both are run once undisturbed, for their weights, and then round after round in new folders until the time is up, while
the faults of schedule.py are made. What is still to do then is completed without further faults. After each round,
examination.py compares every run's files with what was injected, and its weights with the undisturbed run's, bit by
bit; what the commands and `harness status` say is compared with the files all the time.

    lost              no result, although all was asked for again until nothing was left to do
    run twice         steps trained after an attempt had ended well, or attempts that overlap
    wrongly reported  a completed run whose attempts or steps say otherwise; a failure whose reason does not name a
                      fault that hit it; a command or a status that says other than the files; a traceback

Failed runs are run again by the next command, as a user would.

The faults are drawn from the seed and written to schedule.json in the output folder; `--replay` takes such a file. They
follow each other as in the schedule; which job is hit depends on what runs then.
"""
