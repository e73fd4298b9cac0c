"""Right and wrong answers to the exercises of lesson 10, as a learner would write them."""

import math
from math import comb

import numpy as np
import torch

from labkit.recovery import separation


def by_average(power=lambda y, u: (y**2).mean(), spike=lambda y, h, u, a: (y[:, None] * (h**2 - 1)).mean(0)):
    """thresholds with the noise and the strength of the spike as given."""

    def answer(h, a, g, lift_dim):
        u = ((h**2 - 1) * a).sum(1) / 2**0.5
        return lift_dim * power(g(u), u) / spike(g(u), h, u, a) ** 2

    return answer


def changed(change):
    return lambda h, a, g, lift_dim: change(by_average()(h, a, g, lift_dim), lift_dim)


def spike_itself(h, a, g, lift_dim):
    u = ((h**2 - 1) * a).sum(1) / 2**0.5
    return (g(u)[:, None] * (h**2 - 1)).mean(0)


def not_squared(h, a, g, lift_dim):
    y = g(((h**2 - 1) * a).sum(1) / 2**0.5)
    return lift_dim * (y**2).mean() / spike_itself(h, a, g, lift_dim).abs()


def without_root(h, a, g, lift_dim):
    y = g(((h**2 - 1) * a).sum(1))
    return lift_dim * (y**2).mean() / (y[:, None] * (h**2 - 1)).mean(0) ** 2


def counted(lift=lambda d, q: comb(d + q - 1, q), kernel=lambda d, p: comb(d + p - 1, p) + comb(d + p - 2, p - 1)):
    return lambda dim, degree: (lift(dim, degree), kernel(dim, 2 * degree))


def by_polyfit(weight=lambda e: 1 / e, cov="unscaled", x=np.log, y=np.log, tell=lambda v: v**0.5, swap=False):
    """exponent by numpy, with a mistake."""

    def answer(dim, needed, log_error):
        first, second = x(dim.numpy()), y(needed.numpy())
        first, second = (second, first) if swap else (first, second)
        (slope, _), covariance = np.polyfit(first, second, 1, w=weight(log_error.numpy()), cov=cov)
        return slope, tell(covariance[0, 0])

    return answer


def through_origin(dim, needed, log_error):
    x, w = dim.log(), log_error**-2
    return (w * x * needed.log()).sum() / (w * x**2).sum(), (w * x**2).sum() ** -0.5


def plain_mean(both):
    def answer(dim, needed, log_error):
        x, y, w = dim.log(), needed.log(), log_error**-2
        x, y = x - x.mean(), y - both * y.mean()
        return (w * x * y).sum() / (w * x**2).sum(), (w * x**2).sum() ** -0.5

    return answer


def by_search(at=lambda level: level, offset=0):
    def answer(level):
        d = 3
        while separation.expected_samples(d, "spectral", at(level)) >= separation.expected_samples(
            d, "kernel", at(level)
        ):
            d += 1
        return d + offset

    return answer


def with_kernel_dim(per_unknown):
    def answer(level):
        d = 3
        while per_unknown(level) * d * (d + 1) / 2 >= separation.kernel_dim(d, 2):
            d += 1
        return d

    return answer


