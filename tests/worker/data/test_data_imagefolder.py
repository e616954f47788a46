"""Image folders in both layouts, with the irregular files of published data sets; and synthetic samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.readers import open_dataset
from harness.worker.data.splits import Split

ROOMS = DatasetSpec("rooms", "imagefolder", 3, 3, 32, (0.5,) * 3, (0.25,) * 3)
SYNTHETIC = DatasetSpec("synthetic", "synthetic", 10, 3, 32, (0.5,) * 3, (0.25,) * 3, True, 500, 300)


def save(path: Path, colour: tuple[int, ...] = (204, 102, 51), mode: str = "RGB", form: str = "PNG") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 40), colour).convert(mode).save(path, form)


def listed_folder(folder: Path, images: str = "Images") -> Path:
    """Three classes, not in alphabetical order in the lists."""
    train, test = [], []
    for number, name in enumerate(["pantry", "airport", "cloister"]):
        for part, entry in ((train, f"{name}/one.jpg"), (train, f"{name}/two_gif.jpg"), (test, f"{name}/three.jpg")):
            save(folder / images / entry, (10 * number, 100, 200))
            part.append(entry)
    (folder / "TrainImages.txt").write_text("\r\n".join(train))  # as published: no newline at the end
    (folder / "TestImages.txt").write_text("\n".join(test) + "\n")
    return folder


def class_folders(folder: Path, test: str = "test") -> Path:
    for part, count in (("train", 2), (test, 1)):
        for number, name in enumerate(["b", "a", "c"]):
            for place in range(count):
                save(folder / part / name / f"{place}.JPEG", (100 * number, 0, 0))
    return folder


@pytest.mark.parametrize("images", ["Images", "indoorCVPR_09/Images"])
def test_listed_layout_gives_the_lists_order_and_sorted_classes(tmp_path: Path, images: str) -> None:
    train, test = open_dataset(ROOMS, str(listed_folder(tmp_path, images)))
    assert train.labels.tolist() == [2, 2, 0, 0, 1, 1]  # airport 0, cloister 1, pantry 2
    assert test.labels.tolist() == [2, 0, 1]
    pixels = train.images(np.array([4, 0]))
    assert (pixels.shape, pixels.dtype, pixels.flags.c_contiguous) == ((2, 32, 32, 3), np.uint8, True)
    assert pixels[:, 16, 16].tolist() == [[20, 100, 200], [0, 100, 200]]


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_class_folder_layout_sorts_classes_and_files(tmp_path: Path, test_name: str) -> None:
    class_folders(tmp_path, test_name)
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    train, test = open_dataset(ROOMS, str(tmp_path))
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert test.images(np.array([0, 1, 2]))[:, 5, 5, 0].tolist() == [100, 0, 200]  # a, b, c


@pytest.mark.parametrize(
    ("mode", "form", "expected"),
    [
        ("L", "JPEG", (127, 127, 127)),  # ITU-R 601: 0.299 R + 0.587 G + 0.114 B of (204, 102, 51)
        ("CMYK", "JPEG", (204, 102, 51)),
        ("P", "GIF", (204, 102, 51)),
        ("RGBA", "PNG", (204, 102, 51)),
        ("LA", "PNG", (127, 127, 127)),
        ("1", "PNG", None),
    ],
)
def test_every_mode_behind_a_jpg_name_becomes_rgb(
    tmp_path: Path, mode: str, form: str, expected: tuple[int, int, int] | None
) -> None:
    listed_folder(tmp_path)
    save(tmp_path / "Images/pantry/one.jpg", mode=mode, form=form)
    pixels = open_dataset(ROOMS, str(tmp_path))[0].images(np.array([0]))[0]
    assert pixels.shape == (32, 32, 3)
    if expected:
        assert np.abs(pixels.astype(int) - expected).max() <= 8  # JPEG and palettes are not exact


@pytest.mark.parametrize(
    ("size", "resized"),
    [((300, 100), (96, 32)), ((100, 300), (32, 96)), ((10, 5), (64, 32)), ((32, 32), (32, 32)), ((900, 600), (48, 32))],
)
def test_short_side_is_resized_and_the_centre_kept(
    tmp_path: Path, size: tuple[int, int], resized: tuple[int, int]
) -> None:
    listed_folder(tmp_path)
    noise = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "Images/pantry/one.jpg", "PNG")
    whole = np.asarray(Image.fromarray(noise).resize(resized, Image.Resampling.BILINEAR)).astype(int)
    left, top = (resized[0] - 32) // 2, (resized[1] - 32) // 2
    found = open_dataset(ROOMS, str(tmp_path))[0].images(np.array([0]))[0].astype(int)
    assert np.abs(found - whole[top : top + 32, left : left + 32]).max() <= 1  # rounding


def test_resize_keeps_left_right_top_and_bottom(tmp_path: Path) -> None:
    listed_folder(tmp_path)
    ramp = np.zeros((128, 192, 3), np.uint8)
    ramp[..., 0] = np.arange(192)
    ramp[..., 1] = np.arange(128)[:, None]
    Image.fromarray(ramp).save(tmp_path / "Images/pantry/one.jpg", "PNG")
    image = open_dataset(ROOMS, str(tmp_path))[0].images(np.array([0]))[0].astype(int)
    # 128 pixels to 32: output pixel i covers 4 i .. 4 i + 3; the crop starts at column (192 - 128) / 2 = 32.
    inner = np.arange(2, 30)
    assert np.abs(image[16, 2:30, 0] - (32 + 4 * inner + 1.5)).max() <= 1
    assert np.abs(image[2:30, 16, 1] - (4 * inner + 1.5)).max() <= 1


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<html>", "cut"])
def test_undecodable_image_is_named(tmp_path: Path, content: bytes | str) -> None:
    path = listed_folder(tmp_path) / "Images/airport/two_gif.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    train, _ = open_dataset(ROOMS, str(tmp_path))
    with pytest.raises(DataError, match=r"image \S+Images/airport/two_gif\.jpg cannot be decoded"):
        train.images(np.arange(6))
    assert train.images(np.array([0, 1])).shape[0] == 2  # the others still can


def test_absent_listed_files_are_counted_and_named(tmp_path: Path) -> None:
    listed_folder(tmp_path)
    for name in ("pantry/one.jpg", "airport/one.jpg"):
        (tmp_path / "Images" / name).unlink()
    with (tmp_path / "TrainImages.txt").open("a") as file:
        file.write("\ngarage/x.jpg\ngarage/y.jpg")
    expected = r"TrainImages\.txt lists 8 images, of which 4 are absent .*: pantry/one\.jpg, airport/one\.jpg, "
    with pytest.raises(DataError, match=expected + r"garage/x\.jpg, \.\.\.; unpack"):
        open_dataset(ROOMS, str(tmp_path))


@pytest.mark.parametrize("line", ["one.jpg", "a/b/c.jpg", "/one.jpg", "../one.jpg", "airport/"])
def test_malformed_line_of_a_list_is_named(tmp_path: Path, line: str) -> None:
    listed_folder(tmp_path)
    with (tmp_path / "TestImages.txt").open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=r"TestImages\.txt line 4: .* is not of the form class/file\.jpg"):
        open_dataset(ROOMS, str(tmp_path))


def test_empty_list_is_refused(tmp_path: Path) -> None:
    (listed_folder(tmp_path) / "TestImages.txt").write_text("\n")
    with pytest.raises(DataError, match=r"TestImages\.txt lists no images"):
        open_dataset(ROOMS, str(tmp_path))


def test_file_names_that_are_not_utf8_are_opened(tmp_path: Path) -> None:
    listed_folder(tmp_path)
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    save(tmp_path / "Images" / "pantry" / name, (9, 9, 9))
    (tmp_path / "TestImages.txt").write_bytes(b"pantry/caf\xe9.jpg\n")
    assert open_dataset(ROOMS, str(tmp_path))[1].images(np.array([0]))[0, 0, 0].tolist() == [9, 9, 9]


def test_test_classes_that_training_lacks_are_refused(tmp_path: Path) -> None:
    save(class_folders(tmp_path) / "test" / "d" / "x.png")
    with pytest.raises(DataError, match=r"1 class folders that .*train lacks: d;"):
        open_dataset(ROOMS, str(tmp_path))


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path)
    for path in (tmp_path / "test").glob("*/*"):
        path.unlink()
    with pytest.raises(DataError, match=r"test has no image files; expected are \.jpg, \.jpeg, \.png"):
        open_dataset(ROOMS, str(tmp_path))


@pytest.mark.parametrize("classes", [2, 4])
def test_another_number_of_classes_than_configured_is_refused(tmp_path: Path, classes: int) -> None:
    spec = dataclasses.replace(ROOMS, classes=classes)
    with pytest.raises(DataError, match=rf"has 3 classes .* says {classes}"):
        open_dataset(spec, str(listed_folder(tmp_path)))


def nearest_mean_accuracy(train: Split, test: Split) -> float:
    images, probes = (s.images(np.arange(len(s))).reshape(len(s), -1).astype(np.float32) for s in (train, test))
    means = np.stack([images[train.labels == c].mean(axis=0) for c in range(10)])
    distances = ((probes[:, None] - means[None]) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == test.labels).mean())


def test_synthetic_samples_can_be_learned() -> None:
    assert nearest_mean_accuracy(*open_dataset(SYNTHETIC, None)) > 0.9  # by chance: 0.1


def test_synthetic_samples_depend_on_the_seed_alone() -> None:
    (one, test), (same, _), (other, _) = (open_dataset(SYNTHETIC, None, seed) for seed in (1, 1, 2))
    every = np.arange(500)
    np.testing.assert_array_equal(one.images(every), same.images(every))
    assert (one.images(every) != other.images(every)).mean() > 0.9
    assert (one.images(every[:300]) != test.images(every[:300])).mean() > 0.9
    assert (len(one), len(test), one.image_shape) == (500, 300, (32, 32, 3))
    assert np.bincount(test.labels).tolist() == [30] * 10


def test_synthetic_mean_and_std_are_the_configured_ones() -> None:
    pixels = open_dataset(SYNTHETIC, None)[0].images(np.arange(500)) / 255
    assert pixels.mean() == pytest.approx(0.498, abs=0.01)
    assert pixels.std() == pytest.approx(0.229, abs=0.005)


def test_synthetic_set_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="'synthetic' has test_samples = 0; set it to 1 or more"):
        open_dataset(dataclasses.replace(SYNTHETIC, test_samples=0), None)
    with pytest.raises(DataError, match="seed -1 is negative"):
        open_dataset(SYNTHETIC, None, seed=-1)
