"""What the tables of modular addition say, and lesson 07 with them."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from labkit.results import load
from labkit.results.modular_arithmetic import (
    KAPPAS,
    PLACES,
    alike,
    cell,
    deal,
    grids,
    outcomes,
    paired,
    rank_correlation,
    share,
)

GRIDS = grids()
KNOWN, EARLY, LATE, UNTRAINED = GRIDS.values()
KEPT = KNOWN["kept"][:, :, 1]  # (kappa, seed, k), after pretraining
ONE = KAPPAS.index(1.0)


def change(grid, kappa, modulus, fraction):
    """Final accuracy minus that at κ = 1, paired by seed: mean and standard error."""
    final = grid.at("accuracy", modulus=modulus, fraction=fraction)
    return mean_and_error(final[KAPPAS.index(kappa)] - final[ONE])


def mean_and_error(values):
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5


def ahead(modulus, fraction=0.2):
    """Pretrained minus untrained at κ = 1, of the eight seeds that have both."""
    pair = (grid.at("accuracy", modulus=modulus, fraction=fraction, kappa=1.0)[:8] for grid in (EARLY, UNTRAINED))
    return mean_and_error(np.subtract(*pair))


def predicted(rule, modulus, fraction=0.2):
    """ρ of what a rule reads off the embedding before fine-tuning with the accuracy after it, and ρ by chance."""
    return rank_correlation(rule(KEPT, modulus), EARLY.at("accuracy", modulus=modulus, fraction=fraction))


def test_a_cell_is_a_slice_of_the_tables():
    part = cell(GRIDS, PLACES[1], 10.0, 21, 0.3)
    assert np.array_equal(part["old"], KNOWN.at("curve", kappa=1.0))  # pretrained at κ = 1
    assert np.array_equal(part["new"], LATE.at("curve", kappa=10.0, modulus=21, fraction=0.3))
    assert np.array_equal(part["kept"], KNOWN.at("spectrum", kappa=1.0)[:, 1, :7])
    control = UNTRAINED.at("curve", kappa=10.0, modulus=21, fraction=0.3)
    assert np.array_equal(part["control"], np.median(control, 0)) and part["spectrum"].shape == (8, 10)
    assert np.allclose(part["spectrum"].sum(1), 1, atol=0.01)  # half precision


def test_the_modulus_of_pretraining_has_no_controls():
    part = cell(GRIDS, PLACES[1], 0.1, 15, 0.2)
    assert len(part["control"]) == 0 and np.array_equal(part["old"], KNOWN.at("curve", kappa=0.1))


def test_outcomes_join_what_was_kept_with_what_came_of_it():
    kept, used, accuracy = outcomes(EARLY, 5)
    net = KAPPAS.index(3.0) * 16 + 5
    assert np.array_equal(kept[net], EARLY.at("kept", modulus=5, kappa=3.0, fraction=0.2)[5, 0])
    assert np.array_equal(kept[net], KNOWN.at("spectrum", kappa=3.0)[5, 1, :7])  # the same net
    assert used[net] == share(kept[net], 5) == kept[net, 2] + kept[net, 5]
    assert accuracy[net] == EARLY.at("curve", modulus=5, kappa=3.0, fraction=0.2)[5, -1]


def test_a_paired_difference_says_when_it_is_not_seen():
    assert paired(np.array([0.1, 0.1, 0.1001])) == "+0.10 ± 0.00"
    assert paired(np.array([0.3, -0.3, 0.1])).endswith("(n.s.)")


def test_the_larger_kappa_the_later_and_the_slower_the_rise():
    medians = np.median(np.nan_to_num(KNOWN["ninety"], nan=np.inf), 1)
    assert (np.diff(medians) > 0).all()
    curve = np.append(KNOWN["curve"], np.ones((len(KAPPAS), 16, 1)), -1)  # never: at the last step
    twenty, ninety = (KNOWN.steps[np.minimum((curve >= level - 1e-3).argmax(-1), 100)] for level in (0.2, 0.9))
    assert (np.diff(np.median(ninety - twenty, 1)) > 0).all()


def test_after_100_steps_only_the_smallest_kappa_has_nearly_learned_mod_15():
    medians = np.median(KNOWN["curve"][..., KNOWN.steps.tolist().index(100)], 1)
    assert medians[0] > 0.9 and medians[1:].max() < 0.8


def test_weight_decay_shrinks_the_difference_in_balancedness_but_does_not_erase_it():
    start, end = KNOWN["norm"][..., 0].mean(1).T
    assert start[-1] / start[0] == pytest.approx(100, rel=1e-3)
    assert 1.5 < end[-1] / end[0] < 4
    before, after = KNOWN["balancedness"].mean(1).T
    assert before[0] < -0.98 and before[ONE] == pytest.approx(0.97, abs=0.005) and before[-1] > 0.999
    assert (np.diff(after[:4]) > 0.1).all() and -0.4 < after[0] < 0 < 0.7 < after[-1] < 0.9
    assert np.ptp(after) < 0.6 * np.ptp(before)


@pytest.mark.parametrize("fraction, seen", [(0.2, True), (0.3, False)])
def test_from_torchs_variance_early_heavy_hurts_mod_21_a_little(fraction, seen):
    table = load("modular_scale").table
    small, one, large = (table.select(fraction=fraction, kappa=kappa)["accuracy"] for kappa in (0.1, 1.0, 10.0))
    (low, low_error), (mean, error) = mean_and_error(small - one), mean_and_error(large - one)
    assert len(one) == 32 and abs(low) < 2 * low_error
    if seen:
        assert (mean, error) == pytest.approx((-0.15, 0.07), abs=0.005) and mean < -2 * error
    else:
        assert abs(mean) < error


def test_kappa_matters_without_pretraining():
    ends = UNTRAINED.at("accuracy", modulus=5, fraction=0.2).mean(1)
    assert (ends[0], ends[-1]) == pytest.approx((0.79, 0.32), abs=0.005) and (np.diff(ends) < 0).all()


@pytest.mark.parametrize("kappa", [0.1, 0.3, 3.0, 10.0])
@pytest.mark.parametrize("modulus, fraction", [(21, 0.2), (21, 0.3), (7, 0.2), (7, 0.3), (5, 0.2), (5, 0.3)])
def test_no_kappa_before_pretraining_is_better_or_worse(kappa, modulus, fraction):
    """Against section 7 of the theory notes, whose eight seeds had κ = 10 worse mod 21 by three standard errors."""
    mean, error = change(EARLY, kappa, modulus, fraction)
    assert abs(mean) < 2 * error


def test_rescaled_before_fine_tuning_only_small_kappa_harms_mod_21_alone():
    assert LATE.at("accuracy", kappa=0.1, modulus=21, fraction=0.2).mean() < 0.2  # the challenge
    for modulus, fraction in ((21, 0.2), (21, 0.3), (5, 0.2), (5, 0.3), (7, 0.2), (7, 0.3)):
        mean, error = change(LATE, 0.1, modulus, fraction)
        assert mean < -2.5 * error if modulus == 21 else mean > 0


def test_pretraining_helps_most_where_a_part_is_known():
    """The prediction, at κ = 1: mod 21 by far, alone hopeless; mod 5 nothing."""
    gain, error = ahead(21)
    assert gain == pytest.approx(0.63, abs=0.005)
    assert UNTRAINED.at("accuracy", modulus=21, kappa=1.0, fraction=0.2).mean() == pytest.approx(0.04, abs=0.005)
    assert abs(ahead(5)[0]) < ahead(5)[1] and (share(KEPT[ONE], 5) < 0.1).sum() >= 5
    assert all(gain - ahead(m)[0] > 2 * np.hypot(error, ahead(m)[1]) for m in (5, 7))
    assert UNTRAINED.at("accuracy", modulus=21, kappa=1.0).max() < 0.3


def test_at_30_percent_pretraining_hurts_mod_5():
    gain, error = ahead(5, 0.3)
    assert gain < -2 * error


def test_all_were_good_mod_15_and_some_fail_mod_5():
    assert KNOWN["accuracy"].min() > 0.92
    final = EARLY.at("accuracy", kappa=1.0, modulus=5, fraction=0.2)
    assert (final < 0.7).any() and (final > 0.99).any()


def test_new_features_share_no_dimension():
    assert np.median(EARLY.at("ensd", modulus=7, kappa=1.0)) < 0.6


def test_the_share_of_the_characters_of_5_decides_mod_5():
    _, used, accuracy = outcomes(EARLY, 5)
    ensd = EARLY.at("ensd", modulus=5, fraction=0.2).ravel()
    low, high = used < 0.1, used >= 0.2
    assert low.sum() >= 25 and accuracy[low].max() < 0.9 and accuracy[high].min() > 0.95
    assert np.median(ensd[low]) < 0.3 and np.median(ensd[high]) > 1.5
    assert predicted(share, 5)[0] > 0.7


def test_the_share_of_the_character_of_3_predicts_mod_21_only_weakly():
    """In the theory notes, with 40 networks, not at all."""
    assert 0.2 < predicted(share, 21)[0] < 0.4
    used, accuracy = KEPT[..., 4], EARLY.at("accuracy", modulus=21, fraction=0.2)
    assert (used < 0.03).sum() >= 20 and accuracy[used < 0.03].mean() > 0.5  # without it nets do well


@pytest.mark.parametrize("modulus", [5, 21, 7])
def test_weighted_by_overlap_on_the_tokens_the_share_predicts_all_moduli(modulus):
    for fraction in (0.2, 0.3):
        rho, chance = predicted(alike, modulus, fraction)
        assert rho > 0.7 and 0.1 < chance < 0.15
    assert predicted(alike, modulus)[0] == pytest.approx(0.8, abs=0.06)


def test_weights_are_the_largest_overlap_by_projection():
    tokens = np.arange(30)
    for modulus in (5, 7, 21):
        old, new = (np.exp(2j * np.pi * np.outer(tokens, np.arange(1, n)) / n) for n in (15, modulus))
        weights = (np.abs(old.conj().T @ new) ** 2 / 900).max(1)[:7]
        assert np.allclose(alike(KEPT, modulus), (KEPT * weights).sum(-1), atol=1e-12)


def test_rank_correlation_is_spearmans_and_its_scatter_that_of_shuffled_seeds():
    draw = np.random.default_rng(0)
    one = draw.normal(size=(3, 8))
    other = np.round(one + draw.normal(size=(3, 8)) + draw.normal(size=8), 1)  # with ties
    rho, chance = rank_correlation(one, other)
    assert rho == pytest.approx(spearmanr(one.ravel(), other.ravel()).statistic)
    shuffled = [spearmanr(one[:, draw.permutation(8)].ravel(), other.ravel()).statistic for _ in range(1000)]
    assert chance == pytest.approx(np.std(shuffled), rel=0.08)


def test_the_ten_networks_can_be_told_apart_by_the_share():
    """As the panel draws them: five with little, five of the others; works is 0.9 or more."""
    kept, used, accuracy = outcomes(EARLY, 5)
    ten = deal(used, seed=1806)
    works, kept = accuracy[ten] >= 0.9, kept[ten]
    assert ((used[ten] >= 0.1) == works).all() and works.sum() == 5
    for level in np.arange(0.25, 0.65, 0.05):  # neither how tall the tallest is nor how many there are tells
        assert 4 <= ((kept.max(1) > level) == works).sum() <= 6
    for level in (0.05, 0.1):
        for count in (2, 3, 4, 5):
            assert 4 <= (((kept > level).sum(1) >= count) == works).sum() <= 6
    assert kept.max() < 0.8  # the axis
