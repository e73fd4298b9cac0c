"""What lesson 05 says of the shipped grid, and can be said of it."""

import numpy as np
import pytest

from labkit import plots
from labkit.results import load
from labkit.results.relu_bridge import arrays
from labkit.transfer import relu

GRID, NORMS = (arrays(load(name).table) for name in ("relu_bridge", "relu_norms"))
LAMS, SCALES = (GRID.axes[name].tolist() for name in ("lam", "c"))
USUAL = {"gamma": 0.3, "n": 80}


def errors(c, task="subset", source="pretrained", **other):
    """(λ, seed)."""
    return GRID.at("error", c=c, task=task, source=source, **USUAL | other)


def sigmas(difference):
    """Mean over the seeds in standard errors."""
    mean, error = plots.averages(difference)
    return mean / error


def parts(c, task, lam=-0.9):
    """Richness and reuse of λ against λ = 0, each (seed,)."""
    pretrained, reset, at = errors(c, task), errors(c, task, "reset"), LAMS.index(lam)
    return reset[LAMS.index(0)] - reset[at], reset[at] - pretrained[at]


def test_grid_is_asked_by_names():
    table = load("relu_bridge").table
    row = 1234
    places = {name: table[name][row].item() for name in GRID.axes if name != "seed"}
    assert GRID.at("error", **places)[table["seed"][row]] == table["error"][row]
    with pytest.raises(ValueError, match=r"c must be one of \[0.03, .*\], got 0.2"):
        GRID.at("error", c=0.2)
    with pytest.raises(ValueError, match=r"depth must be one of \['c', 'lam', .*got 3"):
        GRID.at("error", depth=3)


def span(c, task="subset", **other):
    """The error at λ = 0.9 minus that at −0.9, (seed,)."""
    error = errors(c, task, **other)
    return error[LAMS.index(0.9)] - error[LAMS.index(-0.9)]


def test_at_small_c_the_slider_is_dead_and_at_large_c_alive():
    assert abs(sigmas(span(0.03))) < 2 and abs(span(0.03, "new").mean()) < 0.03
    for c in (0.3, 3):
        assert sigmas(span(c)) > 2 and sigmas(span(c, "new")) > 3
    assert span(3).mean() > 3 * span(0.3).mean()


def test_the_sizes_are_those_of_the_story():
    sizes = relu.Sizes()
    assert (sizes.dim, sizes.hidden, sizes.units, sizes.ft_units, sizes.n_pt) == (20, 48, 10, 3, 400)
    assert (sizes.pt_loss, sizes.ft_loss) == (1e-3, 1e-4)


def test_the_pretrained_error_on_the_subset_falls_with_lam():
    for c in (0.3, 1, 3):
        error = errors(c)
        assert sigmas(error[LAMS.index(0)] - error[LAMS.index(-0.9)]) > 3


def test_lam_fans_the_neurons_out_at_c_3_and_unused_ones_are_faint_at_small_c():
    norm, reach = NORMS.values["w_norm"], NORMS.values["v_norm"]
    low, high = (norm[-1, LAMS.index(lam)] for lam in (-0.99, 0.99))
    assert 100 < np.median(high) / np.median(low) < 1000 and np.sqrt(norm[-1] * reach[-1]).max() < 3
    strong = np.sort(np.sqrt(norm[0] * reach[0]).reshape(5, -1))[:, -120:].mean(1)  # the strongest quarter
    assert (strong > 0.03).all() and (strong > 5 * 0.03 * (1 + np.array(LAMS)) / 2).all()


def test_what_negative_lam_gains_is_richness():
    """At c = 3 all but a tenth; at c = 0.3 three quarters, and pretrained networks gain less by λ than reset ones."""
    for c, least, most in ((3, 0, 0.1), (0.3, 0.2, 0.35)):
        richness, reuse = parts(c, "subset")
        assert sigmas(richness) > 3 and least <= reuse.mean() / (richness + reuse).mean() <= most
    richness, reuse = parts(0.03, "subset")
    assert sigmas(reuse) > 2 and reuse.mean() > richness.mean()
    (richness, reuse), at_zero = parts(0.3, "subset"), parts(0.3, "subset", 0.0)[1]
    assert sigmas(reuse) > 3 and sigmas(at_zero - reuse) > 2


