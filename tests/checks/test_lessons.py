"""Each exercise against its solution, and against wrong answers as a learner would write them."""

import math
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import asinh, cosh, sign, sinh, sqrt, tanh

from labkit import check
from labkit.checks import exercises
from labkit.diagonal import penalty
from labkit.diagonal.interpolate import min_penalty


def k_map(beta_pt, c, lam, gamma):
    return 2 * c * (1 + lam) * (1 + sqrt(1 + (beta_pt / c) ** 2)) + gamma**2


def first_layers(beta_pt, c, lam):
    """w_plus and w_minus after pretraining, from the exact flow; s from 2 s = asinh(beta_pt/c)."""
    w, v, s = sqrt(c * (1 + lam) / 2), sqrt(c * (1 - lam) / 2), asinh(beta_pt / c) / 2
    return w * cosh(s) + v * sinh(s), w * cosh(s) - v * sinh(s)


def ell_order(beta_ft, root_k):
    u = 2 * beta_ft / root_k
    return u * asinh(u) / (1 - sqrt(1 + u**2) + u * asinh(u))


def log_slope(beta_ft, beta_pt, c, lam, gamma, step=1e-4):
    """d ln q / d ln beta_pt by central differences."""
    up, down = (penalty.q(beta_ft, k_map(beta_pt * math.exp(h), c, lam, gamma)).log() for h in (step, -step))
    return (up - down) / (2 * step)


def elasticity(beta_pt, c, lam, gamma):
    return 2 * (1 + lam) * beta_pt**2 / sqrt(c**2 + beta_pt**2) / k_map(beta_pt, c, lam, gamma)


def mixed_elasticity(beta_ft, beta_pt, c, lam, gamma):
    slope = 2 * (1 + lam) * beta_ft**2 / sqrt(c**2 + beta_ft**2)
    return (1 - ell_after(beta_ft, beta_pt, c, lam, gamma)) * slope / k_map(beta_pt, c, lam, gamma)


def ell_after(beta_ft, beta_pt, c, lam, gamma):
    return ell_order(beta_ft, k_map(beta_pt, c, lam, gamma))


def norm2(*weights):
    return sum(weight**2 for weight in weights)


def by_counting(c):
    """A learner's simple loop: one c, the first n that recovers."""

    def answer(x, beta_star):
        for n in range(1, len(x) + 1):
            found = min_penalty(x[:n], x[:n] @ beta_star, 2 * c).beta
            if (found - beta_star).norm() <= 0.01 * beta_star.norm():
                return c, n

    return answer


def triangle(low=-4, high=2, lams=lambda r: 2 * 10 ** (-4 * r) - 1, beta=1.0):
    """The trade-off with c and gamma log-uniform in 10^low ... 10^high."""

    def answer(generator, n):
        a, b, r = torch.rand(3, n, generator=generator, dtype=torch.float64)
        c, gamma, lam = 10 ** (low + (high - low) * a), 10 ** (low + (high - low) * b), lams(r)
        ell = penalty.ell_order(beta, penalty.root_k_finetune(beta, c, lam, gamma))
        return ell, penalty.pretraining_dependence(beta, beta, c, lam, gamma)

    return answer


def middle(**changes):
    return {"c": 1e-3, "lam": -0.9, "gamma": 0.01, "beta_pt": 1.0, "beta_ft": 1.0} | changes


