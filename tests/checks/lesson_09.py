"""Right and wrong answers to the exercises of lesson 09, as a learner would write them."""

import math

import numpy as np
import torch

from labkit.recovery import theory


def strengths(gamma, n_features, norm=lambda power: power.sum()):
    power = torch.arange(1, n_features + 1, dtype=torch.float64) ** (-2 * gamma)
    return power / norm(power)


def parts(
    threshold=lambda power, noise: (1 + noise**2) / (2 * power),
    power=strengths,
    first=lambda power, rho: ((rho == 0) * power).sum(-1),
    second=lambda power, rho: ((rho > 0) * power * (1 - rho**2)).sum(-1),
):
    """Two parts of the error, with a mistake."""

    def answer(delta, gamma, n_features, noise):
        mine = power(gamma, n_features)
        rho = (1 - threshold(mine, noise) / delta[:, None]).clamp_min(0)
        return first(mine, rho), second(mine, rho)

    return answer


def unclamped(unlearned):
    """ρ < 0 for features that are not out; `unlearned` (power, rho) is right, or is 0 for want of ρ = 0."""

    def answer(delta, gamma, n_features, noise):
        power = strengths(gamma, n_features)
        rho = 1 - (1 + noise**2) / (2 * power) / delta[:, None]
        return unlearned(power, rho), (power * (1 - rho**2)).sum(-1)

    return answer


def by_roots(first=lambda power, rho: ((rho == 0) * power**0.5).sum(-1)):
    return parts(first=first, second=lambda power, rho: ((rho > 0) * power**0.5 * (1 - rho**2)).sum(-1))


def whole(power, rho):
    return (power * (1 - rho**2)).sum(-1)


def by_window(gamma, n_features, noise):
    return theory.window(gamma, n_features, noise)


def total(gamma, n_features):
    return sum(k ** (-2 * gamma) for k in range(1, n_features + 1))


def ends(z=total, y2=lambda noise: 1 + noise**2, factor=2, stretch=lambda d, gamma: d ** (2 * gamma)):
    def answer(gamma, n_features, noise):
        first = z(gamma, n_features) * y2(noise) / factor
        return first, first * stretch(n_features, gamma)

    return answer


