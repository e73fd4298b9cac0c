"""Digits to digits: what the shipped tables say, and lesson 06 with them."""

from functools import partial

import numpy as np
import pytest

from labkit.results import digits_transfer, load
from labkit.results.digits_transfer import arrays, batch_norm, scratch, transfer, with_matched_norms
from labkit.sweep import Table
from labkit.transfer.digits import finetune, pretrain
from labkit.transfer.resnet import SMALL_BATCH_NORM

TABLE, SCRATCH, NORMED = (load(name).table for name in ("digits_transfer", "digits_scratch", "digits_batch_norm"))
GRID = arrays(TABLE)
SHORT = 4  # steps of pretraining


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(digits_transfer, "pretrain", lambda *a, **k: pretrain(*a, **{"max_steps": SHORT} | k))


def columns(**lists):
    return {name: np.array(values) for name, values in lists.items()}


def test_a_row_is_a_net_alone(short):
    """In whatever order rows come, and whichever others are asked for with them."""
    rows = columns(
        kappa=[5.0, 0.2, 5.0, 5.0],
        weight_scale=[1.0, 3.0, 1.0, 1.0],
        task=["new", "new", "subset", "new"],
        n=[3, 3, 3, 3],
        gamma=[0.1, 1.0, 0.1, 0.1],
        centered=[True, False, True, True],
        seed=[7, 2, 7, 4],
    )
    found = transfer(**rows)
    old = pretrain(5.0, 1.0, [7], max_steps=SHORT)
    new = finetune(old, "new", 3, 0.1, True)
    other = finetune(pretrain(0.2, 3.0, [2], max_steps=SHORT), "new", 3)
    for row, net in ((0, new), (1, other)):
        for name in ("accuracy", "pr_before", "pr_after", "ensd", "cka"):
            assert found[name][row] == pytest.approx(getattr(net, name).item(), rel=1e-5), name
        assert found["steps"][row] == net.phase.steps.item() and found["reached"][row]
    assert found["pretraining_accuracy"][0] == pytest.approx(old.accuracy.item())
    assert (found["pretraining_steps"] == SHORT).all() and found["steps"][2] != found["steps"][0]


def test_from_scratch_the_readout_has_the_scale_of_the_net():
    rows = columns(kappa=[5.0], weight_scale=[3.0], task=["new"], n=[3], centered=[False], seed=[2])
    new = finetune(pretrain(5.0, 3.0, [2], max_steps=0), "new", 3, gamma=3.0 / 5.0)
    found = scratch(**rows)
    assert found["accuracy"][0] == pytest.approx(new.accuracy.item()) and found["steps"][0] == new.phase.steps.item()
    assert not any(name.startswith("pretraining") for name in found)


def test_with_batch_norm_a_row_is_a_net_alone(short):
    rows = {"kappa": [0.3, 0.3], "task": ["subset"] * 2, "centered": [False] * 2, "statistics": ["frozen", "batch"]}
    found = batch_norm(**columns(**rows, matched=[True, False], seed=[5, 5]))
    old = pretrain(0.3, 1.0, [5], net=SMALL_BATCH_NORM, max_steps=SHORT)
    for row, (start, statistics) in enumerate(((with_matched_norms(old), "frozen"), (old, "batch"))):
        new = finetune(start, "subset", 3, statistics=statistics, lr=0.005)
        assert found["accuracy"][row] == pytest.approx(new.accuracy.item())
        assert found["stem_norm"][row] == pytest.approx(start.phase.params["stem"].norm().item(), rel=1e-5)


@pytest.mark.parametrize("table", [TABLE, SCRATCH, NORMED], ids=["transfer", "scratch", "batch norm"])
def test_arrays_are_the_table(table):
    grid = arrays(table)
    assert list(grid.axes)[-2:] == ["kappa", "seed"]
    assert np.prod([len(stops) for stops in grid.axes.values()]) == len(table)
    for row in np.random.default_rng(0).integers(len(table), size=50):
        place = tuple(stops.index(table[name][row].item()) for name, stops in grid.axes.items())
        for name, values in grid.values.items():
            assert values[place] == table[name][row] or np.isnan(values[place]), name
    assert "accuracy" in grid.values and not set(grid.values) & set(grid.axes)


