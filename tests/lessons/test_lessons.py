"""Every notebook, master and lesson, runs from top to bottom, and every panel keeps its promises.

nbval runs the same notebooks in a kernel (see the Makefile); here they run in-process, so that panels can be probed.
"""

import functools

import pytest

from labkit import checks
from tests.calibration import slowness, time_factor
from tests.lessons.run import notebooks, run_notebook

QUICK_SECONDS = 30  # a lesson at profile quick

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
def test_predictions_can_be_answered_either_way(path):
    for prediction in run_master(path).predictions:
        assert len(prediction._radio.options) >= 2
        assert prediction.choice is None
        assert prediction.reveal.strip()


@lessons
def test_lesson_runs_as_it_is_handed_out(path):
    """Nothing later may break on a stub, and untouched is not wrong."""
    run = run_notebook(path, strict=False)
    assert [verdict.id for verdict in run.verdicts] == list(checks.exercises(path.name[:2]))
    assert {verdict.status for verdict in run.verdicts} <= {"not attempted"}
