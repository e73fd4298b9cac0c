"""Exercises of lesson 13, signal and noise: effective rank, a disguise, samples that show a direction, debiasing."""

import math

import torch
from torch import Tensor

from labkit import spectra
from labkit.checks.attempt import as_tensor, call, close, compare, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.depth.covariance import correlation, gradient_covariance, mean_correlation, off_diagonal_energy


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def rank(answer) -> str:
    """effective_rank(g), g (net, n, d) -> tr Σ/λmax (net,)."""
    generator = seeded(131)
    g = normal(generator, 6, 40, 5) @ normal(generator, 6, 5, 5) + normal(generator, 6, 1, 5)
    cov, second = gradient_covariance(g), gradient_covariance(g, center=False)
    values = torch.linalg.eigvalsh(cov).flip(-1)
    total, most = values.sum(-1), values[:, 0]
    share = values / total[:, None]
    compare(
        answer,
        total / most,
        {
            "That is the participation ratio, (tr)^2 over the squared norm: only the largest eigenvalue goes below.": (
                spectra.participation(cov)
            ),
            "That is the exponential of the entropy, another quantity of the same name: take tr over lambda_max.": (
                (-(share * share.log()).sum(-1)).exp()
            ),
            "That is upside down: the trace goes above, lambda_max below.": most / total,
            "That counts directions: weigh them by their variance, the strongest as 1.": torch.full_like(total, 5),
            "Those are singular values of g: eigenvalues of the covariance are their squares.": (
                values.sqrt().sum(-1) / most.sqrt()
            ),
            "That is the sum of squared eigenvalues over the largest one squared: no squares.": (
                values.square().sum(-1) / most**2
            ),
            "That divides by the smallest eigenvalue: eigvalsh gives them in rising order.": total / values[:, -1],
            "That divides by the largest variance of a coordinate: a direction across coordinates may have more.": (
                total / cov.diagonal(dim1=1, dim2=2).amax(1)
            ),
            "That is of the correlation matrix: coordinates with more variance count for more.": (
                spectra.effective_rank(correlation(cov))
            ),
            "That is the trace: divide it by lambda_max.": total,
            "That is lambda_max: the trace, divided by it, is asked for.": most,
        },
        {"Subtract the mean gradient first: without it that is the second moment.": spectra.effective_rank(second)},
        g=g,
    )
    return "The strongest direction alone decides: noise in it is not averaged away by width."


SEEMS, IS = 0.15, 0.75  # mean |corr| at most, off-diagonal energy at least
COPY = 0.9  # largest |corr|: random vectors of 29 numbers hardly ever come so close, copies of one coordinate do
SIZES = (200, 400)


def disguise(answer) -> str:
    """disguise(d, generator) -> covariance (d, d) that looks diagonal by mean |corr| and is not by energy."""
    for number, d in enumerate(SIZES):
        share = number / len(SIZES)
        cov = as_tensor(call(answer, d=d, generator=seeded(d)), (d, d))
        at = f"At d={d}"
        if not cov.isfinite().all():
            raise Wrong(f"{at}: the matrix has entries that are nan or infinite.", share)
        size = cov.abs().amax()
        if size == 0:
            raise Wrong(f"{at}: the matrix is zero: nothing varies.", share)
        if (cov - cov.mT).abs().amax() > 1e-6 * size:
            raise Wrong(f"{at}: a covariance is symmetric, yours is not.", share)
        cov = (cov + cov.mT) / 2
        values = torch.linalg.eigvalsh(cov)
        if values[0] < -1e-6 * values[-1].abs():
            says = f"{at}: a covariance has no negative eigenvalue, yours has {values[0]:.3g}. A A^T never has one."
            raise Wrong(says, share)
        looks, energy = float(mean_correlation(cov)), float(off_diagonal_energy(cov))
        found = f"{at}: mean |corr| {looks:.3f}, off-diagonal energy {energy:.3f}"
        if energy < 1e-9:
            raise Wrong(f"{found}: it looks diagonal and it is. Make the coordinates depend on each other.", share)
        if looks > 0.99:
            raise Wrong(f"{found}: one direction moves every coordinate. Use more directions.", share)
        if looks > SEEMS:
            says = f"{found}: it does not look diagonal yet (at most {SEEMS}). More directions make entries smaller."
            raise Wrong(says, share)
        if energy < IS:
            says = f"{found}: it is too close to a diagonal matrix (at least {IS}). Use fewer directions."
            raise Wrong(says, share)
        largest = float(correlation(cov).fill_diagonal_(0).abs().amax())
        if largest > COPY:
            says = f"{found}: one |corr| is {largest:.3f} (at most {COPY}). Nearly copied coordinates show on the map."
            raise Wrong(says, share)
    return "Many small entries outweigh a few large ones. 0.86 I + 0.14 11^T looks diagonal too, to the eye only."


