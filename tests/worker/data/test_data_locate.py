"""Where data sets are searched, what is said if they are missing, and what the configurations promise."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import PROJECT

from harness.config.schema import Dataset
from harness.core.data_location import DataError, files_in, locate
from harness.core.serialization import from_plain
from harness.core.spec import DatasetSpec

CIFAR_BINARY = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def touch(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_synthetic_needs_no_folder() -> None:
    assert locate("synthetic", "synthetic", None) is None


@pytest.mark.parametrize(
    "below", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar-10-batches-py", "."]
)
def test_cifar_is_found_in_every_place_where_it_may_lie(tmp_path: Path, below: str) -> None:
    folder = touch(tmp_path / below, CIFAR_BINARY)
    assert locate("cifar10", "cifar10", str(tmp_path)) == folder


def test_folder_with_the_name_wins_over_the_root_itself(tmp_path: Path) -> None:
    touch(tmp_path, CIFAR_BINARY)
    named = touch(tmp_path / "cifar10", CIFAR_BINARY)
    assert locate("cifar10", "cifar10", str(tmp_path)) == named


def test_complete_folder_wins_over_an_earlier_incomplete_one(tmp_path: Path) -> None:
    touch(tmp_path / "cifar10", CIFAR_BINARY[:3])
    complete = touch(tmp_path / "cifar-10-batches-py", [name[:-4] for name in CIFAR_BINARY])
    assert locate("cifar10", "cifar10", str(tmp_path)) == complete


def test_idx_files_may_be_gzipped_one_by_one(tmp_path: Path) -> None:
    names = [IDX[0] + ".gz", IDX[1], IDX[2] + ".gz", IDX[3]]
    assert files_in("idx", touch(tmp_path, names)) == tuple(names)


@pytest.mark.parametrize("images", ["Images", "indoorCVPR_09/Images"])
def test_indoor67_is_found_with_both_names_of_its_images_folder(tmp_path: Path, images: str) -> None:
    touch(tmp_path, ["TrainImages.txt", "TestImages.txt", f"{images}/airport/a.jpg"])
    assert locate("indoor67", "imagefolder", str(tmp_path)) == tmp_path
    assert files_in("imagefolder", tmp_path) == ("TrainImages.txt", "TestImages.txt", images)


def test_home_is_expanded_in_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = touch(tmp_path / "sets" / "cifar10", CIFAR_BINARY)
    assert locate("cifar10", "cifar10", "~/sets") == folder


def test_absent_data_set_says_where_it_should_be_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        locate("cifar10", "cifar10", str(tmp_path / "sets"))
    text = str(caught.value)
    assert text.startswith(f"data set 'cifar10' was not found: nothing in {tmp_path / 'sets' / 'cifar10'}. To get it: ")
    assert f"`python -m harness.data cifar10 --root {tmp_path / 'sets'}` downloads it" in text
    assert text.endswith("dataset=synthetic needs no files")


def test_an_absent_data_set_names_one_that_is_here(tmp_path: Path) -> None:
    touch(tmp_path / "fashion-mnist", IDX)
    with pytest.raises(DataError, match=r"here already: dataset=fashion_mnist; dataset=synthetic needs no files$"):
        locate("cifar10", "cifar10", str(tmp_path))


def test_incomplete_folder_names_the_missing_files(tmp_path: Path) -> None:
    touch(tmp_path, CIFAR_BINARY[:4])
    with pytest.raises(DataError, match=r"missing data_batch_5\.bin, test_batch\.bin[.;]"):
        locate("cifar10", "cifar10", str(tmp_path))


def test_incomplete_idx_folder_names_both_forms_of_a_missing_file(tmp_path: Path) -> None:
    touch(tmp_path, IDX[:3])
    with pytest.raises(DataError, match=r"missing t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz"):
        locate("my_digits", "idx", str(tmp_path))


def test_unset_root_is_said() -> None:
    with pytest.raises(DataError, match=r"was not found: data\.root is not set\. .*web\.mit\.edu"):
        locate("indoor67", "imagefolder", None)


def test_fashion_mnist_is_also_looked_for_where_debian_installs_it(tmp_path: Path) -> None:
    debian = Path("/usr/share/datasets/fashion-mnist")
    if debian.is_dir():
        assert locate("fashion_mnist", "idx", str(tmp_path)) == debian
        return
    with pytest.raises(
        DataError, match=rf"nothing in {tmp_path}/fashion_mnist or {debian}\. .*harness\.data fashion_mnist"
    ):
        locate("fashion_mnist", "idx", str(tmp_path))


def test_data_set_of_ones_own_is_told_the_files_it_needs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put train/<class>/ and test/<class>/ .* into the folder flowers"):
        locate("flowers", "imagefolder", str(tmp_path))


def test_unknown_reader_lists_the_valid_ones() -> None:
    valid = "cifar10, idx, imagefolder, text, shards, synthetic"
    with pytest.raises(DataError, match=f"reader 'tfrecord'; valid readers: {valid}"):
        locate("x", "tfrecord", None)


def test_locate_imports_only_the_standard_library() -> None:
    code = "import sys, harness.core.data_location; print('numpy' in sys.modules, 'PIL' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("path", sorted((PROJECT / "conf/dataset").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_configuration_has_the_keys_of_the_specification(path: Path) -> None:
    plain = yaml.safe_load(path.read_text())
    first = {field.name for field in dataclasses.fields(DatasetSpec) if not field.metadata.get("later")}
    assert first <= set(plain) <= {field.name for field in dataclasses.fields(Dataset)}
    spec = from_plain(DatasetSpec, plain)
    assert spec.name == path.stem
    assert len(spec.mean) == len(spec.std) == spec.channels


SCRIPT = PROJECT / "sbatch/data/fashion-mnist.sh"
needs_script_to_work = pytest.mark.skipif(
    Path("/usr/share/datasets/fashion-mnist").is_dir(),
    reason="Fashion-MNIST is installed: the script has nothing to do",
)


def run_script_without_apt(target: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """Run the script as on a system other than Debian, with only the tools that it uses before it needs apt."""
    tools.mkdir()
    for tool in ("bash", "dirname", "gzip"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    environment = {"PATH": str(tools)}
    return subprocess.run(["bash", SCRIPT, target], env=environment, capture_output=True, text=True, check=False)


def gzipped_set(folder: Path) -> Path:
    folder.mkdir()
    for name in IDX:
        (folder / f"{name}.gz").write_bytes(gzip.compress(b"content"))
    return folder


@needs_script_to_work
def test_fashion_mnist_script_leaves_a_complete_folder_alone(tmp_path: Path) -> None:
    target = gzipped_set(tmp_path / "fashion-mnist")
    done = run_script_without_apt(target, tmp_path / "bin")
    assert (done.returncode, done.stdout) == (0, f"Fashion-MNIST is complete in {target}.\n")


@needs_script_to_work
def test_fashion_mnist_script_sees_a_damaged_file_and_says_what_to_do_without_apt(tmp_path: Path) -> None:
    target = gzipped_set(tmp_path / "fashion-mnist")
    whole = (target / f"{IDX[3]}.gz").read_bytes()
    (target / f"{IDX[3]}.gz").write_bytes(whole[:-3])
    done = run_script_without_apt(target, tmp_path / "bin")
    assert done.returncode == 1
    assert "has no apt-get" in done.stderr
    assert f"https://github.com/zalandoresearch/fashion-mnist (folder data/fashion) into {target}." in done.stderr
