"""Right and wrong answers to the exercises of lesson 14, as a learner would write them."""

import math

import numpy as np
import torch

from labkit.depth import scaling


def diagnosis(
    error=lambda a, b: (b - a).std(1) / (b - a).shape[1] ** 0.5,
    sigma=2.0,
    parts=lambda train, risk: (train, risk - train),
    codes=(1, 2),
    flip=1,
):
    """14.1, with what is compared, and against which error, as given."""

    def answer(train, risk):
        before, after = (risk[..., i] for i in (0, 1))
        one, two = (flip * (part[..., 1] - part[..., 0]).mean(1) for part in parts(train, risk))
        failed = flip * (after - before).mean(1) > sigma * error(before, after)
        return torch.where(failed, torch.where(one > two, *codes), 0)

    return answer


def by_loop(train, risk):
    found = []
    for t, r in zip(train.tolist(), risk.tolist(), strict=True):
        rises = np.array([deep - shallow for shallow, deep in r])
        if rises.mean() <= 2 * rises.std(ddof=1) / math.sqrt(len(rises)):
            found.append(0)
        else:
            training = np.mean([deep - shallow for shallow, deep in t])
            found.append(1 if training > rises.mean() / 2 else 2)
    return found


def by_parts(train, risk):
    grown = [(part[..., 1] - part[..., 0]).mean(1) for part in (train, risk - train)]
    return 2 - (grown[0] > grown[1]).long()


def by_size(train, risk):
    failed = diagnosis()(train, risk) > 0
    return failed * (2 - (train[..., 1].mean(1) > (risk - train)[..., 1].mean(1)).long())


def by_sign(train, risk):
    """1 wherever the risk and the training loss rise."""
    rises = (train[..., 1] - train[..., 0]).mean(1) > 0
    return torch.where(diagnosis()(train, risk) > 0, torch.where(rises, 1, 2), 0)


def bars(
    training=lambda train, risk: train.mean(1),
    gap=lambda train, risk: (risk - train).mean(1),
    z=lambda d, new, old: d.mean(1) / (d.std(1) / d.shape[1] ** 0.5),
    order=(0, 1, 2),
):
    """14.2, each part as given: the first two of differences, the last of those of the risk and of both risks."""

    def answer(new, old):
        risk, train = (new - old).unbind(-1)
        parts = training(train, risk), gap(train, risk), z(risk, new[..., 0], old[..., 0])
        return tuple(parts[i] for i in order)

    return answer


def of_new(which):
    """14.2 without the control in one of the bars."""

    def answer(new, old):
        training, gap, z = bars()(new, old)
        alone = new.mean(1)
        return (alone[:, 1], gap, z) if which == "training" else (training, alone[:, 0] - alone[:, 1], z)

    return answer


def gap_ratio(new, old):
    training, _, z = bars()(new, old)
    return training, (new[..., 0] / new[..., 1] - old[..., 0] / old[..., 1]).mean(1), z


def other_z(part):
    def answer(new, old):
        training, gap, _ = bars()(new, old)
        d = part(*(new - old).unbind(-1))
        return training, gap, d.mean(1) / (d.std(1) / d.shape[1] ** 0.5)

    return answer


def loose(d, new, old):
    return (new.mean(1) - old.mean(1)) / ((new.var(1) + old.var(1)) / new.shape[1]) ** 0.5


def greedy(pays=lambda g, c: g > c, count=lambda p: p.long().cumprod(1).sum(1)):
    return lambda gain, cost: count(pays(gain, cost))


def first_failure(gain, cost):
    """argmax of no True is 0."""
    return (gain <= cost).int().argmax(1)


def by_steps(gain, cost):
    found = []
    for g, c in zip(gain.tolist(), cost.tolist(), strict=True):
        steps = 0
        while steps < len(g) and g[steps] > c[steps]:
            steps += 1
        found.append(steps)
    return found


def best_total(gain, cost):
    total = (gain - cost).cumsum(1)
    return torch.cat([0 * total[:, :1], total], 1).argmax(1)


def last_paying(gain, cost):
    return ((gain > cost) * torch.arange(1, gain.shape[1] + 1)).amax(1)


