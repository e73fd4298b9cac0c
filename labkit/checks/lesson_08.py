"""Exercises of lesson 08, hidden features: the threshold, the edge from labels, the lift, how much is revealed."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, close, compare, evaluate, seeded, show, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.recovery import lifted, theory
from labkit.recovery.hermite import lift

# k, gamma, n_features, lift_dim, noise_std; k need not be all features, nor sorted
TASKS = (
    (range(1, 13), 0.75, 12, 600, 0.5),
    (range(1, 8), 1.3, 7, 210, 1.5),
    ((3, 1), 1.0, 5, 1176, 0.0),
    ((2,), 0.6, 4, 300, 0.2),
)


def threshold(answer) -> str:
    """threshold(k, gamma, n_features, lift_dim, noise_std) -> n_k."""
    for listed, gamma, count, size, noise_std in TASKS:
        k = torch.tensor(listed, device="cpu")
        powers = torch.arange(1, count + 1, dtype=torch.float64, device="cpu") ** (-2 * gamma)
        every, power = powers.sum().item(), 1 / powers[k - 1]  # Σ j^(−2γ), k^(2γ)
        truth, noise = size * (1 + noise_std**2) * every * power / 2, 1 + noise_std**2
        slips = {
            "The bulk ends at 2 sigma_b, but a spike leaves it when theta reaches sigma_b: you ask for 4 times as many "
            "samples.": 4 * truth,
            "theta_k is sqrt(2) a_k: the 2 is missing.": 2 * truth,
        }
        mistakes = {
            "The strengths are not normalized: divide k^(-2 gamma) by its sum over all n_features.": truth / every,
            "Normalized twice: a_k^2 = k^(-2 gamma)/sum, with one sum.": truth * every,
            "a_k is normalized by the root of the sum of squares j^(-2 gamma), not by the sum of j^(-gamma).": truth
            / every
            * powers.sqrt().sum() ** 2,
            "Normalized over the k that are passed: they may be a few, the sum runs over all n_features.": truth
            / every
            * powers[k - 1].sum(),
            "Normalized over as many features as k has elements: the sum runs over all n_features.": truth
            / every
            * powers[: len(k)].sum(),
            "Normalized up to the largest k that is passed: the sum runs over all n_features.": truth
            / every
            * powers[: k.max()].sum(),
            "That grows with k^gamma: n_k has a_k squared.": size * noise * (every * power).sqrt() / 2,
            "The sign of gamma is off: weaker features need more samples.": truth / power**2,
            "noise_std is a standard deviation: square it.": truth / noise * (1 + noise_std),
            "The label has variance 1 + noise_std^2: the 1 is missing.": truth / noise * noise_std**2,
            "The noise of the label is missing: multiply by 1 + noise_std^2.": truth / noise,
            "That is n_k/D: multiply by lift_dim.": truth / size,
            "lift_dim enters once, not squared.": truth * size,
            "The square of theta_k = sigma_b is off: that is the square root of n_k.": truth.sqrt(),
            "That is n_k of feature k + 1: k starts at 1.": size * noise * every * (k + 1.0) ** (2 * gamma) / 2,
        }
        # where a mistake makes no difference (no noise) it cannot be told
        slips, mistakes = ({s: w for s, w in named.items() if not close(w, truth).all()} for named in (slips, mistakes))
        inputs = {"k": k, "gamma": gamma, "n_features": count, "lift_dim": size, "noise_std": noise_std}
        compare(answer, truth, mistakes, slips, **inputs)
    return "Twice as weak, four times the samples: strengths fall as k^-gamma, so thresholds rise as k^(2 gamma)."


def psi(lam: Tensor, t: Tensor, factor: float) -> Tensor:
    """lam (factor + E t/(lam - t)); factor = 1/delta is the right one."""
    return lam * (factor + (t / (lam - t)).mean())


def turning_point(t: Tensor, factor: float) -> Tensor:
    """The lam > max t where psi is smallest: E t^2/(lam - t)^2 = factor, by bisection."""
    low, high = t.max(), t.max() + ((t**2).mean() / factor).sqrt()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if ((t / (middle - t)) ** 2).mean() > factor else (low, middle)
    return (low + high) / 2


# gamma, noise_std, samples_per_dim
LABELS = ((1.0, 0.0, 10.0), (0.6, 0.7, 4.0), (1.5, 0.2, 60.0))
TAIL_DELTA = 10.0  # samples_per_dim of the last test: labels with a long negative tail


def edge(answer) -> str:
    """edge(t, samples_per_dim) -> min psi - E t."""
    tests = [
        (theory.draw_labels(gamma, 5, noise_std, draws=600, generator=seeded(seed)).t.cpu(), delta)
        for seed, (gamma, noise_std, delta) in enumerate(LABELS)
    ]
    tests.append((1 - torch.randn(600, generator=seeded(3), dtype=torch.float64, device="cpu") ** 2, TAIL_DELTA))
    tests = [(t + 0.2, delta) for t, delta in tests]  # the mean counts
    value = torch.stack([evaluate(answer, (), t=t, samples_per_dim=delta) for t, delta in tests])
    wrong = [edges(t, delta) for t, delta in tests]
    named = {says: torch.stack([each[says] for each in wrong]) for says in wrong[0]}
    truth, slips = named.pop(""), {says: named.pop(says) for says in MEAN}
    right = close(value, truth)
    if right[:-1].all() and not right[-1]:
        raise Wrong(
            "Right, except for labels with a long negative tail: seek lambda > max t, not lambda > max |t|.", 0.5
        )
    for says in LAMBDA:
        if ((value - named[says]).abs() <= 0.02 * named[says].abs()).all():  # lambda from a grid is a little off
            raise Wrong(says)
    given = torch.tensor([delta for _, delta in tests], device="cpu")
    compare(lambda *_: value, truth, named, slips, samples_per_dim=given)
    return "No inputs needed: how far noise reaches is written in the labels."


MEAN = (
    "E t is missing: C-hat has - t I, so subtract the mean of the labels.",
    "The sign of E t is off: subtract it.",
)
LAMBDA = (
    "That is the lambda where psi is smallest; the edge is the value of psi there, minus E t.",
    "That is lambda - E t, where psi is smallest: insert lambda into psi.",
)


def edges(t: Tensor, delta: float) -> dict[str, Tensor]:
    """The edge, under "", and what likely mistakes give, under the sentence that names them."""
    mean, square, root = t.mean(), (t**2).mean(), turning_point(t, 1 / delta)
    truth, pull = theory.bulk_edge(t, delta), (t / (root - t)).mean()
    return {
        "": truth,
        MEAN[0]: truth + mean,
        MEAN[1]: truth + 2 * mean,
        "That is the semicircle, 2 sqrt(E t^2/delta): right only for delta to infinity.": 2 * (square / delta).sqrt(),
        "That is a semicircle with the variance of t: 2 sqrt(Var t/delta).": 2 * ((square - mean**2) / delta).sqrt(),
        "That is the semicircle without its 2: sqrt(E t^2/delta).": (square / delta).sqrt(),
        LAMBDA[0]: root,
        LAMBDA[1]: root - mean,
        "You center t first: psi takes t as it is; subtract E t only at the end.": theory.bulk_edge(t - mean, delta),
        "You center t first, and subtract E t again: psi takes t as it is.": theory.bulk_edge(t - mean, delta) - mean,
        "That has delta where 1/delta belongs.": psi(turning_point(t, delta), t, delta) - mean,
        "That has 1 where 1/delta belongs.": psi(turning_point(t, 1.0), t, 1.0) - mean,
        "1/delta is missing in psi.": root * pull - mean,
        "The factor lambda in front of psi is missing.": 1 / delta + pull - mean,
        "E t/(lambda - t) is missing in psi.": root / delta - mean,
        "The sign of E t/(lambda - t) is off in psi.": root * (1 / delta - pull) - mean,
        "That is the largest label.": t.max(),
        "The derivative of psi has (lambda - t)^2: you solved E t^2/(lambda - t) = 1/delta.": (
            psi(first_power(t, delta), t, 1 / delta) - mean
        ),
    }


def first_power(t: Tensor, delta: float) -> Tensor:
    """lambda > max t with E t^2/(lambda - t) = 1/delta, by bisection."""
    low, high = t.max(), t.max() + delta * (t**2).mean() + 1
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if (t**2 / (middle - t)).mean() > 1 / delta else (low, middle)
    return (low + high) / 2


def lift_of_degree_two(answer) -> str:
    """lift_2(x), (n, d) -> (n, d(d+1)/2), columns in any order."""
    x = uniform(seeded(3), -2.5, 2.5, 40, 5)
    n, dim = x.shape
    i, j = torch.triu_indices(dim, dim, device="cpu")
    truth, product, root2 = lift(x, 2), x[:, i] * x[:, j], math.sqrt(2)
    square, pair = i == j, i != j
    returned = call(answer, x=x)
    shape = tuple(getattr(returned, "shape", ()))
    for width, (says, share) in WIDTHS.items():
        if shape == (n, width(dim)):
            raise Wrong(says, share)
    value = evaluate(lambda x: returned, truth.shape, x=x)
    if same_columns(value, truth):
        return "D features from d inputs, uncorrelated and of variance 1, but far from independent."
    half = {
        "The squares have variance 2: divide x_i^2 - 1 by sqrt(2).": torch.where(square, product - 1, product),
        "The squares have mean 1: subtract it.": torch.where(square, product / root2, product),
        "The products x_i x_j with i < j have variance 1 already: no sqrt(2) for them.": torch.where(
            square, (product - 1) / root2, product * root2
        ),
        "Only the squares are divided by sqrt(2), not the products.": torch.where(square, product - 1, product) / root2,
        "Divide x_i^2 - 1 by sqrt(2), the root of its variance, not by 2.": torch.where(
            square, (product - 1) / 2, product
        ),
        "Multiply by 1/sqrt(2), not by sqrt(2).": torch.where(square, (product - 1) * root2, product),
    }
    none = {
        "Those are plain products: the squares need mean 0 and variance 1.": product,
        "The products with i < j have mean 0: subtract 1 from the squares only.": torch.where(
            square, (product - 1) / root2, product - 1
        ),
        "Subtract 1 before you divide: (x_i^2 - 1)/sqrt(2).": torch.where(square, product / root2 - 1, product),
        "That is (x_i - 1)^2 where x_i^2 - 1 belongs.": torch.where(square, (x[:, i] - 1) ** 2 / root2, product),
        "Those are sums x_i + x_j where products belong.": torch.where(pair, x[:, i] + x[:, j], (product - 1) / root2),
    }
    for share, named in ((0.5, half), (0.0, none)):
        for says, wrong in named.items():
            if same_columns(value, wrong):
                raise Wrong(says, share)
    missing = [k for k, column in enumerate(truth.mT) if not any(close(other, column).all() for other in value.mT)]
    a, b = int(i[missing[0]]), int(j[missing[0]])
    name = f"(x_{a + 1}^2 - 1)/sqrt(2)" if a == b else f"x_{a + 1} x_{b + 1}"
    raise Wrong(f"{len(missing)} of {truth.shape[1]} columns are missing; none of yours is {name}, for instance.")


WIDTHS = {  # columns -> what they are instead of d(d+1)/2
    lambda dim: dim * (dim - 1) // 2: ("The squares are missing: take i <= j, not i < j.", 0.5),
    lambda dim: dim**2: ("Each product stands there twice: x_i x_j and x_j x_i are one feature, so take i <= j.", 0),
    lambda dim: dim: ("There are only d columns: the products x_i x_j with i < j are missing.", 0),
    lambda dim: dim * (dim + 1) // 2 + 1: ("One column too many: the constant is not a feature of degree 2.", 0.5),
    lambda dim: dim * (dim + 3) // 2: ("The inputs themselves are of degree 1: leave them out.", 0.5),
}


def same_columns(value: Tensor, target: Tensor) -> bool:
    """Whether the columns agree up to their order."""
    near = torch.stack([close(value, column[:, None].expand_as(value)).all(0) for column in target.mT])
    return bool(near.any(0).all() and near.any(1).all())


# d, gamma, n: noise decides, dimension decides, both do
SETTINGS = (
    (24, 1.0, 1e5),
    (32, 1.0, 3e3),
    (60, 1.0, 1e5),
    (16, 0.75, 1e5),
    (40, 1.5, 2e4),
    (100, 0.75, 4e5),
    (8, 1.5, 1e6),
    (32, 1.0, 200),
    (8, 1.0, 53),  # D = 36: here d²/2 = 32 counts one more
    (8, 1.0, 47),  # and d(d − 1)/2 = 28 here
)


def how_many(answer) -> str:
    """revealed(d, gamma, n): features with rho_k >= 1/2 and a_k >= 4/d."""
    truth = [lifted.revealed(*given) for given in SETTINGS]
    given = [dict(zip(("d", "gamma", "n"), setting, strict=True)) for setting in SETTINGS]
    values = [float(as_tensor(call(answer, **inputs), ())) for inputs in given]
    if values == truth:
        return "Up to some number of samples n decides, then d: more data do not help when the lift is the limit."
    for says, (wrong, share) in COUNTS.items():
        if values == [wrong(*setting) for setting in SETTINGS]:
            raise Wrong(says, share)
    right = sum(value == true for value, true in zip(values, truth, strict=True))
    at = next(k for k, (value, true) in enumerate(zip(values, truth, strict=True)) if value != true)
    raise Wrong(
        f"At {show(given[at])} you count {values[at]:g}, expected {truth[at]}; {right} of {len(truth)} are right."
    )


def counted(
    size=lambda d: d * (d + 1) / 2,
    double: float = 2.0,
    floor: Callable[[int], float] = lambda d: 4 / d,
    strengths: Callable[[float], Tensor] = lambda gamma: theory.amplitudes(gamma, 12).cpu(),
    tell: Callable[[Tensor], Tensor] = lambda seen: seen,
) -> Callable[[int, float, float], int]:
    """A count of features with one thing wrong."""

    def answer(d: int, gamma: float, n: float) -> int:
        a = strengths(gamma)
        return int(tell((n * a**2 >= double * size(d) / 2) & (a >= floor(d))).sum())

    return answer


def plain_powers(gamma: float) -> Tensor:
    return torch.arange(1, 13, dtype=torch.float64, device="cpu") ** -gamma


COUNTS = {
    "The floor of dimension is missing: a_k >= 4/d too.": (counted(floor=lambda d: 0), 0.5),
    "The floor of noise is missing: rho_k >= 1/2 too.": (counted(double=0), 0.5),
    "That counts features beyond their threshold, n >= n_k: for rho_k >= 1/2 it takes twice as many samples.": (
        counted(double=1),
        0.5,
    ),
    "A lift of degree 2 has D = d(d+1)/2 features, not d^2.": (counted(size=lambda d: d**2), 0.5),
    "D is d(d+1)/2, not d^2/2: at small d that decides.": (counted(size=lambda d: d**2 / 2), 0.5),
    "D is d(d+1)/2: the squares count too, not only the pairs i < j.": (counted(size=lambda d: d * (d - 1) / 2), 0.5),
    "D is d(d+1)/2, the size of the lift, not d.": (counted(size=lambda d: d), 0),
    "Both conditions have to hold: count features that meet the one and the other.": (
        lambda d, gamma, n: max(counted(double=0)(d, gamma, n), counted(floor=lambda d: 0)(d, gamma, n)),
        0,
    ),
    "The floor is 4/d, not 4/D.": (counted(floor=lambda d: 8 / (d * (d + 1))), 0),
    "The strengths are not normalized: sum a_k^2 = 1 over the twelve.": (counted(strengths=plain_powers), 0),
    "That counts the hidden ones.": (counted(tell=lambda seen: ~seen), 0.5),
    "4/d is a floor for a_k, not for its square.": (counted(floor=lambda d: (4 / d) ** 0.5), 0),
}

EXERCISES = {
    "08.1": Exercise(points=3, minutes=5, difficulty=2, check=threshold),
    "08.2": Exercise(points=4, minutes=12, difficulty=3, check=edge),
    "08.3": Exercise(points=3, minutes=6, difficulty=2, check=lift_of_degree_two),
    "08.4": Exercise(points=3, minutes=8, difficulty=2, check=how_many),
}
