"""Right and wrong answers to the exercises of lesson 07, as a learner would write them."""

import math

import numpy as np
import torch

from labkit.transfer import arithmetic, transformer


def table(rule=lambda a, b, v, n, m: (a + b) % m, count=lambda n, m: math.gcd(n, m) - 1, order=1):
    """07.1, with labels and count as given."""

    def answer(vocabulary, pretrained, modulus):
        a, b = torch.meshgrid(torch.arange(vocabulary), torch.arange(vocabulary), indexing="ij")
        return (rule(a, b, vocabulary, pretrained, modulus), count(pretrained, modulus))[::order]

    return answer


def by_projection(n, m):
    """How many characters of n lie in the span of those of m, by least squares over one common period."""
    t = np.arange(math.lcm(n, m))
    mine, other = (np.exp(2j * np.pi * np.outer(t, np.arange(k)) / k) for k in (n, m))
    rest = mine - other @ np.linalg.lstsq(other, mine, rcond=None)[0]
    return int((np.abs(rest).max(0) < 1e-8).sum()) - 1


def by_loop(vocabulary, pretrained, modulus):
    shared = {k / pretrained for k in range(1, pretrained)} & {k / modulus for k in range(1, modulus)}
    return [[(a + b) % modulus for b in range(vocabulary)] for a in range(vocabulary)], len(shared)


def in_arrays(*arguments):
    return [np.asarray(part) for part in table()(*arguments)]


def common_divisors(n, m):
    return sum(n % d == 0 and m % d == 0 for d in range(1, min(n, m) + 1))


def common_primes(n, m):
    return sum(n % p == 0 and m % p == 0 for p in range(2, 61) if all(p % q for q in range(2, p)))


RULE = {"embed": 1, "position": 1, "query.0": -1, "key.0": -1, "unembed": -1}


def scale(**powers):
    """07.2: every weight times a power of kappa; the right ones where nothing is said."""
    names = {name: name if name in RULE else f"{name.removeprefix('mlp_')}.0" for name in powers}
    powers = RULE | {names[name]: power for name, power in powers.items()}
    return lambda params, kappa: {name: value * kappa ** powers.get(name, 0) for name, value in params.items()}


def in_place(params, kappa):
    for name, power in RULE.items():
        params[name] *= kappa**power
    return params


def only_small(params, kappa):
    return scale()(params, min(kappa, 1.0))


def partly(params, kappa):
    """The first token only."""
    new = scale()(params, kappa)
    return new | {"embed": torch.cat([new["embed"][:, :1], params["embed"][:, 1:]], 1)}


def fold(embedding, tokens=30):
    return embedding[:, :tokens].reshape(len(embedding), -1, 15, embedding.shape[-1]).mean(1)


def share(
    prepare=fold,
    ks=(3, 6, 9, 12),
    power=lambda f: f.abs().square().sum(-1),
    first=1,
    finish=lambda part, total: part / total,
):
    """07.3, step by step as given."""

    def answer(embedding):
        spectrum = power(torch.fft.fft(prepare(embedding), dim=1))
        return finish(spectrum[:, list(ks)].sum(1), spectrum[:, first:].sum(1))

    return answer


def by_waves(embedding):
    """Inner products with cosines and sines, no transform: k and 15 - k are one."""
    residue = torch.arange(30, dtype=torch.float64) % 15
    power = []
    for k in range(1, 8):
        angle = 2 * math.pi * k * residue / 15
        power.append(
            sum(torch.einsum("nvd,v->nd", embedding, wave).square().sum(-1) for wave in (angle.cos(), angle.sin()))
        )
    return (power[2] + power[5]) / sum(power)


def by_labkit(embedding):
    return arithmetic.power_share(arithmetic.fourier_power(embedding, 15), arithmetic.shared_frequencies(15, 5))


def per_unit(embedding):
    spectrum = torch.fft.fft(fold(embedding), dim=1).abs().square()
    return (spectrum[:, [3, 6, 9, 12]].sum(1) / spectrum[:, 1:].sum(1)).mean(-1)


