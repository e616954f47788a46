"""Results of benchmarks (benchmarks/common.py) and their record in RESULTS.md."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.proportions import wilson
from benchmarks.__main__ import RESULTS, section, with_section, with_verdicts
from benchmarks.common import Row, paired, ratio_of_means, share, verdict


@pytest.mark.parametrize(
    ("target", "low", "high", "word"),
    [
        ("≥ 0.99 of the peer", 0.995, 1.02, "met"),
        ("≥ 0.99 of the peer", 0.97, 0.985, "missed"),
        ("≥ 0.99 of the peer", 0.97, 1.02, "undecided"),
        ("≤ 1.005", 1.001, 1.005, "met"),
        ("< 1", 0.8, 1.0, "undecided"),
        ("< 1", 1.0, 1.0, "missed"),
        ("less than the peer", 0.8, 0.9, "met"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_target(target: str, low: float, high: float, word: str) -> None:
    assert verdict(target, {"ratio": (low, high)}) == word


def test_a_target_with_a_unit_is_about_our_own_figure() -> None:
    row = paired("start", "s", [0.1] * 6, "peer", [0.05] * 6, "≤ 0.2 s, and less than the peer")
    assert row.cells()[3:7] == ["2", "2 to 2", "≤ 0.2 s, and less than the peer", "missed"]
    assert Row("start", "s", [0.1] * 6, target="≤ 0.2 s").cells()[6] == "met"
    assert Row("start", "s", [0.1] * 5, target="≤ 0.2 s").cells()[6] == "undecided", "five have no interval"
    # A median below the target, and a mean above it: 5 x 1 and 10, t(0.975, 5) = 2.57.
    errors = Row("error", "%", [1.0] * 5 + [10.0], target="mean ≤ 1.5 %, and median ≤ 1.5 %")
    assert errors.cells()[6] == "undecided"
    with pytest.raises(ValueError, match="give one like"):
        Row("start", "s", [0.1] * 6, target="fast").cells()


def test_a_share_is_a_count_with_a_wilson_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert [wilson(*counted).ends for counted in ((81, 263), (15, 148), (0, 20), (1, 29))] == [
        pytest.approx(ends, abs=5e-5) for ends in ((0.2553, 0.3662), (0.0624, 0.1605), (0.0, 0.1611), (0.0061, 0.1718))
    ]
    row = share("held", [True] * 5 + [False] * 6, "85 to 95 %")
    assert row.cells() == ["held", "5 of 11 (45.5 %)", "–", "–", "21.27 to 71.99", "85 to 95 %", "missed", "11"]


def test_the_interval_of_a_ratio_of_means_holds_it_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        peer = rng.lognormal(0, 0.3, 40)
        ratio, ends = ratio_of_means(list(0.8 * peer * rng.lognormal(0, 0.2, 40)), list(peer))
        assert ends is not None
        assert ends[0] < ratio < ends[1]
        held += ends[0] <= 0.8 * np.exp(0.02) <= ends[1]
    # 95 % less 4 standard errors of 1,000 repetitions.
    assert held > 922


def test_the_recorded_verdicts_are_those_of_the_recorded_figures() -> None:
    recorded = RESULTS.read_text(encoding="utf-8")
    assert with_verdicts(recorded) == recorded
    assert "| ≤ 1.15 of the peer | met |" in recorded


@pytest.mark.parametrize(("n", "word"), [(1, "undecided"), (2, "met"), (6, "met")])
def test_a_verdict_is_the_same_when_it_is_derived_again(n: int, word: str) -> None:
    seconds, peer = [1.0, 2.0, 1.5, 1.2, 1.1, 1.3][:n], [3.0, 4.0, 3.5, 3.2, 3.1, 3.3][:n]
    memory = Row("memory", "GB", seconds, target="largest ≤ 2 GB")
    beside = paired("lag", "s", seconds, "peer", peer, "the largest less than the peer's")
    written = with_section("", "report", section("report", "c", 0.0, [memory, beside]))
    assert with_verdicts(written) == written
    assert written.count(f"| {word} |") == 2
