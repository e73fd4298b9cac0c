"""Each rule is tested with a master that keeps all rules but this one."""

import copy
import json

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.course.build import KERNEL
from labkit.course.lint import lint


def graded(kind, name, source):
    meta = {"grade": kind == "check", "solution": kind == "answer", "locked": kind == "check", "task": False}
    meta |= {"grade_id": name, "schema_version": 3, "cell_type": "code"} | ({"points": 1} if kind == "check" else {})
    return new_code_cell(source, metadata={"nbgrader": meta})


def good():
    cells = [
        new_markdown_cell("# A question?\n\nPaper: Anguita et al., [arXiv 2602.20062](https://arxiv.org)."),
        new_code_cell("import labkit\n\nlabkit.check_environment()"),
        graded("answer", "01-1-answer", "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION"),
        graded("check", "01-1-check", 'check("01.1", f)'),
        new_markdown_cell("## Does it hold?"),
        *(new_markdown_cell(f"step {i}") for i in range(16)),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": dict(KERNEL)})


def lint_of(notebook, folder, name="01_a.ipynb"):
    path = folder / name
    path.write_text(json.dumps(notebook))
    return lint(path)


def test_a_good_master_has_no_findings(tmp_path):
    assert lint_of(good(), tmp_path) == []


def source(cell, value):
    return lambda notebook: notebook.cells[cell].update(source=value)


def meta(cell, **changed):
    return lambda notebook: notebook.cells[cell].metadata.nbgrader.update(changed)


def added(*cells):
    return lambda notebook: notebook.cells.extend(copy.deepcopy(cells))


def without(*cells):
    return lambda notebook: [notebook.cells.pop(i) for i in sorted(cells, reverse=True)]


BROKEN = {
    "kernelspec": lambda notebook: notebook.metadata.kernelspec.update(name="my-env"),
    "widget state": lambda notebook: notebook.metadata.update(widgets={"state": {}}),
    "cell id 'twice' must": lambda notebook: [notebook.cells[i].update(id="twice") for i in (0, 1)],
    "cell id None must": lambda notebook: notebook.cells[0].pop("id"),
    "cell 2 holds an output or": lambda notebook: notebook.cells[1].update(execution_count=3),
    "20 to 40 cells, got 41": added(*(new_markdown_cell(str(i)) for i in range(20))),
    "20 to 40 cells, got 19": without(19, 20),
    "1500 words of prose, got": source(5, "word " * 1500),
    "cell 2 has 26 lines": source(1, "labkit.check_environment()" + "\n" * 24 + "\n1"),
    "150 lines of code": added(*(new_code_cell("x = 1\n" * 25) for _ in range(6))),
    "cell 4 is not plain Python": source(3, '%time check("01.1", f)'),
    "cell 3 is not plain Python": source(2, "!pip install x\n### BEGIN SOLUTION\n1\n### END SOLUTION"),
    "got get_ipython": added(new_code_cell("get_ipython()")),
    "got pandas.io": added(new_code_cell("import numpy, pandas.io")),
    "got scipy": added(new_code_cell("from scipy import linalg")),
    "must be the title card": source(0, "Some words, arXiv 2602.20062"),
    "must name the paper": source(0, "# A question?"),
    "heading 'Does it hold?'": source(4, "Does it hold?"),
    "must call check_environment": source(1, "import labkit"),
    "between ### BEGIN SOLUTION": source(2, "def f(x):\n    # BEGIN SOLUTION\n    return x"),
    "nbgrader does not know it": source(1, "check_environment()\n### BEGIN SOLUTION\n1\n### END SOLUTION"),
    "schema_version 3": meta(3, schema_version=2),
    "called NN-M-answer": meta(2, grade_id="01-1-solution"),
    "called NN-M-answer and hold": source(2, "def f(x): return x"),
    "called NN-M-check and": source(3, 'check("01.2", f)'),
    "locked and give points": meta(3, points=0),
    "no answer cell stands before it": lambda notebook: notebook.cells.insert(2, notebook.cells.pop(3)),
    "exercise '01-1' is checked in 2 cells": added(graded("check", "01-1-check", 'check("01.1", f)')),
    "exercise '01-1' has no check cell": source(3, "") and without(3),
}


@pytest.mark.parametrize("words", BROKEN)
def test_each_rule_is_seen_when_it_is_broken(tmp_path, words):
    notebook = good()
    BROKEN[words](notebook)
    assert any(words in finding for finding in lint_of(notebook, tmp_path))


def test_solutions_formulas_and_code_in_prose_do_not_count(tmp_path):
    notebook = good()
    long = "\n".join(f"    x = {i}" for i in range(20))
    for i in range(2, 10):
        body = f"def f(x):\n    ### BEGIN SOLUTION\n{long}\n    ### END SOLUTION"
        notebook.cells.append(graded("answer", f"01-{i}-answer", body))
        notebook.cells.append(graded("check", f"01-{i}-check", f'check("01.{i}", f)'))
    notebook.cells[5].source = "$$ " + "a " * 2000 + "$$ and $" + "b " * 2000 + "$"
    assert lint_of(notebook, tmp_path) == []


def test_the_lesson_about_the_course_needs_no_paper_and_may_be_short(tmp_path):
    notebook = good()
    notebook.cells = notebook.cells[:4]
    notebook.cells[0].source = "# Start here"
    assert lint_of(notebook, tmp_path, "00_start_here.ipynb") == []
    assert lint_of(notebook, tmp_path, "01_start_here.ipynb") != []


def test_an_answer_in_prose_graded_by_a_person_needs_no_check(tmp_path):
    notebook = good()
    free = {"grade": True, "solution": True, "locked": False, "points": 3, "grade_id": "01-2-essay"}
    free |= {"schema_version": 3, "cell_type": "markdown", "task": False}
    notebook.cells.append(new_markdown_cell("An essay.", metadata={"nbgrader": free}))
    assert lint_of(notebook, tmp_path) == []
