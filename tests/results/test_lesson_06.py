"""What lesson 06 says of its shipped grids, in words and numbers, and how it reads them."""

import numpy as np
import pytest

from labkit import plots
from labkit.results import digits_transfer, load

SHIPPED = load("digits_transfer")
GRID, CONTROL = (digits_transfer.arrays(load(name).table) for name in ("digits_transfer", "digits_scratch"))
CENTERED = {"centered": True}


def sign(differences):
    """−1, 0 or 1: what is seen of a mean over the seeds."""
    return int(plots.seen(differences) * np.sign(np.mean(differences)))


def signs(rows):
    return [sign(row) for row in rows]


def test_a_setting_is_found_in_the_table():
    setting = {"task": "new", "n": 10, "gamma": 0.1, "centered": True, "weight_scale": 3.0, "kappa": 0.2}
    rows = SHIPPED.table.select(**setting)
    order = np.argsort(rows["seed"])
    for name in ("accuracy", "pr_after", "steps"):
        assert np.array_equal(GRID.at(name, **setting), rows[name][order])
    assert GRID.at("accuracy", **setting | {"kappa": None}).shape == (3, SHIPPED.meta["seeds"])
    assert np.array_equal(GRID["accuracy"][GRID.place(**setting)], rows["accuracy"][order])
    usual = SHIPPED.table.select(task="subset", n=3, gamma=1.0, centered=False, weight_scale=1.0)
    small, balanced = (usual.select(kappa=kappa) for kappa in (0.2, 1.0))
    assert np.allclose(np.sort(GRID.gains()[0]), np.sort(small["accuracy"] - balanced["accuracy"]))


@pytest.mark.parametrize(
    "setting, sentence",
    [
        ({"color": 1}, r"a setting has task, .*, got color"),
        ({"kappa": 0.3}, r"kappa must be one of \[0.2, 1.0, 5.0\], got 0.3"),
        ({"task": "old"}, r"task must be one of .*, got 'old'"),
    ],
)
def test_what_is_not_in_the_grid_is_refused(setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        GRID.at("accuracy", **setting)


def test_nothing_diverged_and_every_net_reached_its_loss():
    for grid in (GRID, CONTROL):
        assert not grid["diverged"].any() and grid["reached"].all() and np.isfinite(grid["accuracy"]).all()


def test_claim_1_plain_a_smaller_stem_is_better():
    """Three images a class: both steps, on all tasks."""
    for task in GRID.axes["task"]:
        assert signs(GRID.gains(task=task)) == [1, 1], task


def test_claim_1_what_is_left_after_centering():
    """κ = 0.2 against 1 is nowhere seen; κ = 5 loses on new, 3 images a class, and from scratch on every task."""
    for task in GRID.axes["task"]:
        for n in GRID.axes["n"]:
            assert sign(GRID.gains(task=task, n=n, **CENTERED)[0]) == 0, (task, n)
    assert signs(GRID.gains(**CENTERED)) == [0, 0]
    assert sign(GRID.gains(task="new", **CENTERED)[1]) == 1
    for task in GRID.axes["task"]:
        assert signs(CONTROL.gains(task=task, **CENTERED)) == [0, 1], task


def test_the_prediction():
    """Four points in the plain protocol, and centering takes them: what is left is not seen."""
    plain, centered = GRID.gains()[0], GRID.gains(**CENTERED)[0]
    assert round(100 * plain.mean()) == 4 and sign(plain) == 1 and sign(centered) == 0
    assert sign(plain - centered) == 1  # so the noise itself is seen


def test_centering_helps_itself():
    """The accuracy rises when the noise is gone, more the larger κ."""
    for task in GRID.axes["task"]:
        rise = (GRID.at("accuracy", task=task, **CENTERED) - GRID.at("accuracy", task=task)).mean(1)
        assert 0 < rise[0] < rise[1] < rise[2], task


def test_claim_3_a_small_readout():
    """γ 1 → 0.1: plain, every task gains and more at larger κ; centered, subset still gains 1 to 3 points."""

    def change(**setting):
        return GRID.at("accuracy", gamma=0.1, **setting) - GRID.at("accuracy", gamma=1.0, **setting)

    for task in GRID.axes["task"]:
        plain = change(task=task)
        assert signs(plain)[1:] == [1, 1] and (np.diff(plain.mean(1)) > 0).all(), task
    left = change(**CENTERED)
    assert signs(left) == [1, 1, 1] and 0.01 < left.mean(1).min() and left.mean(1).max() < 0.04
    assert signs(change(task="shift", **CENTERED)) == [0, 0, 0]
    assert signs(change(task="new", **CENTERED))[:2] == [0, 0]


def test_claim_4_the_signature_without_the_gain():
    """κ = 0.2 compresses more than κ = 5 and keeps what is left of the dimensions; accuracy does not follow."""
    compression, kept = GRID["pr_after"] / GRID["pr_before"], GRID["ensd"] / GRID["pr_after"]
    centered = compression[:, :, :, 1].mean(-1)
    assert (centered[..., 0] < centered[..., 2]).all()
    assert kept[:, :, :, 1].mean(-1).min() > 0.85


def test_pretraining_does_not_help_on_shift():
    for setting in ({}, CENTERED):
        gained = GRID.at("accuracy", task="shift", **setting) - CONTROL.at("accuracy", task="shift", **setting)
        assert signs(gained) == [0, 0, 0]
        for task in ("subset",):
            known = GRID.at("accuracy", task=task, **setting) - CONTROL.at("accuracy", task=task, **setting)
            assert signs(known) == [1, 1, 1]
