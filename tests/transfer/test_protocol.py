import inspect
import math
import re

import numpy as np
import pytest
import torch

from labkit import training
from labkit.training import SGD, cross_entropy, linear, mse
from labkit.transfer import digits, relu
from labkit.transfer.protocol import (
    LAWS,
    SOURCES,
    centered,
    error_bar,
    learn,
    moved,
    new_readout,
    sources,
    told,
    whole_seeds,
)
from tests.transfer.conftest import randn

NETS, N, DIM, HIDDEN = 3, 24, 4, 6
X, Y = randn(N, DIM), randn(N, 1, seed=1)
EACH = randn(NETS, N, DIM, seed=2), randn(NETS, N, 1, seed=3)


def net(seed=5, n_out=1):
    return {"w": randn(NETS, HIDDEN, DIM, seed=seed), "v": randn(NETS, n_out, HIDDEN, seed=seed + 1)}


def forward(params, x):
    return linear(linear(x, params["w"]).tanh(), params["v"])


def by_hand(params, x, y, lr, steps, f0=0.0, momentum=0.9):
    """Gradient descent with momentum of one net, written out: MSE of (f − f0 − y)."""
    w, v = params["w"].clone(), params["v"].clone()
    speed_w, speed_v = torch.zeros_like(w), torch.zeros_like(v)
    for _ in range(steps):
        a = torch.tanh(x @ w.T)
        r = 2 * (a @ v.T - f0 - y) / len(x)
        speed_v = momentum * speed_v + r.T @ a
        speed_w = momentum * speed_w + ((r @ v) * (1 - a**2)).T @ x
        w, v = w - lr * speed_w, v - lr * speed_v
    return {"w": w, "v": v}


@pytest.mark.parametrize("center", [False, True])
def test_learn_is_gradient_descent_of_each_net_alone(center):
    start, (x, y) = net(), EACH
    found = learn(forward, start, x, y, SGD(0.01, 0.9), -1.0, 20, center=start if center else None, per_net=True)
    assert found.steps.tolist() == [20] * NETS and not found.reached.any() and not found.diverged.any()
    for i in range(NETS):
        own = {name: value[i] for name, value in start.items()}
        f0 = torch.tanh(x[i] @ own["w"].T) @ own["v"].T if center else 0.0
        for name, value in by_hand(own, x[i], y[i], 0.01, 20, f0).items():
            torch.testing.assert_close(found.params[name][i], value)
        f = torch.tanh(x[i] @ found.params["w"][i].T) @ found.params["v"][i].T - f0
        torch.testing.assert_close(found.loss[i], ((f - y[i]) ** 2).mean())


def test_a_phase_ends_at_its_loss_and_says_which_nets_did_not():
    start, rates = net(), torch.tensor([0.05, 1e-6, 50.0]).double()
    found = learn(forward, start, X, Y, SGD(rates), 0.5, 500, max_loss=1e4)
    assert found.reached.tolist() == [True, False, False] and found.diverged.tolist() == [False, False, True]
    assert found.loss[0] <= 0.5 and 0 < found.steps[0] < 500 and found.steps[1] == 500 and found.steps[2] < 500
    again = learn(forward, start, X, Y, SGD(rates), -1.0, int(found.steps[0]) - 1, max_loss=1e4)
    assert again.loss[0] > 0.5  # not a step later than needed
    assert str(found) == f"3 nets, {found.steps[2]} to 500 steps, 1 reached their loss; diverged: [2]"


def test_mini_batches_and_all_samples_center_alike():
    """One epoch of one batch is the full sample in another order."""
    start, generator = net(), torch.Generator().manual_seed(0)
    all_samples = learn(forward, start, X, Y, SGD(0.05), -1.0, 5, center=start)
    shuffled = learn(forward, start, X, Y, SGD(0.05), -1.0, 5, center=start, batch=N, generators=generator)
    for name in start:
        torch.testing.assert_close(all_samples.params[name], shuffled.params[name])


def test_centering_goes_through_any_loss():
    start, classes = net(n_out=3), torch.arange(N) % 3
    found = learn(forward, start, X, classes, SGD(0.1), -1.0, 1, loss=cross_entropy, center=start)
    first = learn(forward, start, X, classes, SGD(1e-9), -1.0, 1, loss=cross_entropy, center=start)
    torch.testing.assert_close(first.loss, torch.full((NETS,), math.log(3)).double(), rtol=1e-6, atol=0)
    out = centered(forward, start)(found.params, X)
    torch.testing.assert_close(found.loss, cross_entropy(out, classes))


def test_centered_is_zero_at_the_start_and_passes_the_gradient_of_f_only():
    start = {name: value.requires_grad_() for name, value in net().items()}
    f = centered(forward, start)
    assert f(start, X).abs().max() == 0
    (by_centered,) = torch.autograd.grad(f(start, X).sum(), start["w"])
    (by_plain,) = torch.autograd.grad(forward(start, X).sum(), start["w"])
    torch.testing.assert_close(by_centered, by_plain)


