"""What lesson 05 says of the shipped grid, and can be said of it."""

import numpy as np
import pytest
import torch

from labkit import plots, spectra
from labkit.results import load
from labkit.results.relu_bridge import arrays
from labkit.transfer import relu, representation

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


def parts(c, task, lam=-0.9, **other):
    """Richness and reuse of λ against λ = 0, each (seed,)."""
    pretrained, reset, at = errors(c, task, **other), errors(c, task, "reset", **other), LAMS.index(lam)
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
    """For pretrained networks; one that was not pretrained still has its λ, a little."""
    assert abs(sigmas(span(0.03))) < 2 and abs(span(0.03, "new").mean()) < 0.03
    assert abs(sigmas(errors(0.03)[LAMS.index(0)] - errors(0.03)[LAMS.index(-0.99)])) < 2
    reset = span(0.03, source="reset")
    assert sigmas(reset) > 3 and 0.02 < reset.mean() < 0.05
    for c in (0.3, 3):
        assert sigmas(span(c)) > 2 and sigmas(span(c, "new")) > 3
    assert span(3).mean() > 3 * span(0.3).mean() and span(3, source="reset").mean() > 0.2


def test_lam_wakes_up_where_exercise_2_says():
    """b is that of the strongest quarter at c = 0.03; λ = −0.9 leaves half of ‖w‖² at c between 0.1 and 0.3."""
    strength = np.sqrt(np.float64(NORMS.values["w_norm"][0]) * NORMS.values["v_norm"][0]).reshape(5, -1)
    assert abs(np.sort(strength)[LAMS.index(-0.9), -120:].mean() - 0.17) < 0.005
    awake = 0.17 * (0.5 - 1 / 0.5) / -0.9
    assert 0.1 < awake < 0.3 and relu.norms_after(0.17, awake, -0.9).w.item() == pytest.approx(0.17 / 2)
    assert abs(sigmas(span(0.1))) < 2 < sigmas(span(0.3))


def test_the_sizes_are_those_of_the_story():
    sizes = relu.Sizes()
    assert (sizes.dim, sizes.hidden, sizes.units, sizes.ft_units, sizes.n_pt) == (20, 48, 10, 3, 400)
    assert (sizes.pt_loss, sizes.ft_loss) == (1e-3, 1e-4)
    for reached in (GRID.values["pt_reached"], GRID.values["reached"]):
        assert 0.99 < reached.mean() < 1  # the rest hit the step limit


def test_the_pretrained_error_on_the_subset_falls_with_lam():
    for c in (0.3, 1, 3):
        error = errors(c)
        assert sigmas(error[LAMS.index(0)] - error[LAMS.index(-0.9)]) > 3


