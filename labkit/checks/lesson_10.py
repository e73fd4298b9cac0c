"""Exercises of lesson 10, the advantage of depth: thresholds through a link, counts, exponents, who wins when."""

import math
from functools import cache

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, compare, kind, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.recovery.hermite import lift_dim
from labkit.recovery.separation import HOLDOUT, expected_samples, fit_exponent, kernel_dim
from labkit.recovery.theory import LINKS, amplitudes


def thresholds(answer) -> str:
    """thresholds(h, a, g, lift_dim) -> n_k = D E[y^2]/theta_k^2, theta_k = E y (h_k^2 - 1), y = g(u)."""
    generator, size = seeded(21), 300
    h = torch.randn(4000, 3, dtype=torch.float64, generator=generator, device="cpu")
    a = amplitudes(1.0, 3).cpu()
    for number, (name, g) in enumerate(LINKS.items()):
        try:
            judge_thresholds(answer, h, a, g, size)
        except Wrong as wrong:
            share = max(wrong.share, number / len(LINKS) / 2)
            raise Wrong(f'With the link "{name}": {wrong}', share) from None
    return "One second moment, three links: an even one squares the strengths, so weak features drown first."


def judge_thresholds(answer, h: Tensor, a: Tensor, g, size: int) -> None:
    value = as_tensor(call(answer, h=h, a=a, g=g, lift_dim=size), a.shape)
    if not value.isfinite().all():
        raise Wrong(f"Your function returned {value.tolist()}: a division by zero?")
    u = (h**2 - 1) @ a / math.sqrt(2)
    y = g(u)

    def needed(
        label: Tensor = y, power: Tensor | None = None, strength: Tensor | None = None, exponent: float = 2
    ) -> Tensor:
        theta = (label[:, None] * (h**2 - 1)).mean(0) if strength is None else strength
        return size * ((y**2).mean() if power is None else power) / theta.abs() ** exponent

    by_square = (y[:, None] * h**2).mean(0)
    without_root = g(u * math.sqrt(2))
    mistakes = {
        "The strength of a spike is squared: n_k falls as 1/theta_k^2.": needed(exponent=1),
        "The label is y = g(u), not u: apply the link.": needed(u, (u**2).mean()),
        "theta_k has u where y = g(u) belongs.": needed(u),
        "The noise is E y^2 with y = g(u), not E u^2.": needed(power=(u**2).mean()),
        "The -1 of h_k^2 - 1 is missing in theta_k.": needed(strength=by_square),
        "E y^2 is the mean of the square, not the variance: y.var() takes the mean of y off.": needed(power=y.var()),
        "E y^2, not the variance of y: the moment matrix is made of y itself.": needed(power=y.var(correction=0)),
        "That is (E y)^2 where E y^2 belongs.": needed(power=y.mean() ** 2),
        "That is E |y| where E y^2 belongs.": needed(power=y.abs().mean()),
        "The noise is missing: E y^2 in the numerator.": needed(power=torch.ones(())),
        "u = sum of a_k (h_k^2 - 1)/sqrt(2): the root of 2 is missing.": needed(without_root, (without_root**2).mean()),
        "theta_k is E y (h_k^2 - 1): without 1/sqrt(2), which makes n_k twice too large.": 2 * needed(),
        "theta_k is linear in h_k^2 - 1: not in h_k.": needed(strength=(y[:, None] * h).mean(0)),
        "That is sqrt(2) a_k for theta_k, right for the identity only: average y (h_k^2 - 1).": needed(
            strength=math.sqrt(2) * a
        ),
    }
    slips = {
        "lift_dim is missing: that is n_k/D.": needed() / size,
        "That is the inverse, theta_k^2/E y^2: which n makes noise and spike equal?": 1 / needed(),
        "That is the spike theta_k itself: the threshold is D E y^2/theta_k^2.": (y[:, None] * (h**2 - 1)).mean(0),
    }
    compare(lambda a: value, needed(), mistakes, slips, a=a)


COUNTS = ((10, 2), (7, 1), (6, 3), (23, 2))  # dim, degree


def count(answer) -> str:
    """dimensions(dim, degree) -> (D, features of the kernel of degree 2q on the sphere)."""
    shares, first = [], None
    for dim, degree in COUNTS:
        returned = pair(call(answer, dim=dim, degree=degree), "lift, kernel")
        lift, whole = (float(as_tensor(part, ())) for part in returned)
        said = [said_of_lift(lift, dim, degree), said_of_kernel(whole, dim, degree)]
        if (lift, whole) == (kernel_dim(dim, degree), lift_dim(dim, degree)):
            said = ["return (lift, kernel), in this order: yours are swapped."]
            shares.append(0.5)
        else:
            shares.append(sum(not part for part in said) / 2)
        first = first or next((f"At d = {dim}, q = {degree}: {part}" for part in said if part), None)
    if first:
        raise Wrong(first, share=min(shares))
    return "That is the whole separation: d^q/q! unknowns on one side, d^2q/(2q)! on the other."


