"""The sentences at the top of every output."""

from __future__ import annotations

import re

from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.answers import Answer, answers_of
from analysis.report.findings import findings_of
from harness.core.spec import STRONG


def answers(study: StudyBuilder) -> list[Answer]:
    findings = findings_of(read_study(study.folder))
    return answers_of(findings.points, findings.losses)


def rounds(full: float, no_sync: float) -> dict[str, list[float]]:
    """Make the probes' seconds per step, in eight rounds that differ by one per cent."""
    wobble = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 1.0]
    probes = {"full": full, "cached_batch": full, "no_sync": no_sync}
    return {name: [seconds * w for w in wobble] for name, seconds in probes.items()}


def test_headline_has_speedup_interval_efficiency_and_the_largest_loss(study: StudyBuilder) -> None:
    for gpus, step in ((1, 0.1), (4, 0.125)):
        for repeat in range(3):
            seconds = [10 * step * (1 + 0.01 * (repeat - 1))] * 4
            study.add(spec_of(gpus, repeat=repeat), Logs(block_seconds=seconds, rounds=rounds(step, 0.1)))
    (answer,) = answers(study)
    # 4 x 0.1 / 0.125 = 3.2 times; 1 - 0.1 / 0.125 = 20 % of the step is exposed synchronisation.
    said = r"PyTorch DDP reaches 3\.20× speedup \(3\.[01][0-9]–3\.[23][0-9]\) on 4 GPUs: 80 % efficiency\."
    assert re.fullmatch(said, answer.headline)
    assert answer.loss == "The largest loss is exposed synchronisation, 20 %."
    assert answer.text == f"{answer.headline} {answer.loss}"


def test_series_of_one_name_are_told_apart_and_marks_and_gaps_are_said(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"oversubscribed": "2 ranks share 1 GPU"})
    study.add(spec_of(4), None, result={"status": "failed", "reason": "gone"})
    study.completed(1, scaling=STRONG)
    study.completed(1, strategy="plain", framework="jax")
    found = {answer.name: answer for answer in answers(study)}
    weak, strong = "PyTorch DDP, weak scaling, 128 per GPU", "PyTorch DDP, strong scaling, global batch 128"
    assert set(found) == {weak, strong, "JAX alone, weak scaling, 128 per GPU"}
    assert found[weak].text.endswith(
        "(oversubscribed, single run). No figure for 4 GPUs (failed). "
        "This is not a scaling result: 2 ranks share 1 GPU."
    )
    said = f"{strong} trains 1,280 samples/s on 1 GPU; no speedup to state (single run)."
    assert re.sub(r" \([0-9,]+–[0-9,]+\)", "", found[strong].text) == said
