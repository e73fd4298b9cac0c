"""Exercises of lesson 09, from cascade to power law: two parts of the error, the two ends, self-noise, 10^5 samples."""

import math

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, compare, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong

# gamma, n_features, noise_std
SETTINGS = ((1.0, 30, 0.5), (0.75, 50, 2.0), (1.6, 12, 0.0))


def parts(answer) -> str:
    """two_parts(samples_per_dim, gamma, n_features, noise_std) -> (unlearned, learned), by the simple law."""
    shares, first = [], None
    for given in SETTINGS:
        says, share = judge_parts(answer, given)
        shares.append(share)
        first = first or says
    if first:
        raise Wrong(first, min(shares))
    return "A tail that grows shorter, and learned features that are not perfect yet: the steps are gone from the sum."


def judge_parts(answer, given: tuple[float, int, float]) -> tuple[str, float]:
    """What is wrong at one setting ("" for nothing), and the share of the points that it still earns."""
    delta = 10 ** (uniform(seeded(91), 0, 3.5, 12).sort().values + 0.3)
    names = ("samples_per_dim", "gamma", "n_features", "noise_std")
    inputs = dict(zip(names, (delta, *given), strict=True))
    returned = pair(call(answer, **inputs), "unlearned, learned")
    found = [as_tensor(part, delta.shape) for part in returned]
    truth = sums(*inputs.values())
    good = [near(one, true) for one, true in zip(found, truth, strict=True)]
    if all(good):
        return "", 1
    share = sum(good) / 2
    if near(found[0], truth[1]) and near(found[1], truth[0]):
        return "Return (unlearned, learned), in this order: yours are swapped.", 0.5
    both = {
        "Normalize the strengths: sum a_k^2 = 1.": {"total": 1.0},
        "The strengths are normalized by Z = sum of k^(-2 gamma): a_k^2 = k^(-2 gamma)/Z.": {"root_total": True},
        "That weighs features by a_k: the error is a sum of squares, a_k^2.": {"weigh": 0.5},
        "That is a_k where a_k^2 belongs, in n_k and in the error.": {"weigh": 0.5, "threshold": 0.5},
        "a_k falls as k^(-gamma), its square as k^(-2 gamma).": {"exponent": given[0]},
        "The factor 2 is missing in n_k/D = (1 + sigma^2)/(2 a_k^2).": {"factor": 1.0},
        "n_k/D has a_k^2 in the denominator, not a_k.": {"threshold": 0.5},
        "n_k/D grows with the label noise: E y^2 = 1 + sigma^2.": {"noise": 1.0},
        "E y^2 is 1 + sigma^2, not 1 + sigma.": {"noise": 1 + given[2]},
        "E y^2 is 1 + sigma^2, not sigma^2: the label itself counts.": {"noise": given[2] ** 2},
        "The last feature is missing: k runs from 1 to n_features.": {"count": given[1] - 1},
    }
    for says, change in both.items():
        wrong = sums(*inputs.values(), **change)
        if all(map(near, found, wrong)) and not near(wrong[1], truth[1]):
            return says, 0
    rho, power, out = pieces(*inputs.values())
    loose = pieces(*inputs.values(), least=-torch.inf)[0]
    named = (
        {
            "unlearned: that is what *is* learned, sum a_k^2 over the features that are out.": (out * power).sum(-1),
            "unlearned: that is the whole error.": truth[0] + truth[1],
            "unlearned: that counts features, add up their a_k^2.": (~out).double().sum(-1),
            "unlearned: nothing has rho = 0 without the clamp, rho = max(1 - n_k/n, 0).": torch.zeros_like(delta),
        },
        {
            "learned: an overlap rho leaves the error 1 - rho^2, not 1 - rho.": (out * power * (1 - rho)).sum(-1),
            "learned: an overlap rho leaves the error 1 - rho^2, not (1 - rho)^2.": (
                (out * power * (1 - rho) ** 2).sum(-1)
            ),
            "learned: that is what is known, sum a_k^2 rho_k^2; asked for is the error left.": (power * rho**2).sum(-1),
            "learned: that is the whole error, features that are not out included.": truth[0] + truth[1],
            "learned: that is their a_k^2, as if nothing were known of them.": (out * power).sum(-1),
            "learned: without the clamp, rho < 0 of features that are not out enters as rho^2.": (
                (power * (1 - loose**2)).sum(-1)
            ),
        },
    )
    for value, mistakes, right in zip(found, named, good, strict=True):
        for says, wrong in mistakes.items():
            if not right and near(value, wrong):
                return says, share
    which = good.index(False)
    at = int((found[which] - truth[which]).abs().argmax())
    where = f"At samples_per_dim={delta[at]:.4g}, gamma={given[0]}, n_features={given[1]}, noise_std={given[2]}"
    name, value, true = ("unlearned", "learned")[which], found[which][at], truth[which][at]
    return f"{where}: {name} is {true:.4g}, you returned {value:.4g}.", share


