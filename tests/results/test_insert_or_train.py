"""Insert or train on: what the shipped table says, and lesson 14 with it."""

import numpy as np
import pytest
import torch

from labkit.compute import generator
from labkit.depth.study import WAYS, insertion, students
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import load
from labkit.results.depth_width_data import averaged
from labkit.results.insert_or_train import CHOICES, FURTHER, arrays, bars, risks

TABLE = load("insert_or_train").table
BARS, MOVED = arrays(TABLE)
N = {int(n): place for place, n in enumerate(np.unique(TABLE["n"]))}
BEFORE = {60: 0, 400: 1}


def ahead(n, before):
    """Seeds of 12 in which the block is better than the control; the difference and its error."""
    both = BARS[N[n], BEFORE[before], 2]
    return (both < 0).sum(), *averaged(both)


def lowest(n, before):
    return list(CHOICES)[MOVED[N[n], BEFORE[before]].mean(-1).argmin()]


def test_bars_add_up_to_the_difference_of_the_risks():
    direct = TABLE["insert_risk"] - TABLE["continue_risk"]
    assert np.abs(bars(TABLE).sum(1).numpy() - direct).max() <= 1e-12
    assert np.abs(BARS[:, :, 2].ravel() - direct).max() <= 1e-12
    assert not MOVED[:, :, 0].any() and MOVED.shape == (7, 2, 4, 12)


@pytest.mark.parametrize(
    "n, before, seeds, sign",
    [(500, 60, 0, 1), (2000, 60, 0, 1), (2000, 400, 0, 1), (8000, 60, 12, -1), (8000, 400, 12, -1)],
)
def test_data_decide_for_or_against_the_block(n, before, seeds, sign):
    """Section g (vi) of the theory notes: the winner against the control, over 12 seeds."""
    better, mean, error = ahead(n, before)
    assert better == seeds and sign * mean > 3 * error


def test_numbers_of_the_verdict():
    assert averaged(BARS[N[8000], 0, 2]) == pytest.approx((-0.0072, 0.0009), abs=1e-4)
    assert averaged(BARS[N[500], 0, 2])[0] == pytest.approx(0.39, abs=0.005)


def test_after_400_steps_500_samples_are_memorized_either_way():
    """Ahead of the control in 11 of 12 (in the notes in 1), and far worse than stopping."""
    assert ahead(500, 400)[0] == 11
    assert (MOVED[N[500], 1, 1:3] > 0.1).all() and lowest(500, 400) == "stop"


def test_at_the_left_end_the_gap_speaks_for_the_block():
    """Ahead of the control by the gap bar, and worse than before, at (250, 400 steps) by little."""
    for n, before in ((250, 60), (250, 400), (500, 400)):
        gap, changed = averaged(BARS[N[n], BEFORE[before], 1]), averaged(MOVED[N[n], BEFORE[before], 1:3])
        assert gap[0] < -3 * gap[1] and lowest(n, before) == "stop" and (changed[0] > 2 * changed[1]).all()
        assert (changed[0] > 0.4).all() or ((n, before) == (250, 400) and changed[0][1] < 0.1)


def test_training_and_gap_bar_have_their_signs_from_1000_on():
    mean, error = averaged(BARS[N[1000] :])
    assert (mean[:, :, 0] < -3 * error[:, :, 0]).all() and (mean[:, :, 1] > 3 * error[:, :, 1]).all()
    assert (np.diff(mean[:, :, 1], axis=0) < 0).all()  # data shorten the gap bar


def test_what_to_do_with_n_samples():
    assert [lowest(n, 60) for n in (250, 500, 2000)] == ["stop", "stop", "train on"]
    for before, first in ((60, 4000), (400, 8000)):  # the challenge
        wins = [n for n in N if lowest(n, before) == "insert, train all"]
        assert wins == [n for n in N if n >= first]
    mean, error = averaged(MOVED[N[1000], 0, 3])
    assert abs(mean) < error  # stop or train the block: not told apart


def test_a_row_is_an_insertion_alone():
    task = TeacherTask(generator(TEACHER_SEED))
    done = insertion(task, students(task, 300, 20, [3], dtype=torch.float64), [3], further=FURTHER)
    rows = risks(np.array([300, 300]), np.array([20, 20]), np.array([1, 3]))
    for way in WAYS:
        assert rows[f"{way}_risk"][1] == pytest.approx(done.risk[way].item(), rel=1e-6)
        assert rows[f"{way}_train"][1] == pytest.approx(done.train[way].item(), rel=1e-6)
    assert rows["old_risk"][0] != rows["old_risk"][1]


def test_an_insertion_is_the_same_on_every_device(device, monkeypatch):
    monkeypatch.setattr("labkit.results.insert_or_train.FURTHER", 3)
    arguments = np.array([60, 60]), np.array([3, 3]), np.array([0, 1])
    expected = risks(*arguments)
    monkeypatch.setattr("labkit.compute.device", lambda: device.place)
    torch.testing.assert_close(device.back(risks(*arguments)), expected)