RIGHT = {
    "10.1": [by_average(), lambda h, a, g, lift_dim: by_average()(h, a, g, lift_dim).numpy()],
    "10.2": [
        counted(),
        lambda dim, degree: (separation.lift_dim(dim, degree), separation.kernel_dim(dim, degree)),
        lambda dim, degree: torch.tensor(counted()(dim, degree)),
    ],
    "10.3": [
        by_polyfit(),
        separation.fit_exponent,
        lambda *a: separation.fit_exponent(*(it.float() for it in a)),
    ],
    "10.4": [by_search(), lambda level: torch.tensor(by_search()(level))],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "10.1": [
        ("is squared: n_k falls", 0, not_squared),
        ("apply the link", 0.5, lambda h, a, g, D: by_average()(h, a, lambda u: u, D)),
        ("theta_k has u where y", 0.5, by_average(spike=lambda y, h, u, a: (u[:, None] * (h**2 - 1)).mean(0))),
        ("with y = g(u), not E u^2", 0.5, by_average(power=lambda y, u: (u**2).mean())),
        ("The -1 of h_k^2 - 1", 0, by_average(spike=lambda y, h, u, a: (y[:, None] * h**2).mean(0))),
        ("not the variance of y", 0, by_average(power=lambda y, u: y.var(correction=0))),
        ("takes the mean of y off", 0, by_average(power=lambda y, u: y.var())),
        ("That is (E y)^2", 0, by_average(power=lambda y, u: y.mean() ** 2)),
        ("That is E |y|", 0, by_average(power=lambda y, u: y.abs().mean())),
        ("The noise is missing", 0, by_average(power=lambda y, u: 1)),
        ("the root of 2 is missing", 0.5, without_root),
        ("twice too large", 0, changed(lambda n, D: 2 * n)),
        ("not in h_k.", 0, by_average(spike=lambda y, h, u, a: (y[:, None] * h).mean(0))),
        ("right for the identity only", 0, by_average(spike=lambda y, h, u, a: 2**0.5 * a)),
        ("that is n_k/D", 1.5, changed(lambda n, D: n / D)),
        ("That is the inverse", 1.5, changed(lambda n, D: 1 / n)),
        ("That is the spike theta_k itself", 1.5, spike_itself),
        ("3 times the expected one", 0, changed(lambda n, D: 3 * n)),
        ("At a=", 0, changed(lambda n, D: n**2)),
        ("a division by zero?", 0, changed(lambda n, D: n / 0)),
        ("expected (3,)", 0, changed(lambda n, D: n[:2])),
    ],
    "10.2": [
        ("repeated coordinates are missing", 1, counted(comb)),
        ("the order does not matter", 1, counted(lambda d, q: d**q)),
        ("d^q/q! is the count for large d", 1, counted(lambda d, q: d**q / math.factorial(q))),
        ("all degrees up to q", 1, counted(lambda d, q: comb(d + q, q))),
        ("the lift: you count 7", 1, counted(lambda d, q: 7)),
        ("those of degree 2q alone", 1, counted(kernel=lambda d, p: comb(d + p - 1, p))),
        ("on the sphere |x|^2 is a constant", 1, counted(kernel=lambda d, p: comb(d + p, p))),
        ("d^2q counts every order", 1, counted(kernel=lambda d, p: d**p)),
        ("d^2q/(2q)! is the count", 1, counted(kernel=lambda d, p: d**p / math.factorial(p))),
        ("the square of the lift", 1, counted(kernel=lambda d, p: comb(d + p // 2 - 1, p // 2) ** 2)),
        ("those are pairs of features", 1, counted(kernel=lambda d, p: comb(comb(d + p // 2 - 1, p // 2) + 1, 2))),
        ("the kernel has odd degrees", 1, counted(kernel=lambda d, p: comb(d + p - 1, p) + comb(d + p - 3, p - 2))),
        ("add the two counts", 1, counted(kernel=lambda d, p: comb(d + p - 1, p) - comb(d + p - 2, p - 1))),
        ("that has degree q", 1, lambda d, q: (comb(d + q - 1, q), comb(d + q - 1, q) + comb(d + q - 2, q - 1))),
        ("yours are swapped", 1, lambda d, q: counted()(d, q)[::-1]),
        ("pair (lift, kernel)", 0, lambda d, q: comb(d + q - 1, q)),
        ("At d = 7, q = 1", 0, lambda d, q: (55, 935)),
    ],
    "10.3": [
        ("fit without weights", 0, by_polyfit(weight=lambda e: np.ones_like(e))),
        ("yours are 1/log_error", 0, by_polyfit(weight=lambda e: e**-0.5)),
        ("np.polyfit squares w itself", 0, by_polyfit(weight=lambda e: e**-2)),
        ("the wrong way round", 0, by_polyfit(weight=lambda e: e)),
        ("logarithm of dim, too", 0, by_polyfit(x=lambda d: d)),
        ("logarithm of needed, too", 1.5, by_polyfit(y=lambda n: n)),
        ("logarithms of both", 0, by_polyfit(x=lambda d: d, y=lambda n: n)),
        ("x and y are swapped", 0, by_polyfit(swap=True)),
        ("need not go through the origin", 0, through_origin),
        ("base 10, the other is not", 1.5, by_polyfit(y=np.log10)),
        ("base e, the other is to base 10", 0, by_polyfit(x=np.log10)),
        ("that is the variance: take its root", 1.5, by_polyfit(tell=lambda v: v)),
        ("cov='unscaled'.", 1.5, by_polyfit(cov=True)),
        ("scaled by the scatter: cov", 1.5, by_polyfit(cov=True, tell=lambda v: v)),
        ("x is not centered", 1.5, lambda *a: (separation.fit_exponent(*a)[0], through_origin(*a)[1])),
        ("slope: center ln d with the weighted mean", 0, plain_mean(False)),
        ("slope: center ln d and ln n with the weighted mean", 0, plain_mean(True)),
        ("se: center ln d with the weighted mean", 1.5, lambda *a: (
            separation.fit_exponent(*a)[0], plain_mean(True)(*a)[1])),
        ("one over its root", 1.5, by_polyfit(tell=lambda v: 1 / v)),
        ("yours are swapped", 1.5, lambda *a: separation.fit_exponent(*a)[::-1]),
        ("from the first and last point", 0, lambda d, n, e: ((n[-1] / n[0]).log() / (d[-1] / d[0]).log(), e[0])),
        ("slope: your function returned 2,", 1.5, lambda *a: (2.0, separation.fit_exponent(*a)[1])),
        ("pair (slope, se)", 0, lambda d, n, e: 2.0),
    ],
    "10.4": [
        ("the next one is asked for", 1.5, by_search(offset=-1)),
        ("one too far", 1.5, by_search(offset=1)),
        ("hand the level over", 0.5, by_search(at=lambda level: 0.5)),
        ("far beyond all thresholds", 0.5, with_kernel_dim(lambda level: 7.5 / level)),
        ("fewer samples than features", 0, with_kernel_dim(
            lambda level: float(separation.expected_samples(10, "spectral", level)) / 55)),
        ("still needs more samples", 0, lambda level: 5),
        ("has been ahead for a while", 0, lambda level: 90),
        ("must be a whole number", 0, lambda level: 9.5),
        ("from 3 on, got nan", 0, lambda level: math.nan),
        ("from 3 on, got inf", 0, lambda level: math.inf),
        ("from 3 on, got 1e+06", 0, lambda level: 1e6),
        ("expected ()", 0, lambda level: [10, 24]),
    ],
}  # fmt: skip
