"""The notebooks of this repository: every master keeps the rules, every lesson is what its master gives."""

import re
from pathlib import Path

import pytest

from labkit.course.build import drift, masters, read
from labkit.course.lint import SOLUTION, lint

ROOT = Path(__file__).parents[2]
SOLUTIONS, LESSONS = ROOT / "solutions", ROOT / "lessons"


def names(path):
    return path.stem


def test_there_is_a_course():
    assert masters(SOLUTIONS)


@pytest.mark.parametrize("path", masters(SOLUTIONS), ids=names)
def test_a_master_keeps_the_rules(path):
    assert lint(path) == []


def test_lessons_are_what_their_masters_give():
    assert drift(SOLUTIONS, LESSONS) == []


@pytest.mark.parametrize("path", masters(SOLUTIONS), ids=names)
def test_no_solution_leaks_into_a_lesson(path):
    """Not through a stub, an output, the metadata or a second copy of the code: no block of a solution is found."""
    given = "\n".join(cell.source for cell in read(LESSONS / path.name).cells)
    regions = [block for cell in read(path).cells for block in SOLUTION.findall(cell.source)]
    assert len(regions) == sum("-answer" in str(cell.metadata) for cell in read(path).cells)
    for region in regions:
        answer = "\n".join(line for line in region.splitlines() if "SOLUTION" not in line)
        assert answer.strip() and answer not in given
    assert not re.search("(BEGIN|END) (SOLUTION|HIDDEN)", (LESSONS / path.name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", masters(LESSONS), ids=names)
def test_a_lesson_is_handed_out_clean(path):
    notebook = read(path)
    assert notebook.metadata.kernelspec.name == "python3" and "widgets" not in notebook.metadata
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
