import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.course.build import CODE_STUB, build, drift, lesson, read, text

SECRET = "return 40 + 2"


def answer_cell(source=None, name="01-1-answer", **more):
    source = source or f"def f():\n    ### BEGIN SOLUTION\n    {SECRET}\n    ### END SOLUTION"
    meta = {"grade": False, "solution": True, "locked": False, "grade_id": name, "schema_version": 3}
    return new_code_cell(source, metadata={"nbgrader": {**meta, "cell_type": "code", "task": False}}, **more)


def check_cell(source='check("01.1", f)', name="01-1-check"):
    meta = {"grade": True, "solution": False, "locked": True, "points": 2, "grade_id": name, "schema_version": 3}
    return new_code_cell(source, metadata={"nbgrader": {**meta, "cell_type": "code", "task": False}})


def master():
    return new_notebook(cells=[new_markdown_cell("# A title"), answer_cell(), check_cell()])


@pytest.fixture
def course(tmp_path):
    """Two folders, as in a clone, with one master and its lesson."""
    solutions, lessons = tmp_path / "solutions", tmp_path / "lessons"
    solutions.mkdir()
    (solutions / "01_a.ipynb").write_text(text(master()))
    build(solutions, lessons)
    return solutions, lessons


def test_the_answer_becomes_a_stub_of_two_lines():
    made = lesson(master())
    assert made.cells[1].source == "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError"
    assert SECRET not in text(made) and "SOLUTION" not in text(made)
    assert made.cells[2].source == 'check("01.1", f)'


def test_a_solution_cell_without_a_region_is_a_stub_altogether():
    made = lesson(new_notebook(cells=[answer_cell(f"def f():\n    {SECRET}")]))
    assert made.cells[0].source == CODE_STUB


def test_hidden_tests_do_not_leak():
    source = 'check("01.1", f)\n### BEGIN HIDDEN TESTS\nassert f() == 4242424242\n### END HIDDEN TESTS'
    assert "4242424242" not in text(lesson(new_notebook(cells=[check_cell(source)])))


@pytest.mark.parametrize(
    "source", ["### BEGIN SOLUTION\n1", "### BEGIN SOLUTION\n### BEGIN SOLUTION\n1\n### END SOLUTION"]
)
def test_a_region_that_never_ends_or_is_nested_is_refused(source, caplog):
    with pytest.raises(ValueError, match="must be closed and not nested"):
        lesson(new_notebook(cells=[answer_cell(source)]))


def test_the_master_itself_is_left_as_it_was():
    notebook = master()
    before = text(notebook)
    lesson(notebook)
    assert text(notebook) == before


def test_what_differs_from_run_to_run_is_gone():
    worked = master()
    worked.metadata = {
        "widgets": {"state": {}},
        "kernelspec": {"name": "my-env", "display_name": "Mine", "language": "python"},
        "language_info": {"name": "python", "version": "3.14.1"},
    }
    for number, cell in enumerate(worked.cells):
        cell.metadata.update(collapsed=True, execution={"iopub.status.busy": "2026-01-01"}, tags=["keep"])
        if cell.cell_type == "code":
            cell.execution_count = number
            cell.outputs = [nbformat.v4.new_output("stream", text=SECRET)]
    clean = master()
    for cell, other in zip(clean.cells, worked.cells, strict=True):
        cell.id = other.id
        cell.metadata.tags = ["keep"]
    assert text(lesson(worked)) == text(lesson(clean))


def test_ids_are_kept_and_missing_ones_come_from_the_content():
    notebook = master()
    kept = notebook.cells[0].id
    notebook.cells += [new_markdown_cell("twice"), new_markdown_cell("twice")]
    for cell in notebook.cells[1:]:
        del cell["id"]
    first, second = lesson(notebook), lesson(notebook)
    ids = [cell.id for cell in first.cells]
    assert ids[0] == kept and len(set(ids)) == 5
    assert ids == [cell.id for cell in second.cells]
    nbformat.validate(first)


def test_an_id_that_two_cells_share_is_refused():
    notebook = master()
    notebook.cells[2].id = notebook.cells[1].id = "same"
    with pytest.raises(ValueError, match="a cell id must be unique, got 'same' more than once"):
        lesson(notebook)


