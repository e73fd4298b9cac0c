"""Right and wrong answers to the exercises of lesson 13, as a learner would write them."""

import math

import torch

from labkit.depth import covariance, jumpboard


def spectrum(g, center=True):
    """Eigenvalues of the covariance, rising (net, d), and the covariance."""
    if center:
        g = g - g.mean(1, keepdim=True)
    cov = torch.einsum("sni,snj->sij", g, g) / g.shape[1]
    return torch.linalg.eigvalsh(cov), cov


def ranked(tell, center=True):
    return lambda g: tell(*spectrum(g, center))


def entropy(values, cov):
    p = values / values.sum(-1, keepdim=True)
    return torch.exp(-(p * p.log()).sum(-1))


def of_correlation(values, cov):
    std = cov.diagonal(dim1=1, dim2=2).sqrt()
    found = torch.linalg.eigvalsh(cov / std[:, :, None] / std[:, None])
    return found.sum(-1) / found[:, -1]


def generic(rank, scale=1.0):
    """Rank directions in general position."""

    def answer(d, generator):
        a = torch.randn(d, rank if isinstance(rank, int) else rank(d), generator=generator, dtype=torch.float64)
        return scale * a @ a.mT

    return answer


def common(share):
    """Every pair of coordinates has a little in common."""
    return lambda d, generator: torch.eye(d) + share * torch.ones(d, d)


def five(d, generator):
    """Five coordinates are one, and the others small."""
    return torch.block_diag(torch.ones(5, 5), 0.01 * torch.eye(d - 5))


def noise(d, generator):
    a = torch.randn(d, d, generator=generator)
    return a + a.mT


def needed(z=1.645, tell=lambda ratio: ratio**2, gain=lambda s: -s.mean(-1), std=lambda s: s.std(-1), safe=True):
    """n95, with a mistake."""

    def answer(g, q):
        s = (g * q).sum(-1)
        found = tell(z * std(s) / gain(s))
        return torch.where(s.mean(-1) < 0, found, math.inf) if safe else found

    return answer


def of_whole(g, q):
    gain = -(g * q).sum(-1).mean(-1)
    noise = g.var(0).sum() * (q**2).sum(-1).mean(-1)
    return torch.where(gain > 0, 1.645**2 * noise / gain**2, math.inf)


def of_angles(g, q):
    s = torch.cosine_similarity(g.expand_as(q), q, dim=-1)
    return torch.where(s.mean(-1) < 0, 1.645**2 * s.var(-1) / s.mean(-1) ** 2, math.inf)


def of_coordinates(g, q):
    s = (g * q).flatten(1)
    return 1.645**2 * s.var(-1) / s.mean(-1) ** 2


def by_pairs(g, phi):
    """The mean over pairs, one by one."""
    single = torch.einsum("sni,snj->snij", g, phi).flatten(2)
    product = single @ single.mT
    n = g.shape[1]
    return (product.sum((1, 2)) - product.diagonal(dim1=1, dim2=2).sum(1)) / (n * (n - 1))


def parts(tell):
    """From the squared norm of the mean, the mean of the pairs i = j, and n."""

    def answer(g, phi):
        n = g.shape[1]
        raw = ((g.mT @ phi / n) ** 2).sum((1, 2))
        return tell(raw, ((g**2).sum(-1) * (phi**2).sum(-1)).mean(1), n)

    return answer


def product_of_means(g, phi):
    n = g.shape[1]
    raw = ((g.mT @ phi / n) ** 2).sum((1, 2))
    return (raw - (g**2).sum(-1).mean(1) * (phi**2).sum(-1).mean(1) / n) * n / (n - 1)


def two_halves(g, phi, step=False):
    h = g.shape[1] // 2
    a, b = (slice(0, None, 2), slice(1, None, 2)) if step else (slice(h), slice(h, None))
    return ((g[:, a].mT @ phi[:, a] / h) * (g[:, b].mT @ phi[:, b] / h)).sum((1, 2))


