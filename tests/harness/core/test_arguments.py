"""Command lines that cannot be parsed: one sentence, which says what there is."""

from __future__ import annotations

import pytest

from harness.core.arguments import Parser


def parser() -> Parser:
    made = Parser("harness look", description="Look at a study.")
    made.add_argument("study", help="its folder, see below")
    made.add_argument("kind", choices=("csv", "html"), help="what to write")
    made.add_argument("--width", type=int, metavar="MM")
    made.add_argument("--only")
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "kind is missing (what to write: csv, html)"),
        ([], "study is missing (its folder); kind is missing (what to write: csv, html)"),
        (["a", "csv", "b"], "'b' is one argument too many"),
        (
            ["a", "csv", "--onyl=3"],
            "there is no option --onyl=3. Did you mean '--only'? Valid: --help, --width, --only",
        ),
        (["a", "csv", "--width", "x"], "argument --width: invalid int value: 'x'"),
        (["a", "csv", "--width"], "argument --width: expected one argument"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parser().parse_intermixed_args(words)
    assert exited.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"error: {said}; `harness look --help` says more\n")
