"""Right and wrong answers to the exercises of lesson 03, written as a learner would write them."""

import torch
from torch import asinh, sqrt

from labkit.checks.lesson_03 import fixed_point
from labkit.diagonal import penalty, replica
from labkit.diagonal.replica import prox, prox_prime
from labkit.diagonal.tasks import SUBSET


def halving(price=penalty.q_prime):
    """b + tau·price(b) = r by halving an interval."""

    def shrink(r, root_k, tau):
        low, high = torch.zeros_like(r), r.abs()
        for _ in range(60):
            middle = (low + high) / 2
            below = middle + tau * price(middle, root_k) < r.abs()
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high * r.sign()

    return shrink


def newton(r, root_k, tau):
    b = 0 * r
    for _ in range(200):
        slope = 1 + tau / sqrt(root_k**2 + 4 * b**2)
        b = b - 0.5 * (b + tau * penalty.q_prime(b, root_k) - r) / slope
    return b


def h(b, root_k):
    return sqrt(root_k**2 + 4 * b**2)


def solver(rounds=60, square=False, swap=False, change=lambda *a: a):
    def solve(*inputs):
        omega, tau = fixed_point(*change(*inputs))
        pair = (omega**2 if square else omega, tau)
        return pair[::-1] if swap else pair

    return solve


def loose(alpha, share, beta_star, root_k):
    """Both unknowns at once, tau by one small step a round: stalls."""
    omega, tau = 1.0, 1.0
    z = torch.linspace(-7, 7, 401, dtype=torch.float64)
    weight = share[:, None] * torch.exp(-(z**2) / 2) / torch.exp(-(z**2) / 2).sum()
    for _ in range(60):
        r = beta_star[:, None] + omega * z
        follow = (weight * prox_prime(r, root_k[:, None], tau)).sum()
        omega = float(((weight * (prox(r, root_k[:, None], tau) - beta_star[:, None]) ** 2).sum() / alpha).sqrt())
        tau = float(tau * (1 + 0.01 * (follow - alpha)))
    return omega, tau


def early(alpha, share, beta_star, root_k):
    """tau exact, but two rounds only."""
    omega = float((share * beta_star**2).sum() / alpha) ** 0.5 * 0.8
    low, high = 1e-6, 1e6
    z = torch.linspace(-7, 7, 401, dtype=torch.float64)
    weight = share[:, None] * torch.exp(-(z**2) / 2) / torch.exp(-(z**2) / 2).sum()
    for _ in range(50):
        tau = (low * high) ** 0.5
        follow = (weight * prox_prime(beta_star[:, None] + omega * z, root_k[:, None], tau)).sum()
        low, high = (tau, high) if follow > alpha else (low, tau)
    return omega, tau


def energy(share, beta_star):
    return float((share * beta_star**2).sum())


def switch():
    lam = torch.cat([torch.tensor([-1.0]), torch.logspace(-4, 0.301, 80) - 1]).double()
    alpha = torch.arange(0.2, 0.45, 0.005).double()
    best = lam[replica.generalization_error(SUBSET, 1e-3, lam, 0.1, alpha[:, None]).error.argmin(-1)]
    names = SUBSET.regime_names(1e-3, best, 0.1)
    return next(a for a, name in zip(alpha.tolist(), names, strict=True) if name != "IV")


RIGHT = {
    "03.1": [halving(), newton, prox],
    "03.2": [
        lambda b, k, tau: h(b, k) / (h(b, k) + tau),
        lambda b, k, tau: 1 / (1 + tau / h(b, k)),
        lambda b, k, tau: (newton(b + tau * penalty.q_prime(b, k) + 1e-5, k, tau) - b) / 1e-5,
    ],
    "03.3": [solver(), lambda *a: torch.tensor(fixed_point(*a))],
    "03.4": [switch, 0.285],
}

