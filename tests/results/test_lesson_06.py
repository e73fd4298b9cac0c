"""What lesson 06 says of its shipped grids, in words and numbers, and how it reads them."""

import numpy as np
import pytest
import torch

from labkit import plots
from labkit.data import digits
from labkit.results import digits_transfer, load
from labkit.training import cross_entropy, gradients
from labkit.transfer import digits as study
from labkit.transfer.resnet import SMALL_BATCH_NORM

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
    assert round(100 * left["shift"][0].mean()) == 2 and round(100 * float(left["new"][1].mean()), 1) == 1.1
    for task in GRID.axes["task"]:  # three images, γ = s = 1: not seen anywhere
        assert sign(GRID.gains(task=task, **CENTERED)[0]) == 0
        was = GRID.gains(True, task=task, **PLAIN)[0]
        told = {"subset": (1.5, 0.3), "new": (1.2, 0.5), "shift": (2.6, 2.1)}[task]
        assert tuple(round(100 * float(rows.mean()), 1) for rows in (was, left[task][0])) == told
        assert sign(was) == 1
        noise = was - left[task][0]
        assert sign(noise) == 1 and (noise.mean() > left[task][0].mean()) == (task != "shift"), task


def test_the_large_stem_loses_from_scratch_too():
    assert sign(GRID.gains(task="new", **CENTERED)[1]) == 1
    for task in GRID.axes["task"]:
        rows = CONTROL.gains(task=task, **CENTERED)
        assert signs(rows) == [0, 1] and rows[1].mean() > GRID.gains(True, task=task, **CENTERED)[1].mean(), task
        assert 0.03 < CONTROL.gains(True, task=task, **CENTERED)[1].mean() < 0.05, task


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
            small = [GRID.change("weight_scale", 0.3, 1.0, task=task, **CENTERED) for task in change]
            assert {sign for rows in small for sign in signs(rows)} == {-1, 0, 1}  # either way
            assert np.abs(np.mean(small, -1)).max() < 0.02


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
        for n in (3, 10):  # and this at either number of images
            rows = GRID.change("gamma", 1.0, 0.1, task=task, n=n, **PLAIN)
            assert (np.diff(rows.mean(1)) > 0).all() and sign(rows[2]) == 1, (task, n)
    left = {
        task: [GRID.change("gamma", 1.0, 0.1, task=task, n=n, **CENTERED) for n in (3, 10)]
        for task in GRID.axes["task"]
    }
    seen = {task: [signs(rows) for rows in both] for task, both in left.items()}
    assert seen == {"subset": [[1, 1, 1]] * 2, "new": [[0, 1, 1], [0, 0, 0]], "shift": [[0, 0, 0]] * 2}
    subset, new = (100 * np.mean(left[task], -1) for task in ("subset", "new"))
    assert 0.5 < subset.min() and subset.max() < 4 and round(new.max(), 1) == 1.5


def test_claim_4_the_signature_and_a_gain_on_shift_only():
    """Centered, averaged: κ = 0.2 has the least PR, most of it old dimensions; only on shift it is seen to gain."""
    for task in GRID.axes["task"]:
        before, after, shared = (
            GRID.overall(name, task=task, **CENTERED) for name in ("pr_before", "pr_after", "ensd")
        )
        assert signs(np.diff(after, axis=0)) == [1, 1] and signs(after - before) == [-1, -1, -1], task
        assert sign((after / before)[2] - (after / before)[0]) == 1 and (shared / after).mean(1).min() > 0.9, task
        assert sign(GRID.gains(True, task=task, **CENTERED)[0]) == (task == "shift"), task
    kept = (GRID["ensd"] / GRID["pr_after"])[:, :, :, 1].mean(-1)  # a setting each
    assert kept.size == 108 and 0.8 < kept.min() and kept.max() < 1.16


def test_the_challenge_can_be_met_and_chance_would_meet_it_too():
    found = [
        GRID.gains(task=task, n=n, gamma=gamma, weight_scale=scale, **CENTERED)[1]
        for task in GRID.axes["task"]
        for n in GRID.axes["n"]
        for gamma in GRID.axes["gamma"]
        for scale in GRID.axes["weight_scale"]
    ]
    assert len(found) == 36 and sum(map(plots.gained, found)) == 6
    assert sum(sign(row) == -1 for row in found) == 1  # seen, and the other way