def pieces(
    delta,
    gamma,
    n_features,
    noise_std,
    *,
    total=None,
    exponent=None,
    root_total=False,
    factor=2.0,
    threshold=1.0,
    noise=None,
    count=None,
    least=0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """ρ_k, a_k² and whether feature k is out, each (δ, k) or (k,); the keywords make the mistakes."""
    k = torch.arange(1, n_features + 1, dtype=torch.float64, device="cpu")
    power = k ** -(2 * gamma if exponent is None else exponent)
    whole = power.sum() if total is None else total
    power = power[:count] / (whole**0.5 if root_total else whole)
    needed = (1 + noise_std**2 if noise is None else noise) / (factor * power**threshold)
    rho = (1 - needed / delta[:, None]).clamp_min(least)
    return rho, power, rho > 0


def sums(delta, gamma, n_features, noise_std, *, weigh=1.0, **changes) -> tuple[Tensor, Tensor]:
    rho, power, out = pieces(delta, gamma, n_features, noise_std, **changes)
    power = power**weigh
    return (~out * power).sum(-1), (out * power * (1 - rho**2)).sum(-1)


def near(value: Tensor, target: Tensor) -> bool:
    return bool(((value - target).abs() <= 1e-5 * target.abs().max() + 1e-12).all())


def two_ends(answer) -> str:
    """ends(gamma, n_features, noise_std) -> (first, last), n_1/D and n_{d1}/D of the simple law."""
    gamma, noise = (
        torch.tensor(values, dtype=torch.float64, device="cpu") for values in ((1.0, 0.7, 1.4), (0.5, 2, 0))
    )
    counts = (40, 100, 15)
    returned = []
    for g, d, s in zip(gamma.tolist(), counts, noise.tolist(), strict=True):
        both = pair(call(answer, gamma=g, n_features=d, noise_std=s), "first, last")
        returned.append([float(as_tensor(part, ())) for part in both])
    first, last = torch.tensor(returned, dtype=torch.float64, device="cpu").T
    d = torch.tensor(counts, dtype=torch.float64, device="cpu")
    z = torch.stack([sums_of(g, n) for g, n in zip(gamma, counts, strict=True)])
    y2 = 1 + noise**2
    inputs = {"gamma": gamma, "n_features": d, "noise_std": noise}
    true = z * y2 / 2
    if near(first, true * d ** (2 * gamma)) and near(last, true):
        raise Wrong("Return (first, last), in this order: yours are swapped.", 0.5)
    infinite = torch.special.zeta(2 * gamma, torch.ones_like(gamma))
    common = {
        "Z runs over the n_features features there are, not to infinity.": infinite * y2 / 2,
        "The factor 2 is missing: n_k/D = (1 + sigma^2)/(2 a_k^2).": z * y2,
        "E y^2 is 1 + sigma^2: label noise is missing.": z / 2,
        "E y^2 is 1 + sigma^2, not 1 + sigma.": z * (1 + noise) / 2,
        "Z is missing: a_k^2 = k^(-2 gamma)/Z.": y2 / 2,
        "n_k/D has a_k^2 = k^(-2 gamma)/Z in the denominator, not a_k.": z**0.5 * y2 / 2,
    }
    for says, wrong in common.items():
        stretch = d**gamma if "not a_k" in says else d ** (2 * gamma)
        if near(first, wrong) and near(last, wrong * stretch):
            raise Wrong(says)
    mistakes = {
        "last: a_k falls as k^(-gamma), so n_k grows as k^(2 gamma), not k^gamma.": true * d**gamma,
        "last: n_k grows as k^(2 gamma), not as k^(1/(2 gamma)).": true * d ** (1 / (2 * gamma)),
        "last: that is how many times the first threshold; multiply by it.": d ** (2 * gamma),
        "last: that is the threshold of the feature after the last.": true * (d + 1) ** (2 * gamma),
    }
    right = near(first, true)
    compare(lambda *_: first, true, common, {}, **inputs)
    try:
        compare(lambda *_: last, true * d ** (2 * gamma), mistakes, {}, **inputs)
    except Wrong as wrong:
        raise Wrong(str(wrong), 0.5 * right) from None
    return "The law spans d1^(2 gamma) in n, whatever the noise: noise moves both ends by the same factor."


def sums_of(gamma: Tensor, count: int) -> Tensor:
    return (torch.arange(1, count + 1, dtype=torch.float64, device="cpu") ** (-2 * gamma)).sum()


def self_noise(answer) -> str:
    """self_noise(k, gamma, noise_std) -> the self-noise as a share of the law, when k features are learned."""
    generator = seeded(93)
    k, gamma, noise = (uniform(generator, *span, 8) for span in ((5, 40), (0.6, 2), (0.2, 3)))
    part, tail = 1 / (2 * gamma + 1), 1 / (2 * gamma - 1)
    learned = 2 - part
    c, y2 = learned + tail, 1 + noise**2
    zeta = torch.special.zeta(2 * gamma, torch.ones_like(gamma))
    truth = 8 / (c * k * y2)
    delta = zeta * y2 * k ** (2 * gamma) / 2
    mistakes = {
        "That is the self-noise 4/delta itself: divide by the error of the law.": 4 / delta,
        "That is the error of the law: divide 4/delta by it.": c / zeta * k ** (1 - 2 * gamma),
        "That is turned over: self-noise over law.": 1 / truth,
        "C is missing: the law's error is (C/Z) K^(1 - 2 gamma).": 8 / (k * y2),
        "C has two parts: the tail 1/(2 gamma - 1) alone leaves the learned features out.": 8 / (tail * k * y2),
        "C has two parts: the tail 1/(2 gamma - 1) is missing.": 8 / (learned * k * y2),
        "C = 2 - 1/(2 gamma + 1) + 1/(2 gamma - 1): you subtract the tail.": 8 / ((learned - tail) * k * y2),
        "C = 2 - 1/(2 gamma + 1) + 1/(2 gamma - 1): mind the first sign.": 8 / ((2 + part + tail) * k * y2),
        "delta_K contains 1 + sigma^2: that is why noise matters here.": 8 / (c * k),
        "E y^2 is 1 + sigma^2, not 1 + sigma.": 8 / (c * k * (1 + noise)),
        "E y^2 is 1 + sigma^2, not sigma^2.": 8 / (c * k * noise**2),
        "Z cancels: it is in delta_K and in the law.": 8 / (c * k * y2 * zeta),
        "Z cancels: it is in delta_K and in the law; you multiply by it.": 8 * zeta / (c * k * y2),
        "The powers of K: K^(-2 gamma) over K^(1 - 2 gamma) is 1/K.": 8 / (c * y2 * k ** (2 * gamma)),
        "The powers of K: 1/delta_K brings K^(-2 gamma), the law K^(1 - 2 gamma) below it: 1/K.": (
            8 * k ** (1 - 2 * gamma) / (c * y2)
        ),
        "The powers of K: K^(-2 gamma) over K^(1 - 2 gamma) is 1/K, not K.": 8 * k / (c * y2),
    }
    slips = {"The factor 2 of delta_K = Z (1 + sigma^2) K^(2 gamma)/2 is missing.": truth / 2}
    slips |= {
        "rho enters squared: the share is 4/delta, not 2/delta; or a 2 of delta_K is on the wrong side.": truth / 4
    }
    compare(answer, truth, mistakes, slips, k=k, gamma=gamma, noise_std=noise)
    return "At the same number of learned features, self-noise is divided by 1 + sigma^2, and the law is not."


# gamma, dim, n, noise_std; none is near a whole number
COUNTS = ((1.0, 24, 100_000, 0.0), (0.75, 32, 100_000, 2.0), (1.5, 16, 50_000, 0.5), (1.2, 40, 300_000, 0.0))


def revealed(answer) -> str:
    """revealed(gamma, dim, n, noise_std): how many of infinitely many features n samples reveal, q = 2."""
    values = []
    for given in COUNTS:
        inputs = dict(zip(("gamma", "dim", "n", "noise_std"), given, strict=True))
        values.append(float(as_tensor(call(answer, **inputs), ())))
    found = torch.tensor(values, dtype=torch.float64, device="cpu")
    gamma, dim, n, noise = torch.tensor(COUNTS, dtype=torch.float64, device="cpu").T
    zeta = torch.special.zeta(2 * gamma, torch.ones_like(gamma))

    def count(size=dim * (dim + 1) / 2, z=zeta, y2=1 + noise**2, factor=2.0, power=1 / (2 * gamma), shrink=math.floor):
        whole = [shrink(float(v)) for v in (factor * n / (size * z * y2)) ** power]
        return torch.tensor(whole, dtype=torch.float64, device="cpu")

    truth = count()
    if torch.equal(found, truth):
        return "The law says so for the surrogate; now look whether they are there."
    slips = {
        "A feature is found or not: round *down* to a whole number.": count(shrink=float),
        "Round down: feature k is out when n exceeds n_k.": count(shrink=round),
        "Round down, not up.": count(shrink=math.ceil),
    }
    mistakes = {
        "D is d(d+1)/2: x_i^2 - 1 counts too.": count(size=dim * (dim - 1) / 2),
        "D is d(d+1)/2, not d^2: x_i x_j and x_j x_i are one function.": count(size=dim**2),
        "D is the size of the lift, d(d+1)/2, not d.": count(size=dim),
        "There are infinitely many features: Z = zeta(2 gamma), not a sum over a few.": count(
            z=torch.stack([sums_of(g, 12) for g in gamma])
        ),
        "Z is missing: the strengths are normalized.": count(z=torch.ones_like(zeta)),
        "The factor 2 of n_k = D (1 + sigma^2)/(2 a_k^2) is missing.": count(factor=1.0),
        "E y^2 is 1 + sigma^2: label noise is missing.": count(y2=torch.ones_like(noise)),
        "E y^2 is 1 + sigma^2, not 1 + sigma.": count(y2=1 + noise),
        "a_k^2 falls as k^(-2 gamma): the root is 1/(2 gamma), not 1/gamma.": count(power=1 / gamma),
        "That is Davis and Kahan's promise, n > k^2 n_k: the sharp threshold is n > n_k.": count(
            power=1 / (2 * gamma + 2)
        ),
        "The root 1/(2 gamma) is missing: n_k/n_1 is k^(2 gamma).": count(power=torch.ones_like(gamma)),
    }
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, wrong in named.items():
            if bool(((found - wrong).abs() <= 1e-4 * wrong).all()):
                raise Wrong(says, share)
    right = (found == truth).double().mean().item()
    i = int((found != truth).nonzero()[0])
    at = ", ".join(
        f"{name}={value:g}" for name, value in zip(("gamma", "dim", "n", "noise_std"), COUNTS[i], strict=True)
    )
    raise Wrong(f"At {at}: {truth[i]:g} features, you returned {found[i]:.4g}.", 0.5 if right >= 0.5 else 0.0)


EXERCISES = {
    "09.1": Exercise(points=4, minutes=10, difficulty=2, check=parts),
    "09.2": Exercise(points=2, minutes=4, difficulty=1, check=two_ends),
    "09.3": Exercise(points=3, minutes=8, difficulty=2, check=self_noise),
    "09.4": Exercise(points=3, minutes=6, difficulty=2, check=revealed),
}
