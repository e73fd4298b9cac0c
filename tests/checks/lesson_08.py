"""Right and wrong answers to the exercises of lesson 08, as a learner would write them."""

import math

import torch

from labkit.recovery import hermite, theory


def needed(
    scale=1.0, power=2, total=lambda j, gamma: (j ** (-2 * gamma)).sum(), noise=lambda s: 1 + s**2, size=1, first=0
):
    """n_k, with a mistake."""

    def answer(k, gamma, n_features, lift_dim, noise_std):
        every = total(torch.arange(1, n_features + 1, dtype=torch.float64), gamma)
        return scale * lift_dim**size * noise(noise_std) * every * (k.double() + first) ** (power * gamma) / 2

    return answer


def among(which):
    """n_k, with strengths normalized over the features which(k) only."""

    def answer(k, gamma, n_features, lift_dim, noise_std):
        total = (which(k).double() ** (-2 * gamma)).sum()
        return lift_dim * (1 + noise_std**2) * total * k.double() ** (2 * gamma) / 2

    return answer


def half_power(k, gamma, n_features, lift_dim, noise_std):
    a = theory.amplitudes(gamma, n_features)[k - 1]
    return lift_dim * (1 + noise_std**2) / (2 * a)


def on_grid(offset=lambda t: t.mean(), dtype=torch.float64, low=lambda t: t.max(), center=lambda t: 0.0, where=False):
    """The least psi, or where it is, on a grid that is evenly spaced in log(lam - low)."""

    def answer(t, samples_per_dim):
        shift = offset(t)
        t = t - center(t)
        lam = low(t) + (samples_per_dim * (t**2).mean()).sqrt() * torch.logspace(-4, 0, 2000, dtype=dtype)
        psi = lam * (1 / samples_per_dim + (t / (lam[:, None] - t)).mean(1))
        return (lam[psi.argmin()] if where else psi.min()) - shift

    return answer


def semicircle(scale=2.0, center=lambda t: 0.0):
    return lambda t, delta: scale * (((t - center(t)) ** 2).mean() / delta).sqrt()


def turning(t, delta, power=2):
    """lam > max t with E t^2/(lam - t)^power = 1/delta."""
    low, high = t.max(), t.max() + 10 * delta
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (t**2 / (middle - t) ** power).mean() > 1 / delta else (low, middle)
    return low


def inserted(value, power=2):
    """A formula evaluated at the turning point."""
    return lambda t, delta: value(turning(t, delta, power), t, delta)


def psi(lam, t, factor):
    return lam * (factor + (t / (lam - t)).mean())


def products(square=lambda s: (s - 1) / math.sqrt(2), pair=lambda p: p, offset=0):
    """Columns x_i x_j, i <= j, changed; ``offset`` 1 leaves the squares out."""

    def answer(x):
        i, j = torch.triu_indices(x.shape[1], x.shape[1], offset)
        product = x[:, i] * x[:, j]
        return torch.where(i == j, square(product), pair(product))

    return answer