def test_what_five_seeds_would_show():
    """± of the means of five seeds from the scatter of the shipped ones, 3 images and γ = s = 1."""
    rows = np.stack([GRID.gains(task=task, centered=way) for task in GRID.axes["task"] for way in (False, True)])
    error = 100 * rows.std(-1, ddof=1) / 5**0.5
    assert 0.5 < error.min() and error.max() < 3.5
    mean, scatter = 100 * rows[0].mean(-1), 100 * rows[0].std(-1, ddof=1)  # subset, plain: κ .2 over 1, 1 over 5
    assert mean[1] > 2 * scatter[1] / 5**0.5 and 2 * scatter[0] / 10**0.5 < mean[0] < 2 * scatter[0] / 5**0.5


def test_what_stays_of_f_init_after_pretraining():
    """Its rms is that of the features z; what the training features do not span stays."""
    old = study.pretrain([0.2, 1.0, 5.0] * 2, 1.0, [0, 0, 0, 1, 1, 1])
    (few, _), (x, _) = study.few_shots(old, "subset", 3)
    with torch.no_grad():
        z, z_test = (old.net.features(old.phase.params, images).double() for images in (few, x))
    stays = z_test - z_test @ torch.linalg.pinv(z) @ z
    rms, left = (part.square().mean((1, 2)).sqrt().view(2, 3).mean(0).numpy() for part in (z_test, stays))
    assert np.allclose(rms, [1.7, 4.8, 6.0], rtol=0.1) and np.allclose(left, [0.3, 1.0, 1.5], rtol=0.2)


def test_gradients_are_clipped_at_the_start_where_kappa_is_far_from_one():
    for kappa in digits_transfer.BATCH_NORM_KAPPAS:
        old = study.pretrain(kappa, 1.0, [0, 1, 2], net=SMALL_BATCH_NORM, max_steps=0)
        x, y = (torch.stack(part) for part in zip(*(pictures(seed) for seed in (0, 1, 2)), strict=True))
        _, slopes = gradients(old.net.forward, old.initial, x, y, cross_entropy)
        norms = sum(slope.flatten(1).square().sum(1) for slope in slopes.values()).sqrt()
        assert ((norms > study.CLIP) == (kappa in (0.1, 10.0))).all(), kappa


def pictures(seed):
    train, _ = digits.pretraining(seed)
    return train.x[: study.PRETRAINING["batch"]].float(), train.y[: study.PRETRAINING["batch"]]


def test_batch_norm_leaves_the_effect_of_kappa_where_fine_tuning_has_matched_rates():
    lost = []  # at κ = 10 against 1
    for matched in (False, True):
        found = NORMED.overall("accuracy", centered=True, matched=matched)
        assert sign(found[0] - found[4]) == sign(found[2] - found[4]) == 1
        lost.append(round(100 * (found[2] - found[4]).mean()))
    assert lost == [9, 7]
    assert sign(NORMED.change("matched", False, True, **CENTERED)[0]) == 1  # it even helps a small κ
    gains = [NORMED.overall("accuracy", centered=True, matched=way) for way in (False, True)]
    gains = [found[0] - found[2] for found in gains]
    assert signs(gains) == [0, 1] and round(100 * float(gains[1].mean())) == 3
    small, drawn = NORMED.overall("stem_norm", matched=False)[0], 0.1 * NORMED.overall("stem_norm", matched=True)[0]
    assert (small > 3 * drawn).all()  # pretraining forgets that the stem was small


def test_pretraining_does_not_help_on_shift():
    for setting in ({}, CENTERED):
        gained, known = (
            GRID.at("accuracy", task=task, **setting) - CONTROL.at("accuracy", task=task, **setting)
            for task in ("shift", "subset")
        )
        assert signs(gained) == [0, 0, 0] and signs(known) == [1, 1, 1]
    below = {}
    for n in (3, 10):
        setting = {"task": "shift", "n": n} | CENTERED
        rows = GRID.at("accuracy", **setting) - CONTROL.at("accuracy", **setting)
        below[n] = round(-100 * float(rows[1].mean()), 1), sign(rows[1]), sign(rows[0])
    assert below == {3: (0.5, 0, 0), 10: (1.6, -1, 0)}