def test_axes_come_in_the_order_of_the_recipe_whatever_the_order_of_the_rows():
    turned = Table({name: column[::-1] for name, column in TABLE.columns.items()})
    grid = arrays(turned)
    assert list(grid.axes) == list(GRID.axes) and grid["accuracy"].shape == GRID["accuracy"].shape
    assert grid["accuracy"][0, 0, 0, 0, 0, 0, 0] == GRID["accuracy"][-1, -1, -1, -1, -1, -1, -1]


# ---- what lesson 06 says


def place(grid, point):
    """The values of a point that names all axes but the seed, by seed."""
    return tuple(stops.index(point[name]) for name, stops in grid.axes.items() if name != "seed")


def paired(grid, first, second, name="accuracy"):
    """Mean and standard error over seeds of the second point minus the first."""
    change = (grid[name][place(grid, second)] - grid[name][place(grid, first)]).astype(float)
    return change.mean(), change.std(ddof=1) / len(change) ** 0.5


AT = partial(dict, task="subset", n=3, gamma=1.0, centered=False, weight_scale=1.0, kappa=1.0)


def test_every_net_learned_to_its_loss():
    """Nothing diverged at these scales, so no average leaves anything out."""
    for table in (TABLE, SCRATCH, NORMED):
        assert not table["diverged"].any() and table["reached"].all() and (table["loss"] <= 0.02).all()
    assert TABLE["pretraining_reached"].all() and NORMED["pretraining_reached"].all()
    assert (TABLE["pretraining_loss"] <= 0.25).all()


@pytest.mark.parametrize("task", ["subset", "new"])
def test_plain_fine_tuning_prefers_small_kappa_and_centering_takes_it_away(task):
    for few, many in ((0.2, 1.0), (1.0, 5.0)):
        plain, error = paired(GRID, AT(task=task, kappa=many), AT(task=task, kappa=few))
        assert plain > 2 * error
    mean, error = paired(GRID, AT(task=task, centered=True), AT(task=task, kappa=0.2, centered=True))
    assert abs(mean) < 2 * error


@pytest.mark.parametrize("task", ["subset", "new", "shift"])
@pytest.mark.parametrize("kappa", [1.0, 5.0])
def test_what_centering_repairs_a_small_readout_repairs_as_well(task, kappa):
    """γ = .1 is almost centered: that is what the smaller readout does."""
    centered = paired(GRID, AT(task=task, kappa=kappa), AT(task=task, kappa=kappa, centered=True))
    small = paired(GRID, AT(task=task, kappa=kappa), AT(task=task, kappa=kappa, gamma=0.1))
    assert centered[0] > 0 and small[0] > 0
    both = paired(GRID, AT(task=task, kappa=kappa, gamma=0.1), AT(task=task, kappa=kappa, gamma=0.1, centered=True))
    assert abs(both[0]) < 0.01


def test_large_kappa_moves_features_less():
    for name, sign in (("cka", 1), ("ensd", 1), ("pr_after", 1)):
        mean, error = paired(GRID, AT(gamma=0.1, kappa=0.2), AT(gamma=0.1, kappa=5.0), name)
        assert sign * mean > 3 * error, name


def test_with_matched_norms_what_kappa_did_to_the_steps_is_gone():
    grid, spread = arrays(NORMED), {}
    for matched in (False, True):
        at = {"task": "subset", "statistics": "batch", "centered": False, "matched": matched}
        steps = [grid["steps"][place(grid, at | {"kappa": kappa})].mean() for kappa in grid.axes["kappa"]]
        spread[matched] = np.ptp(np.log(steps))
    assert spread[True] < 0.5 * spread[False]