@pytest.mark.parametrize("law", LAWS)
def test_new_readout_has_the_size_it_says(law):
    like = torch.zeros(40, 5, 300).double()
    drawn = new_readout(like, 0.7, training.generators(range(40)), law)
    assert drawn.shape == like.shape and abs(drawn.mean()) < 4 * drawn.std() / drawn.numel() ** 0.5
    assert abs(drawn.square().mean() * 300 / 0.49 - 1) < (4 * (2 / drawn.numel()) ** 0.5 if law == "normal" else 1e-12)
    if law == "sign":
        assert drawn.abs().unique().numel() == 1


def test_new_readout_is_one_draw_for_every_gamma_and_every_stack():
    like, gamma = torch.zeros(3, 1, 8), torch.tensor([0.0, 0.1, 2.0])
    one, many = (new_readout(like, g, training.generators([7, 8, 9])) for g in (1.0, gamma))
    torch.testing.assert_close(many, one * gamma[:, None, None])
    alone = new_readout(like[:1], 1.0, training.generators([8]))
    assert torch.equal(alone[0], one[1])
    assert new_readout(like, 1.0, training.generators(range(3)), n_out=4).shape == (3, 4, 8)


LIKE, GENERATORS = torch.zeros(2, 1, 3), training.generators([0, 1])
BAD_READOUTS = {
    "gamma": ({"gamma": -0.1}, "gamma must lie in .0, inf., got -0.1"),
    "one gamma": ({"gamma": torch.tensor([1.0, torch.nan])}, r"gamma\[1\] = nan must lie in"),
    "gammas": ({"gamma": torch.ones(3)}, r"gamma must be a number or \(2,\), one per net, got \(3,\)"),
    "law": ({"law": "uniform"}, "law must be one of normal, sign, got 'uniform'"),
    "like": ({"like": torch.zeros(2, 3)}, r"like must be \(net, out, in\) and not empty, got \(2, 3\)"),
    "generators": ({"generators": GENERATORS[:1]}, "generators must be a list of 2, one a net, got 1"),
    "n_out": ({"n_out": 0}, "n_out must be >= 1, got 0"),
}


@pytest.mark.parametrize("bad", BAD_READOUTS)
def test_a_bad_readout_is_refused_in_a_sentence(bad):
    change, sentence = BAD_READOUTS[bad]
    with pytest.raises(ValueError, match=sentence):
        new_readout(**({"like": LIKE, "gamma": 1.0, "generators": GENERATORS} | change))


def test_reset_is_pretraining_of_zero_steps_and_the_same_code_path():
    """The control must differ from pretraining in the body only, so with no step it is it, and learns the same."""
    initial = net()
    nothing = learn(forward, initial, X, Y, SGD(0.05, 0.9), 1e30, 100)
    assert nothing.steps.tolist() == [0] * NETS and nothing.reached.all()
    readout = {"v": new_readout(initial["v"], 0.3, training.generators(range(NETS)))}
    starts = sources(initial, nothing.params, readout)
    assert tuple(starts) == SOURCES
    ends = {
        name: learn(forward, start, *EACH, SGD(0.02, 0.9), -1.0, 30, center=start, per_net=True)
        for name, start in starts.items()
    }
    for name in initial:
        assert torch.equal(ends["pretrained"].params[name], ends["reset"].params[name])
        assert torch.equal(starts["scratch"][name], initial[name])
    assert not torch.equal(ends["scratch"].params["w"], ends["reset"].params["w"])


def test_sources_differ_in_body_and_share_the_readout():
    initial, pretrained, readout = net(5), net(50), {"v": randn(NETS, 1, HIDDEN, seed=99)}
    starts = sources(initial, pretrained, readout)
    assert starts["pretrained"]["w"] is pretrained["w"] and starts["reset"]["w"] is initial["w"]
    assert starts["pretrained"]["v"] is starts["reset"]["v"] is readout["v"]
    with pytest.raises(ValueError, match="readout must name layers of both nets .w, v., got 'head'"):
        sources(initial, pretrained, {"head": readout["v"]})
    for other in (readout["v"][:1], readout["v"][..., :2], randn(NETS, 2, HIDDEN)):
        with pytest.raises(ValueError, match=r"readout\['v'\] must be \(3, 1, 6\) of initial, got \(\d, \d, \d\)"):
            sources(initial, pretrained, {"v": other})
    with pytest.raises(ValueError, match=r"readout\['v'\] must be \(3, 4, 6\) of pretrained, got \(3, 1, 6\)"):
        sources(initial, net(50, n_out=4), readout)


