"""Exercises of lesson 14: two kinds of failure, insert or train on, the deepest useful model, and D*(n)."""

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, close, compare_parts, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.depth.scaling import best_depth, data_exponent, deepest_useful

SEEDS, CASES = 12, 40


def standard_error(values: Tensor, ddof: int = 1) -> Tensor:
    """Of the mean over the last axis."""
    return values.std(-1, correction=ddof) / values.shape[-1] ** 0.5


# ---- 14.1


def networks(generator: torch.Generator) -> dict[str, Tensor]:
    """Losses of shallow and deep networks, train and risk (case, seed, 2), with clear verdicts of all kinds.

    What the seeds have in common is large, so that only paired differences show anything.
    """
    many = 4 * CASES
    noise = torch.randn(3, many, SEEDS, generator=generator, dtype=torch.float64, device="cpu")
    change = uniform(generator, -0.08, 0.08, 2, many, 1)  # of the training loss, and of the gap
    change[:, many - CASES // 3 :] /= 10
    shallow = 0.6 + 0.1 * noise[0]
    train = torch.stack([shallow, shallow + change[0] + 0.02 * noise[1]], -1)
    gap = uniform(generator, 0.2, 1, many, 1, 1) + torch.stack([0 * shallow, change[1] + 0.02 * noise[2]], -1)
    risk = train + gap
    grown, rose = (risk[..., 1] - risk[..., 0]), (train[..., 1] - train[..., 0]).mean(-1)
    z, rest = grown.mean(-1) / standard_error(grown), grown.mean(-1) - rose
    clear = ((z - 2).abs() > 0.3) & ((rose - rest).abs() > 0.004)
    keep = clear.nonzero()[:, 0][-CASES:]
    return {"train": train[keep], "risk": risk[keep]}


def kinds(
    train: Tensor, risk: Tensor, *, paired=True, sigma=2.0, error=standard_error, first="train", second="gap"
) -> Tensor:
    """0, 1 (optimization) or 2 (generalization) for each case; the keywords make the mistakes."""
    grown = risk[..., 1] - risk[..., 0]
    parts = {"train": train, "gap": risk - train, "risk": risk}
    if paired:
        se = error(grown)
    else:
        se = (error(risk[..., 0]) ** 2 + error(risk[..., 1]) ** 2).sqrt()
    one, two = ((parts[name][..., 1] - parts[name][..., 0]).mean(-1) for name in (first, second))
    return torch.where(grown.mean(-1) > sigma * se, torch.where(one > two, 1.0, 2.0), 0.0)


def diagnose(answer) -> str:
    """diagnose(train, risk) -> 0 no failure seen, 1 optimization, 2 generalization; (case, seed, 2) -> (case,)."""
    inputs = networks(seeded(41))
    train, risk = inputs.values()
    value = as_tensor(call(answer, **inputs), train.shape[:1])
    truth = kinds(train, risk)
    if torch.equal(value, truth):
        return "The same rise of the test risk, two diseases: one asks for another optimizer, the other for more data."
    if not torch.isin(value, value.new_tensor([0, 1, 2])).all():
        raise Wrong(
            f"Each value must be 0, 1 or 2, got {value[~torch.isin(value, value.new_tensor([0, 1, 2]))][0]:.4g}."
        )
    rises = (risk[..., 1] - risk[..., 0]).mean(-1) > 0

    def swapped(codes: Tensor) -> Tensor:
        return torch.where(codes > 0, 3 - codes, codes)

    failure = truth > 0
    parts = kinds(train, risk, sigma=-1e9)
    slips = {
        "1 and 2 are swapped: where the training loss rises most, it is the optimization that failed.": swapped(truth),
        "The seeds are paired: take the standard error of the differences, not of the two means.": kinds(
            train, risk, paired=False
        ),
        "One standard error is no evidence: ask for two.": kinds(train, risk, sigma=1.0),
        "Any rise counts in yours: below two standard errors it is not seen, return 0.": kinds(train, risk, sigma=0.0),
        "That is the scatter of single seeds: divide the standard deviation by the root of their number.": kinds(
            train, risk, error=lambda v: v.std(-1)
        ),
        "Divide the standard deviation by the root of the number of seeds, not by the number.": kinds(
            train, risk, error=lambda v: v.std(-1) / SEEDS
        ),
        "The direction: deep minus shallow, and a failure is a rise.": kinds(train.flip(-1), risk.flip(-1)),
    }
    mistakes = {
        "A training loss that rises is not enough: return 1 only if it rises more than the gap.": torch.where(
            failure, torch.where((train[..., 1] - train[..., 0]).mean(-1) > 0, 1.0, 2.0), 0.0
        ),
        "Compare the training loss with the gap, risk - train, not with the risk, which contains both.": kinds(
            train, risk, second="risk"
        ),
        "The gap is risk - train; with risk in its place the training loss is counted twice.": kinds(
            train, risk, first="gap", second="risk"
        ),
        "Only whether the risk rose is told: which of its two parts rose more?": failure.double(),
        "Only whether the risk rose is told, as 2: which of its two parts rose more?": 2 * failure.double(),
        "The risk alone says whether anything failed: yours names a part also where it did not rise.": parts,
        "The size of the gap is not its growth: subtract that of the shallow network.": torch.where(
            failure, torch.where(train[..., 1].mean(-1) > (risk - train)[..., 1].mean(-1), 1.0, 2.0), 0.0
        ),
    }
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, wrong in named.items():
            if torch.equal(value, wrong):
                raise Wrong(says, share)
    case = int((value != truth).nonzero()[0])
    grown, rose = (risk[..., 1] - risk[..., 0])[case], (train[..., 1] - train[..., 0])[case].mean()
    raise Wrong(
        f"Case {case}: the risk changes by {grown.mean():+.3f} ± {standard_error(grown):.3f}, the training loss by "
        f"{rose:+.3f}, the gap by {grown.mean() - rose:+.3f}. You return {int(value[case])}, expected "
        f"{int(truth[case])} ({int((value != truth).sum())} of {len(truth)} cases are off; "
        f"the risk rises in {int(rises.sum())})."
    )


# ---- 14.2


def verdict(answer) -> str:
    """verdict(inserted, continued) -> (training, gap, z), each (m,); inputs (m, seed, 2), last axis (risk, train)."""
    generator = seeded(42)
    common = 0.1 * torch.randn(10, SEEDS, 1, generator=generator, dtype=torch.float64, device="cpu")
    inputs = {
        name: common + offset + 0.03 * torch.randn(10, SEEDS, 2, generator=generator, dtype=torch.float64, device="cpu")
        for name, offset in (
            ("inserted", uniform(generator, 0.4, 1.0, 10, 1, 2)),
            ("continued", uniform(generator, 0.4, 1.0, 10, 1, 2)),
        )
    }
    new, old = inputs.values()
    returned = call(answer, **inputs)
    try:
        parts = tuple(returned)
    except TypeError:
        parts = ()
    if len(parts) != 3:
        raise Wrong(f"Your function must return (training, gap, z), three tensors; it returned {len(parts) or 'one'}.")
    values = [as_tensor(part, (10,)) for part in parts]
    change = new - old
    risk, train = change.mean(1).unbind(-1)
    paired = change[..., 0]
    se = standard_error(paired)
    loose = (standard_error(new[..., 0]) ** 2 + standard_error(old[..., 0]) ** 2).sqrt()
    truth = train, risk - train, risk / se
    if close(values[0], truth[1]).all() and close(values[1], truth[0]).all():
        raise Wrong("Return (training, gap, z), in this order: the first two are swapped.", 0.5)
    named = [
        {
            "training: the sign is off: inserted minus continued, negative is good for the block.": -train,
            "training: that is the change of the risk: the training loss is the second entry of the last axis.": risk,
            "training: that is the training loss of the block's network: subtract that of the control.": new[
                ..., 1
            ].mean(1),
            "training: average over the seeds, do not add them up.": train * SEEDS,
            "training: that is a median: take the mean, so that the two bars add up.": change[..., 1].median(1).values,
            "training: that is the gap bar, risk - train.": risk - train,
        },
        {
            "gap: the sign is off: the gap is risk minus training loss, inserted minus continued.": train - risk,
            "gap: that is the whole change of the risk: subtract what the training loss changed.": risk,
            "gap: risk and training loss are added: the gap is their difference.": risk + train,
            "gap: that is the gap of the block's network: subtract that of the control.": (
                new[..., 0] - new[..., 1]
            ).mean(1),
            "gap: average over the seeds, do not add them up.": (risk - train) * SEEDS,
            "gap: that is a ratio: take the difference.": (new[..., 0] / new[..., 1] - old[..., 0] / old[..., 1]).mean(
                1
            ),
            "gap: that is the training bar.": train,
        },
        {
            "z: the seeds are paired: the standard error is that of the differences.": risk / loose,
            "z: that is the mean over the standard deviation: a mean has an error smaller by root seeds.": risk
            / paired.std(1),
            "z: the standard error has the root of the number of seeds, not the number.": risk
            / (paired.std(1) / SEEDS),
            "z: that is the change of the risk itself: divide it by its standard error.": risk,
            "z: that is the standard error itself: divide the change of the risk by it.": se,
            "z: the sign is off: positive where the block is worse.": -risk / se,
            "z: that is upside down.": se / risk,
            "z: that is for the training loss: z is for the risk.": train / standard_error(change[..., 1]),
            "z: that is for the gap: z is for the risk.": (risk - train)
            / standard_error(change[..., 0] - change[..., 1]),
        },
    ]
    slips = [{}, {}, {"z: divide by seeds - 1 in the variance: these are samples.": risk / standard_error(paired, 0)}]
    names = "training", "gap", "z"
    compare_parts(values, dict(zip(names, zip(truth, named, slips, strict=True), strict=True)), **inputs_of(inputs))
    return "Two bars and their sum in units of its error: that is all there is to say for or against a block."


def inputs_of(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean risks, by which `compare` names a place: (m,)."""
    return {f"mean risk {name}": value[..., 0].mean(1) for name, value in inputs.items()}


# ---- 14.3


def steps(answer) -> str:
    """useful(gain, cost) -> how many insertions pay, (m,): those before the first whose gain is not above its cost."""
    generator = seeded(43)
    inputs = {
        "gain": uniform(generator, 0, 1, 24, 6).sort(-1, descending=True).values + uniform(generator, 0, 0.3, 24, 6),
        "cost": uniform(generator, 0.05, 0.9, 24, 6),
    }
    inputs["gain"][0], inputs["gain"][1] = 2.0, 0.0  # all pay, none pays
    inputs["gain"][2], inputs["gain"][3] = 2.0, inputs["cost"][3]  # a tie in the third step, ties from the first on
    inputs["gain"][2, 2] = inputs["cost"][2, 2]
    gain, cost = inputs.values()
    truth, pays = deepest_useful(gain, cost).double(), (gain > cost).double()
    total = torch.cat([torch.zeros(24, 1, dtype=torch.float64, device="cpu"), (gain - cost).cumsum(-1)], 1)
    slips = {
        "That is the number of the first insertion that does not pay: those before it are asked for.": truth + 1,
        "Where all insertions pay, the answer is their number: argmax finds the first of nothing at place 0.": truth
        * (truth < 6),
        "A step whose gain equals its cost does not pay: the gain has to be above the cost.": (gain >= cost)
        .double()
        .cumprod(-1)
        .sum(-1),
    }
    mistakes = {
        "That counts all that pay, also those behind one that does not: growth stops at the first.": pays.sum(-1),
        "That is where the sum of all gains minus costs is largest: a step that loses is never taken.": total.argmax(
            -1
        ).double(),
        "That is the last insertion that pays: growth stops at the first that does not.": (
            pays * torch.arange(1.0, 7, dtype=torch.float64, device="cpu")
        ).amax(-1),
        "That counts insertions that do not pay.": 6 - truth,
        "Compare the gain with the cost of the same step, not with the costs so far.": (gain > cost.cumsum(-1))
        .double()
        .cumprod(-1)
        .sum(-1),
        "Compare the gain of the step with its cost, not the gains so far.": (gain.cumsum(-1) > cost.cumsum(-1))
        .double()
        .cumprod(-1)
        .sum(-1),
        "Any gain pays in yours: it has to be above the cost.": (gain > 0).double().cumprod(-1).sum(-1),
        "The other way round: an insertion pays while its gain is above its cost.": (gain < cost)
        .double()
        .cumprod(-1)
        .sum(-1),
    }
    value = as_tensor(call(answer, **inputs), (24,))
    if torch.equal(value, truth):
        return "Greedy by definition: each block is inserted into the network that the last one left."
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, wrong in named.items():
            if torch.equal(value, wrong.double()):
                raise Wrong(says, share)
    row = int((value != truth).nonzero()[0])
    lines = " ".join(f"{g:.2f}/{c:.2f}" for g, c in zip(gain[row].tolist(), cost[row].tolist(), strict=True))
    raise Wrong(f"With gain/cost {lines} you return {value[row]:.4g}, expected {truth[row]:.0f}.")


# ---- 14.4


def law(answer) -> str:
    """depth_law(n, width, amplitude, risk_exponent, cost) -> (D*, exponent of the least risk in n), each (m,)."""
    generator = seeded(44)
    inputs = {
        "n": 10 ** uniform(generator, 3, 7, 10),
        "width": uniform(generator, 4, 64, 10).round(),
        "amplitude": uniform(generator, 0.2, 2, 10),
        "risk_exponent": uniform(generator, 0.3, 2.5, 10),
        "cost": uniform(generator, 0.01, 0.1, 10),
    }
    n, width, a, alpha, cost = inputs.values()
    truth = best_depth(**inputs), data_exponent(alpha)
    returned = call(answer, **inputs)
    try:
        parts = tuple(returned)
    except TypeError:
        parts = ()
    if len(parts) != 2:
        raise Wrong(f"Your function must return (depth, exponent), two tensors; it returned {len(parts) or 'one'}.")
    values = [as_tensor(part, (10,)) for part in parts]
    if close(values[0], truth[1]).all() and close(values[1], truth[0]).all():
        raise Wrong("Return (depth, exponent), in this order: yours are swapped.", 0.5)
    inner = 2 * alpha * a * n.sqrt() / (cost * width)
    named = [
        {
            "depth: alpha is missing: it comes down from D^-alpha when you differentiate.": (inner / alpha)
            ** (1 / (alpha + 0.5)),
            "depth: the root: d/dD of sqrt(D) is 1/(2 sqrt(D)), the 2 is missing.": (inner / 2) ** (1 / (alpha + 0.5)),
            "depth: that 2 belongs on the other side: d/dD of sqrt(D) is 1/(2 sqrt(D)).": (inner / 4)
            ** (1 / (alpha + 0.5)),
            "depth: D^-(alpha + 1) against D^(-1/2): the exponents differ by alpha + 1/2.": inner ** (1 / (alpha + 1)),
            "depth: the exponents differ by alpha + 1/2, not by alpha - 1/2 or alpha: mind the signs.": inner
            ** (1 / alpha),
            "depth: that root is upside down: solve for D.": inner ** (alpha + 0.5),
            "depth: n enters as a root: the cost is C w sqrt(D/n).": (inner * n.sqrt()) ** (1 / (alpha + 0.5)),
            "depth: the width is missing: a wider block costs more.": (inner * width) ** (1 / (alpha + 0.5)),
            "depth: that is for the cost C w D/n.": (alpha * a * n / (cost * width)) ** (1 / (1 + alpha)),
            "depth: gain equals cost is not the minimum: marginal gain equals marginal cost is, so differentiate.": (
                a * n.sqrt() / (cost * width)
            )
            ** (1 / (alpha + 0.5)),
        },
        {
            "exponent: that of D* in n is 1/(2 alpha + 1): put D* into the risk.": 1 / (2 * alpha + 1),
            "exponent: the risk falls with n: the sign.": alpha / (2 * alpha + 1),
            "exponent: that is for the cost C w D/n.": -alpha / (1 + alpha),
            "exponent: that is -1/2, as if depth were fixed.": torch.full_like(alpha, -0.5),
            "exponent: that is the exponent in D: put in D* ~ n^(1/(2 alpha + 1)).": -alpha,
            "exponent: D*^-alpha with D* ~ n^(1/(2 alpha + 1)): alpha is missing.": -1 / (2 * alpha + 1),
            "exponent: D* grows as n^(1/(2 alpha + 1)), not as n^(1/(alpha + 1/2)).": -alpha / (alpha + 0.5),
        },
    ]
    slips = [{"depth: keep it real, do not round.": truth[0].round()}, {}]
    names = "depth", "exponent"
    compare_parts(values, dict(zip(names, zip(truth, named, slips, strict=True), strict=True)), **inputs)
    return "Three sums of powers ago this was a network; the exponent that went in is the one that comes out."


EXERCISES = {
    "14.1": Exercise(points=4, minutes=10, difficulty=2, check=diagnose),
    "14.2": Exercise(points=3, minutes=8, difficulty=2, check=verdict),
    "14.3": Exercise(points=2, minutes=5, difficulty=1, check=steps),
    "14.4": Exercise(points=4, minutes=15, difficulty=3, check=law),
}
