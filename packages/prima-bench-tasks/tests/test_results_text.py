"""A result as text and HTML: aligned, and unable to drive whatever shows it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.tasks.results.text import clip, columns_of, number, numbers, printable, result_text, table

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_printable_text_is_one_printable_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


@given(ANY_TEXT.map(printable), st.integers(1, 20))
def test_clipped_text_fits(text: str, columns: int) -> None:
    shown = clip(text, columns)
    assert columns_of(shown) <= columns
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=5))
def test_tables_are_aligned_whatever_is_in_them(rows: list[tuple[str, str]]) -> None:
    lines = table(("a", "b"), [(left, f"{right}|") for left, right in rows], right=(1,))
    assert len(lines) == 2 + len(rows)
    assert len({columns_of(line) for line in lines[2:]}) <= 1


WORDS = st.lists(st.text("ab細", min_size=1, max_size=6), max_size=30).map(" ".join)


@given(st.lists(st.tuples(st.text("ab", max_size=8), WORDS), max_size=5), st.integers(40, 90))
def test_a_folded_table_fits_and_says_everything(rows: list[tuple[str, str]], columns: int) -> None:
    lines = table(("a", "b"), rows, columns=columns)
    assert max(map(columns_of, lines)) <= columns
    whole = table(("a", "b"), rows)
    assert " ".join(lines[2:]).split() == " ".join(whole[2:]).split()


def test_reasons_are_folded_on_a_narrow_terminal(labelled: Any) -> None:
    labels = labelled.solution.obs["type"]
    result = labelled.result(labels, metrics="f1_macro,ece")
    lines = result_text(result, columns=40).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("ece"))
    assert lines[start].endswith("needs class")
    assert [line.strip() for line in lines[start + 1 : start + 3]] == ["probabilities or", "scores"]
    assert result_text(result) == result.to_text()


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, 9.4e-09, 0.0, -0.0, None], ["0.5000", "<0.0001", "0.0000", "0.0000", "—"]),
        ([0.5, 4.9e-05, 5.1e-05, -4.9e-05], ["0.5000", "<0.0001", "0.0001", ">-0.0001"]),
        ([2.5e-05, 9.4e-09, 0.0], ["2.500e-05", "9.400e-09", "0.0000"]),
        ([1.25e7, 0.5], ["1.250e+07", "0.5000"]),
        ([None, None], ["—", "—"]),
        ([], []),
    ],
)
def test_a_column_of_scores_is_written_alike(values: list[float | None], shown: list[str]) -> None:
    assert numbers(values) == shown


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none()))
def test_only_zero_is_written_as_zero(values: list[float | None]) -> None:
    for value, shown in zip(values, numbers(values), strict=True):
        assert (shown == "0.0000") == (value == 0)
        assert number(value) != "0.0000" or value == 0


def test_hostile_names_are_shown_and_do_nothing(labelled: Any) -> None:
    name = "m\x1b[2J\x9b31m\u202e\r\n<b>&"
    result = labelled.result(model=name, metrics="mcc")
    for shown in (result.to_text(), repr(result), result._repr_html_()):
        assert all(c.isprintable() for c in shown.replace("\n", ""))
        assert r"m\x1b[2J" in shown
    assert len(result.to_text().splitlines()) == 8
    assert "<b>" not in result._repr_html_()


def test_skill_is_shown_where_it_is_known(labelled: Any) -> None:
    result = labelled.result(metrics="mcc,accuracy")
    assert "skill" not in result.to_text() + result._repr_html_()
    scores = result.scores | {"mcc": result.scores["mcc"].model_copy(update={"skill": 0.25})}
    skilled = result.model_copy(update={"scores": scores})
    lines = skilled.to_text().splitlines()
    assert lines[2].split() == ["metric", "value", "skill", "classes"]
    assert lines[4].split()[:4] == ["mcc", "↑", f"{result.scores['mcc'].value:.4f}", "0.2500"]
    assert lines[5].split()[3] == "—"
    page = skilled._repr_html_()
    assert page.count("<th ") == 5
    assert page.count("<td ") == 10
    assert ">0.2500</td>" in page
