import pytest
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from labkit import check
from labkit.checks import exercises
from labkit.checks.verdict import Verdict
from tests.lessons.run import notebooks


def product(w, v):
    return w * v


def total(w, v):
    return w + v


def stub(w, v):
    raise NotImplementedError


def test_verdict_in_a_notebook():
    html = Verdict("00.1", "incorrect", "u < 1 & <b>more</b>", 0.5, 2)._repr_html_()
    assert "✗" in html and "incorrect" in html and "0.5 of 2" in html  # a word and a symbol, not color alone
    assert "u &lt; 1 &amp; &lt;b&gt;" in html and "<b>" not in html
    assert "color:" not in html.replace("background-color:", "")  # the text keeps the theme's color


@pytest.mark.parametrize("answer, symbol", [(product, "✓"), (total, "✗"), (stub, "○")])
def test_verdict_as_text(answer, symbol):
    verdict = check("00.1", answer)
    assert repr(verdict) == f"{symbol} 00.1 {verdict.status} ({verdict.points:g} of 1 point). {verdict.message}"


def test_strict_raises_for_anything_but_correct(monkeypatch):
    monkeypatch.setenv("LABKIT_STRICT", "1")
    assert check("00.1", product).status == "correct"
    with pytest.raises(AssertionError, match="00.1 incorrect .* That is the sum"):
        check("00.1", total)
    with pytest.raises(AssertionError, match="not attempted"):
        check("00.1", stub)


def test_grading_shows_the_number_and_prints_the_reason(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_GRADING", "1")
    for answer, points in ((product, "1"), (total, "0"), (stub, "0")):
        verdict = check("00.1", answer)
        assert repr(verdict) == points and verdict._repr_html_() is None
        out, err = capsys.readouterr()
        assert verdict.message in out and err == ""  # nbgrader gives 0 to a cell that wrote to stderr


def unsigned(w, v):
    return abs(w**2 - v**2)  # half of the points of 01.1


@pytest.mark.parametrize(
    "id, answer, points", [("00.1", product, 1), ("00.1", total, 0), ("00.1", stub, 0), ("01.1", unsigned, 1)]
)
def test_nbgrader_reads_the_points(id, answer, points, monkeypatch):
    """The outputs of the check cell, as a kernel makes them, through nbgrader's own reading of the grade."""
    monkeypatch.setenv("LABKIT_GRADING", "1")
    verdict = check(id, answer)
    data, metadata = DisplayFormatter().format(verdict)
    cell = new_code_cell(f'check("{id}", answer)', outputs=[new_output("execute_result", data, metadata=metadata)])
    cell.metadata["nbgrader"] = {"grade": True, "solution": False, "points": verdict.max_points}
    assert determine_grade(cell) == (points, verdict.max_points)


@pytest.mark.parametrize("id", ["02.9", "77.1", "", 2.1, None])
def test_unknown_exercise_lists_the_known_ones(id):
    with pytest.raises(ValueError, match="unknown exercise .* known: 00.1, 01.1, "):
        check(id, product)


def test_exercises_table():
    table = exercises()
    assert list(table) == sorted(table) and {id[:2] for id in table} == {
        path.name[:2] for path in notebooks("solutions")
    }
    assert list(exercises("01")) == ["01.1", "01.2", "01.3", "01.4"]
    for exercise in table.values():
        assert exercise.points >= 1 and 1 <= exercise.difficulty <= 3 and 2 <= exercise.minutes <= 30
    assert sum(exercise.minutes for exercise in exercises("01").values()) <= 30  # of the lesson's 40


def test_nbgraders_autograder_is_recognized(monkeypatch):
    """nbgrader gives full points to a value that is not a number, so a wrong answer must be one."""
    monkeypatch.delenv("LABKIT_GRADING", raising=False)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert repr(check("00.1", lambda w, v: w + v)) == "0"


@pytest.mark.parametrize("variable", ["LABKIT_GRADING", "LABKIT_STRICT"])
def test_a_flag_that_is_neither_on_nor_off_is_refused(variable, monkeypatch):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ValueError, match=f"{variable} must be 0 or 1, got 'true'"):
        check("00.1", lambda w, v: w + v)
