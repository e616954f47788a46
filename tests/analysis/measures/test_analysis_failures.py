"""The cost of injected faults, compared with the same run without."""

from __future__ import annotations

from seen import Seen, words
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.failures import failure_costs
from harness.core.spec import FaultSpec


def costs(study: StudyBuilder) -> list[str]:
    read = read_study(study.folder)
    return failure_costs(points_of(read.runs))


def killed(study: StudyBuilder, gpus: int) -> None:
    """Add a run killed at step 35 and resumed from step 20. Allocated: start-up 3, warm-up 9, two blocks of 1 s, 1
    until the exit; and start-up 3, two blocks of 1 s, one of them repeated, 1 until the exit."""
    spec = spec_of(gpus, fault=FaultSpec("kill_rank", 35))
    first = Logs(block_seconds=[1.0, 1.0], checkpoints={20: 0.0}, fault=(0, 35), ends=False, exit_codes=[-9] * gpus)
    second = Logs(block_seconds=[1.0, 1.0], resume=resume(20, 1, lost_steps=10), begin=CREATED + 75)
    study.attempts(spec, first, second)


def test_a_failure_stands_beside_the_same_run_without_it(study: StudyBuilder) -> None:
    # Start-up 3, warm-up 9, three blocks of 1 s, 1 to the exit.
    study.add(spec_of(2), Logs(block_seconds=[1.0] * 3))
    killed(study, 2)
    [sentence] = costs(study)
    assert sentence == (
        "PyTorch DDP, resnet44 on cifar10 (weak scaling, 128 per GPU) [fault=kill_rank at step 35], 2 GPUs: "
        "allocated 21.0 s instead of 16.0 s (+5.00 s, 0.00278 GPU-hours); goodput 57 % instead of 75 %; "
        "10.0 steps lost, 60.0 s between attempts"
    )
    seen = Seen(study)
    assert words(sentence) in words(seen.table)
    assert words(sentence) in words(seen.html)


def test_a_failure_without_a_counterpart_has_no_cost_to_state(study: StudyBuilder) -> None:
    killed(study, 2)
    study.add(spec_of(4), Logs())
    study.add(spec_of(2, model="resnet20"), Logs())
    assert costs(study) == []
    assert "Cost of failures" not in Seen(study).html