RIGHT = {
    "00.1": [lambda w, v: w * v, lambda w, v: [a * b for a, b in zip(w, v, strict=True)]],
    "01.1": [
        lambda w, v: w**2 - v**2,
        lambda w, v: v**2 - w**2,
        lambda w, v: (w - v) * (w + v),
        lambda w, v: torch.exp(-3 * (w * w - v * v)) + 1,
    ],
    "01.2": [
        penalty.root_k_init,
        lambda a, b, c, d: sqrt(norm2(a, b, c, d) ** 2 - 4 * (a * b - c * d) ** 2),
        lambda a, b, c, d: sqrt(((a + b) ** 2 + (c - d) ** 2) * ((c + d) ** 2 + (a - b) ** 2)),
    ],
    "01.3": [
        lambda s, root_k: root_k / 2 * sinh(2 * s),
        lambda s, root_k: root_k * (torch.exp(2 * s) - torch.exp(-2 * s)) / 4,
    ],
    "01.4": [by_counting(1e-8), by_counting(1e-10), by_counting(1e-6)],
    "02.1": [k_map, penalty.root_k_finetune, lambda b, c, lam, g: 2 * sum(first_layers(b, c, lam)) ** 2 + g**2],
    "02.2": [ell_order, penalty.ell_order, lambda b, k: b * penalty.q_prime(b, k) / penalty.q(b, k)],
    "02.3": [penalty.pretraining_dependence, log_slope],
    "02.4": [triangle(), triangle(beta=0.3)],
    "02.5": [middle(), lambda: middle(lam=torch.tensor(-0.8)), middle(c=1e-6, lam=-0.95, gamma=0, beta_ft=-1)],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "00.1": [
        ("That is the sum", 0, lambda w, v: w + v),
        ("w squared", 0, lambda w, v: w**2),
        ("v squared", 0, lambda w, v: v**2),
        ("the first weight alone", 0, lambda w, v: w),
        ("the second weight alone", 0, lambda w, v: v),
        ("loses the sign", 0, lambda w, v: abs(w * v)),
        ("quotient", 0, lambda w, v: w / v),
        ("-1 times the expected one", 0, lambda w, v: -w * v),
    ],
    "01.1": [
        ("That is beta itself", 0, lambda w, v: 2 * w * v),
        ("squared size of the weights", 0, lambda w, v: w**2 + v**2),
        ("w + v grows", 0, lambda w, v: w + v),
        ("w - v shrinks", 0, lambda w, v: v - w),
        ("two weights approach each other", 0, lambda w, v: w / v),
        ("The ratio moves: the weights", 0, lambda w, v: v / w),
        ("w squared alone", 0, lambda w, v: w**2),
        ("v squared alone", 0, lambda w, v: v**2),
        ("constant is conserved", 0, lambda w, v: torch.sin(w) ** 2 + torch.cos(w) ** 2),
        ("keep the sign", 1, lambda w, v: abs(w**2 - v**2)),
        ("returned nan", 0, lambda w, v: sqrt(w**2 - v**2)),
        ("It moves: along the flow that starts with lam=", 0, lambda w, v: w**3 - v**3),
    ],
    "01.2": [
        ("That is k", 1, lambda a, b, c, d: norm2(a, b, c, d) ** 2 - 4 * (a * b - c * d) ** 2),
        ("right when beta(0) = 0", 1, norm2),
        ("factor in front of beta(0)^2", 0, lambda a, b, c, d: sqrt(norm2(a, b, c, d) ** 2 - (a * b - c * d) ** 2)),
        ("Only the plus path", 0, lambda a, b, c, d: a * a + b * b),
        ("Only the minus path", 0, lambda a, b, c, d: c * c + d * d),
        ("doubles the plus path", 0, lambda a, b, c, d: 2 * (a * a + b * b)),
        ("That is beta(0)", 0, lambda a, b, c, d: a * b - c * d),
        ("sign of the minus path", 0, lambda a, b, c, d: sqrt(norm2(a, b, c, d) ** 2 - 4 * (a * b + c * d) ** 2)),
        ("sign of 4 beta(0)^2", 0, lambda a, b, c, d: sqrt(norm2(a, b, c, d) ** 2 + 4 * (a * b - c * d) ** 2)),
        ("norm of the weights", 0, lambda *weights: sqrt(norm2(*weights))),
        ("At w_plus=", 0, lambda a, b, c, d: abs(a) + abs(b) + abs(c) + abs(d)),
    ],
    "01.3": [
        ("The 2 inside sinh", 0, lambda s, r: r / 2 * sinh(s)),
        ("The factor 1/2 in front", 0, lambda s, r: r * sinh(2 * s)),
        ("Both factors of 2", 0, lambda s, r: r * sinh(s)),
        ("k where root_k belongs", 0, lambda s, r: r**2 / 2 * sinh(2 * s)),
        ("already the root", 0, lambda s, r: sqrt(r) / 2 * sinh(2 * s)),
        ("That is q' itself", 0, lambda s, r: asinh(2 * s / r) / 2),
        ("root_k is missing", 0, lambda s, r: sinh(2 * s) / 2),
        ("divide by root_k", 0, lambda s, r: sinh(2 * s) / (2 * r)),
        ("tanh saturates", 0, lambda s, r: r / 2 * tanh(2 * s)),
        ("cosh is even", 0, lambda s, r: r / 2 * cosh(2 * s)),
        ("sin is not sinh", 0, lambda s, r: r / 2 * torch.sin(2 * s)),
        ("not the reciprocal", 0, lambda s, r: 2 / asinh(2 * s / r)),
        ("math's functions", 0, lambda s, r: r / 2 * math.sinh(2 * s)),
        ("At s=", 0, lambda s, r: r / 2 * sinh(2 * s) + 1),
    ],
    "01.4": [
        ("it took n=", 1.5, by_counting(1e-2)),
        ("because c=0.5 is too large", 1.5, by_counting(0.5)),
        ("fewer rows than n=40 are enough", 1.5, lambda x, beta_star: (1e-8, 40)),
        ("not recovered", 0, lambda x, beta_star: (1e-8, 5)),
        ("Swapped?", 0, lambda x, beta_star: by_counting(1e-8)(x, beta_star)[::-1]),
        ("must return the pair (c, n)", 0, lambda x, beta_star: 12),
        ("n must be a whole number", 0, lambda x, beta_star: (1e-8, 41)),
        ("c must be positive", 0, lambda x, beta_star: (0.0, 12)),
        ("must be two numbers", 0, lambda x, beta_star: ("small", 12)),
        ("it has no return statement", 0, lambda x, beta_star: None),
    ],
    "02.1": [
        ("you add |w_plus|", 1.5, lambda b, c, lam, g: 2 * sum(map(abs, first_layers(b, c, lam))) ** 2 + g**2),
        ("gamma/sqrt(2)", 1.5, lambda b, c, lam, g: k_map(b, c, lam, g) + g**2),
        ("Square the readout", 0, lambda b, c, lam, g: k_map(b, c, lam, sqrt(g))),
        ("sign of lam", 0, lambda b, c, lam, g: k_map(b, c, -lam, g)),
        ("That is k.", 1.5, lambda b, c, lam, g: k_map(b, c, lam, g) ** 2),
        ("the root of root_k", 0, lambda b, c, lam, g: sqrt(k_map(b, c, lam, g))),
        ("keeps their norm", 0, lambda b, c, lam, g: 2 * c * (lam + sqrt(1 + (b / c) ** 2)) + g**2),
        ("1 + lam belongs", 0, lambda b, c, lam, g: lam * c * (1 + sqrt(1 + (b / c) ** 2)) + g**2),
        ("beta_pt is missing", 0, lambda b, c, lam, g: 4 * c * (1 + lam) + g**2),
        ("gamma is missing", 0, lambda b, c, lam, g: k_map(b, c, lam, 0)),
        ("one of them is missing", 0, lambda b, c, lam, g: k_map(b, c, lam, g) - g**2 / 2),
        ("only when one of them is tiny", 0, lambda b, c, lam, g: 2 * (1 + lam) * (2 * c + abs(b)) + g**2),
        ("which is even in beta_pt", 0, lambda b, c, lam, g: 2 * (1 + lam) * (2 * c + b) + g**2),
        ("Only one path", 0, lambda b, c, lam, g: k_map(b, c, lam, g) / 2),
        ("square counts twice", 0, lambda b, c, lam, g: sum(first_layers(b, c, lam)) ** 2 + g**2),
        ("root_k of pretraining", 0, lambda b, c, lam, g: 2 * c),
        ("c is missing", 0, lambda b, c, lam, g: 2 * (1 + lam) * sqrt(c**2 + b**2) + g**2),
        ("At beta_pt=", 0, lambda b, c, lam, g: 2 * (1 + lam) * (c + abs(b)) + g**2),
    ],
    "02.2": [
        ("factor of 2", 0, lambda b, k: ell_order(b / 2, k)),
        ("turned over", 0, lambda b, k: ell_order(k, 4 * b)),
        ("divide by q", 0, lambda b, k: b * penalty.q_prime(b, k)),
        ("That is q'/q", 0, lambda b, k: penalty.q_prime(b, k) / penalty.q(b, k)),
        ("That is |q'/q|", 0, lambda b, k: abs(penalty.q_prime(b, k)) / penalty.q(b, k)),
        ("q' alone", 0, penalty.q_prime),
        ("weight of regime I.", 0, lambda b, k: 2 - ell_order(b, k)),
        ("That is ell - 1", 0, lambda b, k: ell_order(b, k) - 1),
        ("That is 1 - ell", 0, lambda b, k: 1 - ell_order(b, k)),
        ("k where root_k belongs", 0, lambda b, k: ell_order(b, k**2)),
        ("already the root", 0, lambda b, k: ell_order(b, sqrt(k))),
        ("positive beta_ft only", 1, lambda b, k: sign(b) * ell_order(b, k)),
        ("cost q itself", 0, penalty.q),
        ("At beta_ft=", 0, lambda b, k: torch.full_like(b, 2)),
    ],
    "02.3": [
        ("The sign is off", 1, lambda *a: -log_slope(*a)),
        ("That is E, how", 0, lambda b, *a: elasticity(*a)),
        ("mixed up", 0, lambda ft, pt, *a: penalty.pretraining_dependence(pt, ft, *a)),
        ("E is taken at beta_ft", 0, mixed_elasticity),
        ("ell is taken at beta_pt", 0, lambda ft, pt, *a: (1 - ell_after(pt, pt, *a)) * elasticity(pt, *a)),
        ("That is -E", 0, lambda b, *a: -elasticity(*a)),
        ("multiplied by -ell", 0, lambda b, *a: -ell_after(b, *a) * elasticity(*a)),
        ("multiplied by ell:", 0, lambda b, *a: ell_after(b, *a) * elasticity(*a)),
        ("E is missing: ", 0, lambda *a: 1 - ell_after(*a)),
        ("E is missing and", 0, lambda *a: ell_after(*a) - 1),
        ("That is ell, the derivative", 0, ell_after),
        ("too large by a factor of 2", 1, lambda *a: 2 * log_slope(*a)),
        ("too small by a factor of 2", 1, lambda *a: log_slope(*a) / 2),
        ("slope against beta_pt", 0, lambda *a: log_slope(*a) / a[1]),
        ("slope against |beta_pt|", 0, lambda *a: log_slope(*a) / abs(a[1])),
        ("positive beta_pt only", 1, lambda *a: log_slope(*a) * sign(a[1])),
        ("gamma is missing in E", 0, lambda b, *a: (1 - ell_after(b, *a)) * elasticity(*a[:3], 0)),
        ("weight of regime III", 0, lambda *a: ell_after(*a) + log_slope(*a) - 1),
        ("At beta_ft=", 0, lambda *a: torch.full_like(a[0], -0.5)),
    ],
    "02.4": [
        ("never reach regime I: ", 3, triangle(lams=lambda r: 2 * r - 1, low=-1)),
        ("never reach regime II: ", 3, triangle(lams=lambda r: -1 + 0 * r)),
        ("never reach regime III: ", 3, triangle(high=-1)),
        ("The sign of pd", 0, lambda g, n: (lambda ell, pd: (ell, -pd))(*triangle()(g, n))),
        ("swapped", 2, lambda g, n: triangle()(g, n)[::-1]),
        ("ell must lie in [1, 2]", 0, lambda g, n: (triangle()(g, n)[0] + 1, triangle()(g, n)[1])),
        ("pd must lie in [-1, 0]", 0, lambda g, n: (triangle()(g, n)[0], 2 * triangle()(g, n)[1])),
        ("cannot be below 1", 0, lambda g, n: (triangle()(g, n)[0], triangle()(g, n)[1])),
        ("the same one", 0, lambda g, n: (torch.full((n,), 1.5), torch.full((n,), -0.2))),
        ("Two generators gave", 2, lambda g, n: triangle()(torch.Generator().manual_seed(0), n)),
        ("The same seed gave", 2, lambda g, n: triangle()(torch.Generator().manual_seed(SEEDS.pop()), n)),
        ("expected (4000,)", 0, lambda g, n: triangle()(g, 10)),
        ("pair (ell, pd)", 0, lambda g, n: triangle()(g, n)[0]),
        ("nan or infinite", 0, lambda g, n: (torch.full((n,), torch.nan), torch.zeros(n))),
        ("must lie in [-1, 1] when called with", 0, triangle(lams=lambda r: 2 * r - 1.5)),
    ],
    "02.5": [
        ("That is regime I (", 0, middle(c=1e-6, lam=-0.9999, gamma=1e-4)),
        ("That is regime II (", 0, middle(lam=0.5)),
        ("because c is large", 0, middle(c=100)),
        ("because gamma is large", 0, middle(gamma=30)),
        ("too large. Lower gamma", 0, middle(gamma=0.5)),
        ("too large. Lower c", 0, middle(c=1, lam=0, gamma=0)),
        ("below 0.02", 1, middle(gamma=0.1)),
        ("close to I:", 1, middle(lam=-0.99)),
        ("close to II:", 1, middle(lam=-0.5)),
        ("no 'gamma'", 0, {name: value for name, value in middle().items() if name != "gamma"}),
        ("lam must lie in [-1, 1], got 1.3", 0, middle(lam=1.3)),
        ("saddle", 0, middle(lam=-1, gamma=0)),
        ("c must be positive", 0, middle(c=0)),
        ("c must be a number, got a str", 0, middle(c="small")),
        ("Give a dict with the keys", 0, (1e-3, -0.9)),
        ("nothing to reuse", 0, middle(beta_pt=0)),
        ("Fill in 'lam'", 0, middle(lam=...)),
    ],
}  # fmt: skip
SEEDS = [3, 2, 1]
for path in sorted(Path(__file__).parent.glob("lesson_*.py")):  # those of later lessons
    answers = import_module(f"tests.checks.{path.stem}")
    RIGHT, WRONG = RIGHT | answers.RIGHT, WRONG | answers.WRONG


def cases(table):
    return [pytest.param(id, case, id=f"{id}-{i}") for id, rows in table.items() for i, case in enumerate(rows)]


@pytest.mark.parametrize("id, answer", cases(RIGHT))
def test_solutions_are_correct(id, answer):
    verdict = check(id, answer)
    assert verdict.status == "correct", verdict
    assert verdict.points == verdict.max_points == exercises()[id].points


@pytest.mark.parametrize("id, case", cases(WRONG))
def test_wrong_answers_are_named(id, case):
    phrase, points, answer = case
    verdict = check(id, answer)
    assert verdict.status != "correct" and phrase in verdict.message and verdict.points == points, verdict


def test_every_exercise_has_solutions_stubs_and_distinct_wrong_answers():
    def stub(*inputs):
        raise NotImplementedError

    for id in exercises():
        assert check(id, stub).status == check(id, ...).status == "not attempted"
        phrases = [phrase for phrase, _, _ in WRONG[id]]
        assert len(RIGHT[id]) >= 1 and len(set(phrases)) == len(phrases) >= 8
