"""Right and wrong answers to the exercises of lesson 04, as a learner would write them."""

import math

import torch
from torch import sqrt

from labkit.diagonal import penalty, replica, tasks
from labkit.diagonal.interpolate import recovery_threshold


def two_kinds(
    omega, tau, rho, c, *, spike=lambda rho: rho**-0.5, root_k=lambda c: 2 * c, weigh=lambda rho: (rho, 1 - rho)
):
    """E prox', E(beta - beta*)^2 and E beta^2 at pretraining."""
    z = torch.linspace(-7, 7, 2001, dtype=torch.float64)
    normal, total = torch.softmax(-(z**2) / 2, 0), [0, 0, 0]
    for share, star in zip(weigh(rho), (spike(rho), 0 * rho), strict=True):
        r, at = star[:, None] + omega[:, None] * z, (root_k(c)[:, None], tau[:, None])
        beta = replica.prox(r, *at)
        values = replica.prox_prime(r, *at), (beta - star[:, None]) ** 2, beta**2
        total = [t + share * (normal * value).sum(-1) for t, value in zip(total, values, strict=True)]
    return total


def residuals(
    first=lambda f, a: f - a, second=lambda e, a, omega: e / a - omega**2, noise=lambda omega: omega, **changes
):
    """The two equations of pretraining, each as given."""

    def answer(omega, tau, rho, c, alpha):
        follow, error, _ = two_kinds(noise(omega), tau, rho, c, **changes)
        return first(follow, alpha), second(error, alpha, omega)

    return answer


def of_size(omega, tau, rho, c, alpha):
    follow, _, size = two_kinds(omega, tau, rho, c)
    return follow - alpha, size / alpha - omega**2


def tail(
    at=lambda half, price, tau: half + tau * price,
    scale=lambda p, rho: p,
    width=lambda w: w,
    root_k=lambda c: 2 * c,
    unit=lambda rho: rho**-0.5,
):
    """The share of false features, with a mistake."""

    def answer(omega, tau, rho, c):
        half = unit(rho) / 2
        return scale(torch.erfc(at(half, penalty.q_prime(half, root_k(c)), tau) / width(omega) / 2**0.5), rho)

    return answer


def shrunk(omega, tau, rho, c):
    return torch.erfc(replica.prox(rho**-0.5 / 2, 2 * c, tau) / omega / 2**0.5)


def kept(omega, tau, rho, c):
    half = rho**-0.5 / 2
    return torch.special.ndtr((half - tau * penalty.q_prime(half, 2 * c)) / omega)


def by_grid(tell=lambda best, full: 1 - best / full, low=-4, alpha=lambda alpha_pt: alpha_pt, linear=False):
    """The best lam on a grid and what is told about the errors there and at lam = 1."""
    gap = torch.linspace(0, 2, 11) if linear else torch.logspace(low, math.log10(2), 60)

    def answer(task, c, gamma, alpha_ft, alpha_pt):
        lam = (gap.double() - 1).clamp(-1, 1)
        error = replica.generalization_error(task, c, lam, gamma, alpha_ft, alpha(alpha_pt)).error
        return lam[error.argmin()], tell(error.min(), error[-1])

    return answer


def over_zero(task, c, gamma, alpha_ft, alpha_pt):
    lam = by_grid()(task, c, gamma, alpha_ft, alpha_pt)[0]
    mine, zero = replica.generalization_error(task, c, torch.stack([lam, 0 * lam]), gamma, alpha_ft, alpha_pt).error
    return lam, 1 - mine / zero


def bisected(offset=0.0, small=0.05):
    """The alpha_pt where the gain has fallen to ``small``."""

    def answer(c, gamma, alpha_ft):
        low, high = 0.15, 0.9
        for _ in range(8):
            middle = (low + high) / 2
            gain = by_grid()(tasks.FULL, c, gamma, alpha_ft, middle)[1]
            low, high = (middle, high) if gain >= small else (low, middle)
        return middle + offset

    return answer


