"""Exercises of lesson 12, two routes: the constant of a block, one bound, the test set, and how sure route A is."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, close, compare, compare_parts, evaluate, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.depth.bounds import directions_bound


def both(answer, parts: dict[str, tuple[Tensor, dict, dict]], inputs: dict) -> None:
    """Two returned values, judged one by one; each is worth half of the points."""
    names, truths = ", ".join(parts), [truth for truth, _, _ in parts.values()]
    returned = pair(call(answer, **inputs), names)
    values = [as_tensor(part, truth.shape) for part, truth in zip(returned, truths, strict=True)]
    if all(close(value, other).all() for value, other in zip(values, truths[::-1], strict=True)):
        raise Wrong(f"Return ({names}), in this order: yours are swapped.", share=0.5)
    compare_parts(values, parts, **inputs)


def block(answer) -> str:
    """block_gain(w, r, eps) -> (beta, r_next): Lipschitz constant of a block with norm, rms of what it returns."""
    generator = seeded(31)
    w = torch.cat([uniform(generator, 0.1, 0.9, 8), uniform(generator, 1.1, 3, 4)])
    inputs = {"w": w, "r": uniform(generator, 0.2, 1, 12), "eps": uniform(generator, 0.01, 0.3, 12)}
    w, r, eps = inputs.values()
    a = (1 - w).clamp_min(0) * r
    scale = (a**2 + eps).sqrt()
    outside, flat = a + eps, ((1 - w).clamp_min(0) ** 2 + eps).sqrt()
    beta, loose = (1 + w) / scale, ((1 - w) ** 2 * r**2 + eps).sqrt()
    first = {
        "beta: that is the constant of N alone; before it, z + h(z) stretches by 1 + w.": 1 / scale,
        "beta: the block may cancel a part of its input: rms(u) >= (1 - w) r, not r.": (1 + w) / (r**2 + eps).sqrt(),
        "beta: for w > 1 nothing is left of the guarantee, (1 - w) r is no norm: clamp 1 - w at zero.": (1 + w) / loose,
        "beta: that uses eps alone; while w < 1, the block cannot cancel all of its input.": (1 + w) / eps.sqrt(),
        "beta: the root is missing: s(u) = sqrt(rms^2 + eps).": (1 + w) / scale**2,
        "beta: z + h(z) stretches by at most 1 + w, not 1 - w.": (1 - w).clamp_min(0) / scale,
        "beta: z + h(z) stretches by at most 1 + w: the path around the block counts too.": w / scale,
        "beta: that takes 1 + w for the norm that is left; the worst block works against its input: 1 - w.": (1 + w)
        / ((1 + w) ** 2 * r**2 + eps).sqrt(),
        "beta: eps stands inside the root: s(u) = sqrt(rms(u)^2 + eps).": (1 + w) / outside,
        "beta: r is missing: the least rms(u) is (1 - w) r.": (1 + w) / flat,
        "beta: eps is a variance already: add it under the root as it is, not its square.": (1 + w)
        / (a**2 + eps**2).sqrt(),
        "beta: the block stretches by 1 + w: you multiply by s(u) where N divides.": (1 + w) * scale,
    }
    last = {
        "r_next: that is rms(u) before the norm: divide it by sqrt(rms(u)^2 + eps).": a,
        "r_next: an rms is not negative: clamp 1 - w at zero.": (1 - w) * r / loose,
        "r_next: the block may cancel a part of its input: start from (1 - w) r, not from r.": r / (r**2 + eps).sqrt(),
        "r_next: that is sqrt(rms(u)^2 + eps) itself: divide rms(u) by it.": scale,
        "r_next: N brings the rms to 1 only where eps = 0.": torch.ones_like(r),
        "r_next: that is the largest rms, from (1 + w) r; the guarantee needs the smallest, (1 - w) r.": (1 + w)
        * r
        / ((1 + w) ** 2 * r**2 + eps).sqrt(),
        "r_next: eps stands inside the root: rms(u)/sqrt(rms(u)^2 + eps).": a / outside,
        "r_next: r is missing: the least rms(u) is (1 - w) r.": (1 - w).clamp_min(0) / flat,
        "r_next: the root is missing: rms(u)/sqrt(rms(u)^2 + eps).": a / scale**2,
    }
    both(answer, {"beta": (beta, first, {}), "r_next": (a / scale, last, {})}, inputs)
    return "Below w = 1 the old state keeps the sum away from zero; above it only eps does, at 1/sqrt(eps) a block."


ETA = torch.logspace(-9, 1, 2001, dtype=torch.float64, device="cpu")
WITHIN, COARSE = 0.003, 0.05  # above the least epsilon: a fine grid, and a grid that is too coarse


def least(
    n,
    k,
    reach,
    fail_prob,
    *,
    move=2.0,
    sides=2.0,
    size=None,
    shrink=2.0,
    root=True,
    parameters=True,
    everything=False,
    inside=False,
) -> Tensor:
    """min over eta of the bound of k directions, (n,); the keywords make the mistakes."""
    log_size = (k if parameters else torch.ones_like(k))[:, None] * (1 + 2 * reach[:, None] / ETA).log()
    log_size = (1 + 2 * k[:, None] * reach[:, None] / ETA).log() if inside else log_size
    log_size = log_size if size is None else size(log_size)
    sure = (sides / fail_prob).log() * (k if everything else 1)
    spread = (log_size + sure[:, None]) / (shrink * n[:, None])
    return (move * ETA + (spread.sqrt() if root else spread)).amin(-1)


def directions(answer) -> str:
    """uniform_bound(n, k, reach, fail_prob): min 2 eta + sqrt((k ln(1 + 2 reach/eta) + ln(2/delta))/(2n)), to 0.3 %."""
    generator = seeded(32)
    inputs = {
        "n": 10 ** uniform(generator, 3, 6, 6),
        "k": uniform(generator, 2, 60, 6).round(),
        "reach": uniform(generator, 0.5, 6, 6),
        "fail_prob": 10 ** uniform(generator, -3, -0.7, 6),
    }
    value = evaluate(answer, (6,), **inputs)
    truth = least(**inputs)
    torch.testing.assert_close(truth, directions_bound(
        inputs["n"], inputs["k"], inputs["reach"], 1.0, 1.0, fresh_sample=True, fail_prob=inputs["fail_prob"]
    ), rtol=1e-3, atol=0)  # fmt: skip

    def near(target: Tensor, within: float = WITHIN) -> bool:
        return bool(((value >= target * (1 - 1e-4)) & (value <= target * (1 + within))).all())

    if near(truth):
        return "Counting 1/eta points along each of k axes costs k logarithms: that is the price of a parameter."
    slips = {
        "The union runs over both signs of the deviation: ln(2/fail_prob), not ln(1/fail_prob).": {"sides": 1.0},
        "A factor of 2 is missing at eta (after minimizing both look the same): moving to the nearest point costs "
        "2 eta, on the sample and in the population; an axis runs from -reach to reach, so 1 + 2 reach/eta.": {
            "move": 1.0
        },
        "k multiplies only the logarithm of the net, not ln(2/fail_prob): the union is over the points.": {
            "everything": True
        },
    }
    mistakes = {
        "k is missing: the net has (1 + 2 reach/eta) to the power k points.": {"parameters": False},
        "k stands inside the logarithm: that of the number of points is k ln(1 + 2 reach/eta).": {"inside": True},
        "The root is missing: Hoeffding's deviation falls as 1/sqrt(n).": {"root": False},
        "Hoeffding divides by 2n, not by n.": {"shrink": 1.0},
        "The price of the grid is missing: 2 eta on top of the deviation.": {"move": 0.0},
        "That is the deviation of a single function: add the logarithm of the number of points.": {
            "size": torch.zeros_like
        },
    }
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, change in named.items():
            if near(least(**inputs, **change)):
                raise Wrong(says, share)
    if near(truth, COARSE):
        raise Wrong("Close, but not the least: space eta evenly in its logarithm, 50 values a decade.", 0.5)
    if bool((value >= truth).all()):
        raise Wrong(
            f"A valid bound, but up to {(value / truth).max():.3g} times the least one: minimize over eta, from 1e-6 "
            "to 1, for each n."
        )
    compare(lambda *_: value, truth, {}, {}, **inputs)
    raise Wrong("The values are off by more than 0.3 %.")  # not reached: compare raises


def test_set(answer) -> str:
    """test_size_needed(margin, delta, loss_range): 8 B^2 ln(1/delta)/margin^2, rounded up or not."""
    generator = seeded(33)
    inputs = {
        "margin": uniform(generator, 0.01, 0.2, 8),
        "delta": 10 ** uniform(generator, -4, -0.7, 8),
        "loss_range": uniform(generator, 0.6, 3, 8),
    }
    margin, delta, span = inputs.values()
    value, needed = evaluate(answer, (8,), **inputs), -delta.log()
    truth = 8 * span**2 * needed / margin**2
    if ((value >= truth * (1 - 1e-6)) & (value <= truth + 1)).all():
        return "Halve the margin and the test set grows four times: small gains are expensive to show."
    slips = {
        "That is rounded down: the failure probability is then just above delta. Round up.": truth.floor(),
        "One side is enough: only a test risk that is too high does harm. ln(1/delta), not ln(2/delta).": 8
        * span**2
        * (2 / delta).log()
        / margin**2,
    }
    mistakes = {
        "That is four times too small. A difference of two losses has the range 2B, and only half of the margin is "
        "there to spend: one of the two is missing.": truth / 4,
        "A difference of two losses has the range 2B, and only half of the margin is there to spend: both are "
        "missing.": truth / 16,
        "That is four times too large: is the range doubled, or the margin halved, twice?": truth * 4,
        "The margin enters squared.": truth * margin,
        "loss_range enters squared.": truth / span,
        "loss_range is missing.": truth / span**2,
        "The logarithm is missing: the failure probability falls exponentially, so 1/delta enters through ln.": truth
        / needed
        / delta,
        "That is log10: use the natural logarithm.": truth / math.log(10),
        "The sign: ln(1/delta) = -ln(delta).": -truth,
        "That is the size with the failure probability e^-1: delta is missing.": truth / needed,
    }
    compare(lambda *_: value, truth, mistakes, slips, **inputs)
    raise Wrong("The values are off.")  # not reached: compare raises


def confidence(answer) -> str:
    """routes(margin, test_size, fail_train, fail_test, loss_range) -> (probability of route A, free deviation)."""
    generator = seeded(34)
    inputs = {
        "margin": torch.cat([uniform(generator, 0.05, 0.2, 6), uniform(generator, 0.0, 0.004, 4)]),
        "test_size": 10 ** uniform(generator, 2.7, 3.6, 10),
        "fail_train": uniform(generator, 0.01, 0.1, 10),
        "fail_test": uniform(generator, 0.01, 0.3, 10),
        "loss_range": uniform(generator, 0.6, 1.5, 10),
    }
    margin, size, train, test, span = inputs.values()

    def sure(factor: float = 8, power: int = 2, sides: int = 1, unit: Callable = lambda b: b**2) -> Tensor:
        fails = sides * (-size * margin**power / (factor * unit(span))).exp()
        return (1 - train - fails).clamp_min(0)

    fails = (-size * margin**2 / (8 * span**2)).exp()
    first = {
        "probability: that of the training bound is missing: subtract fail_train as well.": 1 - fails,
        "probability: that is how often it may fail: take one minus it.": (train + fails).clamp_max(1),
        "probability: that is the failure of the test set alone.": fails,
        "probability: fail_test sets u alone; what fails of route A's test set is the exponential.": (
            1 - train - test - fails
        ).clamp_min(0),
        "probability: fail_test sets u alone; in route A the test set fails with probability "
        "exp(-test_size margin^2/(8 loss_range^2)).": 1 - train - test,
        "probability: a product would need independent events that both hold; the union bound subtracts.": (1 - train)
        * (1 - fails),
        "probability: the exponent is 4 times too large: the range of a difference is 2B, and half of the margin is "
        "spent.": sure(2),
        "probability: the exponent is 16 times too large: the range of a difference is 2B, and half of the margin is "
        "spent.": sure(0.5),
        "probability: the margin enters squared.": sure(power=1),
        "probability: loss_range enters squared.": sure(unit=lambda b: b),
        "probability: loss_range is missing.": sure(unit=lambda b: 1),
    }
    slips1 = {
        "probability: below zero it says nothing: clamp it at 0.": 1 - train - fails,
        "probability: one side is enough, no factor 2 before the exponential.": sure(sides=2),
    }
    u = span * (2 * (1 / test).log() / size).sqrt()
    last = {
        "u: the range of a difference is 2B: u is half of what it should be.": u / 2,
        "u: the root is missing.": u**2,
        "u: loss_range is missing.": u / span,
        "u: fail_test belongs there, the training bound has paid with fail_train.": span
        * (2 * (1 / train).log() / size).sqrt(),
        "u: that is half of the margin, as in route A: free means that fail_test sets it.": margin / 2,
        "u: that is sqrt(ln(1/delta)/n) without the factor 2.": u / math.sqrt(2),
    }
    slips2 = {
        "u: one side is enough: ln(1/fail_test), not ln(2/fail_test).": span * (2 * (2 / test).log() / size).sqrt()
    }
    both(answer, {"probability": (sure(), first, slips1), "u": (u, last, slips2)}, inputs)
    return "Without a margin route A is sure of nothing; the free deviation never asks for the margin."


EXERCISES = {
    "12.1": Exercise(points=4, minutes=8, difficulty=2, check=block),
    "12.2": Exercise(points=4, minutes=10, difficulty=3, check=directions),
    "12.3": Exercise(points=2, minutes=4, difficulty=1, check=test_set),
    "12.4": Exercise(points=3, minutes=6, difficulty=2, check=confidence),
}
