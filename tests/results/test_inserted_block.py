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


def test_training_on_beats_the_block_at_2000():
    total, *_, control = at(n=2000, pretraining=60, further=200)
    difference, error = mean_and_error(total - control)
    assert total.mean() < 0 and difference > 3 * error


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