def zeta(gamma):
    return torch.special.zeta(torch.as_tensor(2 * gamma, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def constant(gamma):
    return 2 - 1 / (2 * gamma + 1) + 1 / (2 * gamma - 1)


def share(
    c=constant, y2=lambda noise: 1 + noise**2, power=lambda k, gamma: k, number=8, more=lambda gamma: 1.0, turn=False
):
    def answer(k, gamma, noise):
        found = number * more(gamma) / (c(gamma) * power(k, gamma) * y2(noise))
        return 1 / found if turn else found

    return answer


def two_steps(k, gamma, noise):
    delta = zeta(gamma) * (1 + noise**2) / 2 * k ** (2 * gamma)
    return 4 / delta / (constant(gamma) / zeta(gamma) * k ** (1 - 2 * gamma))


def law(k, gamma, noise):
    return constant(gamma) / zeta(gamma) * k ** (1 - 2 * gamma)


def noise_alone(k, gamma, noise):
    return 8 / (zeta(gamma) * (1 + noise**2) * k ** (2 * gamma))


def count(
    size=lambda d: d * (d + 1) / 2,
    z=zeta,
    y2=lambda noise: 1 + noise**2,
    factor=2,
    root=lambda gamma: 1 / (2 * gamma),
    whole=math.floor,
):
    def answer(gamma, dim, n, noise):
        return whole(float((factor * n / (size(dim) * z(gamma) * y2(noise))) ** root(gamma)))

    return answer


def by_theory(gamma, dim, n, noise):
    return theory.learned_features(n / (dim * (dim + 1) / 2), gamma, 1000, noise, tail="noise")


RIGHT = {
    "09.1": [parts(), lambda *a: [part.numpy() for part in parts()(*a)]],
    "09.2": [ends(), by_window, lambda *a: torch.tensor(by_window(*a))],
    "09.3": [share(), two_steps],
    "09.4": [count(), by_theory, lambda *a: float(count()(*a))],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "09.1": [
        ("yours are swapped", 2, lambda *a: parts()(*a)[::-1]),
        ("Normalize the strengths", 0, parts(power=lambda g, n: strengths(g, n, lambda power: 1))),
        ("normalized by Z", 0, parts(power=lambda g, n: strengths(g, n, lambda power: power.sum() ** 0.5))),
        ("That weighs features by a_k", 0, by_roots()),
        (
            "That is a_k where a_k^2 belongs",
            0,
            parts(
                lambda power, noise: (1 + noise**2) / (2 * power**0.5),
                first=lambda power, rho: ((rho == 0) * power**0.5).sum(-1),
                second=lambda power, rho: ((rho > 0) * power**0.5 * (1 - rho**2)).sum(-1),
            ),
        ),
        ("nothing has rho = 0 without the clamp", 0, unclamped(lambda power, rho: ((rho == 0) * power).sum(-1))),
        ("rho < 0 of features that are not out", 2, unclamped(lambda power, rho: ((rho <= 0) * power).sum(-1))),
        ("its square as k^(-2 gamma)", 0, parts(power=lambda g, n: strengths(g / 2, n))),
        ("The factor 2 is missing", 0, parts(lambda power, noise: (1 + noise**2) / power)),
        ("a_k^2 in the denominator", 0, parts(lambda power, noise: (1 + noise**2) / (2 * power**0.5))),
        ("n_k/D grows with the label noise", 0, parts(lambda power, noise: 1 / (2 * power))),
        ("not 1 + sigma.", 0, parts(lambda power, noise: (1 + noise) / (2 * power))),
        ("not sigma^2: the label itself", 0, parts(lambda power, noise: noise**2 / (2 * power))),
        ("The last feature is missing", 0, parts(power=lambda g, n: strengths(g, n)[:-1])),
        ("what *is* learned", 2, parts(first=lambda power, rho: ((rho > 0) * power).sum(-1))),
        ("unlearned: that is the whole error", 2, parts(first=whole)),
        ("unlearned: that counts features", 2, parts(first=lambda power, rho: (rho == 0).sum(-1))),
        ("not 1 - rho.", 2, parts(second=lambda power, rho: ((rho > 0) * power * (1 - rho)).sum(-1))),
        ("not (1 - rho)^2", 2, parts(second=lambda power, rho: ((rho > 0) * power * (1 - rho) ** 2).sum(-1))),
        ("learned: that is what is known", 2, parts(second=lambda power, rho: (power * rho**2).sum(-1))),
        ("learned: that is the whole error", 2, parts(second=whole)),
        ("as if nothing were known", 2, parts(second=lambda power, rho: ((rho > 0) * power).sum(-1))),
        ("At samples_per_dim=", 0, lambda delta, *a: (torch.ones_like(delta), torch.ones_like(delta))),
        ("pair (unlearned, learned)", 0, lambda delta, *a: 0.5),
        ("expected (12,)", 0, lambda delta, *a: parts()(delta[:3], *a)),
    ],
    "09.2": [
        ("yours are swapped", 1, lambda *a: by_window(*a)[::-1]),
        ("not to infinity", 0, ends(z=lambda gamma, d: zeta(gamma))),
        ("The factor 2 is missing", 0, ends(factor=1)),
        ("label noise is missing", 0, ends(y2=lambda noise: 1)),
        ("not 1 + sigma.", 0, ends(y2=lambda noise: 1 + noise)),
        ("Z is missing", 0, ends(z=lambda gamma, d: 1)),
        ("in the denominator, not a_k", 0, ends(lambda g, d: total(g, d) ** 0.5, stretch=lambda d, gamma: d**gamma)),
        ("not k^gamma", 1, ends(stretch=lambda d, gamma: d**gamma)),
        ("not as k^(1/(2 gamma))", 1, ends(stretch=lambda d, gamma: d ** (1 / (2 * gamma)))),
        ("how many times the first", 1, lambda g, d, s: (by_window(g, d, s)[0], d ** (2 * g))),
        ("of the feature after the last", 1, ends(stretch=lambda d, gamma: (d + 1) ** (2 * gamma))),
        ("At gamma=", 0, lambda gamma, d, noise: (gamma + 1, gamma * 7 + 9)),
        ("pair (first, last)", 0, lambda *a: 2.0),
    ],
    "09.3": [
        ("4/delta itself", 0, noise_alone),
        ("That is the error of the law", 0, law),
        ("turned over", 0, share(turn=True)),
        ("C is missing", 0, share(c=lambda gamma: 1)),
        ("leaves the learned features out", 0, share(c=lambda gamma: 1 / (2 * gamma - 1))),
        ("the tail 1/(2 gamma - 1) is missing", 0, share(c=lambda gamma: 2 - 1 / (2 * gamma + 1))),
        ("you subtract the tail", 0, share(c=lambda gamma: 2 - 1 / (2 * gamma + 1) - 1 / (2 * gamma - 1))),
        ("mind the first sign", 0, share(c=lambda gamma: 2 + 1 / (2 * gamma + 1) + 1 / (2 * gamma - 1))),
        ("1/delta_K brings", 0, share(power=lambda k, gamma: k ** (2 * gamma - 1))),
        ("that is why noise matters", 0, share(y2=lambda noise: 1)),
        ("not 1 + sigma.", 0, share(y2=lambda noise: 1 + noise)),
        ("not sigma^2.", 0, share(y2=lambda noise: noise**2)),
        ("Z cancels: it is in delta_K and in the law.", 0, share(more=lambda gamma: 1 / zeta(gamma))),
        ("you multiply by it", 0, share(more=zeta)),
        ("is 1/K.", 0, share(power=lambda k, gamma: k ** (2 * gamma))),
        ("is 1/K, not K", 0, share(power=lambda k, gamma: 1 / k)),
        ("The factor 2 of delta_K", 1.5, share(number=4)),
        ("rho enters squared", 1.5, share(number=2)),
        ("At k=", 0, lambda k, gamma, noise: torch.exp(-k * gamma)),
        ("math's functions", 0, lambda k, gamma, noise: 8 / k / math.sqrt(gamma)),
    ],
    "09.4": [
        ("round *down* to a whole number", 1.5, count(whole=float)),
        ("Round down: feature k", 1.5, count(whole=round)),
        ("not up", 1.5, count(whole=math.ceil)),
        ("x_i^2 - 1 counts too", 0, count(size=lambda d: d * (d - 1) / 2)),
        ("not d^2", 0, count(size=lambda d: d**2)),
        ("the size of the lift", 0, count(size=lambda d: d)),
        ("There are infinitely many features", 0, count(z=lambda gamma: total(gamma, 12))),
        ("Z is missing", 0, count(z=lambda gamma: 1)),
        ("The factor 2", 0, count(factor=1)),
        ("label noise is missing", 0, count(y2=lambda noise: 1)),
        ("not 1 + sigma.", 0, count(y2=lambda noise: 1 + noise)),
        ("not 1/gamma", 0, count(root=lambda gamma: 1 / gamma)),
        ("Davis and Kahan's promise", 0, count(root=lambda gamma: 1 / (2 * gamma + 2))),
        ("The root 1/(2 gamma) is missing", 0, count(root=lambda gamma: 1)),
        ("features, you returned", 0, lambda *a: 12),
        ("expected ()", 0, lambda *a: np.ones(3)),
        ("raised ZeroDivisionError", 0, lambda *a: 1 / 0),
    ],
}
