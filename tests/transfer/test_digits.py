"""The experiment on digits: the same numbers as a plain loop, and controls that control."""

import pytest
import torch
from torch import nn

from labkit.data import digits as data
from labkit.results.digits_transfer import with_matched_norms
from labkit.training import accuracy, cross_entropy
from labkit.transfer import digits
from labkit.transfer.digits import finetune, live, pretrain, smallest_rate
from labkit.transfer.representation import compare
from labkit.transfer.resnet import SMALL, SMALL_BATCH_NORM
from tests.transfer.test_resnet import Plain

DOUBLE = {"dtype": torch.float64}


@pytest.fixture(scope="module")
def old():
    """Two seeds at two scales, hardly trained."""
    return pretrain([0.2, 5.0, 0.2, 5.0], 1.0, [0, 0, 1, 1], max_steps=8, **DOUBLE)


def test_pretraining_is_a_plain_loop(old):
    images, validation = data.pretraining(1, **DOUBLE)
    model = Plain(SMALL, old.initial, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = torch.randperm(len(images), generator=digits.streams([1], digits.ORDER)[0])
    for step in range(8):
        index = order[64 * step : 64 * (step + 1)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.x[index]), images.y[index]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    for name, value in model.weights().items():
        torch.testing.assert_close(old.phase.params[name][3], value.detach(), rtol=1e-7, atol=1e-9, msg=name)
    right = (model(validation.x).argmax(1) == validation.y).double().mean()
    assert old.accuracy[3].item() == pytest.approx(right.item(), abs=1e-12)


@pytest.mark.parametrize("centered", [False, True])
def test_finetuning_is_a_plain_loop(old, centered):
    new = finetune(old, "shift", 3, gamma=0.5, centered=centered, lr=0.01, max_steps=5)
    train, test = data.finetuning("shift", 3, seed=10 * 1 + digits.SHOTS, **DOUBLE)
    generator = digits.streams([1], digits.READOUT)[0]
    drawn = 0.5 * 32**-0.5 * torch.randn(5, 32, generator=generator, **DOUBLE)
    start = {name: value[3:] for name, value in old.phase.params.items()} | {"readout": drawn[None]}
    model, first = Plain(SMALL, start, 0), Plain(SMALL, start, 0)

    def f(x):
        return model(x) - first(x).detach() if centered else model(x)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(f(train.x), train.y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    for name, value in model.weights().items():
        torch.testing.assert_close(new.phase.params[name][3], value.detach(), rtol=1e-7, atol=1e-9, msg=name)
    assert new.accuracy[3].item() == pytest.approx((f(test.x).argmax(1) == test.y).double().mean().item(), abs=1e-12)
    loss = nn.functional.cross_entropy(f(train.x), train.y).item()
    assert new.phase.loss[3].item() == pytest.approx(loss, rel=1e-7)


def test_features_are_compared_on_the_same_test_images(old):
    new = finetune(old, "new", 3, lr=0.01, max_steps=20)
    _, test = data.finetuning("new", 3, seed=digits.SHOTS, **DOUBLE)
    few = torch.linspace(0, len(test) - 1, 300).round().long()
    assert test.y[few].bincount().min() >= 40  # all classes
    found = compare(*(SMALL.features(params, test.x[few])[0] for params in (old.phase.params, new.phase.params)))
    for name, value in found.items():
        torch.testing.assert_close(getattr(new, name)[0], value)


def test_a_net_does_not_depend_on_the_stack():
    stack = pretrain([0.2, 1.0, 5.0], [1.0, 3.0, 0.3], [4, 5, 6], max_steps=3, **DOUBLE)
    alone = pretrain(5.0, 0.3, [6], max_steps=3, **DOUBLE)
    for name, value in alone.phase.params.items():
        torch.testing.assert_close(stack.phase.params[name][2:], value, rtol=1e-9, atol=1e-12)


def test_scales_of_a_seed_start_from_the_same_function():
    start = pretrain([0.2, 1.0, 5.0], 1.0, [0, 0, 0], max_steps=0, **DOUBLE)
    assert not start.phase.steps.any() and (start.accuracy == start.accuracy[0]).all()
    x = data.pretraining(0, **DOUBLE)[0].x[:20]
    out = SMALL.forward(start.initial, x)
    torch.testing.assert_close(out, out[1:2].expand(3, -1, -1), rtol=1e-10, atol=1e-12)


def test_the_noise_of_a_readout_grows_with_kappa_and_gamma():
    """f_start = W·features, features ∝ κ before pretraining, W ∝ γ."""
    start = pretrain([0.2, 1.0, 5.0], 1.0, [0, 0, 0], max_steps=0, **DOUBLE)
    x = data.finetuning("subset", 3, 0, **DOUBLE)[0].x
    size = SMALL.features(start.phase.params, x).norm(dim=(1, 2))
    torch.testing.assert_close(size / size[1], torch.tensor([0.2, 1.0, 5.0], **DOUBLE))
    drawn = {}
    for gamma in (0.1, 1.0):
        new = finetune(start, "subset", 3, gamma=gamma, lr=1e-12, max_steps=1)
        drawn[gamma] = new.phase.params["readout"]
    torch.testing.assert_close(drawn[1.0], 10 * drawn[0.1])


def test_all_learn_to_one_loss():
    old = pretrain([0.2, 5.0], 1.0, [0, 0], max_steps=40)
    new = finetune(old, "subset", 3)
    assert new.phase.reached.all() and (new.phase.loss <= 0.02).all() and (new.phase.loss > 0).all()
    assert new.phase.steps.min() > 1 and not new.phase.diverged.any()


def test_a_scale_at_which_training_diverges_is_reported_and_leaves_the_others_alone():
    old = pretrain(1.0, [1.0, 1e20, 1.0], [0, 0, 1], max_steps=5)
    assert old.phase.diverged.tolist() == [False, True, False] and not old.phase.reached.any()
    assert old.accuracy.isnan().tolist() == [False, True, False]
    new = finetune(old, "subset", 3, max_steps=5)
    for name in ("accuracy", "pr_before", "pr_after", "ensd", "cka"):
        assert getattr(new, name).isnan().tolist() == [False, True, False], name
    alone = finetune(pretrain(1.0, 1.0, [0, 1], max_steps=5), "subset", 3, max_steps=5)
    torch.testing.assert_close(new.accuracy[[0, 2]], alone.accuracy)


def test_fine_tuning_that_diverges_is_reported(old):
    new = finetune(old, "subset", 3, lr=torch.tensor([1e-3, 1e300, 1e-3, 1e-3], **DOUBLE), max_steps=4)
    assert new.phase.diverged.tolist() == [False, True, False, False]
    assert new.accuracy.isnan().tolist() == [False, True, False, False]


# ---- rates


def test_the_smallest_rate_that_reaches_the_loss_is_taken(old):
    def run(lr):
        return finetune(old, "subset", 3, lr=lr, max_steps=60)

    each = {rate: run(rate) for rate in (1e-4, 3e-3, 1e-2)}
    found, rates = smallest_rate(run, [1e-2, 1e-4, 3e-3])
    for net in range(4):
        reached = [rate for rate in each if each[rate].phase.reached[net]]
        expected = min(reached) if reached else float("nan")
        assert rates[net].item() == pytest.approx(expected, nan_ok=True)
        same = each[expected if reached else 1e-2]
        assert found.accuracy[net] == same.accuracy[net] and found.phase.steps[net] == same.phase.steps[net]
        assert torch.equal(found.phase.params["stem"][net], same.phase.params["stem"][net])
    assert len(set(rates.tolist())) > 1 and not each[1e-4].phase.reached.all()  # the case is not empty


def test_without_a_rate_that_reaches_the_loss_the_largest_is_reported(old):
    found, rates = smallest_rate(lambda lr: finetune(old, "subset", 3, lr=lr, max_steps=1), [1e-5, 1e-4])
    assert rates.isnan().all() and not found.phase.reached.any()
    assert torch.equal(found.accuracy, finetune(old, "subset", 3, lr=1e-4, max_steps=1).accuracy)


def test_the_rate_of_pretraining_is_chosen_in_the_same_way():
    found, rates = smallest_rate(lambda lr: pretrain([0.2, 5.0], 1.0, [0, 0], lr=lr, max_steps=2), [0.01, 0.1])
    assert found.net is SMALL and found.seeds == (0, 0) and rates.isnan().all()


# ---- batch norm


@pytest.fixture(scope="module")
def normed():
    return pretrain([0.1, 1.0, 10.0], 1.0, [0, 0, 0], net=SMALL_BATCH_NORM, max_steps=0, **DOUBLE)


def test_matched_norms_undo_kappa(normed):
    """Before any training kappa is all there is: what is matched fine-tunes as kappa = 1 does."""
    free, tied = (finetune(it, "subset", 3, lr=0.005, max_steps=30) for it in (normed, with_matched_norms(normed)))
    assert tied.phase.steps.tolist() == [tied.phase.steps[1].item()] * 3
    assert (tied.accuracy - tied.accuracy[1]).abs().max() <= 0.01  # eps of batch norm
    assert free.phase.loss[0] < 0.5 * free.phase.loss[1]  # kappa = .1 learns a hundred times faster


@pytest.mark.parametrize("statistics", digits.STATISTICS)
def test_matched_norms_leave_the_function_as_it_was(statistics):
    old = pretrain([0.3, 10.0], 1.0, [0, 0], net=SMALL_BATCH_NORM, max_steps=5, **DOUBLE)
    new, x = with_matched_norms(old), data.pretraining(0, **DOUBLE)[0].x[:50]
    before, after = (
        SMALL_BATCH_NORM.forward(it.phase.params, x, it.statistics if statistics == "frozen" else None)
        for it in (old, new)
    )
    assert ((after - before).norm(dim=(1, 2)) <= 0.02 * before.norm(dim=(1, 2))).all()
    assert (new.phase.params["stem"].flatten(1).norm(dim=1) / old.phase.params["stem"].flatten(1).norm(dim=1))[1] < 0.2


@pytest.mark.parametrize("statistics", digits.STATISTICS)
def test_what_is_tested_uses_the_chosen_statistics(normed, statistics):
    new = finetune(normed, "subset", 3, lr=0.005, max_steps=3, statistics=statistics)
    train, test = data.finetuning("subset", 3, seed=digits.SHOTS, **DOUBLE)
    few = SMALL_BATCH_NORM.statistics(new.phase.params, train.x)
    known = few if statistics == "batch" else normed.statistics
    expected = accuracy(SMALL_BATCH_NORM.forward(new.phase.params, test.x, known), test.y)
    torch.testing.assert_close(new.accuracy, expected)
    other = normed.statistics if statistics == "batch" else few
    assert not torch.equal(accuracy(SMALL_BATCH_NORM.forward(new.phase.params, test.x, other), test.y), expected)


def test_the_clip_acts_at_the_ends_of_kappa_only():
    """Norms of the first gradients, as the docstring of pretrain has them: 11, 4, 1.5, 2.4, 7."""
    start = pretrain([0.1, 0.3, 1.0, 3.0, 10.0], 1.0, [0] * 5, net=SMALL_BATCH_NORM, max_steps=0)
    images, _ = data.pretraining(0, dtype=torch.float32)
    order = torch.randperm(len(images), generator=digits.streams([0], digits.ORDER)[0])[:64]
    leaves = {name: value.clone().requires_grad_() for name, value in start.initial.items()}
    loss = cross_entropy(SMALL_BATCH_NORM.forward(leaves, images.x[order]), images.y[order])
    grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
    norm = sum(grad.flatten(1).square().sum(1) for grad in grads).sqrt()
    assert (norm > digits.CLIP).tolist() == [True, False, False, False, True]
    assert abs(norm[0] - 11) < 1 and abs(norm[4] - 7) < 1 and norm[1:4].max() < 4


# ---- live


def test_live_is_what_the_study_does():
    cells = [{"task": "new"}, {"task": "subset", "gamma": 0.1, "centered": True}]
    passed = []

    def progress(items):
        for item in items:
            passed.append(item)
            yield item

    found = live([0.2, 5.0], [0, 3], cells, max_steps=4, progress=progress)
    assert len(passed) == 2 * 3
    old = pretrain(5.0, 1.0, [0, 3], max_steps=4)
    new = finetune(old, "subset", 3, gamma=0.1, centered=True)
    torch.testing.assert_close(found["accuracy"][1, 1], new.accuracy)
    torch.testing.assert_close(found["loss"][1, 1], new.phase.loss)
    assert found["steps"][1, 1].tolist() == new.phase.steps.tolist()
    assert found["diverged"].shape == (2, 2, 2) and found["pretraining_steps"].tolist() == [[4, 4], [4, 4]]


# ---- bad input

BAD = {
    "kappa": (lambda old: pretrain(0.0, 1.0, [0]), "kappa must be positive and finite"),
    "kappas": (lambda old: pretrain([1.0, 2.0], 1.0, [0]), "kappa must be a number or one for each of 1 seeds"),
    "weight_scale": (lambda old: pretrain(1.0, -1.0, [0]), "weight_scale must be positive and finite, got -1"),
    "seeds": (lambda old: pretrain(1.0, 1.0, [0, 0.5]), r"seeds\[1\] must be a whole number, got 0.5"),
    "kappa as text": (
        lambda old: pretrain("1", 1.0, [0]),
        "kappa must be a number or one for each of 1 seeds, got '1'",
    ),
    "dtype": (lambda old: pretrain(1.0, 1.0, [0], dtype=torch.int64), "dtype must be a floating dtype"),
    "live without kappa": (lambda old: live([], [0]), "kappas must hold at least one, got none"),
    "live with a kappa": (lambda old: live(1.0, [0]), "kappas must be a list, got 1.0"),
    "live with a cell": (lambda old: live([1.0], [0], {"task": "new"}), "cells must be a list, got {'task': 'new'}"),
    "live with a task": (lambda old: live([1.0], [0], ["new"]), r"cells\[0\] must be a dict .* got 'new'"),
    "live without cells": (lambda old: live([1.0], [0], []), "cells must hold at least one, got none"),
    "no seeds": (lambda old: pretrain(1.0, 1.0, []), "got none"),
    "task": (lambda old: finetune(old, "flip", 3), "task must be one of subset, new, shift, got 'flip'"),
    "n": (lambda old: finetune(old, "subset", 0), "n_per_class must be an integer in"),
    "gamma": (lambda old: finetune(old, "subset", 3, gamma=-1.0), r"gamma must lie in \[0, inf\)"),
    "statistics": (
        lambda old: finetune(old, "subset", 3, statistics="train"),
        "statistics must be one of batch, frozen",
    ),
    "frozen": (lambda old: finetune(old, "subset", 3, statistics="frozen"), "statistics='frozen' needs batch norm"),
    "rate": (lambda old: finetune(old, "subset", 3, lr=0.0), "lr must be positive"),
    "rates": (lambda old: smallest_rate(lambda lr: old, [0.1, 0.0]), "rates must be one number or more"),
    "no rates": (lambda old: smallest_rate(lambda lr: old, []), "rates must be one number or more"),
    "steps": (lambda old: pretrain(1.0, 1.0, [0], max_steps=-1), "max_steps must be >= 0, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_in_a_sentence(old, name):
    call, sentence = BAD[name]
    with pytest.raises((ValueError, TypeError), match=sentence):
        call(old)


def test_a_pretrained_net_is_not_changed(old):
    before = {name: value.clone() for name, value in old.phase.params.items()}
    finetune(old, "subset", 3, lr=0.1, max_steps=3)
    assert all(torch.equal(old.phase.params[name], value) for name, value in before.items())
