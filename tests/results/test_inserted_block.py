"""What the shipped table of inserted blocks says, and lesson 12 with it."""

import numpy as np
import pytest
import torch

from labkit import compute, training
from labkit.depth import jumpboard, network
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import inserted_block, load
from labkit.results.inserted_block import bars, insertion

TABLE = load("inserted_block").table


def mean_and_error(values):
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def at(loss=0, **values):
    """The total, the three bars and the control of a setting, each (seed,)."""
    rows = TABLE.select(**values)
    found = bars(rows, loss)
    control = torch.as_tensor(rows["continued_test"][:, loss] - rows["old_test"][:, loss])
    return found.total, found.jumpboard, found.training, found.gap, control


def test_bars_add_up_everywhere():
    for loss in (0, 1):
        found = bars(TABLE, loss)
        assert (found.jumpboard + found.training + found.gap - found.total).abs().max() <= 1e-14


@pytest.mark.parametrize("n, sign", [(500, 1), (8000, -1)])
def test_data_decide_the_sign(n, sign):
    """The rows (500, 60) and (8000, 60) of the theory notes: every seed on the same side, and of the control too."""
    total, jump, trained, gap, control = at(n=n, pretraining=60, further=200)
    assert (sign * total > 0).all()
    assert (sign * (total - control) > 0).all()  # 500: worse than training on; 8000: better
    assert (trained < 0).all() and (gap > 0).all()
    assert sign * jump.mean() > 2 * jump.std() / len(jump) ** 0.5


@pytest.mark.parametrize("loss, old, new, sign", [(0, -0.029, -0.010, 1), (1, -0.049, -0.057, -1)])
def test_at_2000_the_loss_decides_whether_training_on_beats_the_block(loss, old, new, sign):
    total, *_, control = at(loss, n=2000, pretraining=60, further=200)
    difference, error = mean_and_error(total - control)
    assert sign * difference > 3 * error
    assert [round(control.mean().item(), 3), round(total.mean().item(), 3)] == [old, new]


def test_the_sum_of_the_other_loss_is_negative_even_at_250():
    for further in (25, 50, 100, 200, 400):
        mean, error = mean_and_error(at(1, n=250, pretraining=60, further=further)[0])
        assert mean < -3 * error


def test_a_step_that_the_sample_likes_need_not_please_the_test_set():
    for before in (60, 400):
        mean, error = mean_and_error(at(n=500, pretraining=before, further=200)[1])
        assert mean > 3 * error
    long = TABLE.select(pretraining=400, further=200)
    for n in np.unique(long["n"]):
        assert abs(bars(long.select(n=n)).jumpboard.mean()) < 0.01  # next to nothing is left to gain


def test_where_nothing_beats_the_jumpboard_two_bars_are_zero():
    rows = TABLE.select(n=500, pretraining=400, further=25)
    found = bars(rows)
    assert rows["fell_back"].all() and (found.training == 0).all() and found.gap.abs().max() < 1e-12


def test_cross_entropy_explodes_where_the_other_loss_falls():
    assert at(n=500, pretraining=60, further=200)[0].min() > 0.5
    assert at(loss=1, n=500, pretraining=60, further=200)[0].max() < 0


def test_the_fallback_keeps_the_training_bar_negative():
    assert (bars(TABLE).training <= 0).all()
    assert not TABLE["fell_back"].all()


def test_a_row_is_what_its_parts_give():
    """One seed by hand, with stacks of one, and in a batch with others."""
    n, before, steps, seed = 300, 20, 10, 3
    task = TeacherTask(compute.generator(TEACHER_SEED))
    x, y = task.sample(n, compute.generator(inserted_block.APART + seed))
    draw = [training.generators([inserted_block.APART * part + seed]) for part in range(2, 5)]
    old = network.PostNormResNet(9, 16, 2, 16, 4, generators=draw[0])
    old = network.fit(old, x, y, before, generators=draw[2]).model
    start = network.insert_block(old, 1, 32, generators=draw[1])
    order = training.generators([inserted_block.APART * 5 + seed])
    new = network.fit(start, x, y, steps, generators=order).model
    together = insertion(np.array([n, n, n]), np.array([before] * 3), np.array([steps, 15, steps]), np.array([1, 3, 3]))
    assert together["new_train"].shape == (3, 2)
    expected = [jumpboard.mean_loss(model, x, y).item() for model in (old, new)]
    assert [together["old_train"][2, 0], together["new_train"][2, 0]] == pytest.approx(expected, rel=1e-9)
    test_x = task.sample_inputs(inserted_block.TEST, compute.generator(inserted_block.APART - 1))
    assert together["new_test"][2, 1] == pytest.approx(task.risk(new, test_x, "prob").item(), rel=1e-9)
    assert together["new_train"][1, 0] != together["new_train"][2, 0]