def test_reading_invents_nothing(tmp_path):
    notebook = master()
    del notebook.cells[0]["id"]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook))
    assert "id" not in read(path).cells[0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"nbformat": 3}', "\x00"])
def test_a_file_that_is_no_notebook_is_refused_by_name(tmp_path, content):
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    with pytest.raises(ValueError, match="a.ipynb must be a notebook"):
        read(path)


def test_a_second_run_changes_nothing(course):
    solutions, lessons = course
    before = (lessons / "01_a.ipynb").read_bytes()
    assert build(solutions, lessons) == [] and drift(solutions, lessons) == []
    assert (lessons / "01_a.ipynb").read_bytes() == before
    assert before.endswith(b"}\n") and before.startswith(b'{\n "cells"')  # indented by one, one line at the end


def test_a_lesson_can_be_made_from_itself(course):
    """The stub is not mistaken for an answer: an instructor may start from a lesson."""
    _, lessons = course
    made = read(lessons / "01_a.ipynb")
    assert made.cells[0] == lesson(made).cells[0] and made.cells[2] == lesson(made).cells[2]


def test_drift_sees_a_missing_lesson(course):
    solutions, lessons = course
    (lessons / "01_a.ipynb").unlink()
    assert drift(solutions, lessons) == ["lessons/01_a.ipynb is missing"]
    assert build(solutions, lessons) == [lessons / "01_a.ipynb"] and drift(solutions, lessons) == []


def test_drift_names_the_cell_that_was_edited_by_hand(course):
    solutions, lessons = course
    notebook = read(lessons / "01_a.ipynb")
    notebook.cells[2].source += "\n"
    (lessons / "01_a.ipynb").write_text(text(notebook))
    (found,) = drift(solutions, lessons)
    assert "lessons/01_a.ipynb is not what solutions/01_a.ipynb gives" in found and "cell 3" in found


@pytest.mark.parametrize(
    "edit", [lambda s: s + "\n", lambda s: s.replace('"nbformat_minor": 5', '"nbformat_minor": 4'), lambda s: ""]
)
def test_drift_sees_every_byte(course, edit):
    solutions, lessons = course
    path = lessons / "01_a.ipynb"
    path.write_text(edit(path.read_text()))
    assert len(drift(solutions, lessons)) == 1


def test_drift_sees_a_master_that_went_on(course):
    solutions, lessons = course
    notebook = master()
    notebook.cells.append(new_markdown_cell("new"))
    (solutions / "01_a.ipynb").write_text(text(notebook))
    assert len(drift(solutions, lessons)) == 1
    build(solutions, lessons)
    assert drift(solutions, lessons) == []


def test_drift_sees_a_lesson_without_master(course):
    solutions, lessons = course
    (lessons / "02_old.ipynb").write_text(text(master()))
    assert drift(solutions, lessons) == ["lessons/02_old.ipynb has no master in solutions/: delete it"]


def test_a_broken_master_is_named(course):
    solutions, lessons = course
    (solutions / "02_b.ipynb").write_text(text(new_notebook(cells=[answer_cell("### BEGIN SOLUTION")])))
    with pytest.raises(ValueError, match="solutions/02_b.ipynb: a solution"):
        drift(solutions, lessons)


def test_work_in_a_lesson_is_kept_when_lessons_are_made_anew(course):
    solutions, lessons = course
    for work in ("x = 6 * 7", "x = 6 * 9\n# YOUR CODE HERE\nraise NotImplementedError", "my notes"):
        mine = read(lessons / "01_a.ipynb")
        mine.cells[0 if work == "my notes" else 1].source = work
        (lessons / "01_a.ipynb").write_text(text(mine))
        build(solutions, lessons)
        assert not drift(solutions, lessons)
    names = ("01_a.ipynb", "01_a-2.ipynb", "01_a-3.ipynb")
    kept = [(lessons.parent / "answers" / name).read_text() for name in names]
    assert "6 * 7" in kept[0] and "6 * 9" in kept[1] and "my notes" in kept[2]


def test_a_stale_lesson_that_nobody_worked_on_is_simply_replaced(course):
    solutions, lessons = course
    (solutions / "01_a.ipynb").write_text(text(master()).replace("A title", "Another title"))
    assert build(solutions, lessons) == [lessons / "01_a.ipynb"]
    assert not (lessons.parent / "answers").exists()
