"""Tables of the page: nothing that is the same in every row, and definitions at their terms."""

from __future__ import annotations

import re

import pytest

from analysis.report.html.tables import reduced
from analysis.report.html.terms import TERMS, used_terms, with_terms

HEAD = '<thead><tr><th scope="col">GPUs</th><th scope="col">Runs</th><th scope="col">Speedup</th></tr></thead>\n'


def table(*rows: tuple[str, str, str]) -> str:
    names = ("GPUs", "Runs", "Speedup")
    cells = (
        "".join(f'<td data-label="{name}">{text}</td>' for name, text in zip(names, row, strict=True)) for row in rows
    )
    body = "".join(f"<tr>\n{row}\n</tr>\n" for row in cells)
    return f'{HEAD}<tbody>\n<tr class="series"><th scope="rowgroup" colspan="3">a</th></tr>\n{body}</tbody>'


def test_a_column_with_one_value_is_said_once() -> None:
    html, said = reduced(table(("1", "3", "1.00x"), ("2", "3", "1.90x")))
    assert said == '<p class="note same">In every row: Runs: 3.</p>\n'
    assert "Runs" not in html
    assert 'colspan="2"' in html
    assert '<td data-label="Speedup">1.90x</td>' in html


def test_an_empty_column_is_named_and_the_first_one_always_stays() -> None:
    html, said = reduced(table(("1", "–", "1.00x"), ("1", "", "1.90x")))
    assert said == '<p class="note same">Without a value: Runs.</p>\n'
    assert html.count('data-label="GPUs"') == 2


def test_a_single_row_keeps_what_it_has() -> None:
    html, said = reduced(table(("1", "3", "1.00x")))
    assert (html, said) == (table(("1", "3", "1.00x")), "")


def test_small_words_of_every_cell_are_said_once() -> None:
    rows = [(str(n), str(n), f'{n}x <span class="sub">to 1 GPU</span><span class="sub">{n}–3</span>') for n in (1, 2)]
    html, said = reduced(table(*rows))
    assert said == '<p class="note same">In every row: Speedup: to 1 GPU.</p>\n'
    assert "to 1 GPU" not in html
    assert '<span class="sub">2–3</span>' in html


def test_long_texts_are_wrapped_at_the_left() -> None:
    html, _ = reduced(table(("1", "3", "a text with more than thirty-two characters"), ("2", "4", "short")))
    assert html.count('<td class="words" data-label="Speedup">') == 2
    assert '<th class="words" scope="col">Speedup</th>' in html


def test_every_row_stays_whatever_is_reduced() -> None:
    rows = [(str(n), "3", "–") for n in range(40)]
    html, _ = reduced(table(*rows))
    assert [f'<td data-label="GPUs">{n}</td>' in html for n in range(40)] == [True] * 40


@pytest.mark.parametrize("key", TERMS)
def test_every_term_is_defined_once(key: str) -> None:
    page = f'<a href="#term-{key}">?</a>'
    [(found, term)] = used_terms(page, [])
    assert found == key
    assert len(term.about) > 10
    assert term.about[0].isupper() or term.about[0].isdigit()
    assert term.about.endswith(
        (".", "where a point has a single run: how steady it was, not what another run would give.")
    )


def test_a_sentence_gets_a_question_mark_at_its_terms_and_stays_inert() -> None:
    html = with_terms("<b>a</b>: 84 % efficiency, exposed synchronisation, 9 %, 90 % prediction interval")
    assert html.startswith('&lt;b&gt;a&lt;/b&gt;: <span class="figure">84 %</span> ')
    assert html.count('class="what"') == 3
    assert 'aria-label="What is Efficiency?"' in html
    assert "term-interval" not in html  # the longer term


def test_no_line_break_divides_an_interval_or_a_percentage() -> None:
    sentence = "0.883× speedup (0.568–1.37) on 1,024 ranks, 57 % (16–164 %), 1,000, or 1.2–2.4×."
    html = with_terms(sentence)
    assert re.findall('<span class="figure">(.*?)</span>', html) == ["(0.568–1.37)", "57 %", "(16–164 %)", "1.2–2.4×"]
    assert html.striptags().replace("?", "") == sentence