Z = 1.645  # 1.6448536 to more places


def samples(answer) -> str:
    """n95(g, q), g (n, d), q (direction, n, d) -> (z sd(s)/G)^2 (direction,), inf without descent."""
    generator = seeded(133)
    g = normal(generator, 60, 4) + 0.5
    slant = torch.tensor([-1.0, -0.4, 0.6, -2.0, 0.2], device="cpu")[:, None, None]
    q = slant * g * uniform(generator, 0.2, 1.0, 5, 60, 1) + 0.4 * normal(generator, 5, 60, 4)
    s = (g * q).sum(-1)
    gain, n = -s.mean(-1), s.shape[-1]
    assert (gain > 0).any() and (gain < 0).any()  # both kinds are asked for
    value = as_tensor(call(answer, g=g, q=q), gain.shape)
    if value.isnan().any():
        raise Wrong("Your function returned nan: a division of zero by zero, or the root of a negative number?")
    down = gain > 0

    def truth(z: float = Z, variance: Tensor | None = None, power: int = 2, score: Tensor = s) -> Tensor:
        variance = score.var(-1) if variance is None else variance
        return (z * variance.sqrt() / score.mean(-1).abs()) ** power

    def same(target: Tensor, where: Tensor = down) -> bool:
        return bool(close(value[where], target[where]).all())

    right = [truth(z, variance) for z in (Z, 1.6448536) for variance in (s.var(-1), s.var(-1, correction=0))]
    if any(map(same, right)):
        if (value[~down] == math.inf).all():
            return "Signal over noise, squared: half the signal costs four times the samples."
        says = "Where G <= 0 the block would climb: no number of samples shows a descent, return inf there."
        raise Wrong(says, 2 / 3)
    if (value[down] == math.inf).all() and any(same(target, ~down) for target in right):
        raise Wrong("The sign of G: it is minus the mean score. You return inf where the loss falls.", 1 / 3)
    cosine = torch.nn.functional.cosine_similarity(g, q, dim=-1)
    named = (
        ("Round nothing: the number may be a fraction.", (truth().ceil(),), 2 / 3),
        ("1.96 is for two sides: one side at 95 % is z = 1.645.", (truth(1.96), truth(1.959964)), 1 / 3),
        ("z is missing: at one standard error only 84 % are safe.", (truth(1.0),), 1 / 3),
        ("That is z sd(s)/G: the number of samples is its square.", (truth(power=1),), 0),
        ("z is not squared.", (truth() / Z,), 0),
        ("The standard deviation of s is not squared.", (truth() / s.std(-1),), 0),
        ("G is not squared.", (truth() * gain.abs(),), 0),
        ("Upside down: noise goes above, signal below.", (1 / truth(), truth(1) ** -1), 0),
        (
            "That is E s^2 where the variance belongs: subtract G^2.",
            (truth(variance=s.square().mean(-1)),),
            1 / 3,
        ),
        ("That has the variance of s where its standard deviation belongs.", (truth(variance=s.var(-1).square()),), 0),
        (
            "That is the noise of the mean of these samples: do not divide the variance of s by their number.",
            (truth() / n, truth(variance=s.var(-1, correction=0)) / n),
            0,
        ),
        (
            "The noise is that of s, along q only, not of the whole g.",
            (truth(variance=g.var(0).sum() * q.square().sum(-1).mean(-1)), truth(variance=g.var(0).sum())),
            0,
        ),
        ("That is the score divided by the lengths of g and q: keep the plain product.", (truth(score=cosine),), 0),
        ("The score is a sum over coordinates, one number a sample.", (truth(score=(g * q).flatten(1)),), 0),
    )
    for says, targets, share in named:
        if any(same(target) for target in targets):
            raise Wrong(says, share)
    at = int(down.nonzero()[0])
    raise Wrong(f"For direction {at} your function returned {value[at]:.4g}, expected {right[0][at]:.4g}.")


