"""Energy counters, in folders laid out as the kernel documents (Documentation/power/powercap/powercap.rst), since test
machines lack such counters or access to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.worker.record import energy

RANGE = 262_143_328_850  # of a real package, in µJ


def zone(powercap: Path, number: str, name: str, microjoules: int) -> Path:
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_joules_are_those_of_all_packages_and_of_nothing_that_overlaps_them(tmp_path: Path) -> None:
    zones = [zone(tmp_path, "0", "package-0", 1_000_000), zone(tmp_path, "1", "package-1", 5_000_000)]
    zones += [zone(tmp_path, "0:0", "core", 500_000), zone(tmp_path, "2", "psys", 9_000_000)]
    (tmp_path / "intel-rapl").mkdir()  # the control type itself
    meter = energy.processors(tmp_path)
    assert meter.of == "processors"
    before = meter.counters()
    for folder in zones:
        (folder / "energy_uj").write_text(f"{int((folder / 'energy_uj').read_text()) + 2_500_000}\n")
    assert meter.joules_since(before) == pytest.approx(5.0)


def test_a_counter_that_began_again_is_followed(tmp_path: Path) -> None:
    folder = zone(tmp_path, "0", "package-0", RANGE - 1_000_000)
    meter = energy.processors(tmp_path)
    before = meter.counters()
    (folder / "energy_uj").write_text("2000000\n")
    assert meter.joules_since(before) == pytest.approx(3.0)


def test_counters_that_are_gone_give_nothing(tmp_path: Path) -> None:
    folder = zone(tmp_path, "0", "package-0", 1)
    meter = energy.processors(tmp_path)
    before = meter.counters()
    (folder / "energy_uj").unlink()
    assert meter.counters() is None
    assert meter.joules_since(before) is None


@pytest.mark.parametrize("names", [[], ["psys"]], ids=["none", "only the board"])
def test_a_machine_without_counters_of_its_processors_is_not_metered(tmp_path: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        zone(tmp_path, str(number), name, 1)
    meter = energy.processors(tmp_path)
    assert (meter.of, meter.counters(), meter.joules_since(None)) == (None, None, None)


def test_a_gpu_that_is_not_there_is_not_metered_and_ends_no_run() -> None:
    assert energy.find("cuda", "GPU-00000000-0000-0000-0000-000000000000").of is None
    assert energy.find("cuda", None).of is None
