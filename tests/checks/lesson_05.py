"""Right and wrong answers to the exercises of lesson 05, as a learner would write them."""

import math

import numpy as np
import torch

# ---- 05.1: what pretraining leaves in a neuron


def square(b, c, lam, four=4, sign=1, half=2):
    return (sign * lam * c + (lam**2 * c**2 + four * b**2).sqrt()) / half


def start(b, c, lam):
    return c * (1 + lam) / 2


def both(norm2=square, contrast=None, order=1):
    contrast = contrast or ratio
    return lambda b, c, lam: (norm2(b, c, lam), contrast(b, c, lam))[::order]


def by_roots(b, c, lam):
    """The positive root of x² − λc·x − b² = 0, by numpy, one neuron at a time."""
    norm2 = [
        max(np.roots([1, -m * k, -(s**2)]).real) for s, k, m in zip(b.tolist(), c.tolist(), lam.tolist(), strict=True)
    ]
    return norm2, [x / (k * (1 + m) / 2) for x, k, m in zip(norm2, c.tolist(), lam.tolist(), strict=True)]


def by_asinh(b, c, lam):
    """Hyperbolic: ‖w‖ = √(c/2) (√(1+λ) cosh s + √(1−λ) sinh s), with ‖w‖|v| = b solved by bisection for s."""
    low, high = torch.zeros_like(b) - 20, torch.zeros_like(b) + 20
    p, q = (c * (1 + lam) / 2).sqrt(), (c * (1 - lam) / 2).sqrt()
    for _ in range(80):
        s = (low + high) / 2
        less = (p * s.cosh() + q * s.sinh()) * (p * s.sinh() + q * s.cosh()) < b
        low, high = torch.where(less, s, low), torch.where(less, high, s)
    norm2 = (p * s.cosh() + q * s.sinh()) ** 2
    return norm2, norm2 / p**2


def ratio(b, c, m, **slip):
    return square(b, c, m, **slip) / start(b, c, m)


def two_paths(b, c, lam, four=1):
    """The diagonal net's factor."""
    return (1 + lam) * (1 + (1 + four * (b / c) ** 2).sqrt())


# ---- 05.2: where λ wakes up


def wakes(b, lam, f):
    return b * (f - 1 / f) / lam


def by_bisection(b, lam, f):
    low, high = torch.full_like(b, -20), torch.full_like(b, 20)
    for _ in range(100):
        middle = (low + high) / 2
        more = square(b, middle.exp(), lam) > f * b
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return low.exp()


# ---- 05.3: PR and ENSD


def centered(z):
    return z - z.mean(1, keepdim=True)


def by_rows(z):
    return z - z.mean(2, keepdim=True)


def pr(z, power=2):
    s = torch.linalg.svdvals(z)
    return (s**power).sum(1) ** 2 / (s ** (2 * power)).sum(1)


def fourth(z):
    return (z.mT @ z).square().sum((1, 2))


def trace(a):
    return a.diagonal(dim1=1, dim2=2).sum(1)


def grams(x, y):
    return x @ x.mT, y @ y.mT


def ensd(x, y):
    kx, ky = grams(x, y)
    return trace(kx) * trace(ky) * trace(kx @ ky) / (trace(kx @ kx) * trace(ky @ ky))


def cka(x, y):
    kx, ky = grams(x, y)
    return trace(kx @ ky) / (trace(kx @ kx) * trace(ky @ ky)).sqrt()


def units(x, y):
    cx, cy = (z.mT @ z / z.square().sum((1, 2), keepdim=True) for z in (x, y))
    return trace(cx @ cy) / (trace(cx @ cx) * trace(cy @ cy))


def reading(center=centered, before=pr, after=pr, shared=ensd, order=(0, 1, 2)):
    def answer(x, y):
        x, y = center(x), center(y)
        parts = before(x), after(y), shared(x, y)
        return tuple(parts[i] for i in order)

    return answer


def of_raw(**parts):
    """As `reading`, with one part computed from features that were not centered."""

    def answer(x, y):
        right, raw, (name,) = reading()(x, y), reading(lambda z: z, **parts)(x, y), parts
        return [b if name == part else a for part, a, b in zip(("before", "after", "shared"), right, raw, strict=True)]

    return answer


