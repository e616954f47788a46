"""Text as sequences of bytes, from files or from a seed."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders import TEXT
from project import PROJECT

from harness.core.data_location import locate
from harness.core.errors import DataError
from harness.core.serialization import from_plain
from harness.core.spec import DatasetSpec
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches

FILES = dataclasses.replace(TEXT, name="text", reader="text", context=4)


def written(folder: Path, **texts: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


def as_text(tokens: np.ndarray) -> list[str]:
    return [bytes(row.astype(np.uint8)).decode() for row in tokens]


def test_a_sample_is_a_sequence_and_its_labels_are_the_bytes_that_follow(tmp_path: Path) -> None:
    # In order of names: 100 bytes, of which the last 10 are the test split.
    root = written(tmp_path / "text", b="hello" * 10, a="abcdefghij" * 5)
    (tmp_path / "text" / "notes.md").write_text("not read")
    train, test = open_dataset(FILES, str(tmp_path))
    assert locate("text", "text", str(tmp_path)) == Path(root)
    assert (len(train), len(test)) == ((90 - 1) // 4, (10 - 1) // 4)
    every = np.arange(len(train))
    assert as_text(train.images(every))[:3] == ["abcd", "efgh", "ijab"]
    assert as_text(train.targets(every))[:3] == ["bcde", "fghi", "jabc"]
    assert as_text(test.images(np.arange(2))) == ["hell", "ohel"]
    assert as_text(test.targets(np.arange(2))) == ["ello", "hell"]


def test_batches_are_tokens_and_as_many_labels(tmp_path: Path) -> None:
    written(tmp_path / "text", a="abcdefghij" * 50)
    train, _ = open_dataset(FILES, str(tmp_path))
    with training_batches(train, FILES, 6, 1, 2, 0) as stream:
        for tokens, labels in islice(stream, 40):
            assert (tokens.dtype, labels.dtype) == (np.uint8, np.int64)
            assert tokens.shape == labels.shape == (3, 4)
            np.testing.assert_array_equal(labels[:, :-1], tokens[:, 1:])
    [*_, (tokens, labels)] = evaluation_batches(train, np.arange(7), 3)
    assert tokens.shape == labels.shape == (1, 4)


def test_too_little_text_is_refused_with_how_much_it_needs(tmp_path: Path) -> None:
    written(tmp_path / "text", a="x" * 49)
    with pytest.raises(DataError, match=r"has 49 bytes in .*/text; with dataset.context=4 it needs at least 50"):
        open_dataset(FILES, str(tmp_path))
    written(tmp_path / "text", a="x" * 50)
    assert [len(split) for split in open_dataset(FILES, str(tmp_path))] == [11, 1]


def test_no_text_says_where_to_put_it(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    with pytest.raises(DataError, match=r"nothing in .*/text\. .* put any text as files \*\.txt into the folder text"):
        locate("text", "text", str(tmp_path))


def test_bytes_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "text", a="~" * 100)
    with pytest.raises(DataError, match="labels of data set 'text' run from 126 to 126, but 64 classes"):
        open_dataset(dataclasses.replace(FILES, classes=64), str(tmp_path))


def test_synthetic_text_is_the_same_for_a_seed_and_follows_its_chain_three_times_in_four() -> None:
    spec = dataclasses.replace(TEXT, context=64)
    (train, test), (again, _), (other, _) = (open_dataset(spec, None, seed) for seed in (0, 0, 1))
    every = np.arange(len(train))
    np.testing.assert_array_equal(train.images(every), again.images(every))
    assert not np.array_equal(train.images(every), other.images(every))
    # The most frequent successor of a token in the training split is also that in the test split.
    counts = np.zeros((256, 256), int)
    np.add.at(counts, (train.images(every), train.targets(every)), 1)
    right = counts.argmax(1)[test.images(np.arange(len(test)))] == test.targets(np.arange(len(test)))
    # 3/4, and 1/256 of the rest; of 4096 tokens five standard deviations are 3.4 %.
    assert right.mean() == pytest.approx(0.751, abs=0.034)


@pytest.mark.parametrize("name", ["text", "synthetic_text"])
def test_what_the_configurations_say_is_text(name: str) -> None:
    spec = from_plain(DatasetSpec, yaml.safe_load((PROJECT / f"conf/dataset/{name}.yaml").read_text()))
    assert spec.sample_shape == (spec.size,) == (1024,)
    assert spec.classes == 256
