"""What is taken for a secret, and how it is masked."""

from __future__ import annotations

import itertools

import pytest

from harness.core.system.secret_names import Mask, looks_secret, masked_words


@pytest.mark.parametrize("name", ["--api-key", "WANDB_API_KEY", "hf.token", "--hub-token", "-db_password", "AUTH_KEY"])
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["--pad-token", "--eos_token", "--max-tokens", "--key", "tokenizer", "--monkey"])
def test_other_names(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("words", "shell", "expected"),
    [
        (["a.py", "--token=x", "--token", "y"], False, ["a.py", "--token=<x>", "--token", "<y>"]),
        (["a.py", "--token", "--lr=1"], False, ["a.py", "--token", "--lr=1"]),
        (["a.py", "--token={mine}", "--token", "{mine}"], False, ["a.py", "--token={mine}", "--token", "{mine}"]),
        (["A_TOKEN=x ./a --token 'y z' --n 1"], True, ["A_TOKEN=<x> ./a --token '<y z>' --n 1"]),
        (
            ['./a --token="$MINE" && B_TOKEN=q ./b token text'],
            True,
            ['./a --token="$MINE" && B_TOKEN=<q> ./b token text'],
        ),
    ],
)
def test_values_in_a_command_are_replaced(words: list[str], shell: bool, expected: list[str]) -> None:
    assert masked_words(words, lambda value: f"<{value}>", shell) == expected


def test_a_value_is_masked_wherever_the_output_is_cut() -> None:
    output = b"key abcdefgh, abcd, abcabcdefgh abcdef"
    values = {"A_TOKEN": "abcdefgh", "B_TOKEN": "abcd", "C_TOKEN": "abc"}
    for first, second in itertools.combinations(range(len(output) + 1), 2):
        mask = Mask(values)
        pieces = output[:first], output[first:second], output[second:]
        written = b"".join(map(mask.feed, pieces)) + mask.rest()
        assert b"abcd" not in written, (first, second)
    assert Mask({}).feed(output) == output