def with_one_mean(x, y):
    mean = x.mean(1, keepdim=True)
    return pr(x - mean), pr(y - mean), ensd(x - mean, y - mean)


def with_one_mean_shared(x, y):
    return *reading(order=(0, 1))(x, y), with_one_mean(x, y)[2]


def without_traces(x, y, scale=1.0):
    kx, ky = (scale * k for k in grams(x, y))
    return trace(kx @ ky) / (trace(kx @ kx) * trace(ky @ ky))


def no_square(x, y):
    kx, ky = grams(x, y)
    return trace(kx) * trace(ky) * torch.linalg.matrix_norm(x.mT @ y) / (trace(kx @ kx) * trace(ky @ ky))


def roots_below(x, y):
    kx, ky = (k / x.shape[1] for k in grams(x, y))
    return trace(kx) * trace(ky) * trace(kx @ ky) / (trace(kx @ kx) * trace(ky @ ky)).sqrt()


def traces_below(x, y):
    kx, ky = grams(x, y)
    return trace(kx @ ky) / (trace(kx) * trace(ky))


def by_covariance(x, y):
    """numpy, one case at a time, covariances with n − 1."""
    found = []
    for a, b in zip(x.numpy(), y.numpy(), strict=True):
        joint = np.cov(a.T, b.T)
        p = a.shape[1]
        cx, cy, cxy = joint[:p, :p], joint[p:, p:], joint[:p, p:]
        tx, ty, sx, sy = np.trace(cx), np.trace(cy), (cx**2).sum(), (cy**2).sum()
        found.append((tx**2 / sx, ty**2 / sy, tx * ty * (cxy**2).sum() / (sx * sy)))
    return np.array(found).T


# ---- 05.4: reuse or richness


def halves(
    richness=lambda pt, reset: (reset[..., 0] - reset[..., 1]).mean(1),
    reuse=lambda pt, reset: (reset[..., 1] - pt[..., 1]).mean(1),
    z=lambda pt, reset: reset[..., 1] - pt[..., 1],
    error=lambda d: d.std(1) / d.shape[1] ** 0.5,
    order=(0, 1, 2),
):
    def answer(pt, reset):
        d = z(pt, reset)
        parts = richness(pt, reset), reuse(pt, reset), d.mean(1) / error(d)
        return tuple(parts[i] for i in order)

    return answer


def z_as(formula):
    def answer(pt, reset):
        richness, reuse, _ = halves()(pt, reset)
        d = reset[..., 1] - pt[..., 1]
        return richness, reuse, formula(d, reset[..., 1], pt[..., 1])

    return answer


def by_numpy(pt, reset):
    a, b = pt.numpy(), reset.numpy()
    d = b[:, :, 1] - a[:, :, 1]
    z = [row.mean() / (row.std(ddof=1) / math.sqrt(len(row))) for row in d]
    return b[:, :, 0].mean(1) - b[:, :, 1].mean(1), d.mean(1), z


def more(p, r):
    return (p[..., 0] - p[..., 1] - r[..., 0] + r[..., 1]).mean(1)