RIGHT = {
    "13.1": [
        ranked(lambda v, c: v.sum(-1) / v[:, -1]),
        lambda g: covariance.measures(covariance.gradient_covariance(g)).effective_rank,
        lambda g: torch.stack([(s**2).sum() / s[0] ** 2 for s in map(torch.linalg.svdvals, g - g.mean(1, True))]),
    ],
    "13.2": [generic(29), generic(40), common(0.16), common(0.14 / 0.86)],
    "13.3": [
        needed(),
        needed(std=lambda s: s.std(-1, correction=0)),
        lambda g, q: covariance.samples_to_see((g * q).sum(-1)),
    ],
    "13.4": [by_pairs, lambda g, phi: jumpboard.debiased_signal(g, phi).debiased],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "13.1": [
        ("participation ratio", 0, ranked(lambda v, c: v.sum(-1) ** 2 / (v**2).sum(-1))),
        ("exponential of the entropy", 0, ranked(entropy)),
        ("upside down", 0, ranked(lambda v, c: v[:, -1] / v.sum(-1))),
        ("counts directions", 0, ranked(lambda v, c: torch.linalg.matrix_rank(c))),
        ("singular values of g", 0, ranked(lambda v, c: v.sqrt().sum(-1) / v[:, -1].sqrt())),
        ("no squares", 0, ranked(lambda v, c: (v**2).sum(-1) / v[:, -1] ** 2)),
        ("smallest eigenvalue", 0, ranked(lambda v, c: v.sum(-1) / v[:, 0])),
        ("largest variance of a coordinate", 0, ranked(lambda v, c: v.sum(-1) / c.diagonal(dim1=1, dim2=2).amax(1))),
        ("correlation matrix", 0, ranked(of_correlation)),
        ("That is the trace", 0, ranked(lambda v, c: v.sum(-1))),
        ("That is lambda_max", 0, ranked(lambda v, c: v[:, -1])),
        ("Subtract the mean gradient", 1, ranked(lambda v, c: v.sum(-1) / v[:, -1], center=False)),
        ("constant factor", 0, ranked(lambda v, c: 2 * v.sum(-1) / v[:, -1])),
        ("expected (6,)", 0, lambda g: torch.linalg.eigvalsh(g.mT @ g)),
    ],
    "13.2": [
        ("it looks diagonal and it is", 0, lambda d, generator: torch.eye(d)),
        ("moves every coordinate", 0, lambda d, generator: torch.ones(d, d)),
        ("does not look diagonal yet", 0, generic(10)),
        ("too close to a diagonal matrix", 0, generic(lambda d: d)),
        ("one |corr| is 1.000", 0, five),
        ("At d=400", 1.5, generic(lambda d: 45 if d == 200 else 10)),
        ("symmetric", 0, lambda d, generator: torch.randn(d, d, generator=generator)),
        ("no negative eigenvalue", 0, noise),
        ("expected (200, 200)", 0, lambda d, generator: torch.randn(d, 40, generator=generator)),
        ("nan or infinite", 0, lambda d, generator: torch.full((d, d), math.nan)),
        ("nothing varies", 0, generic(40, scale=0.0)),
        ("raised ValueError", 0, lambda d, generator: covariance.correlation(noise(d, generator))),
    ],
    "13.3": [
        ("climb", 2, needed(safe=False)),
        ("Round nothing", 2, needed(tell=lambda ratio: (ratio**2).ceil())),
        ("1.96 is for two sides", 1, needed(z=1.96)),
        ("The sign of G", 1, lambda g, q: needed()(-g, q)),
        ("variance of s where", 0, needed(std=lambda s: s.var(-1))),
        ("z is missing", 1, needed(z=1.0)),
        ("its square", 0, needed(tell=lambda ratio: ratio)),
        ("z is not squared", 0, needed(tell=lambda ratio: ratio**2 / 1.645)),
        ("deviation of s is not squared", 0, needed(z=1.645, std=lambda s: s.std(-1).sqrt())),
        ("G is not squared", 0, needed(gain=lambda s: s.mean(-1).abs().sqrt())),
        ("Upside down", 0, needed(tell=lambda ratio: ratio**-2)),
        ("subtract G^2", 1, needed(std=lambda s: (s**2).mean(-1).sqrt())),
        ("do not divide the variance", 0, needed(std=lambda s: s.std(-1) / s.shape[-1] ** 0.5)),
        ("not of the whole g", 0, of_whole),
        ("divided by the lengths", 0, of_angles),
        ("sum over coordinates", 0, of_coordinates),
        ("returned nan", 0, needed(tell=lambda ratio: ratio.log().sqrt().log(), safe=False)),
        ("For direction 0", 0, needed(z=1.2)),
    ],
    "13.4": [
        ("biased up by noise", 0, parts(lambda raw, own, n: raw)),
        ("That is its root", 0, parts(lambda raw, own, n: raw**0.5)),
        ("That is the bias", 0, parts(lambda raw, own, n: (own - raw) / (n - 1))),
        ("not added", 0, parts(lambda raw, own, n: raw + (own - raw) / (n - 1))),
        ("divide by n.", 0, parts(lambda raw, own, n: raw - own)),
        ("sample by sample, not a product of means.", 0, product_of_means),
        ("not by n", 1.5, parts(lambda raw, own, n: raw - own / n)),
        ("Negative values are clipped", 1.5, lambda g, phi: by_pairs(g, phi).clamp(min=0)),
        ("two halves", 1.5, two_halves),
        ("all pairs i != j", 1.5, lambda g, phi: two_halves(g, phi, step=True)),
        ("largest singular value", 0, lambda g, phi: torch.linalg.svdvals(g.mT @ phi / g.shape[1])[:, 0] ** 2),
        ("sum over all pairs", 0, parts(lambda raw, own, n: n**2 * raw - n * own)),
        ("pairs i = j alone", 0, parts(lambda raw, own, n: own)),
        ("expected (7,)", 0, lambda g, phi: g.mT @ phi),
    ],
}  # fmt: skip
