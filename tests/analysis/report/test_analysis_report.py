"""The visible outputs: table, CSV, plots, report."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from project import PROJECT
from rich.console import Console
from seen import Seen, Tags, scripts_and_rest, words
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.read.study import read_study
from analysis.report.charts.vega import kept_vega_script
from analysis.report.findings import findings_of
from analysis.report.html.render import page_script
from analysis.report.palette import LOOKS
from analysis.report.print.drawing import drawing
from analysis.report.print.figures import drawn
from analysis.report.terminal.tables import print_tables
from harness.core.spec import STRONG, ClusterSpec, FaultSpec
from harness.study import outcome

GOLDEN = PROJECT / "tests" / "golden" / "analysis_table.txt"


def test_terminal_table_is_as_the_golden_file(study: StudyBuilder) -> None:
    # seconds of a block of 10 steps; samples/s = 1,280 x GPUs / seconds.
    for gpus, seconds in ((1, 1.0), (2, 1.0), (4, 1.25)):
        for repeat, (factor, accuracy) in enumerate(((1.0, 0.72), (1.04, 0.75), (0.96, 0.735))):
            study.add(spec_of(gpus, repeat=repeat), Logs(block_seconds=[seconds * factor] * 4, accuracy=accuracy))
            if gpus > 1:  # the same speed on two GPUs, slower on four
                own = Logs(block_seconds=[(1.02 if gpus == 2 else 1.5) * factor] * 4)
                study.add(spec_of(gpus, strategy="horovod", repeat=repeat), own)
    study.add(spec_of(8), Logs(), result={"status": "failed", "reason": "rank 3 ended with signal 9"})
    shared = {"oversubscribed": "2 ranks share 1 GPU"}
    study.add(spec_of(1, scaling=STRONG), Logs(block_seconds=[1.0, 1.1] * 4))
    study.add(spec_of(2, scaling=STRONG, batch_per_gpu=64), Logs(block_seconds=[1.0, 1.1] * 4), result=shared)
    continued(study)
    study.add(spec_of(1, strategy="plain"), Logs(block_seconds=[0.8, 0.82] * 4))
    study.add(spec_of(2, framework="jax"), Logs(block_seconds=[1.0] * 4, parameters=658_600))
    study.write_study(invocations=[{"skipped": ["strategy 'horovod' is not offered by framework 'jax'"]}])
    lines = [line.rstrip() for line in Seen(study).table.splitlines()]
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_failed_run_is_named_with_its_reason(study: StudyBuilder) -> None:
    failure = {"status": "failed", "reason": "rank 1 ended with signal 9", "failed_rank": 1}
    study.completed(1)
    run_dir = study.add(spec_of(2), Logs(), result={**failure, "stderr_tail": ["CUDA error: out of memory"]})
    seen = Seen(study)
    assert f"{run_dir.name}: failed: rank 1 ended with signal 9" in words(seen.table)
    text = Tags(seen.html).text
    assert run_dir.name in text
    assert "rank 1 ended with signal 9" in text
    assert "CUDA error: out of memory" in text
    failed = seen.csv[1]
    assert (failed["gpus"], failed["status"], failed["samples_per_second"]) == ("2", "failed", "")
    assert "rank 1 ended with signal 9" in failed["reasons"]


def test_both_batches_are_shown(study: StudyBuilder) -> None:
    study.completed(4)
    seen = Seen(study)
    assert (seen.csv[0]["global_batch"], seen.csv[0]["batch_per_gpu"]) == ("512", "128")
    assert re.search(r'"Global batch">512<.*"Batch per GPU">128<', seen.html, re.DOTALL)
    assert re.search(r"512 .*\n.* 128 ", seen.table)


def test_speedup_relative_to_smallest_count_is_stated(study: StudyBuilder) -> None:
    study.completed(2)
    study.completed(4)
    seen = Seen(study)
    assert [row["relative_to_gpus"] for row in seen.csv] == ["2", "2"]
    assert "to 2 GPUs" in seen.table
    assert "relative to 2 GPUs" in seen.svg
    headline = "PyTorch DDP, resnet44 on cifar10 (weak scaling, 128 per GPU): 2.00× on 4 GPUs relative to 2 GPUs"
    assert headline in words(Tags(seen.html).text)
    assert headline in words(seen.table)


def test_time_to_the_first_step_is_in_report_and_csv(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(cached_batch_seconds=0.1))
    seen = Seen(study)
    assert seen.csv[0]["first_step_seconds"] == "3.0"
    assert seen.html.count('"First step">3.00 s</td>') == 2  # for the point and its run


def test_single_run_is_marked_in_table_csv_plot_and_report(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[1.0, 1.1] * 4))
    study.add(spec_of(2), Logs(block_seconds=[1.0, 1.1] * 4))
    seen = Seen(study)
    assert "single run" in seen.table
    assert [row["marks"] for row in seen.csv] == ["single run"] * 2
    assert [row["samples_per_second_basis"] for row in seen.csv] == ["blocks of one run"] * 2
    assert seen.csv[1]["efficiency_basis"] == "blocks of one run"
    assert re.search(r"95 % interval [0-9]+–[0-9]+ %, from blocks of one run", words(seen.table))
    assert "dotted bars: from the blocks of a single run" in seen.svg
    assert "single run" in seen.svg
    assert '<span class="mark">single run</span>' in seen.html
    assert "how steady it was, not what another run would give" in seen.html


def test_oversubscribed_is_marked_in_table_csv_plot_and_report(study: StudyBuilder) -> None:
    study.completed(1)
    study.add(spec_of(2), Logs(), result={"oversubscribed": "2 ranks share 1 GPU"})
    seen = Seen(study)
    verdict = "This is not a scaling result: 2 ranks share 1 GPU."
    assert "oversubscribed" in seen.table
    assert verdict in words(seen.table)
    assert [row["marks"] for row in seen.csv] == ["single run", "oversubscribed;single run"]
    assert "hollow: oversubscribed" in seen.svg
    assert "oversubscribed at 2" in seen.svg
    assert '<span class="mark warn">oversubscribed</span>' in seen.html
    assert verdict in words(Tags(seen.html).text)


def continued(study: StudyBuilder) -> Path:
    """Add a resumed run. Useful: warm-up 9 s and three blocks of 1 s. Allocated: start-up 3, 9 + 1 + 1, a checkpoint of
    1, and 1 until the exit; start-up 3, a block of 1, and 1 until the exit: 16 + 5."""
    spec = spec_of(1, fault=FaultSpec("kill_rank", 35))
    first = Logs(block_seconds=[1.0, 1.0], checkpoints={30: 1.0}, fault=(0, 35), ends=False, exit_codes=[-9])
    second = Logs(block_seconds=[1.0], resume=resume(30, 1), begin=CREATED + 76)
    run_dir = study.attempts(spec, first, second)
    outcome.write_restart(run_dir / "attempt-1", outcome.BY_FAILURE, "rank 0 was ended by signal 9 (SIGKILL)", 30)
    return run_dir


def test_continued_run_is_marked_and_its_goodput_shown(study: StudyBuilder) -> None:
    continued(study)
    seen = Seen(study)
    assert seen.csv[0]["marks"] == "fault injected;single run;continued"
    assert float(seen.csv[0]["goodput"]) == pytest.approx(12 / 21)
    assert (seen.csv[0]["attempts"], seen.csv[0]["detail"]) == ("2", "fault=kill_rank at step 35")
    assert re.search(r"57 % .*completed", seen.table)
    assert "fault injected" in seen.svg
    assert '<span class="mark warn">fault injected</span> <span class="mark">single run</span>' in seen.html
    assert re.search(r'"Goodput">57 %\s*<span class="sub">2 attempts</span>', seen.html)
    text = words(Tags(seen.html).text)
    assert "2 attempts: 12.0 s useful of 21.0 s allocated, goodput 57 %" in text
    assert "60.0 s between the attempts, 1.00 s in checkpoints, 0 steps lost" in text
    assert "attempt 1 ended: failure: rank 0 was ended by signal 9 (SIGKILL)" in text


def test_unknown_goodput_is_a_dash(study: StudyBuilder) -> None:
    (continued(study) / "attempt-1" / "begin.json").unlink()
    seen = Seen(study)
    assert seen.csv[0]["goodput"] == ""
    assert re.search(r'"Goodput">–', seen.html)
    cost = "12.0 s useful of – allocated, goodput –; 60.0 s between the attempts"
    assert cost in words(Tags(seen.html).text)
    assert not re.search(r"57 %", seen.table + seen.html)


@pytest.mark.parametrize(("width", "shown"), [(80, False), (95, True), (150, True)])
def test_goodput_is_in_the_table_where_there_is_room(study: StudyBuilder, width: int, shown: bool) -> None:
    continued(study)
    stream = io.StringIO()
    print_tables(Console(file=stream, width=width), findings_of(read_study(study.folder)))
    assert ("57 %" in stream.getvalue()) == shown
    assert ("Goodput: " in stream.getvalue()) == shown


def test_oversubscribed_point_is_drawn_hollow(study: StudyBuilder) -> None:
    for gpus, repeat in ((1, 0), (1, 1), (2, 0), (2, 1)):  # a single run is hollow too
        study.completed(gpus, repeat=repeat)
    plain = Seen(study).figures["speedup.svg"].decode()
    study.add(spec_of(4), Logs(), result={"oversubscribed": "shared"})
    marked = Seen(study).figures["speedup.svg"].decode()
    hollow = re.compile(f'fill="#FFFFFF" stroke="{LOOKS[0].colour}"')
    assert not hollow.search(plain)
    assert hollow.search(marked)


def test_hostile_names_do_not_inject_markup(study: StudyBuilder) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'&$\\frac{"
    study.name = hostile + "\x1b[31m"
    spec = spec_of(2, model=hostile, framework="_" + hostile, cluster=ClusterSpec(hostile, "cuda", 1))
    study.add(spec, Logs(device_name=hostile, versions={hostile: hostile}))
    study.add(spec_of(2, model=hostile, strategy=hostile, cluster=ClusterSpec(hostile, "cuda", 1)), Logs(parameters=7))
    tail = ["</pre><script>alert(3)</script>", "\ud800 \x00 \x1b]0;x\x07"]
    study.add(spec_of(4), None, result={"status": "failed", "reason": hostile, "stderr_tail": tail})
    (study.folder / "runs" / "<script>alert(2)<script>").write_text("x")
    cut = Logs(block_seconds=[1.0], ends=False, fault=(0, 20))
    rest = Logs(resume=resume(20, 1, ignored=hostile + "\x1b[31m"), begin=CREATED + 50)
    fault = FaultSpec(hostile + "\x1b[31m", 20)
    twice = study.attempts(spec_of(1, fault=fault), cut, rest)
    outcome.write_restart(twice / "attempt-1", hostile, "\x1b]0;x\x07" + hostile, 20)
    invocation = {"t": 1e300, "command": [hostile, "\ud800"], "code_version": "\udfff", "cluster": 7, "runs": "none"}
    invocation["skipped"] = [hostile + "\x1b[2J", 7]
    study.write_study(created=10**400, invocations=[invocation, {}])
    seen = Seen(study)
    tags = Tags(seen.html)
    assert "img" not in {tag for tag, _ in tags.tags}
    scripts, rest = scripts_and_rest(seen.html)
    assert "<script" not in rest
    ours = (str(page_script()), kept_vega_script())
    for script in scripts:  # our own, or data that browsers do not run
        assert script in ours or re.fullmatch(r"[A-Za-z0-9+/=]*", script) or json.loads(script)
    assert not [name for _, attributes in tags.tags for name in attributes if name.startswith("on")]
    for shown in (hostile, *tail[:1], "<script>alert(2)<script>"):
        assert shown in tags.text
    assert not {"\x1b", "\x00", "\ud800"} & set(seen.html + seen.table)
    for kind in ("speedup", "efficiency"):
        root = ElementTree.fromstring(seen.figures[f"{kind}.svg"])
        assert not [element for element in root.iter() if element.tag.endswith(("img", "script"))]
        assert "".join(hostile.split()) in "".join("".join(root.itertext()).split())


def test_report_has_no_external_reference(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    seen = Seen(study)
    scripts, rest = scripts_and_rest(seen.html)
    assert kept_vega_script() in scripts  # the chart library is part of the page
    tags = Tags(seen.html).tags
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in tags}
    references = [
        value
        for _, attributes in tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "action", "data")
    ]
    assert references  # the table of contents
    assert all(value is not None and value.startswith("#") for value in references)
    assert "@import" not in rest
    assert "url(" not in rest
    assert "default-src 'none'" in rest  # a browser would block anything overlooked


def test_ids_of_the_page_do_not_meet(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    tags = Tags(Seen(study).html).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        if str(attributes.get("href", "")).startswith("#"):
            assert str(attributes["href"])[1:] in ids


def test_study_without_completed_run_still_makes_a_report(study: StudyBuilder) -> None:
    study.add(spec_of(1), None, finished=False)
    seen = Seen(study)
    assert seen.figures == {}
    assert "No run of this study has completed" in seen.html
    assert seen.csv[0]["samples_per_second"] == ""


def test_block_a_thousand_times_as_long_is_drawn(study: StudyBuilder) -> None:
    # One block of a thousand seconds among forty of one: the interval of the throughput spans orders of magnitude.
    study.add(spec_of(1), Logs(block_seconds=[1.0] * 40 + [1000.0]))
    study.add(spec_of(2), Logs(block_seconds=[1.0] * 40))
    assert "speedup" in Seen(study).svg


@pytest.mark.parametrize("seconds", [5e-324, 1e-9, 1e12, 1e308])
def test_absurd_durations_make_a_report_all_the_same(study: StudyBuilder, seconds: float) -> None:
    logs = Logs(block_seconds=[seconds] * 2, cached_batch_seconds=seconds, startup_seconds={"imports": seconds})
    study.add(spec_of(2), logs)
    study.add(spec_of(3), Logs(block_seconds=[1.0, 2.0], cached_batch_seconds=1e12))
    assert "nan" not in Seen(study).table


def test_log_scale_labels_measured_counts(study: StudyBuilder) -> None:
    for gpus in (1, 4, 32):
        study.completed(gpus)
    root = ElementTree.fromstring(Seen(study).figures["speedup.svg"])
    texts = {element.text.strip() for element in root.iter() if element.tag.endswith("text") and element.text}
    assert {"1", "4", "32", "GPUs", "ideal"} <= texts


def test_series_beyond_the_legend_are_counted_there(study: StudyBuilder) -> None:
    for i in range(len(LOOKS) + 3):
        study.completed(1, model=f"model{i}")
    seen = Seen(study)
    assert "3 further series" in seen.svg
    assert '"3 further series"' in seen.html  # a legend entry
    assert all(f"model{i} on" in Tags(seen.html).text for i in range(len(LOOKS) + 3))  # and the table names each
    assert len(seen.csv) == len(LOOKS) + 3


def test_equal_studies_make_equal_figures(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    findings = findings_of(read_study(study.folder))
    kinds = ("pdf", "svg", "png")
    first = drawn(findings, kinds)
    drawing.cache_clear()
    assert drawn(findings, kinds) == first


@pytest.mark.parametrize("name", ["how it was asked for", "versions", "device"])
def test_report_says_where_the_figures_come_from(study: StudyBuilder, name: str) -> None:
    study.completed(1)
    text = words(Tags(Seen(study).html).text)
    expected = {
        "how it was asked for": "python -m harness -m gpus=1,2,4",
        "versions": "nccl 2.27, torch 2.13.0",
        "device": "NVIDIA H100",
    }
    assert expected[name] in text
