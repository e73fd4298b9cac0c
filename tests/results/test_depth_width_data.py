"""What the grid of depth, width and data says, with its controls, and lesson 14 with it."""

import numpy as np
import pytest
import torch

from labkit.compute import generator
from labkit.depth.jumpboard import mean_loss
from labkit.depth.study import students
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import load
from labkit.results.depth_width_data import STEPS, TEST, anew, averaged, excess, told, trained

GRID = excess(load("depth_width_data").table)
CONTROLS = load("deep_failures").table
N, WIDTH, DEPTH = ({int(value): place for place, value in enumerate(stops)} for stops in GRID.axes.values())


def change(part, n, width, before, after):
    """Mean and standard error of the difference between two depths, paired by seed."""
    values = getattr(GRID, part)[N[n], WIDTH[width]]
    return averaged(values[DEPTH[after]] - values[DEPTH[before]])


def best(n):
    place = np.unravel_index(GRID.risk[N[n]].mean(-1).argmin(), GRID.risk.shape[1:3])
    return int(GRID.axes["width"][place[0]]), int(GRID.axes["depth"][place[1]])


def test_nothing_is_below_the_least_possible_risk():
    assert GRID.risk.min() > 0.05 and GRID.bayes == pytest.approx(0.581, abs=1e-3)
    assert GRID.train.min() > -GRID.bayes  # a cross-entropy is not negative


def test_the_best_network_grows_with_n_first_wider_then_deeper():
    assert [best(n) for n in (500, 1000, 2000, 4000, 8000)] == [(8, 1), (16, 1), (32, 1), (32, 2), (32, 4)]


@pytest.mark.parametrize("n", [500, 1000])
def test_few_samples_make_wide_and_deep_worst(n):
    """The opposite of "with width, depth helps": verdict (iv) of the theory notes."""
    risk = GRID.risk[N[n]].mean(-1)
    assert risk[WIDTH[32], 1:].min() > risk[: WIDTH[16]].max()
    for width in (8, 16, 32):
        assert change("risk", n, width, 1, 8)[0] > 5 * change("risk", n, width, 1, 8)[1]
    for width in (16, 32):  # more than one block hurts
        assert all(
            change("risk", n, width, 1, depth)[0] > 3 * change("risk", n, width, 1, depth)[1]
            for depth in DEPTH
            if depth > 1
        )
    worst = np.unravel_index(risk.argmax(), risk.shape)
    assert worst[0] == WIDTH[32] and worst[1] in (DEPTH[4], DEPTH[8])
    assert change("risk", n, 32, 8, 16)[0] < 0 < change("train", n, 32, 8, 16)[0]  # memorizes less, harms less


def test_memorizing_ends_below_bayes():
    assert GRID.train[N[500], WIDTH[16], DEPTH[2] :].max() < -0.2


def test_many_samples_reward_depth_only_with_width():
    """n = 8000: under .02 at width 4, .02 to .04 at widths 8 and 16, up to depth 4 at width 32."""
    mean, error = change("risk", 8000, 4, 1, 16)
    assert -0.02 < mean < 0 and error > 0.007
    for width in (8, 16):
        mean, error = change("risk", 8000, width, 1, 16)
        assert -0.04 < mean < -0.02 and -mean > 5 * error
    assert change("risk", 8000, 32, 1, 4)[0] < -0.01 and abs(change("risk", 8000, 32, 4, 8)[0]) < 0.001


def test_at_width_16_the_excess_ends_on_a_floor():
    risk = GRID.risk[N[8000], WIDTH[16]].mean(-1)
    assert [risk[0], risk[-1]] == pytest.approx([0.094, 0.068], abs=5e-4)
    assert abs(risk[-1] - risk[-2]) < 1e-3


def test_the_challenge_is_where_width_32_fails_at_depth_16():
    """The training loss rises there from n = 1000 on, the risk from 4000 on, mostly by one seed of eight."""
    train, risk = (np.diff(part.mean(-1), axis=2) for part in (GRID.train, GRID.risk))
    assert [tuple(place) for place in np.argwhere(train > 0.05)] == [(N[n], WIDTH[32], 3) for n in N if n >= 1000]
    assert [place[0] for place in np.argwhere((train > 0.05) & (risk > 0))] == [N[4000], N[8000]]
    for n in (4000, 8000):
        each = np.diff(GRID.train[N[n], WIDTH[32]], axis=0)[-1]
        assert each.max() > 0.5 * each.sum() and np.sort(each)[-2] < 0.2


def test_unscaled_residuals_fail_in_the_optimizer():
    """Width 4, n = 8000: the training loss rises as much as the risk; with 1/√D neither rises."""
    rows = CONTROLS.select(setting="unscaled", width=4)
    rise = {part: rows.select(depth=16)[part] - rows.select(depth=1)[part] for part in ("risk", "train")}
    for values in rise.values():
        mean, error = averaged(values)
        assert mean > 0.1 and mean > 3 * error
    assert abs(averaged(rise["risk"] - rise["train"])[0]) < 0.02
    assert change("train", 8000, 4, 1, 16)[0] < 0


def test_a_slow_rate_saves_the_deep_and_wide():
    """One seed of eight fails at the usual rate, none at the slow one."""
    usual = GRID.risk[N[8000], WIDTH[32], DEPTH[16]]
    slow = CONTROLS.select(setting="slow", width=32)
    assert (usual > 0.2).sum() == 1
    assert (slow.select(depth=16)["risk"] - GRID.bayes).max() < 0.1
    mean, error = averaged(slow.select(depth=16)["train"] - slow.select(depth=1)["train"])
    assert mean < -5 * error


def test_other_seeds_agree_with_the_grid():
    found = anew(1000, 8, 2, range(100, 108))
    for part in ("risk", "train"):
        (mean, error), (new, spread) = averaged(getattr(GRID, part)[N[1000], 1, 1]), averaged(found[part] - GRID.bayes)
        assert abs(mean - new) < 3 * np.hypot(error, spread)


def test_a_row_is_a_student_trained_alone():
    task = TeacherTask(generator(TEACHER_SEED))
    model, x, y = students(task, 300, STEPS, [3], 4, 2, dtype=torch.float64, lr=3e-3)
    settings = np.array(["usual", "slow", "slow"])
    rows = trained(*(np.array(value) for value in ([300] * 3, [4] * 3, [2] * 3, [3, 1, 3])), settings)
    expected = task.risk(model, task.sample_inputs(TEST, generator(0))).item(), mean_loss(model, x, y).item()
    assert [rows["risk"][2], rows["train"][2]] == pytest.approx(expected, rel=1e-7)
    assert len(set(rows["risk"].tolist())) == 3


def test_told_is_mean_and_standard_error():
    assert told(np.array([1.0, 2.0, 3.0]), 2) == "+2.00 ± 0.58"


def test_training_is_the_same_on_every_device(device, monkeypatch):
    monkeypatch.setattr("labkit.results.depth_width_data.STEPS", 3)
    arguments = [np.array(value) for value in ([50, 50], [4, 8], [1, 2], [0, 0])]
    expected = trained(*arguments)
    monkeypatch.setattr("labkit.compute.device", lambda: device.place)
    torch.testing.assert_close(device.back(trained(*arguments)), expected)