def squares_first(x):
    """The right columns in another order."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
    return torch.cat([(x**2 - 1) / math.sqrt(2), x[:, i] * x[:, j]], 1)


def twice(x):
    return (x[:, :, None] * x[:, None, :] - torch.eye(x.shape[1])).flatten(1)


def sums(x):
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.where(i == j, (x[:, i] ** 2 - 1) / math.sqrt(2), x[:, i] + x[:, j])


def shifted(x):
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.where(i == j, (x[:, i] - 1) ** 2 / math.sqrt(2), x[:, i] * x[:, j])


def one_column_off(x):
    return torch.cat([squares_first(x)[:, :-1], x[:, :1] ** 3], 1)


def counted(
    size=lambda d: d * (d + 1) / 2, factor=2, floor=lambda d: 4 / d, normalize=True, hidden=False, either=False
):
    """How many features are revealed, with a mistake."""

    def answer(d, gamma, n):
        a = torch.arange(1, 13, dtype=torch.float64) ** -gamma
        if normalize:
            a = a / a.square().sum().sqrt()
        seen, high = n >= factor * size(d) / (2 * a**2), a >= floor(d)
        both = seen | high if either else seen & high
        return int((~both if hidden else both).sum())

    return answer


RIGHT = {
    "08.1": [
        needed(),
        lambda k, gamma, count, size, s: theory.recovery_threshold(k, gamma, count, size, s),
        lambda k, gamma, count, size, s: size * (1 + s**2) / (2 * theory.amplitudes(gamma, count)[k - 1] ** 2),
    ],
    "08.2": [
        theory.bulk_edge,
        on_grid(),
        on_grid(dtype=torch.float32),
        inserted(lambda lam, t, delta: psi(lam, t, 1 / delta) - t.mean()),
    ],
    "08.3": [products(), squares_first, lambda x: hermite.lift(x, 2), lambda x: products()(x).numpy()],
    "08.4": [counted(), lambda d, gamma, n: torch.tensor(counted()(d, gamma, n))],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "08.1": [
        ("4 times as many", 1.5, needed(4)),
        ("the 2 is missing", 1.5, needed(2)),
        ("strengths are not normalized", 0, needed(total=lambda j, gamma: 1)),
        ("Normalized twice", 0, needed(total=lambda j, gamma: (j ** (-2 * gamma)).sum() ** 2)),
        ("not by the sum of j^(-gamma)", 0, needed(total=lambda j, gamma: (j**-gamma).sum() ** 2)),
        ("Normalized over the k that are passed", 0, among(lambda k: k)),
        ("as many features as k has", 0, among(lambda k: torch.arange(1, len(k) + 1))),
        ("up to the largest k", 0, among(lambda k: torch.arange(1, int(k.max()) + 1))),
        ("expected (2,)", 0, lambda k, gamma, count, *a: needed()(torch.arange(1, count + 1), gamma, count, *a)),
        ("n_k has a_k squared", 0, half_power),
        ("sign of gamma is off", 0, needed(power=-2)),
        ("standard deviation: square it", 0, needed(noise=lambda s: 1 + s)),
        ("the 1 is missing", 0, needed(noise=lambda s: s**2)),
        ("The noise of the label is missing", 0, needed(noise=lambda s: 1)),
        ("multiply by lift_dim", 0, needed(size=0)),
        ("not squared", 0, needed(size=2)),
        ("square root of n_k", 0, lambda *a: needed()(*a).sqrt()),
        ("k starts at 1", 0, needed(first=1)),
        ("3 times the expected one", 0, needed(3)),
        ("At k=", 0, needed(power=3)),
        ("expected (12,)", 0, lambda *a: needed()(*a)[:3]),
        ("raised TypeError", 0, lambda *a: math.sqrt("n")),
    ],
    "08.2": [
        ("E t is missing", 2, on_grid(offset=lambda t: 0)),
        ("The sign of E t is off", 2, on_grid(offset=lambda t: -t.mean())),
        ("That is the semicircle, 2 sqrt", 0, semicircle()),
        ("with the variance of t", 0, semicircle(center=lambda t: t.mean())),
        ("without its 2", 0, semicircle(1)),
        ("not lambda > max |t|", 2, on_grid(low=lambda t: t.abs().max())),
        ("the edge is the value of psi there", 0, on_grid(where=True, offset=lambda t: 0)),
        ("insert lambda into psi", 0, on_grid(where=True)),
        ("You center t first: psi takes t", 0, on_grid(center=lambda t: t.mean(), offset=lambda t: 0)),
        ("and subtract E t again", 0, on_grid(center=lambda t: t.mean())),
        ("delta where 1/delta", 0, lambda t, delta: psi(turning(t, 1 / delta), t, delta) - t.mean()),
        ("1 where 1/delta", 0, lambda t, delta: psi(turning(t, 1), t, 1) - t.mean()),
        ("1/delta is missing", 0, inserted(lambda lam, t, delta: psi(lam, t, 0) - t.mean())),
        ("factor lambda", 0, inserted(lambda lam, t, delta: psi(lam, t, 1 / delta) / lam - t.mean())),
        ("E t/(lambda - t) is missing", 0, inserted(lambda lam, t, delta: lam / delta - t.mean())),
        ("sign of E t/(lambda - t)", 0, inserted(lambda lam, t, delta: -psi(lam, t, -1 / delta) - t.mean())),
        ("That is the largest label", 0, lambda t, delta: t.max()),
        ("has (lambda - t)^2", 0, inserted(lambda lam, t, delta: psi(lam, t, 1 / delta) - t.mean(), power=1)),
        ("your function returned", 0, lambda t, delta: t.std()),
        ("expected ()", 0, lambda t, delta: t),
    ],
    "08.3": [
        ("The squares are missing", 1.5, lambda x: squares_first(x)[:, x.shape[1] :]),
        ("stands there twice", 0, twice),
        ("There are only d columns", 0, lambda x: (x**2 - 1) / math.sqrt(2)),
        ("the constant is not", 1.5, lambda x: torch.cat([torch.ones_like(x[:, :1]), squares_first(x)], 1)),
        ("of degree 1: leave them out", 1.5, lambda x: torch.cat([x, squares_first(x)], 1)),
        ("divide x_i^2 - 1 by sqrt(2).", 1.5, products(lambda s: s - 1)),
        ("have mean 1: subtract it", 1.5, products(lambda s: s / math.sqrt(2))),
        ("no sqrt(2) for them", 1.5, products(pair=lambda p: p * math.sqrt(2))),
        ("Only the squares are divided", 1.5, products(pair=lambda p: p / math.sqrt(2))),
        ("not by 2", 1.5, products(lambda s: (s - 1) / 2)),
        ("Multiply by 1/sqrt(2)", 1.5, products(lambda s: (s - 1) * math.sqrt(2))),
        ("plain products", 0, products(lambda s: s)),
        ("from the squares only", 0, products(pair=lambda p: p - 1)),
        ("before you divide", 0, products(lambda s: s / math.sqrt(2) - 1)),
        ("(x_i - 1)^2", 0, shifted),
        ("sums x_i + x_j", 0, sums),
        ("none of yours is x_4 x_5", 0, one_column_off),
        ("expected (40, 15)", 0, lambda x: squares_first(x).mean(0)),
    ],
    "08.4": [
        ("floor of dimension is missing", 1.5, counted(floor=lambda d: 0)),
        ("floor of noise is missing", 1.5, counted(factor=0)),
        ("twice as many samples", 1.5, counted(factor=1)),
        ("not d^2", 1.5, counted(size=lambda d: d**2)),
        ("not d^2/2", 1.5, counted(size=lambda d: d**2 / 2)),
        ("the squares count too", 1.5, counted(size=lambda d: d * (d - 1) / 2)),
        ("the size of the lift, not d", 0, counted(size=lambda d: d)),
        ("Both conditions", 0, counted(either=True)),
        ("not 4/D", 0, counted(floor=lambda d: 8 / (d * (d + 1)))),
        ("not normalized", 0, counted(normalize=False)),
        ("counts the hidden ones", 1.5, counted(hidden=True)),
        ("not for its square", 0, counted(floor=lambda d: 2 / d**0.5)),
        ("of 10 are right", 0, lambda d, gamma, n: 4),
        ("expected ()", 0, lambda d, gamma, n: [4, 5]),
    ],
}  # fmt: skip