def test_moved_is_relative_and_of_the_named_layers():
    start, end = net(5), net(50)
    whole = [torch.cat([p[name][1].flatten() for name in p]) for p in (start, end)]
    torch.testing.assert_close(moved(start, end)[1], (whole[1] - whole[0]).norm() / whole[0].norm())
    only = moved(start, end, ["w"])[2]
    torch.testing.assert_close(only, (end["w"][2] - start["w"][2]).norm() / start["w"][2].norm())
    with pytest.raises(ValueError, match="names must be among w, v, got 'u'"):
        moved(start, end, ["u"])
    with pytest.raises(ValueError, match="names must hold at least one of w, v, got none"):
        moved(start, end, [])
    with pytest.raises(ValueError, match=r"same shapes, got v \(3, 1, 6\) and \(1, 1, 6\)"):  # which would broadcast
        moved(start, end | {"v": end["v"][:1]})


def test_error_bar_leaves_out_what_diverged_and_counts_it():
    values = randn(4, 7)
    values[1, 2] = values[1, 5] = torch.nan
    found = error_bar(values)
    for i in range(4):
        kept = values[i][~values[i].isnan()]
        torch.testing.assert_close(found.mean[i], kept.mean())
        torch.testing.assert_close(found.se[i], kept.std() / len(kept) ** 0.5)
    assert found.seeds.tolist() == [7, 5, 7, 7] and found.diverged.tolist() == [0, 2, 0, 0]


def test_an_error_bar_needs_three_seeds():
    with pytest.raises(ValueError, match="seeds of values must be >= 3 for an error bar, got 2"):
        error_bar(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"seeds of values\[1\] = 2 must be >= 3"):
        error_bar(torch.tensor([[1.0, 2.0, 3.0], [1.0, torch.nan, 3.0]]))
    with pytest.raises(ValueError, match=r"values\[1\] = inf must be finite"):
        error_bar(torch.tensor([1.0, torch.inf, 3.0]))
    with pytest.raises(ValueError, match="got a single number"):
        error_bar(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("offset", "words"), [(0.0, r"[+−]0\.\d{3} ± 0\.\d{3} \(n\.s\.\)"), (-9.0, r"−[89]\.\d{3} ± 0\.\d{3}")]
)
def test_told_says_what_is_not_seen(offset, words):
    values = randn(40) + offset
    assert re.fullmatch(words, told(values)) and told(values.numpy()) == told(values)
    assert f"{values.std() / 40**0.5:.3f}" in told(values)
    values[3] = torch.nan
    assert told(values).endswith("1 diverged)")


def test_told_has_seen_no_difference_in_zeros_and_takes_one_row():
    assert told(torch.zeros(5)) == "+0.000 ± 0.000 (n.s.)"
    assert told(torch.full((5,), 0.25)) == "+0.250 ± 0.000"
    for values in (np.zeros((2, 5)), torch.zeros(2, 5), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"values must be \(seed,\), one difference a seed, got shape"):
            told(values)


BAD_SEEDS = {
    "half": ([3, 0.5], TypeError, r"seeds\[1\] must be a whole number, got 0.5"),
    "text": ("01", TypeError, r"seeds\[0\] must be a whole number, got '0'"),
    "negative": ([-1], ValueError, r"seeds\[0\] must be >= 0, got -1"),
    "bool": ([True], TypeError, r"seeds\[0\] must be a whole number, got True"),
    "none": ([], ValueError, "seeds must hold one seed a net, got none"),
    "one": (7, TypeError, "seeds must be a list of whole numbers, one a net, got 7"),
}


@pytest.mark.parametrize("bad", BAD_SEEDS)
@pytest.mark.parametrize(
    "function",
    [
        whole_seeds,
        lambda seeds: relu.streams(seeds, 0),
        lambda seeds: relu.pretrain(0.5, -0.5, seeds),
        lambda seeds: relu.column(0.5, [0.5], seeds),
        lambda seeds: digits.streams(seeds, 0),
        lambda seeds: digits.pretrain(1.0, 1.0, seeds),
        lambda seeds: digits.live([1.0], seeds),
    ],
    ids=["whole_seeds", "relu.streams", "relu.pretrain", "column", "digits.streams", "digits.pretrain", "live"],
)
def test_seeds_are_whole_numbers_everywhere(function, bad):
    seeds, error, sentence = BAD_SEEDS[bad]
    with pytest.raises(error, match=sentence):
        function(seeds)


@pytest.mark.parametrize("seeds", [(4, 0), np.array([4, 0]), torch.tensor([4, 0])], ids=["list", "array", "tensor"])
def test_seeds_may_come_as_arrays(seeds):
    assert whole_seeds(seeds) == (4, 0) and all(type(seed) is int for seed in whole_seeds(seeds))


def test_what_train_refuses_learn_refuses():
    with pytest.raises(ValueError, match="x and y must hold equally many samples"):
        learn(forward, net(), X, Y[:-1], SGD(0.1), 0.1, 10)
    assert "per_net" in inspect.signature(training.train).parameters  # what is handed on by name
    assert mse(forward(net(), X), Y).shape == (NETS,)