def strongest(row):
    """Mean ‖w‖² and b of the strongest quarter after pretraining at SCALES[row], and ‖w‖² of the unused, each (λ,)."""
    w, v = (np.float64(NORMS.values[name][row]).reshape(5, -1) for name in ("w_norm", "v_norm"))
    top = np.argsort(w * v)[:, -w.shape[1] // 4 :]
    norm, b = (np.take_along_axis(part, top, 1).mean(1) for part in (w, np.sqrt(w * v)))
    return norm, b, SCALES[row] * (1 + np.array(LAMS)) / 2


def test_lam_turns_the_loudness_at_c_3_and_the_contrast_at_small_c():
    norm, b, unused = strongest(SCALES.index(3))
    assert (b < 3).all() and (1 < norm / unused).all() and (norm / unused < 2).all()
    assert norm.argsort().tolist() == [0, 1, 2, 3, 4] and 100 < norm[-1] / norm[0] < 1000
    norm, b, unused = strongest(SCALES.index(0.03))
    assert (b > 5 * 0.03).all() and (norm / unused > 7).all()


def test_what_negative_lam_gains_is_richness():
    """At c = 3 all but a tenth; at c = 0.3 three quarters, and pretrained networks gain less by λ than reset ones."""
    for c, least, most in ((3, 0, 0.1), (0.3, 0.2, 0.3)):
        richness, reuse = parts(c, "subset")
        assert sigmas(richness) > 3 and least <= reuse.mean() / (richness + reuse).mean() <= most
    (richness, reuse), at_zero = parts(0.3, "subset"), parts(0.3, "subset", 0.0)[1]
    assert sigmas(reuse) > 3 and sigmas(at_zero - reuse) > 2
    pretrained = errors(0.3)  # what λ alone gains there
    alone = pretrained[LAMS.index(0)] - pretrained[LAMS.index(-0.9)]
    assert np.allclose(alone, richness + reuse - at_zero, atol=1e-6) and sigmas(richness - alone) > 2


def test_reuse_weighs_more_with_fewer_samples():
    richness, reuse = parts(0.3, "subset", n=40)
    assert 0.4 < reuse.mean() / (richness + reuse).mean() < 0.6
    richness, reuse = parts(0.03, "subset", n=40)
    assert richness.mean() < 0 < sigmas(reuse) - 3
    richness, reuse = parts(0.03, "subset")  # n = 80
    assert max(richness.mean(), reuse.mean()) < 0.05 and abs(sigmas(reuse - richness)) < 2


def test_pretraining_hurts_the_new_task():
    for c in (0.03, 0.1):
        assert max(sigmas(parts(c, "new", lam)[1]) for lam in LAMS) < -2
    assert max(sigmas(parts(c, "new", -0.99)[1]) for c in (0.03, 0.1, 0.3, 1)) < -2
    assert sigmas(parts(0.3, "new")[1]) < -3 and abs(sigmas(parts(0.3, "new", 0.0)[1])) < 2
    assert abs(sigmas(parts(3, "new", -0.99)[1])) < 2


def test_a_single_task_is_not_blind_to_lam():
    """Nearly so at c = 3 and 0.03; at c = 0.3 λ = −0.99 differs by more than three standard errors from λ = 0."""
    error = errors(0.03, source="scratch")
    assert abs(sigmas(error[LAMS.index(0)] - error[LAMS.index(-0.99)])) < 2
    for c, seen in ((0.03, False), (0.3, True), (3, False)):
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

    for c, lam in ((0.3, -0.9), (0.03, 0.0)):  # kept a part
        before, after, ensd, _ = read(c, lam)
        assert after < 0.9 * before and ensd > 0.8 * after
    before, after, ensd, moved = read(3, 0.9)  # lazy
    assert abs(after / before - 1) < 0.05 and ensd > 0.95 * after and moved < 0.2
    others = [read(c, lam, "reset") for c, lam in ((3, -0.99), (0.3, -0.9), (0.03, 0.0))]
    others += [read(c, lam, task="new") for c, lam in ((0.03, 0.0), (0.3, -0.9), (3, -0.99))]
    for before, after, ensd, moved in others:  # other features
        assert after < before and 0.45 * after < ensd < 0.68 * after and moved > 0.6


def test_unrelated_networks_share_half_of_their_dimensions_on_the_same_inputs():
    """And next to none on unlike inputs, which they seem to share without centering."""
    draw = torch.Generator().manual_seed(5)
    x, y, w, u = (torch.randn(rows, 20, generator=draw, dtype=torch.float64) for rows in (1000, 1000, 48, 48))
    one, same, unlike = ((a @ b.T).relu() for a, b in ((x, w), (x, u), (y, u)))
    pr, shared = spectra.participation_ratio(one), representation.effective_shared_dimensions
    assert 0.4 < shared(one, same) / pr < 0.6 and shared(one, unlike) / pr < 0.05
    mirrored = [torch.cat([z, -z]) for z in (one, unlike)]  # of mean 0
    assert shared(*mirrored) / spectra.participation_ratio(mirrored[0]) > 0.6


def test_a_reset_network_knows_c_and_lam_only_through_their_product():
    """‖w‖² = c(1 + λ)/2: the same network, up to rounding, which training amplifies a little."""
    for one, other in (((3, -0.9), (0.3, 0)), ((3, -0.99), (0.3, -0.9)), ((0.3, -0.99), (0.03, -0.9))):
        a, b = (errors(c, source="reset")[LAMS.index(lam)] for c, lam in (one, other))
        assert np.abs(a - b).max() < 0.03 and abs(a.mean() - b.mean()) < 0.005


def test_the_challenge_can_be_met_and_is_not_at_the_start_nor_by_what_the_lesson_says_to_try():
    def met(c, lam, task="subset", **other):
        richness, reuse = parts(c, task, lam, **other)
        error = errors(c, task, **other).mean(1)
        return 3 * error[LAMS.index(lam)] < 2 * error[LAMS.index(0)] and reuse.mean() > 0.2 * (richness + reuse).mean()

    assert all(met(1, lam, gamma=0.03, n=40) for lam in (-0.99, -0.9))
    tried = [(c, lam, task) for c in (0.03, 0.3, 3) for lam in LAMS for task in ("subset", "new")]
    assert not any(met(*each) for each in tried)


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