def by_tokens(embedding):
    """No averages over classes, but frequencies counted as if there were."""
    spectrum = torch.fft.fft(embedding, dim=1).abs().square().sum(-1)
    return spectrum[:, [3, 6, 9, 12]].sum(1) / spectrum[:, 1:15].sum(1)


def when(steps, there, never=math.inf):
    """The first step at which it is there, seed by seed."""
    found = [[s[t].min().item() if t.any() else never for t in case] for case in there for s in [steps]]
    return torch.tensor(found, dtype=torch.float64)


def median(values):
    return torch.tensor([np.median(row) for row in values.tolist()])


def reading(
    center=lambda steps, accuracy: median(when(steps, accuracy >= 0.9)),
    mean=lambda accuracy: accuracy[..., -1].mean(1),
    se=lambda accuracy: accuracy[..., -1].std(1) / accuracy.shape[1] ** 0.5,
    order=(0, 1, 2),
):
    """07.4, each part as given."""

    def answer(steps, accuracy):
        parts = center(steps, accuracy), mean(accuracy), se(accuracy)
        return tuple(parts[i] for i in order)

    return answer


def in_tensors(steps, accuracy):
    there = accuracy >= 0.9
    first = torch.where(there.any(-1), steps[there.int().argmax(-1)], torch.inf).sort(1).values
    half, last = accuracy.shape[1] // 2, accuracy[..., -1]
    return (first[:, half - 1] + first[:, half]) / 2, last.mean(1), last.std(1) / last.shape[1] ** 0.5


def those_that_got_there(steps, accuracy):
    return torch.tensor([np.median([s for s in row if s < math.inf]) for row in when(steps, accuracy >= 0.9).tolist()])


def where_it_stays(steps, accuracy):
    below = accuracy < 0.9
    found = []
    for case in below:
        last = [np.flatnonzero(row).max(initial=-1) + 1 for row in case.numpy()]
        found.append(np.median([steps[i].item() if i < len(steps) else math.inf for i in last]))
    return torch.tensor(found)