RIGHT = {
    "05.1": [both(), by_roots, by_asinh],
    "05.2": [wakes, by_bisection, lambda b, lam, f: ((b / f) ** 2 - (f * b) ** 2) / (b / f + f * b) / lam.abs()],
    "05.3": [reading(), by_covariance, lambda *a: torch.stack(reading()(*a))],
    "05.4": [halves(), by_numpy],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "05.1": [
        ("norm2: at ", 0, lambda b, *_: (0 * b, 0 * b)),
        ("norm2: that is the diagonal net, root = sqrt(1 + b²", 2, both(two_paths)),
        ("norm2: that is the diagonal net, root = sqrt(1 + 4b²", 2, both(lambda *a: two_paths(*a, 4))),
        ("k of the diagonal net, root = sqrt(1 + b²", 2, both(lambda b, c, m: 2 * c * two_paths(b, c, m))),
        ("k of the diagonal net, root = sqrt(1 + 4b²", 2, both(lambda b, c, m: c / 2 * two_paths(b, c, m, 4))),
        ("norm2: that is the readout", 2, both(lambda b, c, m: square(b, c, m, sign=-1))),
        ("norm2: the 4 of the quadratic", 2, both(lambda b, c, m: square(b, c, m, four=1))),
        ("norm2: that is the limit of small c", 2, both(lambda b, c, m: b)),
        ("norm2: lam is missing", 2, both(lambda b, c, m: square(b, c, 1 + 0 * m))),
        ("norm2: the conserved number is the difference", 2, both(lambda *a: square(a[0], start(*a), torch.tensor(1)))),
        ("norm2: that is where the neuron started", 2, both(start)),
        ("norm2: that is the contrast", 2, both(ratio)),
        ("has a 1/2 in front", 3, both(lambda b, c, m: square(b, c, m, half=1))),
        ("norm2: that is the norm", 3, both(lambda b, c, m: square(b, c, m).sqrt())),
        ("contrast of the diagonal net, root = sqrt(1 + b²", 2, both(contrast=lambda *a: two_paths(*a) / (1 + a[2]))),
        ("contrast of the diagonal net, root = sqrt(1 + 4", 2, both(contrast=lambda *a: two_paths(*a, 4) / (1 + a[2]))),
        ("contrast: that is the diagonal net, root", 2, both(contrast=two_paths)),
        ("divide by 1 + lam as well", 2, both(contrast=lambda b, c, m: m + (m**2 + 4 * (b / c) ** 2).sqrt())),
        ("in units of c:", 2, both(contrast=lambda b, c, m: square(b, c, m) / c)),
        ("not c(1 - lam)/2", 2, both(contrast=lambda b, c, m: square(b, c, m) / start(b, c, -m))),
        ("stands below", 2, both(contrast=lambda b, c, m: square(b, c, m) * start(b, c, m))),
        ("contrast of the readouts", 2, both(contrast=lambda b, c, m: square(b, c, -m) / start(b, c, -m))),
        ("upside down", 2, both(contrast=lambda *a: 1 / ratio(*a))),
        ("the 4 under the root", 2, both(contrast=lambda *a: ratio(*a, four=1))),
        ("4b, not 4b²", 2, both(lambda b, c, m: (m * c + ((m * c) ** 2 + 4 * b).sqrt()) / 2, ratio)),
        ("contrast: b is the strength", 2, both(contrast=lambda b, c, m: b / start(b, c, m))),
        ("contrast: over the unused neuron", 2, both(contrast=lambda b, c, m: square(b, c, m) / b)),
        ("used minus unused", 2, both(contrast=lambda b, c, m: square(b, c, m) - start(b, c, m))),
        ("contrast: that is norm2", 2, both(contrast=square)),
        ("not of the norms", 3, both(contrast=lambda *a: ratio(*a).sqrt())),
        ("does not end at b = 0", 2, both(contrast=lambda b, c, m: square(b, c, m) / square(0 * b, c, m))),
        ("yours are swapped", 2, both(order=-1)),
        ("(norm2, contrast), 2 tensors; it returned one", 0, lambda b, c, m: 1.0),
        ("2 tensors; it returned 12", 0, square),
        ("a division or a root", 0, both(lambda b, c, m: (m * c - b).sqrt())),
        ("norm2: at b=", 2, both(lambda b, c, m: b + c)),
    ],
    "05.2": [
        ("negative on both sides", 0, lambda b, m, f: b * (f - 1 / f) / -m),
        ("lam is missing", 0, lambda b, m, f: b * (1 / f - f)),
        ("lam times", 0, lambda b, m, f: b * (f - 1 / f) * m),
        ("not (1 + lam)c", 0, lambda b, m, f: b * (1 / f - f) / (1 + m)),
        ("the factor is missing", 0, lambda b, m, f: b / -m),
        ("1 - factor, not its square", 0, lambda b, m, f: b * (1 - f) / (-m * f)),
        ("the 1/factor is missing", 0, lambda b, m, f: b * (1 - f**2) / -m),
        ("b, not b²", 0, lambda b, m, f: b**2 * (f - 1 / f) / m),
        ("The 4 under the root", 0, lambda b, m, f: b * (f - 1 / (4 * f)) / m),
        ("factor·c in place of factor·b", 0, lambda b, m, f: b / (f * (f - m)).sqrt()),
        ("That is for the norm", 1, lambda b, m, f: b * (f**2 - 1 / f**2) / m),
        ("That is the asymptote", 1, lambda b, m, f: b / (f * m.abs())),
        ("0.5 times the expected", 0, lambda b, m, f: wakes(b, m, f) / 2),
        ("a division or a root", 0, lambda b, m, f: m.log()),
        ("At b=", 0, lambda b, m, f: b * (1 - f) / -m),
    ],
    "05.3": [
        ("pr_before: at ", 0, lambda *a: [0 * part for part in reading()(*a)]),
        ("pr_before: not centered", 0, reading(lambda z: z)),
        ("pr_before: centered along the units", 0, reading(by_rows)),
        ("pr_before: that uses the singular values", 8 / 3, reading(before=lambda z: pr(z, 1))),
        ("pr_before: that uses s⁴", 8 / 3, reading(before=lambda z: pr(z, 4))),
        ("pr_before: upside down", 8 / 3, reading(before=lambda z: 1 / pr(z))),
        ("pr_before: the square of the trace", 8 / 3, reading(before=lambda z: (z**2).mean((1, 2)) / fourth(z))),
        ("another count", 8 / 3, reading(before=lambda z: (z**2).sum((1, 2)) / torch.linalg.matrix_norm(z, 2) ** 2)),
        ("pr_before: that is the number of directions", 8 / 3, reading(before=torch.linalg.matrix_rank)),
        ("pr_after: that uses the singular values", 8 / 3, reading(after=lambda z: pr(z, 1))),
        ("pr_after: that uses s⁴", 8 / 3, reading(after=lambda z: pr(z, 4))),
        ("pr_after: not centered", 8 / 3, of_raw(after=pr)),
        ("ensd: not centered", 8 / 3, of_raw(shared=ensd)),
        ("ensd: centered along the units", 8 / 3, of_raw(shared=lambda x, y: ensd(by_rows(x), by_rows(y)))),
        ("ensd: that is the wrong space: tr", 8 / 3, reading(shared=units)),
        ("ensd: that is the wrong space, and not centered", 8 / 3, of_raw(shared=units)),
        ("that is CKA, between", 8 / 3, reading(shared=cka)),
        ("that is CKA times PR·PR", 8 / 3, reading(shared=lambda x, y: cka(x, y) * pr(x) * pr(y))),
        ("that is its bound", 8 / 3, reading(shared=lambda x, y: (pr(x) * pr(y)).sqrt())),
        ("the square is missing", 8 / 3, reading(shared=no_square)),
        ("the traces of K_X", 8 / 3, reading(shared=without_traces)),
        ("the traces of K_X and K_Y above", 8 / 3, reading(shared=lambda x, y: without_traces(x, y, 1 / 60))),
        ("not their roots", 8 / 3, reading(shared=roots_below)),
        ("not squares of traces", 8 / 3, reading(shared=traces_below)),
        ("ensd: that is PR after", 8 / 3, reading(shared=lambda x, y: pr(y))),
        ("pr_after: after is centered with the means of before", 4 / 3, with_one_mean),
        ("ensd: after is centered with the means of before", 8 / 3, with_one_mean_shared),
        ("the first two are swapped", 2, reading(order=(1, 0, 2))),
        ("3 tensors; it returned 2", 0, reading(order=(0, 1))),
        ("expected (8,)", 0, lambda x, y: reading()(x[:3], y[:3])),
        ("a division or a root", 0, reading(before=lambda z: pr(z) / 0)),
        ("2 times the expected", 8 / 3, reading(shared=lambda x, y: 2 * ensd(x, y))),
        ("ensd: at size of before=", 8 / 3, reading(shared=lambda x, y: pr(x) - pr(y))),
    ],
    "05.4": [
        ("Ask the reset nets", 2, halves(richness=lambda p, r: (p[..., 0] - p[..., 1]).mean(1))),
        ("richness: the sign is off", 2, halves(richness=lambda p, r: (r[..., 1] - r[..., 0]).mean(1))),
        ("richness: that is the whole gain", 2, halves(richness=lambda p, r: (r[..., 0] - p[..., 1]).mean(1))),
        ("richness: that is what pretraining adds", 2, halves(richness=lambda p, r: (r[..., 0] - p[..., 0]).mean(1))),
        ("richness: that is an error", 2, halves(richness=lambda p, r: r[..., 1].mean(1))),
        ("richness: average over the seeds", 2, halves(richness=lambda p, r: (r[..., 0] - r[..., 1]).sum(1))),
        ("richness: that is a ratio", 2, halves(richness=lambda p, r: 1 - r[..., 1].mean(1) / r[..., 0].mean(1))),
        ("richness: that is a median", 2, halves(richness=lambda p, r: (r[..., 0] - r[..., 1]).median(1).values)),
        ("richness: that is reuse", 2, halves(richness=lambda p, r: (r[..., 1] - p[..., 1]).mean(1))),
        ("is no reuse", 2, halves(reuse=lambda p, r: (p[..., 0] - p[..., 1]).mean(1))),
        ("reuse: that is the whole gain", 2, halves(reuse=lambda p, r: (r[..., 0] - p[..., 1]).mean(1))),
        ("reuse: that is at λ = 0", 2, halves(reuse=lambda p, r: (r[..., 0] - p[..., 0]).mean(1))),
        ("reuse: the sign is off", 2, halves(reuse=lambda p, r: (p[..., 1] - r[..., 1]).mean(1))),
        ("how much more λ gains", 2, halves(reuse=more)),
        ("reuse: average over the seeds", 2, halves(reuse=lambda p, r: (r[..., 1] - p[..., 1]).sum(1))),
        ("reuse: that is a ratio", 2, halves(reuse=lambda p, r: 1 - p[..., 1].mean(1) / r[..., 1].mean(1))),
        ("reuse: that is richness", 2, halves(reuse=lambda p, r: (r[..., 0] - r[..., 1]).mean(1))),
        ("z: the seeds are paired", 2, z_as(lambda d, a, b: d.mean(1) / ((a.var(1) + b.var(1)) / a.shape[1]) ** 0.5)),
        ("smaller by root seeds", 2, halves(error=lambda d: d.std(1))),
        ("not the number", 2, halves(error=lambda d: d.std(1) / d.shape[1])),
        ("z: that is the reuse itself", 2, halves(error=lambda d: 1)),
        ("z: that is the standard error itself", 2, z_as(lambda d, a, b: d.std(1) / d.shape[1] ** 0.5)),
        ("z: the sign is off", 2, halves(z=lambda p, r: p[..., 1] - r[..., 1])),
        ("z: that is upside down", 2, z_as(lambda d, a, b: d.std(1) / d.shape[1] ** 0.5 / d.mean(1))),
        ("z: that is for the richness", 2, halves(z=lambda p, r: r[..., 0] - r[..., 1])),
        ("z: that is for the whole gain", 2, halves(z=lambda p, r: r[..., 0] - p[..., 1])),
        ("z: that is for λ = 0", 2, halves(z=lambda p, r: r[..., 0] - p[..., 0])),
        ("seeds - 1", 2.5, halves(error=lambda d: d.std(1, correction=0) / d.shape[1] ** 0.5)),
        ("the first two are swapped", 1.5, halves(order=(1, 0, 2))),
        ("3 tensors; it returned 2", 0, halves(order=(0, 1))),
        ("2 times the expected", 2, halves(richness=lambda p, r: 2 * (r[..., 0] - r[..., 1]).mean(1))),
        ("reuse: at mean error pretrained=", 2, halves(reuse=lambda p, r: p[..., 1].mean(1))),
    ],
}  # fmt: skip