def unbiased(answer) -> str:
    """debiased(g, phi), g (net, n, d), phi (net, n, m) -> mean of <M_i, M_j> over i != j (net,)."""
    generator = seeded(134)
    g, phi = normal(generator, 7, 12, 4) + 0.3, normal(generator, 7, 12, 6).relu()
    n = g.shape[1]
    mean = g.mT @ phi / n
    raw = mean.square().sum((1, 2))
    own = (g.square().sum(-1) * phi.square().sum(-1)).mean(1)
    truth = (n * raw - own) / (n - 1)
    apart = (g.square().sum(-1).mean(1) * phi.square().sum(-1).mean(1)) / n
    assert (truth < 0).any()  # clipping shows
    halves = [
        (one_g.mT @ one_phi / (n // 2) * (other_g.mT @ other_phi / (n // 2))).sum((1, 2))
        for one_g, one_phi, other_g, other_phi in (
            (g[:, : n // 2], phi[:, : n // 2], g[:, n // 2 :], phi[:, n // 2 :]),
            (g[:, ::2], phi[:, ::2], g[:, 1::2], phi[:, 1::2]),
        )
    ]
    half = "Unbiased, but two halves use only about half of the pairs: take all pairs i != j."
    spectral = torch.linalg.matrix_norm(mean, 2).square()
    compare(
        answer,
        truth,
        {
            "That is the squared norm of the mean, biased up by noise: leave out the pairs i = j.": raw,
            "That is its root, still biased: debias the square.": raw.sqrt(),
            "That is the bias: subtract it from the squared norm.": raw - truth,
            "The bias has to be subtracted, not added.": 2 * raw - truth,
            "The pairs i = j are E |g|^2 |phi|^2 over n: divide by n.": raw - own,
            "E |g|^2 |phi|^2 is the mean of a product, sample by sample, not a product of means.": (
                (raw - apart) * n / (n - 1)
            ),
            "Take the sum of all squared entries of M, not its largest singular value.": spectral,
            "That is the sum over all pairs: take the mean over the n (n - 1) pairs.": truth * n * (n - 1),
            "That is E |g|^2 |phi|^2, the pairs i = j alone.": own,
        },
        {
            "Close: the n (n - 1) pairs that are left have their mean by n - 1, not by n.": raw - own / n,
            "Negative values are clipped: the mean over pairs may be negative, and clipping brings a bias back.": (
                truth.clamp(min=0)
            ),
            half: halves[0],
            half + " ": halves[1],
        },
        g=g,
        phi=phi,
    )
    return "A square of an average always holds the noise too; products of different samples do not."


EXERCISES = {
    "13.1": Exercise(points=2, minutes=6, difficulty=1, check=rank),
    "13.2": Exercise(points=3, minutes=12, difficulty=3, check=disguise),
    "13.3": Exercise(points=3, minutes=8, difficulty=2, check=samples),
    "13.4": Exercise(points=3, minutes=12, difficulty=2, check=unbiased),
}
