"""Comparison of the files of verify=true: bounds, and messages about invalid files."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_times import touch_later
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from study_builder import CREATED, Logs, StudyBuilder, arrays, resume, spec_of

from analysis.measures.equal_work import equal_work
from analysis.measures.network import GRADIENTS, LOGITS, LOSSES, differences, read_arrays
from analysis.read.study import read_study

JUST_BELOW, JUST_ABOVE = 0.999, 1.001  # of a bound


def verdict_on_jax(study: StudyBuilder) -> str:
    read = read_study(study.folder)
    (row,) = [row for row in equal_work(read.folder, read.runs).rows if row["framework"] == "jax"]
    return str(row["verdict"])


@pytest.mark.parametrize(("part", "differs"), [(JUST_BELOW, False), (JUST_ABOVE, True)])
@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("logits", lambda part: {"logits": [[2.0, -1.0], [0.5, part * 2 * LOGITS]]}),
        ("gradients", lambda part: {"g000": [[3.0], [part * 5 * GRADIENTS]]}),
        ("loss curve", lambda part: {"losses": [2.0] * 10 + [1.5] * 9 + [1.5 + part * 0.5 * LOSSES]}),
    ],
)
def test_network_is_held_to_its_bounds(
    study: StudyBuilder, what: str, changes: Any, part: float, differs: bool
) -> None:
    study.verified(2)
    study.verified(2, arrays(**changes(part)), framework="jax")
    assert verdict_on_jax(study) == (f"differs: {what}" if differs else "equal")


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["logits", "losses", "g001"])
def test_nan_and_infinity_are_not_equal(name: str, number: float) -> None:
    whole, broken = arrays(), arrays()
    broken[name].flat[0] = number
    for own, other in ((whole, broken), (broken, whole), (broken, broken)):
        assert any(difference.excess > 1 for difference in differences(own, other).values())


def test_logits_below_one_are_held_to_the_bound_itself() -> None:
    small = arrays(logits=[[0.5, 0.25]])
    assert differences(small, small)["logits"].bound == LOGITS


def test_losses_that_do_not_move_equal_only_themselves() -> None:
    still, moved = arrays(losses=[2.0] * 20), arrays()
    assert differences(still, still)["losses"].excess == 0
    assert differences(moved, still)["losses"].excess == math.inf
    assert differences(still, moved)["losses"].value == 1


def test_change_of_verify_npz_has_the_run_read_again(study: StudyBuilder) -> None:
    study.verified(2)
    run_dir = study.verified(2, framework="jax")
    assert [read_study(study.folder).reread for _ in range(2)] == [2, 0]
    np.savez(run_dir / "attempt-1" / "verify.npz", **arrays(logits=[[1.0, -1.0], [0.5, 0.0]]))
    touch_later(run_dir / "attempt-1" / "verify.npz")
    assert read_study(study.folder).reread == 1
    assert verdict_on_jax(study) == "differs: logits"
    (run_dir / "attempt-1" / "verify.npz").unlink()
    why = f"{run_dir.name} has no verify.npz"
    assert verdict_on_jax(study) == f"not checked: only the first gradient was compared; {why}"


def test_verify_of_the_last_attempt_counts(study: StudyBuilder) -> None:
    study.verified(2)
    cut = Logs([1.0], checkpoints={20: 0.5}, ends=False, verify=arrays(logits=[[9.0]]))
    rest = Logs([8.0] * 3, resume=resume(20, 1), begin=CREATED + 100, verify=arrays())
    study.attempts(spec_of(2, framework="jax", verify=True), cut, rest)
    assert verdict_on_jax(study) == "equal"


class Pickled:
    """Raises an error if it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was read",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "verify.npz cannot be read"),
        (b"PK\x05\x06" + bytes(18), "verify.npz does not hold logits, losses and gradients"),  # a ZIP without members
        ({"logits": [[1.0]], "losses": [1.0]}, "verify.npz does not hold logits, losses and gradients"),
        ({"logits": [], "losses": [1.0], "g000": [1.0]}, "verify.npz does not hold logits, losses and gradients"),
        ({"logits": ["a"], "losses": [1.0], "g000": [1.0]}, "verify.npz cannot be read"),
        ({"logits": np.array([Pickled()]), "losses": [1.0], "g000": [1.0]}, "verify.npz cannot be read"),
    ],
)
def test_invalid_verify_npz_is_reported(study: StudyBuilder, content: Any, why: str) -> None:
    study.verified(2)
    run_dir = study.verified(2, framework="jax")
    path = run_dir / "attempt-1" / "verify.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    verdict = f"not checked: only the first gradient was compared; {run_dir.name}: {why}"
    assert verdict_on_jax(study) == verdict


def test_verify_npz_of_other_batches_is_not_compared(study: StudyBuilder) -> None:
    study.verified(2)
    study.verified(2, arrays(losses=[2.0] * 10), framework="jax")
    assert verdict_on_jax(study).endswith("their verify.npz hold different batches or steps")


WHOLE = io.BytesIO()
np.savez(WHOLE, **arrays())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), to=st.binary(max_size=8), cut=st.sampled_from([0, 0, 0, 1, 500]))
def test_damaged_verify_npz_raises_nothing_else_and_becomes_no_nan(
    tmp_path: Path, at: int, to: bytes, cut: int
) -> None:
    path = tmp_path / "verify.npz"
    whole = WHOLE.getvalue()
    path.write_bytes((whole[:at] + to + whole[at + len(to) :])[: len(whole) - cut])
    own = arrays()
    try:
        found = differences(read_arrays(path), own)
    except ValueError:
        return
    assert all(difference.excess >= 0 for difference in found.values())


@settings(deadline=None)
@given(part=st.floats(0, 3).filter(lambda part: abs(part - 1) > 1e-3), scale=st.floats(1e-3, 1e3))
def test_bounds_of_a_network_are_parts_of_what_is_compared(part: float, scale: float) -> None:
    own = {name: value * np.float64(scale) for name, value in arrays().items()}
    off = {name: value.copy() for name, value in own.items()}
    off["logits"][0, 1] += part * LOGITS * max(1.0, 2 * scale)
    off["g001"][0] += part * GRADIENTS * 5 * scale
    off["losses"][1] += part * LOSSES * 0.5 * scale
    found = differences(off, own)
    assert {name: found[name].excess > 1 for name in found} == dict.fromkeys(found, part > 1)


def test_array_that_no_memory_holds_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "verify.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("logits.npy", b"\x93NUMPY\x01\x00v\x00" + header)
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(path)
