"""The readers of published formats, on files written byte by byte and on real data if available."""

from __future__ import annotations

import codecs
import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml
from project import PROJECT

from harness.core.errors import DataError
from harness.core.serialization import from_plain
from harness.core.spec import DatasetSpec
from harness.worker.data.readers import open_dataset

CIFAR = DatasetSpec("cifar10", "cifar10", 10, 3, 32, (0.5,) * 3, (0.25,) * 3)
DIGITS = DatasetSpec("digits", "idx", 10, 1, 28, (0.5,), (0.25,))
RNG = np.random.default_rng(7)
PIXELS = RNG.integers(0, 256, (6, 4, 3072), dtype=np.uint8)  # six files of four images
LABELS = RNG.integers(0, 10, (6, 4))


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2's cPickle wrote it for publication (protocol 2), opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    shape = b"".join(b"J" + struct.pack("<i", n) for n in pixels.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = pixels.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([n]) for n in labels) + b"e"
    names = b"](" + text(b"leptodactylus_pentadactylus_s_000004.png") + b"e"
    items = text(b"data") + array + text(b"labels") + numbers
    items += text(b"batch_label") + text(b"training batch 1 of 5") + text(b"filenames") + names
    return b"\x80\x02}(" + items + b"u."


def cifar_folder(folder: Path, form: str) -> Path:
    for number in range(6):
        pixels, labels = PIXELS[number], LABELS[number].tolist()
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        if form == "binary":
            records = [bytes([label]) + image.tobytes() for label, image in zip(labels, pixels, strict=True)]
            (folder / f"{name}.bin").write_bytes(b"".join(records))
        elif form == "python2":
            (folder / name).write_bytes(python2_pickle(pixels, labels))
        else:
            content = pickle.dumps({"data": pixels, "labels": labels}, protocol=int(form[-1]))
            (folder / name).write_bytes(content)
    return folder


def test_hand_written_pickle_is_what_numpy_reads_as_the_same_batch() -> None:
    batch = pickle.loads(python2_pickle(PIXELS[0], [1, 2, 3, 4]), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], PIXELS[0])
    assert batch[b"labels"] == [1, 2, 3, 4]


@pytest.mark.parametrize("form", ["binary", "python2", "protocol 2", "protocol 3", "protocol 4"])
def test_cifar_reads_the_same_from_every_form(tmp_path: Path, form: str) -> None:
    train, test = open_dataset(CIFAR, str(cifar_folder(tmp_path, form)))
    assert (len(train), len(test), train.image_shape) == (20, 4, (32, 32, 3))
    np.testing.assert_array_equal(train.labels, LABELS[:5].ravel())
    assert train.labels.dtype == test.labels.dtype == np.int64
    image = train.images(np.array([6]))[0]  # third image of the second file
    assert image.dtype == np.uint8
    # Published order: 1024 red, 1024 green, 1024 blue, each row by row.
    for channel, row, column in [(0, 0, 0), (1, 0, 31), (2, 17, 5)]:
        assert image[row, column, channel] == PIXELS[1][2][channel * 1024 + row * 32 + column]
    np.testing.assert_array_equal(test.images(np.array([3]))[0], PIXELS[5][3].reshape(3, 32, 32).transpose(1, 2, 0))


class Attack:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_attack_pickle_is_refused_by_name_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    bomb = pickle.dumps({"data": Attack(os.system, f"touch {marker}"), "labels": [1]}, protocol=protocol)
    (cifar_folder(tmp_path, "python2") / "data_batch_3").write_bytes(bomb)
    with pytest.raises(
        DataError, match=rf"data_batch_3 .* asks for {os.system.__module__}\.system.* {len(bomb)} bytes"
    ):
        open_dataset(CIFAR, str(tmp_path))
    assert not marker.exists()
    pickle.loads(bomb)  # the same bytes do run in a plain unpickler, so the refusal above was what held them
    assert marker.exists()


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (Attack(eval, "1"), r"asks for __builtin__\.eval"),
        (Attack(np.load, "x"), r"asks for numpy\.load"),
        (Attack(codecs.encode, "x", "rot13"), "asks for the encoding 'rot13'"),
    ],
)
def test_other_callables_are_refused(tmp_path: Path, attack: Attack, reason: str) -> None:
    (cifar_folder(tmp_path, "python2") / "test_batch").write_bytes(pickle.dumps([attack], protocol=2))
    with pytest.raises(DataError, match=reason):
        open_dataset(CIFAR, str(tmp_path))