RIGHT = {
    "04.1": [residuals(), lambda *a: [part.numpy() for part in residuals()(*a)]],
    "04.2": [tail()],
    "04.3": [by_grid(), by_grid(low=-3)],
    "04.4": [bisected(), bisected(offset=-0.004)],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "04.1": [
        ("The shares are missing", 0, residuals(weigh=lambda rho: (1, 1))),
        ("not evenly", 0, residuals(weigh=lambda rho: (0.5, 0.5))),
        ("The shares are swapped", 0, residuals(weigh=lambda rho: (1 - rho, rho))),
        ("k where root_k belongs", 0, residuals(root_k=lambda c: 4 * c**2)),
        ("not its square root", 0, residuals(root_k=lambda c: sqrt(2 * c))),
        ("both paths count", 0, residuals(root_k=lambda c: c)),
        ("1/sqrt(rho_pt), not 1.", 0, residuals(spike=torch.ones_like)),
        ("not 1/rho_pt", 0, residuals(spike=lambda rho: 1 / rho)),
        ("not omega^2 z", 0, residuals(noise=lambda omega: omega**2)),
        ("omega is missing in r", 0, residuals(noise=torch.ones_like)),
        ("yours are swapped", 2, lambda *a: residuals()(*a)[::-1]),
        ("E prox' itself", 2, residuals(first=lambda f, a: f)),
        ("averages 1 - prox'", 2, residuals(first=lambda f, a: 1 - f - a)),
        ("f1: alpha_pt is missing", 2, residuals(first=lambda f, a: f - 1)),
        ("sign of f1", 3, residuals(first=lambda f, a: a - f)),
        ("E prox'/alpha_pt - 1", 3, residuals(first=lambda f, a: f / a - 1)),
        ("f2: alpha_pt is missing", 2, residuals(second=lambda e, a, omega: e - omega**2)),
        ("do not multiply", 2, residuals(second=lambda e, a, omega: e * a - omega**2)),
        ("omega where omega^2 belongs", 2, residuals(second=lambda e, a, omega: e / a - omega)),
        ("subtract beta* first", 2, of_size),
        ("ridge error", 2, residuals(second=lambda e, a, omega: (1 - a) / a - omega**2)),
        ("subtract omega^2", 2, residuals(second=lambda e, a, omega: e / a)),
        ("sign of f2", 3, residuals(second=lambda e, a, omega: omega**2 - e / a)),
        ("f2 is multiplied by alpha_pt", 3, residuals(second=lambda e, a, omega: e - a * omega**2)),
        ("f1: at omega=", 0, residuals(first=lambda f, a: f**2, second=lambda e, a, omega: e**2)),
        ("pair (f1, f2)", 0, lambda *a: 0.0),
        ("expected (8,)", 0, lambda *a: residuals()(*(value[:3] for value in a))),
    ],
    "04.2": [
        ("One tail is missing", 1, tail(scale=lambda p, rho: p / 2)),
        ("of all coordinates", 1, tail(scale=lambda p, rho: p * (1 - rho))),
        ("share that stays below", 1, tail(scale=lambda p, rho: 1 - p)),
        ("The price is missing", 0, tail(at=lambda half, price, tau: half)),
        ("plus tau q'(b), not minus", 0, tail(at=lambda half, price, tau: half - tau * price)),
        ("tau is missing", 0, tail(at=lambda half, price, tau: half + price)),
        ("That is for a whole feature", 0, tail(unit=lambda rho: 2 * rho**-0.5)),
        ("1/sqrt(rho_pt), not 1.", 0, tail(unit=torch.ones_like)),
        ("both paths count", 0, tail(root_k=lambda c: c)),
        ("k where root_k belongs", 0, tail(root_k=lambda c: 4 * c**2)),
        ("not by omega^2", 0, tail(width=lambda omega: omega**2)),
        ("omega is missing", 0, tail(width=torch.ones_like)),
        ("where its inverse belongs", 0, shrunk),
        ("have no feature", 0, kept),
        ("At omega=", 0, tail(scale=lambda p, rho: p**2)),
    ],
    "04.3": [
        ("evenly in log(1+lam)", 1.5, by_grid(linear=True)),
        ("hand alpha_pt over", 0, by_grid(alpha=lambda _: None)),
        ("share of the error that is left", 1.5, by_grid(lambda best, full: best / full)),
        ("gain in percent", 1.5, by_grid(lambda best, full: 100 * (1 - best / full))),
        ("sign of the gain", 1.5, by_grid(lambda best, full: best / full - 1)),
        ("saved error itself", 1.5, by_grid(lambda best, full: full - best)),
        ("error at the best lam", 0, by_grid(lambda best, full: full / best - 1)),
        ("how many times smaller", 0, by_grid(lambda best, full: full / best)),
        ("compare with lam = 1.", 0, over_zero),
        ("it saves", 0, by_grid(lambda best, full: 0.9)),
        ("Swapped?", 0, lambda *a: (1.5, -0.9)),
        ("must lie in [-1, 1], got 3", 0, lambda *a: (3.0, 40.0)),
        ("pair (lam, gain)", 0, lambda *a: 0.5),
    ],
    "04.4": [
        ("is the recovery threshold", 0, lambda c, gamma, alpha_ft: recovery_threshold(0.1)),
        ("bisect on to 0.01", 1.5, bisected(offset=0.02)),
        ("more is needed", 0, lambda c, gamma, alpha_ft: 0.2),
        ("less would be enough", 0, lambda c, gamma, alpha_ft: 0.8),
        ("must lie between 0.05 and 1, got 40", 0, lambda c, gamma, alpha_ft: 40),
        ("At c=0.001, gamma=0.01,", 0.5, lambda c, gamma, alpha_ft: bisected()(1e-3, 0.1, 0.3)),
        ("expected ()", 0, lambda c, gamma, alpha_ft: [0.3, 0.4]),
        ("raised ZeroDivisionError", 0, lambda c, gamma, alpha_ft: 1 / 0),
    ],
}  # fmt: skip