def said_of_lift(value: float, dim: int, q: int) -> str:
    """What is wrong with a count of the lift; "" when nothing is."""
    named = {
        "repeated coordinates are missing: x_i^2 counts, too.": math.comb(dim, q),
        "d^q counts x_i x_j and x_j x_i: the order does not matter.": dim**q,
        "d^q/q! is the count for large d only: give the exact one.": dim**q / math.factorial(q),
        "that has all degrees up to q: the lift has degree q alone.": math.comb(dim + q, q),
        "that is one too many in the binomial: C(d+q-1, q).": math.comb(dim + q, q - 1),
    }
    return told(value, lift_dim(dim, q), named, "the lift")


def said_of_kernel(value: float, dim: int, q: int) -> str:
    p = 2 * q
    named = {
        "those of degree 2q alone: odd powers of x.x'/d bring more.": math.comb(dim + p - 1, p),
        "that is right for all of space: on the sphere |x|^2 is a constant, and some coincide.": math.comb(dim + p, p),
        "d^2q counts every order of the same coordinates.": dim**p,
        "d^2q/(2q)! is the count for large d only: give the exact one.": dim**p / math.factorial(p),
        "that is the square of the lift: many pairs of features have the same product.": lift_dim(dim, q) ** 2,
        "those are pairs of features: many have the same product.": math.comb(lift_dim(dim, q) + 1, 2),
        "that has degree q: the kernel has degree 2q.": math.comb(dim + q - 1, q) + math.comb(dim + q - 2, q - 1),
        "those of degree 2q and 2q - 2: the kernel has odd degrees, too.": math.comb(dim + p - 1, p)
        + math.comb(dim + p - 3, p - 2),
        "add the two counts, do not subtract.": math.comb(dim + p - 1, p) - math.comb(dim + p - 2, p - 1),
    }
    return told(value, kernel_dim(dim, q), named, "the kernel")


def told(value: float, truth: int, named: dict[str, float], what: str) -> str:
    if value == truth:
        return ""
    for says, wrong in named.items():
        if abs(value - wrong) <= 1e-6 * abs(wrong):  # a float32 of theirs
            return f"{what}: {says}"
    return f"{what}: you count {value:g}, it has {truth} features."


def exponent(answer) -> str:
    """exponent(dim, needed, log_error) -> (slope, se) of the weighted fit in ln-ln."""
    generator, n = seeded(23), 7
    dim = 8 + 20 * uniform(generator, 0, 1, n).sort().values
    log_error = uniform(generator, -3.5, -1, n).exp()
    needed = 4 * dim**2.4 * (log_error * torch.randn(n, dtype=torch.float64, generator=generator, device="cpu")).exp()
    inputs = {"dim": dim, "needed": needed, "log_error": log_error}
    slope, se = (as_tensor(part, ()) for part in pair(call(answer, **inputs), "slope, se"))
    truth, error = fit_exponent(**inputs)
    x, y = dim.log(), needed.log()

    def fit(x: Tensor = x, y: Tensor = y, weight: Tensor = log_error**-2) -> tuple[Tensor, Tensor, Tensor]:
        x = x - (weight * x).sum() / weight.sum()
        y = y - (weight * y).sum() / weight.sum()
        spread = (weight * x**2).sum()
        slope = (weight * x * y).sum() / spread
        return slope, spread**-0.5, (weight * (y - slope * x) ** 2).sum()

    from_mean, w = x - x.mean(), log_error**-2
    plain_error = (w * from_mean**2).sum() ** -0.5
    plain, half_plain = ((w * from_mean * other).sum() * plain_error**2 for other in (y - y.mean(), y))
    at_zero = (log_error**-2 * x * y).sum() / (log_error**-2 * x**2).sum()
    slopes = {
        "slope: that is the fit without weights: precise points count more.": fit(weight=torch.ones_like(x))[0],
        "slope: the weights are 1/log_error^2, yours are 1/log_error.": fit(weight=1 / log_error)[0],
        "slope: the weights are 1/log_error^2: np.polyfit squares w itself, give it 1/log_error.": fit(
            weight=log_error**-4
        )[0],
        "slope: the weights are the wrong way round: a large error means a small weight.": fit(weight=log_error**2)[0],
        "slope: take the logarithm of dim, too.": fit(dim, y)[0],
        "slope: take the logarithm of needed, too.": fit(x, needed)[0],
        "slope: take logarithms of both: a power law is a straight line there.": fit(dim, needed)[0],
        "slope: x and y are swapped: fit ln needed against ln dim.": fit(y, x)[0],
        "slope: the line need not go through the origin: fit a constant, too.": at_zero,
        "slope: center ln d with the weighted mean, not with the plain one.": half_plain,
        "slope: center ln d and ln n with the weighted mean, not with the plain one.": plain,
        "slope: one logarithm is to base 10, the other is not.": truth / math.log(10),
        "slope: one logarithm is to base e, the other is to base 10.": truth * math.log(10),
        "slope: from the first and last point alone: use all.": (y[-1] - y[0]) / (x[-1] - x[0]),
    }
    chi = fit()[2] / (n - 2)
    errors = {
        "se: that is the variance: take its root.": error**2,
        "se: that is scaled by the scatter around the line: the errors are known, cov='unscaled'.": error * chi.sqrt(),
        "se: that is the variance scaled by the scatter: cov='unscaled', and take its root.": error**2 * chi,
        "se: x is not centered: subtract its weighted mean.": (log_error**-2 * x**2).sum() ** -0.5,
        "se: center ln d with the weighted mean, not with the plain one.": plain_error,
        "se: weigh by 1/log_error^2, not by 1/log_error.": fit(weight=1 / log_error)[1],
        "se: the weights are missing.": fit(weight=torch.ones_like(x))[1],
        "se: that is the sum itself: se is one over its root.": error**-2,
    }
    if near(slope, error) and near(se, truth):
        raise Wrong("Return (slope, se), in this order: yours are swapped.", 0.5)
    found = [said(slope, truth, slopes, "slope"), said(se, error, errors, "se")]
    if any(found):
        raise Wrong(next(part for part in found if part), sum(not part for part in found) / 2)
    return "An exponent without an error bar is a drawing, not a measurement."