WHOLE = python2_pickle(PIXELS[0], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"EOFError.* 0 bytes"),
        (WHOLE[: len(WHOLE) // 2], rf"cannot be unpickled .* {len(WHOLE) // 2} bytes"),
        (b"<html>404</html>", r"cannot be unpickled .* 16 bytes, expected is a pickled dict"),
        (pickle.dumps([1, 2]), "holds a list, not a dict"),
        (pickle.dumps({"labels": [1]}), r"'data' is not an array of uint8 \[n, 3072\]"),
        (pickle.dumps({"data": PIXELS[0][:, :100], "labels": [1] * 4}, 4), r"'data' is not an array"),
        (pickle.dumps({"data": PIXELS[0].astype(float), "labels": [1] * 4}, 4), "not a whole uint8 array .*f8"),
        (pickle.dumps({"data": PIXELS[0], "labels": ["cat"] * 4}, 4), "'labels' is not a list of small integers"),
        (pickle.dumps({"data": PIXELS[0], "labels": [1] * 3}, 4), "holds 4 images and 3 labels"),
        (WHOLE.replace(b"J\x04\0\0\0J\0\x0c\0\0", b"J\x05\0\0\0J\0\x0c\0\0"), "not a whole uint8 array"),
    ],
    ids=range(10),
)
def test_broken_pickled_batch_names_file_size_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (cifar_folder(tmp_path, "python2") / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_2 is not a CIFAR-10 file: .*{reason}"):
        open_dataset(CIFAR, str(tmp_path))


@pytest.mark.parametrize("size", [0, 1, 3072, 3073 * 4 - 1])
def test_binary_batch_must_be_whole_records(tmp_path: Path, size: int) -> None:
    (cifar_folder(tmp_path, "binary") / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"test_batch\.bin .*3073-byte records; it has {size} bytes.*30730000"):
        open_dataset(CIFAR, str(tmp_path))


def test_labels_outside_the_classes_are_refused(tmp_path: Path) -> None:
    (cifar_folder(tmp_path, "binary") / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match=r"test labels .* run from 10 to 10, but 10 classes have labels 0 to 9"):
        open_dataset(CIFAR, str(tmp_path))


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
DIGIT_LABELS = np.array([3, 1, 4, 1, 9], dtype=np.uint8)


def idx_folder(folder: Path, zipped: bool = False) -> Path:
    for part, count in (("train", 5), ("t10k", 3)):
        for name, values in (("images-idx3", IMAGES[:count]), ("labels-idx1", DIGIT_LABELS[:count])):
            content = idx_bytes(values)
            path = folder / f"{part}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_reads_images_and_labels(tmp_path: Path, zipped: bool) -> None:
    train, test = open_dataset(DIGITS, str(idx_folder(tmp_path, zipped)))
    assert (len(train), len(test), train.image_shape) == (5, 3, (28, 28, 1))
    np.testing.assert_array_equal(train.images(np.array([4, 0]))[..., 0], IMAGES[[4, 0]])
    np.testing.assert_array_equal(test.labels, [3, 1, 4])
    assert test.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes are fewer than its header of 16"),
        (idx_bytes(DIGIT_LABELS) + bytes(20), "magic number is 0x00000801, expected is 0x00000803"),
        (idx_bytes(IMAGES)[:-1], r"header says 5 x 28 x 28 values, which makes 3936 bytes, but it has 3935"),
        (idx_bytes(IMAGES) + b"x", "but it has 3937"),
        (idx_bytes(IMAGES[:4]), "holds 4 images but .*train-labels-idx1-ubyte holds 5 labels"),
    ],
)
def test_broken_idx_file_names_file_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (idx_folder(tmp_path) / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte .*{reason}"):
        open_dataset(DIGITS, str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "not gzip", "flipped byte"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: str) -> None:
    path = idx_folder(tmp_path, zipped=True) / "t10k-images-idx3-ubyte.gz"
    content = path.read_bytes()
    broken = bytearray(content)
    broken[len(content) // 2] ^= 0xFF
    path.write_bytes({"cut": content[: len(content) // 2], "not gzip": b"PK" + content, "flipped byte": broken}[damage])
    with pytest.raises(
        DataError, match=r"t10k-images-idx3-ubyte\.gz is not a valid IDX file: .* not a whole gzip file"
    ):
        open_dataset(DIGITS, str(tmp_path))


def test_images_of_another_form_than_the_configuration_are_refused(tmp_path: Path) -> None:
    spec = DatasetSpec("digits", "idx", 10, 3, 32, (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(DataError, match=r"are 28 x 28 x 1 .* says 32 x 32 x 3; correct .*conf/dataset/digits\.yaml"):
        open_dataset(spec, str(idx_folder(tmp_path)))


def test_empty_split_is_refused(tmp_path: Path) -> None:
    (idx_folder(tmp_path) / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES[:0]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(DIGIT_LABELS[:0]))
    with pytest.raises(DataError, match="test split of data set 'digits' is empty"):
        open_dataset(DIGITS, str(tmp_path))


def test_real_fashion_mnist_has_the_published_counts_and_the_configured_mean_and_std() -> None:
    spec = from_plain(DatasetSpec, yaml.safe_load((PROJECT / "conf/dataset/fashion_mnist.yaml").read_text()))
    try:
        train, test = open_dataset(spec, str(PROJECT / "data"))
    except DataError as error:
        pytest.skip(f"no Fashion-MNIST here: {error}")
    # Xiao et al. 2017, table 1 and section 2: 60,000 and 10,000 images, 10 classes of equal size.
    assert (len(train), len(test)) == (60000, 10000)
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(test.labels).tolist() == [1000] * 10
    pixels = train.images(np.arange(60000)) / np.float32(255)
    assert float(pixels.mean(dtype=np.float64)) == pytest.approx(spec.mean[0], abs=5e-5)
    assert float(pixels.std(dtype=np.float64)) == pytest.approx(spec.std[0], abs=5e-5)