RIGHT = {
    "07.1": [
        table(),
        table(count=by_projection),
        table(count=arithmetic.shared_characters),
        by_loop,
        lambda *a: [np.asarray(x) for x in table()(*a)],
    ],
    "07.2": [scale(), transformer.rescale, scale(value=0, output=0, mlp_in=0, mlp_out=0)],
    "07.3": [share(), by_waves, by_labkit, share(ks=(3, 6), finish=lambda part, total: 2 * part / total)],
    "07.4": [reading(), in_tensors, lambda *a: torch.stack(reading()(*a))],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "07.1": [
        ("labels: the remainder is missing", 1.5, table(lambda a, b, v, n, m: a + b)),
        ("labels: that is the product", 1.5, table(lambda a, b, v, n, m: a * b % m)),
        ("labels: that is the difference", 1.5, table(lambda a, b, v, n, m: (a - b) % m)),
        ("yours reach 2M - 2", 1.5, table(lambda a, b, v, n, m: a % m + b % m)),
        ("modulo the vocabulary", 1.5, table(lambda a, b, v, n, m: (a + b) % v)),
        ("modulo the modulus of pretraining", 1.5, table(lambda a, b, v, n, m: (a + b) % n)),
        ("labels: that is the quotient", 1.5, table(lambda a, b, v, n, m: (a + b) // m)),
        ("tokens are counted from 0", 1.5, table(lambda a, b, v, n, m: (a + 1 + b + 1) % m)),
        ("that is a alone", 1.5, table(lambda a, b, v, n, m: a % m)),
        ("that is b alone", 1.5, table(lambda a, b, v, n, m: b % m)),
        ("yours are counted from 1", 2.25, table(lambda a, b, v, n, m: (a + b) % m + 1)),
        ("shared: gcd counts the constant too", 2.25, table(count=math.gcd)),
        ("shared: that is the least common multiple", 1.5, table(count=math.lcm)),
        ("counts the least common multiple", 1.5, table(count=lambda n, m: math.lcm(n, m) - 1)),
        ("All or nothing".lower(), 1.5, table(count=lambda n, m: 0 if n % m else m - 1)),
        ("a divisor is not needed", 1.5, table(count=lambda n, m: 0 if n % m and m % n else math.gcd(n, m) - 1)),
        ("the indices k that both have", 1.5, table(count=lambda n, m: min(n, m) - 1)),
        ("common prime factors", 1.5, table(count=common_primes)),
        ("characters of the new modulus", 1.5, table(count=lambda n, m: m - 1)),
        ("characters of the old modulus", 1.5, table(count=lambda n, m: n - 1)),
        ("number of common divisors", 1.5, table(count=common_divisors)),
        ("those are the new ones", 1.5, table(count=lambda n, m: m - math.gcd(n, m))),
        ("are two characters", 2.25, table(count=lambda n, m: math.gcd(n, m) // 2)),
        ("half of them are missing", 2.25, table(count=lambda n, m: (math.gcd(n, m) - 1) / 2)),
        ("half of them, rounded down", 2.25, table(count=lambda n, m: (math.gcd(n, m) - 1) // 2)),
        ("that is a share", 2.25, table(count=lambda n, m: (math.gcd(n, m) - 1) / (m - 1))),
        ("returned shape", 0, table(order=-1)),
        ("one label for each pair", 0, lambda v, n, m: ((torch.arange(v) * 2) % m, 1)),
        ("must return the pair (labels, shared)", 0, lambda v, n, m: 3),
        ("at pretrained=", 1.5, table(count=lambda n, m: n * m % 7)),
    ],
    "07.2": [
        ("Upside down", 1.5, lambda params, kappa: scale()(params, 1 / kappa)),
        ("Nothing has changed", 0, lambda params, kappa: dict(params)),
        ("embed and position are added", 1.5, scale(position=0)),
        ("The embedding has not changed", 0, scale(embed=0, position=0)),
        ("they grow by kappa squared, and", 1.5, scale(query=0, key=0)),
        ("divide both", 1.5, scale(key=0)),
        ("kappa squared each", 1.5, scale(query=-2, key=-2)),
        ("Scores no longer are", 0, scale(query=1, key=-4)),
        ("value.0 and output.0 make a branch", 1.5, scale(value=-1)),
        ("in.0 and out.0 make a branch", 1.5, scale(mlp_in=-1)),
        ("off by kappa. Divide unembed", 1.5, scale(unembed=0)),
        ("do not multiply", 1.5, scale(unembed=1)),
        ("unembed has to undo", 0, scale(unembed=-2)),
        ("multiplied by kappa^2", 1.5, scale(embed=2, position=2, query=-2, key=-2, unembed=-2)),
        ("share the factor evenly", 1.5, scale(query=-2, key=0)),
        ("were to stay as they are", 1.5, scale(value=1, output=-1)),
        ("handed in", 1.5, in_place),
        ("another power of kappa when kappa is above 1", 0, only_small),
        ("multiply the whole tensor", 0, partly),
        ("lacks 'value.0'", 0, lambda params, kappa: {k: params[k] for k in RULE}),
        ("must return a dict", 0, lambda params, kappa: params["embed"] * kappa),
    ],
    "07.3": [
        ("The constant counts", 0, share(first=0)),
        ("yours are amplitudes", 0, share(power=lambda f: f.abs().sum(-1))),
        ("k = 5: the characters of 3", 0, share(ks=(5, 10))),
        ("Those are all others", 0, share(ks=(1, 2, 4, 5, 7, 8, 10, 11, 13, 14))),
        ("everything but the characters of 3", 0, share(ks=(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14))),
        ("over the 30 tokens", 0, share(prepare=lambda e: e, ks=(3, 6, 24, 27))),
        ("k/30 is meant, not k/15: first", 0, share(prepare=lambda e: e)),
        ("also in the total", 0, by_tokens),
        ("k = 1 to 4 of 15", 0, share(ks=(1, 2, 3, 4))),
        ("differs between two tokens", 0, share(prepare=lambda e: e, ks=(6, 12, 18, 24))),
        ("after squaring", 0, share(power=lambda f: f.sum(-1).abs().square())),
        ("one share a unit", 0, per_unit),
        ("That is the power itself", 0, share(finish=lambda part, total: part)),
        ("power over that of the others", 0, share(finish=lambda part, total: part / (total - part))),
        ("15 apart", 0, share(prepare=lambda e: e.reshape(len(e), 15, 2, -1).mean(2))),
        ("real part alone", 0, share(power=lambda f: f.real.square().sum(-1))),
        ("fold modulo 15", 0, lambda e: 0 * share()(e) + 1),
        ("k = 3 alone", 2, share(ks=(3, 12))),
        ("k = 6 alone", 2, share(ks=(6, 9))),
        ("mirror images", 2, share(ks=(3, 6))),
        ("the first 15 tokens", 2, share(prepare=lambda e: fold(e, 15))),
        ("2 times the expected", 0, share(finish=lambda part, total: 2 * part / total)),
        ("At embedding", 0, lambda e: share()(e) + 0.1),
        ("expected (12,)", 0, fold),
    ],
    "07.4": [
        ("the mean curve is no one's", 2, reading(lambda s, a: when(s, a.mean(1, keepdim=True) >= 0.9)[:, 0])),
        ("that is a mean of steps", 2, reading(lambda s, a: when(s, a >= 0.9).mean(1))),
        ("number of the record", 2, reading(lambda s, a: median(when(torch.arange(len(s)), a >= 0.9)))),
        ("counts as step 0", 2, reading(lambda s, a: median(s[(a >= 0.9).int().argmax(-1)]))),
        ("not there at the last step", 2, reading(lambda s, a: median(when(s, a >= 0.9, s[-1].item())))),
        ("left out in yours", 2, reading(those_that_got_there)),
        ("where it stays above", 2, reading(where_it_stays)),
        ("fastest seed", 2, reading(lambda s, a: when(s, a >= 0.9).amin(1))),
        ("slowest seed", 2, reading(lambda s, a: when(s, a >= 0.9).amax(1))),
        ("the level 0.5", 2, reading(lambda s, a: median(when(s, a >= 0.5)))),
        ("how many seeds got there", 2, reading(lambda s, a: (a >= 0.9).any(-1).sum(1))),
        ("takes the lower", 2.5, reading(lambda s, a: when(s, a >= 0.9).median(1).values)),
        (">=, not >", 2.5, reading(lambda s, a: median(when(s, a > 0.9)))),
        ("at its best moment", 2, reading(mean=lambda a: a.amax(-1).mean(1))),
        ("mean over all steps", 2, reading(mean=lambda a: a.mean(-1).mean(1))),
        ("the median of the seeds", 2, reading(mean=lambda a: median(a[..., -1]))),
        ("the best seed", 2, reading(mean=lambda a: a[..., -1].amax(1))),
        ("a sum over the seeds", 2, reading(mean=lambda a: a[..., -1].sum(1))),
        ("share of seeds that end", 2, reading(mean=lambda a: (a[..., -1] >= 0.9).double().mean(1))),
        ("scatter of single seeds", 2, reading(se=lambda a: a[..., -1].std(1))),
        ("not by the number", 2, reading(se=lambda a: a[..., -1].std(1) / a.shape[1])),
        ("that is a variance", 2, reading(se=lambda a: a[..., -1].var(1) / a.shape[1])),
        ("scatter over the steps", 2, reading(se=lambda a: a.mean(1).std(1) / a.shape[2] ** 0.5)),
        ("not of records", 2, reading(se=lambda a: a[..., -1].std(1) / a.shape[2] ** 0.5)),
        ("these are samples", 2.5, reading(se=lambda a: a[..., -1].std(1, correction=0) / a.shape[1] ** 0.5)),
        ("the last two are swapped", 2, reading(order=(0, 2, 1))),
        ("three tensors; it returned 2", 0, reading(order=(0, 1))),
        ("three tensors; it returned one", 0, lambda s, a: 3.0),
        ("inf - inf?", 0, reading(lambda s, a: torch.quantile(when(s, a >= 0.9), 0.5, 1) * math.nan)),
        ("at case=", 2, reading(lambda s, a: median(when(s, a >= 0.9)) + 25 * torch.arange(10))),
    ],
}  # fmt: skip