def near(value: Tensor, target: Tensor) -> bool:
    return bool((value - target).abs() <= 1e-4 * target.abs())


def said(value: Tensor, truth: Tensor, named: dict[str, Tensor], what: str) -> str:
    if near(value, truth):
        return ""
    for says, wrong in named.items():
        if near(value, wrong):
            return says
    return f"{what}: your function returned {float(value):.4g}, expected {float(truth):.4g}."


LEVELS = (0.5, 0.1, 0.05)


def takes_over(answer) -> str:
    """takes_over(level): the least d at which layer by layer reaches the level with fewer samples than the kernel."""
    for number, level in enumerate(LEVELS):
        share = number / len(LEVELS) / 2
        returned = call(answer, level=level)
        dim = float(as_tensor(returned, ()))
        if not math.isfinite(dim) or dim != round(dim) or not 3 <= dim <= 10_000:
            raise Wrong(f"At level {level}: d must be a whole number from 3 on, got {dim:g} ({kind(returned)}).", share)
        truth, dim = takes_over_at(level), int(dim)
        if dim == truth:
            continue
        named = {
            "that is the last d at which the kernel still wins: the next one is asked for.": (truth - 1, 0.5),
            "that is one too far: at the d before, layer by layer wins already.": (truth + 1, 0.5),
            "that is the answer for one half: hand the level over.": (takes_over_at(0.5), 0),
            "with 6/level samples per unknown, the law far beyond all thresholds: follow the curves.": (
                by_counts(6 / level / (1 - HOLDOUT)),
                0,
            ),
            "the layer-wise curve is right, the kernel's is not: it needs fewer samples than features.": (
                by_counts(per_unknown(level)),
                0,
            ),
        }
        for says, (wrong, earned) in named.items():
            if dim == wrong:
                raise Wrong(f"At level {level}: {says}", max(share, earned))
        who = "still needs more samples than the kernel" if dim < truth else "has been ahead for a while"
        raise Wrong(f"At level {level}: at d = {dim} layer by layer {who}.", share)
    return "The more accuracy you ask for, the longer the kernel, which can be exact, stays ahead: no dominance."


@cache
def takes_over_at(level: float) -> int:
    """By bisection; the ratio of the two grows with d."""
    low, high = 3, 400
    while high - low > 1:
        middle = (low + high) // 2
        ahead = expected_samples(middle, "spectral", level) < expected_samples(middle, "kernel", level)
        low, high = (low, middle) if ahead else (middle, high)
    return high


@cache
def per_unknown(level: float) -> float:
    """n/D of the layer-wise method, the same at every d."""
    return float(expected_samples(10, "spectral", level)) / lift_dim(10, 2)


def by_counts(samples_per_unknown: float) -> int:
    return next(d for d in range(2, 2000) if samples_per_unknown * lift_dim(d, 2) < kernel_dim(d, 2))


EXERCISES = {
    "10.1": Exercise(points=3, minutes=6, difficulty=2, check=thresholds),
    "10.2": Exercise(points=2, minutes=5, difficulty=2, check=count),
    "10.3": Exercise(points=3, minutes=8, difficulty=2, check=exponent),
    "10.4": Exercise(points=3, minutes=6, difficulty=3, check=takes_over),
}