WRONG = {
    "03.1": [
        ("The sign of r is lost", 1.5, lambda r, k, tau: prox(r, k, tau).abs()),
        ("positive r only", 1.5, lambda r, k, tau: prox(r, k, tau).clamp_min(0)),
        ("The 1/2 in q' is missing", 1.5, halving(lambda b, k: asinh(2 * b / k))),
        ("tau is missing", 0, lambda r, k, tau: prox(r, k, 1.0)),
        ("cost q where its slope", 0, halving(penalty.q)),
        ("q' is taken at r", 0, lambda r, k, tau: r - tau * penalty.q_prime(r, k)),
        ("equation is turned over", 0, lambda r, k, tau: r + tau * penalty.q_prime(r, k)),
        ("k where root_k belongs", 0, lambda r, k, tau: prox(r, k**2, tau)),
        ("already the root", 0, lambda r, k, tau: prox(r, sqrt(k), tau)),
        ("The 2 inside asinh", 0, halving(lambda b, k: asinh(b / k) / 2)),
        ("soft threshold", 0, lambda r, k, tau: r.sign() * (r.abs() - tau).clamp_min(0)),
        ("linear shrinkage", 0, lambda r, k, tau: r / (1 + tau / k)),
        ("derivative: the next", 0, prox_prime),
        ("That is r itself", 0, lambda r, k, tau: r),
        ("At r=", 0, lambda r, k, tau: prox(r, k, tau) + 1),
    ],
    "03.2": [
        ("That is 1 - db/dr", 0, lambda b, k, tau: tau / (h(b, k) + tau)),
        ("turn it over", 0, lambda b, k, tau: 1 + tau / h(b, k)),
        ("That is q'' itself", 0, lambda b, k, tau: 1 / h(b, k)),
        ("tau is missing", 0, lambda b, k, tau: h(b, k) / (h(b, k) + 1)),
        ("q' where q''", 0, lambda b, k, tau: 1 / (1 + tau * penalty.q_prime(b, k))),
        ("counts twice", 0, lambda b, k, tau: h(b, k) / (h(b, k) + 2 * tau)),
        ("counts half", 0, lambda b, k, tau: h(b, k) / (h(b, k) + tau / 2)),
        ("The 4 in front", 0, lambda b, k, tau: h(b / 2, k) / (h(b / 2, k) + tau)),
        ("square it under the root", 0, lambda b, k, tau: h(b, sqrt(k)) / (h(b, sqrt(k)) + tau)),
        ("The root is missing", 0, lambda b, k, tau: h(b, k) ** 2 / (h(b, k) ** 2 + tau)),
        ("Right at b = 0 only", 0, lambda b, k, tau: k / (k + tau)),
        ("minus sign", 0, lambda b, k, tau: h(b, k) / (h(b, k) - tau)),
        ("At b=", 0, lambda b, k, tau: b),
    ],
    "03.3": [
        ("That is omega^2", 2, solver(square=True)),
        ("swapped", 2, solver(swap=True)),
        ("ridge answer", 0, lambda a, s, b, k: ((energy(s, b) * (1 - a) / a) ** 0.5, 1.0)),
        ("where the iteration starts", 0, lambda a, s, b, k: ((energy(s, b) / a) ** 0.5, 1.0)),
        ("alpha is missing in the first", 0, lambda *a: fixed_point(*a, spread=1)),
        ("not 1 - alpha", 0, lambda *a: fixed_point(*a, follow=1 - a[0])),
        ("weighted by share", 0, solver(change=lambda a, s, b, k: (a, torch.full_like(s, 1 / len(s)), b, k))),
        ("k where root_k belongs", 0, solver(change=lambda a, s, b, k: (a, s, b, k**2))),
        ("small steps of both together", 0, loose),
        ("go on with the rounds", 0, early),
        ("must be positive and finite", 0, lambda *a: (0.0, 1.0)),
        ("must be two numbers", 0, lambda *a: ("a", 1.0)),
        ("pair (omega, tau)", 0, lambda *a: 1.0),
    ],
    "03.4": [
        ("a ratio, not a number of samples", 0, 57),
        ("must lie between 0 and 1", 0, -0.1),
        ("must be a number", 0, "0.28"[:0]),
        ("share of pretrained features", 0, 0.4),
        ("share of features that return", 0, 0.04),
        ("where lam = 1 takes over", 0, 0.51),
        ("the best lam is exactly -1", 0, 0.445),
        ("still in regime IV: it is more", 0, 0.2),
        ("it is less", 0, 0.35),
        ("no return statement", 0, lambda: None),
    ],
}
