"""Every notebook, master and lesson, runs from top to bottom, and every panel keeps its promises.

nbval runs the same notebooks in a kernel (see the Makefile); here they run in-process, so that panels can be probed.
"""

import functools
import re

import pytest

from labkit import Slider, checks
from labkit.course.build import read
from tests.calibration import slowness, time_factor
from tests.lessons.run import notebooks, run_notebook

QUICK_SECONDS = 30  # a lesson at profile quick
LABEL = r"^#{2,3} Exercise (\d\d\.\d) · .+\n([★☆]{3}) · (\d+) minutes · (\d+) points?$"

masters = pytest.mark.parametrize("path", notebooks("solutions"), ids=lambda path: path.stem)
lessons = pytest.mark.parametrize("path", notebooks("lessons"), ids=lambda path: path.stem)


@functools.cache
def run_master(path):
    return run_notebook(path, strict=True)


def test_there_are_notebooks():
    """An empty folder would make every test below pass."""
    assert notebooks("solutions")
    assert [path.name for path in notebooks("lessons")] == [path.name for path in notebooks("solutions")]


@masters
def test_master_solves_every_exercise(path):
    run = run_master(path)
    assert [verdict.id for verdict in run.verdicts] == list(checks.exercises(path.name[:2]))
    assert {verdict.status for verdict in run.verdicts} <= {"correct"}
    assert run.seconds <= QUICK_SECONDS * slowness()


@masters
def test_panels_keep_their_promises(path):
    """Finite results, sentences, pictures that change, budgets: see `Panel.probe`."""
    trouble = []
    for number, panel in enumerate(run_master(path).panels, 1):
        try:
            panel.probe(time_factor=time_factor())
        except AssertionError as problems:
            trouble.append(f"panel {number} of {path.name}: {problems}")
    assert not trouble, "\n".join(trouble)


@masters
def test_every_lesson_predicts_and_moves(path):
    run = run_master(path)
    assert run.predictions
    assert any(panel.controls for panel in run.panels)


@lessons
def test_lesson_runs_as_it_is_handed_out(path):
    """Nothing later may break on a stub, and untouched is not wrong."""
    run = run_notebook(path, strict=False)
    assert [verdict.id for verdict in run.verdicts] == list(checks.exercises(path.name[:2]))
    assert {verdict.status for verdict in run.verdicts} <= {"not attempted"}


@masters
def test_labels_say_what_the_checks_give(path):
    """Stars, minutes and points stand twice: in the heading of an exercise and in the table of its check."""
    cells = read(path).cells
    labels = {
        id: (label.count("★"), int(minutes), int(points))
        for cell in cells
        for id, label, minutes, points in re.findall(LABEL, cell.source, re.MULTILINE)
    }
    table = checks.exercises(path.name[:2])
    assert labels == {id: (it.difficulty, it.minutes, it.points) for id, it in table.items()}
    graded = [cell.metadata.nbgrader for cell in cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert {meta.grade_id: meta.points for meta in graded} == {
        f"{id.replace('.', '-')}-check": it.points for id, it in table.items()
    }


@masters
def test_handles_reach_their_stops(path):
    """`probe` sets the value of a control; a learner moves its handle."""
    for panel in run_master(path).panels:
        for name, control in panel.controls.items():
            if isinstance(control, Slider):
                for at in (0, 1, len(control.stops) // 2, len(control.stops) - 2, len(control.stops) - 1):
                    control._handle.value = at
                    assert (control._handle.value, panel.values[name]) == (at, control.stops[at])
        panel.reset()
