"""What lesson 06 says of its shipped grids, in words and numbers, and how it reads them."""

import numpy as np
import pytest

from labkit import plots
from labkit.results import digits_transfer, load

SHIPPED = load("digits_transfer")
GRID, CONTROL, NORMED = (
    digits_transfer.arrays(load(f"digits_{name}").table) for name in ("transfer", "scratch", "batch_norm")
)
PLAIN, CENTERED = {"centered": False}, {"centered": True}


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


def test_averages_are_over_all_that_is_not_given():
    chosen = SHIPPED.table.select(task="new", weight_scale=3.0)
    for k, kappa in enumerate(GRID.axes["kappa"]):
        rows = chosen.select(kappa=kappa)
        means = [rows["accuracy"][rows["seed"] == seed].mean() for seed in GRID.axes["seed"]]
        assert np.allclose(GRID.overall("accuracy", task="new", weight_scale=3.0)[k], means)
    both = [GRID.overall("accuracy", task="new", weight_scale=value) for value in (0.3, 3.0)]
    assert np.allclose(GRID.change("weight_scale", 0.3, 3.0, task="new"), both[1] - both[0])
    assert np.allclose(GRID.gains(True, task="new", weight_scale=3.0), both[1][:-1] - both[1][1:])
    assert np.allclose(GRID.gains(task="shift", n=10), -np.diff(GRID.at("accuracy", task="shift", n=10), axis=0))


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


def test_claim_1_in_numbers():
    """Plain, 3 images: 4 to 6 points. Centered, on average: about 2 points on shift, else n.s."""
    assert [round(100 * GRID.gains(task=task)[0].mean()) for task in GRID.axes["task"]] == [4, 6, 5]
    left = {task: GRID.gains(True, task=task, **CENTERED) for task in GRID.axes["task"]}
    assert {task: signs(rows) for task, rows in left.items()} == {"subset": [0, 0], "new": [0, 1], "shift": [1, 0]}
    assert round(100 * left["shift"][0].mean()) == 2 and round(100 * left["new"][1].mean()) == 1
    for task in GRID.axes["task"]:  # three images, γ = s = 1: not seen anywhere
        assert sign(GRID.gains(task=task, **CENTERED)[0]) == 0
        noise = GRID.gains(True, task=task, **PLAIN)[0] - left[task][0]
        assert sign(noise) == 1 and (noise.mean() > left[task][0].mean()) == (task != "shift"), task


def test_the_large_stem_loses_from_scratch_too():
    assert sign(GRID.gains(task="new", **CENTERED)[1]) == 1
    for task in GRID.axes["task"]:
        rows = CONTROL.gains(task=task, **CENTERED)
        assert signs(rows) == [0, 1] and rows[1].mean() > GRID.gains(True, task=task, **CENTERED)[1].mean(), task


def test_claim_2_a_larger_scale_hurts():
    for centered in (False, True):
        change = {
            task: GRID.change("weight_scale", 0.3, 3.0, task=task, centered=centered) for task in GRID.axes["task"]
        }
        assert all(sign(rows[2]) == -1 for rows in change.values())
        assert signs(change["subset"]) == [-1, -1, -1] and not any(1 in signs(rows) for rows in change.values())
        if centered:
            assert [round(100 * value) for value in change["subset"].mean(1)] == [-2, -2, -2]
            assert [round(100 * change[task][2].mean()) for task in ("new", "shift")] == [-4, -4]


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
    """γ 1 → 0.1. Plain: a gain on every task, more at larger κ and with fewer images. Centered: subset, not shift."""
    for task in GRID.axes["task"]:
        plain = GRID.change("gamma", 1.0, 0.1, task=task, **PLAIN)
        assert signs(plain) == [1, 1, 1] and (np.diff(plain.mean(1)) > 0).all(), task
        few, more = (GRID.change("gamma", 1.0, 0.1, task=task, n=n, **PLAIN).mean(1) for n in (3, 10))
        assert (few > more).all(), task
    left = GRID.change("gamma", 1.0, 0.1, task="subset", **CENTERED)
    assert signs(left) == [1, 1, 1] and 0.01 < left.mean(1).min() and left.mean(1).max() < 0.025
    assert signs(GRID.change("gamma", 1.0, 0.1, task="shift", **CENTERED)) == [0, 0, 0]


def test_claim_4_the_signature_with_hardly_any_gain():
    """Centered, averaged: κ = 0.2 has the least PR, most of it old dimensions; its gain is a point."""
    for task in GRID.axes["task"]:
        before, after, shared = (
            GRID.overall(name, task=task, **CENTERED) for name in ("pr_before", "pr_after", "ensd")
        )
        assert signs(np.diff(after, axis=0)) == [1, 1] and signs(after - before) == [-1, -1, -1], task
        assert sign((after / before)[2] - (after / before)[0]) == 1 and (shared / after).mean(1).min() > 0.9, task
    gain = GRID.gains(True, **CENTERED)[0]
    assert 0 < gain.mean() < 0.015


def test_batch_norm_leaves_the_effect_of_kappa_where_fine_tuning_has_matched_rates():
    lost = []  # at κ = 10 against 1
    for matched in (False, True):
        found = NORMED.overall("accuracy", centered=True, matched=matched)
        assert sign(found[0] - found[4]) == sign(found[2] - found[4]) == 1
        lost.append(round(100 * (found[2] - found[4]).mean()))
    assert lost == [9, 7]
    assert sign(NORMED.change("matched", False, True, **CENTERED)[0]) == 1  # it even helps a small κ
    small, drawn = NORMED.overall("stem_norm", matched=False)[0], 0.1 * NORMED.overall("stem_norm", matched=True)[0]
    assert (small > 3 * drawn).all()  # pretraining forgets that the stem was small


def test_pretraining_does_not_help_on_shift():
    for setting in ({}, CENTERED):
        gained, known = (
            GRID.at("accuracy", task=task, **setting) - CONTROL.at("accuracy", task=task, **setting)
            for task in ("shift", "subset")
        )
        assert signs(gained) == [0, 0, 0] and signs(known) == [1, 1, 1]