def law(
    inner=lambda n, w, a, alpha, c: 2 * alpha * a * n**0.5 / (c * w),
    power=lambda alpha: 1 / (alpha + 0.5),
    exponent=lambda alpha: -alpha / (2 * alpha + 1),
    last=lambda depth: depth,
    order=1,
):
    def answer(n, w, a, alpha, c):
        return (last(inner(n, w, a, alpha, c) ** power(alpha)), exponent(alpha))[::order]

    return answer


def fast(n, w, a, alpha, c):
    return (alpha * a * n / (c * w)) ** (1 / (1 + alpha)), -alpha / (1 + 2 * alpha)


def by_slope(n, w, a, alpha, c):
    """The exponent of labkit's law between n and 1.0001 n."""
    given = {"width": w, "amplitude": a, "risk_exponent": alpha, "cost": c}

    def least(n):
        return scaling.data_risk(scaling.best_depth(n, **given), n, **given).log()

    return scaling.best_depth(n, **given), (least(1.0001 * n) - least(n)) / math.log(1.0001)


RIGHT = {
    "14.1": [diagnosis(), by_loop, lambda *a: diagnosis()(*a).double().numpy()],
    "14.2": [bars(), lambda *a: [part.tolist() for part in bars()(*a)], lambda *a: torch.stack(bars()(*a))],
    "14.3": [greedy(), by_steps, scaling.deepest_useful],
    "14.4": [law(), by_slope],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "14.1": [
        ("1 and 2 are swapped", 2, diagnosis(codes=(2, 1))),
        ("The seeds are paired", 2, diagnosis(lambda a, b: ((a.var(1) + b.var(1)) / a.shape[1]) ** 0.5)),
        ("ask for two", 2, diagnosis(sigma=1.0)),
        ("Any rise counts", 2, diagnosis(sigma=0.0)),
        ("the scatter of single seeds", 2, diagnosis(lambda a, b: (b - a).std(1))),
        ("not by the number", 2, diagnosis(lambda a, b: (b - a).std(1) / a.shape[1])),
        ("deep minus shallow", 2, diagnosis(flip=-1)),
        ("not enough: return 1 only", 0, by_sign),
        ("which contains both", 0, diagnosis(parts=lambda train, risk: (train, risk))),
        ("counted twice", 0, diagnosis(parts=lambda train, risk: (risk - train, risk))),
        ("Only whether the risk rose is told:", 0, diagnosis(codes=(1, 1))),
        ("told, as 2", 0, diagnosis(codes=(2, 2))),
        ("yours names a part", 0, by_parts),
        ("size of the gap is not its growth", 0, by_size),
        ("must be 0, 1 or 2, got 3", 0, diagnosis(codes=(1, 3))),
        ("the gap by ", 0, lambda train, risk: 0 * train[:, 0, 0]),
        ("expected (40,)", 0, lambda train, risk: risk[..., 1] - risk[..., 0]),
    ],
    "14.2": [
        ("training: the sign is off", 2, bars(training=lambda train, risk: -train.mean(1))),
        ("training: that is the change of the risk", 2, bars(training=lambda train, risk: risk.mean(1))),
        ("training: that is the training loss of the block's", 2, of_new("training")),
        ("training: average over the seeds", 2, bars(training=lambda train, risk: train.sum(1))),
        ("training: that is a median", 2, bars(training=lambda train, risk: train.median(1).values)),
        ("gap: the sign is off", 2, bars(gap=lambda train, risk: (train - risk).mean(1))),
        ("gap: that is the whole change", 2, bars(gap=lambda train, risk: risk.mean(1))),
        ("gap: risk and training loss are added", 2, bars(gap=lambda train, risk: (risk + train).mean(1))),
        ("gap: that is the gap of the block's", 2, of_new("gap")),
        ("gap: average over the seeds", 2, bars(gap=lambda train, risk: (risk - train).sum(1))),
        ("gap: that is a ratio", 2, gap_ratio),
        ("gap: that is the training bar", 2, bars(gap=lambda train, risk: train.mean(1))),
        ("z: the seeds are paired", 2, bars(z=loose)),
        ("smaller by root seeds", 2, bars(z=lambda d, new, old: d.mean(1) / d.std(1))),
        ("not the number", 2, bars(z=lambda d, new, old: d.mean(1) / d.std(1) * d.shape[1])),
        ("z: that is the change of the risk itself", 2, bars(z=lambda d, new, old: d.mean(1))),
        ("z: that is the standard error itself", 2, bars(z=lambda d, new, old: d.std(1) / d.shape[1] ** 0.5)),
        ("z: the sign is off", 2, bars(z=lambda d, new, old: -d.mean(1) / d.std(1) * d.shape[1] ** 0.5)),
        ("z: that is upside down", 2, bars(z=lambda d, new, old: d.std(1) / d.shape[1] ** 0.5 / d.mean(1))),
        ("z: that is for the training loss", 2, other_z(lambda risk, train: train)),
        ("z: that is for the gap", 2, other_z(lambda risk, train: risk - train)),
        ("seeds - 1", 2.5, bars(z=lambda d, new, old: d.mean(1) / d.std(1, correction=0) * d.shape[1] ** 0.5)),
        ("the first two are swapped", 1.5, bars(order=(1, 0, 2))),
        ("(training, gap, z), three tensors; it returned 2", 0, bars(order=(0, 1))),
        ("three tensors; it returned one", 0, lambda new, old: 0.0),
        ("2 times the expected", 2, bars(gap=lambda train, risk: 2 * (risk - train).mean(1))),
    ],
    "14.3": [
        ("first insertion that does not pay", 1, lambda g, c: greedy()(g, c) + 1),
        ("argmax finds", 1, first_failure),
        ("gain equals its cost", 1, greedy(lambda g, c: g >= c)),
        ("counts all that pay", 0, greedy(count=lambda p: p.sum(1))),
        ("a step that loses is never taken", 0, best_total),
        ("the last insertion that pays", 0, last_paying),
        ("counts insertions that do not pay", 0, lambda g, c: 6 - greedy()(g, c)),
        ("not with the costs so far", 0, greedy(lambda g, c: g > c.cumsum(1))),
        ("not the gains so far", 0, greedy(lambda g, c: g.cumsum(1) > c.cumsum(1))),
        ("Any gain pays", 0, greedy(lambda g, c: g > 0)),
        ("The other way round", 0, greedy(lambda g, c: g < c)),
        ("With gain/cost", 0, greedy(count=lambda p: 0 * p.sum(1))),
        ("expected (24,)", 0, lambda g, c: greedy()(g, c)[:3]),
    ],
    "14.4": [
        ("alpha is missing: it comes down", 2, law(lambda n, w, a, alpha, c: 2 * a * n**0.5 / (c * w))),
        ("the 2 is missing", 2, law(lambda n, w, a, alpha, c: alpha * a * n**0.5 / (c * w))),
        ("2 belongs on the other side", 2, law(lambda n, w, a, alpha, c: alpha * a * n**0.5 / (2 * c * w))),
        ("differ by alpha + 1/2.", 2, law(power=lambda alpha: 1 / (alpha + 1))),
        ("mind the signs", 2, law(power=lambda alpha: 1 / alpha)),
        ("upside down", 2, law(power=lambda alpha: alpha + 0.5)),
        ("n enters as a root", 2, law(lambda n, w, a, alpha, c: 2 * alpha * a * n / (c * w))),
        ("width is missing", 2, law(lambda n, w, a, alpha, c: 2 * alpha * a * n**0.5 / c)),
        ("depth: that is for the cost C w D/n", 2, fast),
        ("marginal gain equals marginal cost", 2, law(lambda n, w, a, alpha, c: a * n**0.5 / (c * w))),
        ("do not round", 3, law(last=torch.round)),
        ("that of D* in n", 2, law(exponent=lambda alpha: 1 / (2 * alpha + 1))),
        ("the risk falls with n", 2, law(exponent=lambda alpha: alpha / (2 * alpha + 1))),
        ("exponent: that is for the cost C w D/n", 2, law(exponent=lambda alpha: -alpha / (1 + alpha))),
        ("as if depth were fixed", 2, law(exponent=lambda alpha: 0 * alpha - 0.5)),
        ("the exponent in D", 2, law(exponent=lambda alpha: -alpha)),
        ("alpha is missing.", 2, law(exponent=lambda alpha: -1 / (2 * alpha + 1))),
        ("not as n^(1/(alpha + 1/2))", 2, law(exponent=lambda alpha: -alpha / (alpha + 0.5))),
        ("yours are swapped", 2, law(order=-1)),
        ("(depth, exponent), two tensors; it returned one", 0, lambda *a: 1.0),
        ("depth: at n=", 2, law(lambda n, w, a, alpha, c: n**0.5 + alpha)),
    ],
}  # fmt: skip