def test_pretraining_hurts_the_new_task():
    for c, lams in ((0.03, LAMS), (0.3, (-0.99, -0.9))):
        assert max(sigmas(parts(c, "new", lam)[1]) for lam in lams) < -3
    assert abs(sigmas(parts(0.3, "new", 0.0)[1])) < 2


def test_a_single_task_is_not_blind_to_lam():
    """Nearly so at c = 3; at c = 0.3 the ends of the slider differ by more than three standard errors from λ = 0."""
    for c, seen in ((0.3, True), (3, False)):
        error = errors(c, source="scratch")
        away = np.abs([error[at].mean() / error[LAMS.index(0)].mean() - 1 for at in range(5)]).max()
        assert (away > 0.2) == seen
    error = errors(0.3, source="scratch")
    assert sigmas(error[LAMS.index(0)] - error[LAMS.index(-0.99)]) > 3
    pretrained, reset = (errors(0.3, source=name) for name in ("pretrained", "reset"))  # as the lesson prints them
    gains = [part[LAMS.index(0)] - part[LAMS.index(-0.99)] for part in (pretrained, reset)]
    assert sigmas(gains[1] - gains[0]) > 2 and min(map(sigmas, gains)) > 3


def test_pr_and_ensd_read_as_the_lesson_reads_them():
    def read(c, lam, source="pretrained", task="subset"):
        places = {"c": c, "lam": lam, "task": task, "source": source} | USUAL
        return [GRID.at(name, **places).mean() for name in ("pr_before", "pr_after", "ensd", "moved")]

    before, after, ensd, _ = read(0.3, -0.9)  # kept a part
    assert after < 0.7 * before and ensd > 0.8 * after
    before, after, ensd, moved = read(3, 0.9)  # lazy
    assert abs(after / before - 1) < 0.05 and ensd > 0.95 * after and moved < 0.2
    before, after, ensd, moved = read(3, -0.99, "reset")  # other features
    assert after < 0.7 * before and ensd < 0.7 * after and moved > 1


def test_a_reset_network_knows_c_and_lam_only_through_their_product():
    """‖w‖² = c(1 + λ)/2: the same network, up to rounding, which training amplifies a little."""
    for one, other in (((3, -0.9), (0.3, 0)), ((3, -0.99), (0.3, -0.9)), ((0.3, -0.99), (0.03, -0.9))):
        a, b = (errors(c, source="reset")[LAMS.index(lam)] for c, lam in (one, other))
        assert np.abs(a - b).max() < 0.03 and abs(a.mean() - b.mean()) < 0.005


def test_the_challenge_can_be_met():
    richness, reuse = parts(3, "subset", -0.99)
    pretrained = errors(3).mean(1)
    assert 2 * pretrained[LAMS.index(-0.99)] < pretrained[LAMS.index(0)]
    assert reuse.mean() < 0.1 * (richness + reuse).mean()


def test_formula_and_trained_neurons_agree_where_the_invariant_held():
    for row, c in enumerate(SCALES):
        w, v, drift = (NORMS.values[name][row] for name in ("w_norm", "v_norm", "drift"))
        b, lam = np.sqrt(np.float64(w) * v), np.array(LAMS)[:, None, None]
        formula = (lam * c + np.sqrt((lam * c) ** 2 + 4 * b**2)) / 2
        off = np.abs(formula / w - 1).max(-1)
        assert off[drift < 0.01].size == 0 or off[drift < 0.01].max() < 0.05
    assert np.median(NORMS.values["drift"][-1]) < 0.01  # c = 3
    assert (np.diff(np.median(NORMS.values["drift"], (1, 2))) < 0).all()  # the smaller c, the larger


def test_smaller_steps_keep_the_invariant_better():
    sizes = relu.Sizes(pt_loss=0.1, pt_steps=3000)
    drifts = [relu.pretrain(0.03, -0.9, [0], sizes, share=share).drift.item() for share in (0.6, 0.2, 0.06)]
    assert drifts[0] > 2 * drifts[1] > 4 * drifts[2] > 0
