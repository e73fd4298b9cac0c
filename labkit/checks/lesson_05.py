"""Exercises of lesson 05: what pretraining leaves in a neuron, where λ is dead, PR and ENSD, reuse or richness."""

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, close, compare, compare_parts, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong

CASES, SEEDS = 8, 12


def scaled(formula: Tensor, value: Tensor) -> Tensor:
    """``formula`` times the constant that makes it start as ``value`` does: a mistake up to any constant but 0."""
    factor = (value / formula).flatten()[0]
    return formula * torch.where(factor == 0, torch.nan, factor)


def several(answer: object, names: str, shape: tuple[int, ...], **inputs: Tensor) -> list[Tensor]:
    """The tensors that ``answer(*inputs)`` has to return, one a name in ``names``."""
    returned, count = call(answer, **inputs), names.count(",") + 1
    try:
        parts = tuple(returned)
    except TypeError:
        parts = ()
    if len(parts) != count:
        raise Wrong(
            f"Your function must return ({names}), {count} tensors; it returned {len(parts) or 'one'}: "
            f"each has shape {shape}."
        )
    return [as_tensor(part, shape) for part in parts]


# ---- 05.1


def first_layer(b: Tensor, c: Tensor, lam: Tensor, four: float = 4.0) -> Tensor:
    """‖w‖² of a neuron with ‖w‖·|v| = b and ‖w‖² − v² = λc, (n,)."""
    return (lam * c + ((lam * c) ** 2 + four * b**2).sqrt()) / 2


def neuron(answer) -> str:
    """after_pretraining(b, c, lam) -> (norm2, contrast), each (n,)."""
    generator = seeded(51)
    inputs = {
        "b": 10 ** uniform(generator, -1, 0.5, 12),
        "c": 10 ** uniform(generator, -1, 0.7, 12),
        "lam": uniform(generator, 0.1, 0.95, 12)
        * torch.tensor([1.0, -1.0], dtype=torch.float64, device="cpu").repeat(6),
    }
    b, c, lam = inputs.values()
    norm2, unused = first_layer(b, c, lam), c * (1 + lam) / 2
    readout, contrast = norm2 - lam * c, norm2 / unused
    values = several(answer, "norm2, contrast", (12,), **inputs)
    if close(values[0], contrast).all() and close(values[1], norm2).all():
        raise Wrong("Return (norm2, contrast), in this order: yours are swapped.", 0.5)
    root = (1 + (b / c) ** 2).sqrt(), (1 + 4 * (b / c) ** 2).sqrt()
    if ((values[1].abs() < 1e9) == (lam > 0)).all():  # 0 below, up to rounding
        raise Wrong(
            "contrast: an unused neuron does not end at b = 0: it keeps its start, where the squared norm is "
            "c(1 + lam)/2.",
            0.5,
        )
    for value in values:
        if not value.isfinite().all():
            raise Wrong(f"Your function returned {value[~value.isfinite()][0]:.4g}: a division or a root?")

    def diagonal(value: Tensor) -> dict[str, Tensor]:
        """The formulas of the diagonal net, whose two pathways add up, with either root and any factor."""
        says = {
            "that is the diagonal net, {}: there two pathways add up and give the factor (1 + lam)(1 + root). "
            "A ReLU neuron has one pathway: w² - v² = lam·c and w²·v² = b² are all you need": (1 + lam),
            "that is the contrast of the diagonal net, {}, where the factor (1 + lam) cancels. "
            "A ReLU neuron has one pathway, and there it does not": torch.ones_like(lam),
            "that is k of the diagonal net, {}, two pathways added up. A ReLU neuron has one": c * (1 + lam),
        }
        shapes = {"root = sqrt(1 + b²/c²)": 1 + root[0], "root = sqrt(1 + 4b²/c²)": 1 + root[1]}
        return {
            f"{text.format(words)}.": scaled(factor * shape, value)
            for text, factor in says.items()
            for words, shape in shapes.items()
        }

    def named(part: str, value: Tensor, mistakes: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{part}: {says}": wrong for says, wrong in (mistakes | diagonal(value)).items()}

    missing = first_layer(b, c, lam, 1.0)
    first = {
        "that is the readout, v²: the sign of lam·c.": readout,
        "the 4 of the quadratic equation x² - lam·c·x - b² = 0 is missing under the root.": missing,
        "that is the limit of small c, b, where lam is dead.": b,
        "4b, not 4b²: all under the root has the units of c².": (lam * c + ((lam * c) ** 2 + 4 * b).sqrt()) / 2,
        "lam is missing: the conserved difference is lam·c, not c.": first_layer(b, c, torch.ones_like(lam)),
        "the conserved number is the difference at the start, c(1 + lam)/2 - c(1 - lam)/2 = lam·c, not "
        "c(1 + lam)/2.": first_layer(b, c, (1 + lam) / 2),
        "that is where the neuron started, c(1 + lam)/2.": unused,
        "that is the contrast.": contrast,
    }
    second = {
        "that is in units of c/2: divide by 1 + lam as well.": 2 * norm2 / c,
        "that is in units of c: the unused neuron has c(1 + lam)/2.": norm2 / c,
        "an unused neuron has c(1 + lam)/2, not c(1 - lam)/2: that is its readout.": 2 * norm2 / c / (1 - lam),
        "multiply by nothing: the unused neuron, c(1 + lam)/2, stands below.": norm2 * unused,
        "that is the contrast of the readouts, v².": readout / (c * (1 - lam) / 2),
        "upside down: used over unused.": 1 / contrast,
        "the 4 under the root is missing.": missing / unused,
        "b is the strength: above stands norm2.": b / unused,
        "over the unused neuron, not over b: b is the strength of the used one.": norm2 / b,
        "that is used minus unused: take the ratio.": norm2 - unused,
        "that is norm2.": norm2,
    }
    slips = (
        {
            "norm2: the solution of the quadratic equation has a 1/2 in front.": 2 * norm2,
            "norm2: that is the norm, its square is asked for.": norm2.sqrt(),
        },
        {"contrast: the ratio of the squared norms is asked for, not of the norms.": contrast.sqrt()},
    )
    mistakes = named("norm2", values[0], first), named("contrast", values[1], second)
    parts = (norm2, mistakes[0], slips[0]), (contrast, mistakes[1], slips[1])
    compare_parts(values, dict(zip(("norm2", "contrast"), parts, strict=True)), **inputs)
    return "Two equations, w² − v² = λc and w²v² = b²: no pathway sum, so the contrast keeps its λ."


# ---- 05.2


def wakes(answer) -> str:
    """wakes_up(b, lam, factor) -> the c at which lam < 0 leaves ``factor`` of the squared norm that 0 gives, (n,)."""
    generator = seeded(52)
    inputs = {
        "b": 10 ** uniform(generator, -1, 0.5, 12),
        "lam": -uniform(generator, 0.2, 0.99, 12),
        "factor": uniform(generator, 0.1, 0.45, 12),
    }
    b, lam, f = inputs.values()
    compare(
        answer,
        b * (f - 1 / f) / lam,
        {
            "c is positive: with lam < 0, lam·c = b(factor - 1/factor) is negative on both sides.": b
            * (f - 1 / f)
            / -lam,
            "lam is missing: the root holds lam·c, so c is found only up to lam.": b * (1 / f - f),
            "lam times: the equation gives lam·c, divide by lam.": b * (f - 1 / f) * lam,
            "The number in the root is lam·c, not (1 + lam)c.": b * (1 / f - f) / (1 + lam),
            "That is the order of magnitude, b/|lam|: the factor is missing.": b / -lam,
            "1 - factor, not its square: 2·factor·b - lam·c is squared, and lam²c² cancels.": b * (1 - f) / (-lam * f),
            "lam·c = b(factor - 1/factor): the 1/factor is missing.": b * (1 - f**2) / -lam,
            "b, not b²: c has the units of b.": b**2 * (f - 1 / f) / lam,
            "The 4 under the root is missing.": b * (f - 1 / (4 * f)) / lam,
            "Solved for factor·c in place of factor·b: at lam = 0 the squared norm is b.": (b / (f * (f - lam)).sqrt()),
        },
        {
            "That is for the norm; the squared norm is asked for.": b * (f**2 - f**-2) / lam,
            "That is the asymptote b²/(|lam|c) of large c: solve the exact equation, the root can be removed.": b
            / (-lam * f),
        },
        **inputs,
    )
    return "The c that wakes λ is proportional to b, the strength of what was learned: that is the whole rule."


# ---- 05.3


def features() -> tuple[Tensor, Tensor]:
    """ReLU features (case, 60, 9) of the same inputs: before, and after a change that keeps some and adds new ones."""
    generator = seeded(53)
    x, w, u = (
        torch.randn(s, generator=generator, dtype=torch.float64, device="cpu")
        for s in ((CASES, 60, 5), (CASES, 5, 9), (CASES, 5, 9))
    )
    kept = uniform(generator, 0, 2, CASES, 1, 9)
    new = uniform(generator, 0, 1, CASES, 1, 1)
    before = (x @ w + 0.5).relu()
    return before, before * kept + new * (x @ u).relu()


def pr(z: Tensor, power: int = 2) -> Tensor:
    """(Σ s^p)² / Σ s^2p of the singular values, (...): the participation ratio for p = 2."""
    s = torch.linalg.svdvals(z)
    return (s**power).sum(-1) ** 2 / (s ** (2 * power)).sum(-1)


def dimensions(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """PR of both, ENSD in sample space, CKA and ENSD in unit space of features as they are (no centering)."""
    pr_x, pr_y = pr(x), pr(y)
    norms = [(z.mT @ z).square().sum((-2, -1)).sqrt() for z in (x, y)]  # sqrt of tr K²
    cka = (x.mT @ y).square().sum((-2, -1)) / (norms[0] * norms[1])
    c_x, c_y = (z.mT @ z / z.square().sum((-2, -1), keepdim=True) for z in (x, y))
    unit = pr_x * pr_y * (c_x * c_y).sum((-2, -1))
    return {"before": pr_x, "after": pr_y, "ensd": cka * (pr_x * pr_y).sqrt(), "cka": cka, "unit": unit}


def read(answer) -> str:
    """dimensions(before, after) -> (pr_before, pr_after, ensd), each (m,); inputs (m, n, units)."""
    inputs = dict(zip(("before", "after"), features(), strict=True))
    values = several(answer, "pr_before, pr_after, ensd", (CASES,), **inputs)
    for value in values:
        if not value.isfinite().all():
            raise Wrong(f"Your function returned {value[~value.isfinite()][0]:.4g}: a division or a root?")
    x, y = (z - z.mean(-2, keepdim=True) for z in inputs.values())
    raw, rows = dimensions(*inputs.values()), dimensions(*(z - z.mean(-1, keepdim=True) for z in inputs.values()))
    borrowed = "after is centered with the means of before: each has means of its own."
    wrong_mean = dimensions(x, inputs["after"] - inputs["before"].mean(-2, keepdim=True))
    truth, squares = dimensions(x, y), dimensions(*(z.mT @ z for z in (x, y)))
    if close(values[0], truth["after"]).all() and close(values[1], truth["before"]).all():
        raise Wrong("Return (pr_before, pr_after, ensd), in this order: the first two are swapped.", 0.5)
    overlap = (x.mT @ y).square().sum((-2, -1))
    product = x.square().sum((-2, -1)) * y.square().sum((-2, -1))  # of tr K_X and tr K_Y
    below = (x.mT @ x).square().sum((-2, -1)) * (y.mT @ y).square().sum((-2, -1))  # of tr K_X² and tr K_Y²

    def ratio(name: str, z: Tensor, value: Tensor) -> dict[str, Tensor]:
        return {
            "not centered: the mean of ReLU features counts as one huge dimension. Subtract each unit's mean over the "
            "inputs.": raw[name],
            "centered along the units: subtract each unit's mean over the inputs (the axis of length n).": rows[name],
            "that uses the singular values s where their squares, the eigenvalues, belong.": pr(z, 1),
            "that uses s⁴, the squares of the eigenvalues, where the eigenvalues s² belong.": squares[name],
            "upside down: (Σs²)² stands above Σs⁴.": 1 / truth[name],
            "the square of the trace above is missing.": scaled(
                z.square().sum((-2, -1)) / (z.mT @ z).square().sum((-2, -1)), value
            ),
            "that is Σs²/s₁², another count: it looks at the strongest direction only.": (
                torch.linalg.svdvals(z) / torch.linalg.svdvals(z)[..., :1]
            )
            .square()
            .sum(-1),
            "that is ENSD.": truth["ensd"],
            "that is the number of directions there are at all, not how evenly they are used.": torch.full_like(
                truth[name], z.shape[-1]
            ),
        }

    shared = {
        "not centered: the mean of ReLU features fakes sharing. Subtract each unit's mean over the inputs.": raw[
            "ensd"
        ],
        "centered along the units: subtract each unit's mean over the inputs (the axis of length n).": rows["ensd"],
        "that is the wrong space: tr(XᵀX YᵀY) compares which units are used, not which inputs they group. Take "
        "tr(XXᵀ YYᵀ) = ‖XᵀY‖².": truth["unit"],
        "that is the wrong space, and not centered: take tr(XXᵀ YYᵀ) = ‖XᵀY‖² of centered columns.": raw["unit"],
        "that is CKA, between 0 and 1: multiply it by the root of PR·PR.": truth["cka"],
        "that is CKA times PR·PR: the root of the product belongs there.": truth["cka"]
        * truth["before"]
        * truth["after"],
        "that is its bound, the root of PR·PR, reached only by equal Gram matrices.": (
            truth["before"] * truth["after"]
        ).sqrt(),
        "tr(K_X K_Y) is the square of the Frobenius norm of XᵀY: the square is missing.": scaled(
            product * overlap.sqrt() / below, values[2]
        ),
        "the traces of K_X and K_Y above are missing.": scaled(overlap / below, values[2]),
        "below stand tr K_X² and tr K_Y², not their roots.": scaled(product * overlap / below.sqrt(), values[2]),
        "K_X² and K_Y² belong below, squares of Gram matrices, not squares of traces.": overlap / product,
        "that is PR after: what is shared with before is asked for.": truth["after"],
        borrowed: wrong_mean["ensd"],
    }
    named = (
        {f"pr_before: {says}": wrong for says, wrong in ratio("before", x, values[0]).items()},
        {
            f"pr_after: {says}": wrong
            for says, wrong in (ratio("after", y, values[1]) | {borrowed: wrong_mean["after"]}).items()
        },
        {f"ensd: {says}": wrong for says, wrong in shared.items()},
    )
    names, three = ("pr_before", "pr_after", "ensd"), [truth[name] for name in ("before", "after", "ensd")]
    parts = {name: (right, wrong, {}) for name, right, wrong in zip(names, three, named, strict=True)}
    compare_parts(values, parts, **{"size of before": x.square().mean((-2, -1)).sqrt()})
    return "How many directions there were, how many there are, and how many of them are the old ones."


# ---- 05.4


def errors() -> dict[str, Tensor]:
    """Test errors of pretrained and reset nets, (case, seed, 2), last axis λ = 0 and λ < 0; seeds paired."""
    generator = seeded(54)
    noise = torch.randn(5, CASES, SEEDS, generator=generator, dtype=torch.float64, device="cpu")
    common, change = 0.4 + 0.1 * noise[0], uniform(generator, -0.1, 0.2, 3, CASES, 1)
    reset = torch.stack([common, common - change[0] + 0.02 * noise[1]], -1)
    helped = torch.stack([change[1] + 0.02 * noise[2], change[2] + 0.02 * noise[3]], -1)
    return {"pretrained": reset - helped, "reset": reset}


def error_of_mean(values: Tensor, ddof: int = 1) -> Tensor:
    """Of the mean over the last axis."""
    return values.std(-1, correction=ddof) / values.shape[-1] ** 0.5


def split(answer) -> str:
    """split(pretrained, reset) -> (richness, reuse, z), each (m,); inputs (m, seed, 2), last axis λ = 0, λ < 0."""
    inputs = errors()
    pt, reset = inputs.values()
    values = several(answer, "richness, reuse, z", (CASES,), **inputs)
    for value in values:
        if not value.isfinite().all():
            raise Wrong(f"Your function returned {value[~value.isfinite()][0]:.4g}: a division or a root?")
    helps = reset[..., 1] - pt[..., 1]  # paired, (case, seed)
    rich, reuse, se = (reset[..., 0] - reset[..., 1]).mean(-1), helps.mean(-1), error_of_mean(helps)
    total, moved = (reset[..., 0] - pt[..., 1]).mean(-1), (pt[..., 0] - pt[..., 1]).mean(-1)
    at_zero = (reset[..., 0] - pt[..., 0]).mean(-1)
    loose = (error_of_mean(reset[..., 1]) ** 2 + error_of_mean(pt[..., 1]) ** 2).sqrt()
    truth = rich, reuse, reuse / se
    if close(values[0], reuse).all() and close(values[1], rich).all():
        raise Wrong("Return (richness, reuse, z), in this order: the first two are swapped.", 0.5)
    named = [
        {
            "richness: that is the gain of λ in pretrained nets: part of it may be reuse. Ask the reset nets.": moved,
            "richness: the sign is off: a gain is an error that falls, λ = 0 minus λ < 0.": -rich,
            "richness: that is the whole gain: without pretraining part of it is there already.": total,
            "richness: that is what pretraining adds at λ = 0.": at_zero,
            "richness: that is an error, not a change: compare both λ.": reset[..., 1].mean(-1),
            "richness: average over the seeds, do not add them up.": rich * SEEDS,
            "richness: that is a ratio: take the difference, so that the two parts add up.": (
                1 - reset[..., 1].mean(-1) / reset[..., 0].mean(-1)
            ),
            "richness: that is a median: take the mean, so that the two parts add up.": (reset[..., 0] - reset[..., 1])
            .median(-1)
            .values,
            "richness: that is reuse.": reuse,
        },
        {
            "reuse: that is the gain of λ in pretrained nets: what reset nets gain by the same λ is no reuse.": moved,
            "reuse: that is the whole gain: what reset nets gain by λ alone is richness.": total,
            "reuse: that is at λ = 0: compare the two kinds of nets at the λ that is used, the last entry.": at_zero,
            "reuse: the sign is off: reset minus pretrained is positive where pretraining helps.": -reuse,
            "reuse: that is how much more λ gains in pretrained nets, moved minus richness. Compare both kinds at one "
            "λ.": moved - rich,
            "reuse: average over the seeds, do not add them up.": reuse * SEEDS,
            "reuse: that is a ratio: take the difference, so that the two parts add up.": (
                1 - pt[..., 1].mean(-1) / reset[..., 1].mean(-1)
            ),
            "reuse: that is richness.": rich,
        },
        {
            "z: the seeds are paired: the standard error is that of the differences.": reuse / loose,
            "z: that is the mean over the standard deviation: a mean has an error smaller by root seeds.": reuse
            / helps.std(-1),
            "z: the standard error has the root of the number of seeds, not the number.": reuse
            / (helps.std(-1) / SEEDS),
            "z: that is the reuse itself: divide it by its standard error.": reuse,
            "z: that is the standard error itself: divide the reuse by it.": se,
            "z: the sign is off: positive where pretraining helps.": -reuse / se,
            "z: that is upside down.": se / reuse,
            "z: that is for the richness: z is for the reuse.": rich / error_of_mean(reset[..., 0] - reset[..., 1]),
            "z: that is for the whole gain: z is for the reuse.": total / error_of_mean(reset[..., 0] - pt[..., 1]),
            "z: that is for λ = 0: z is for the reuse at λ < 0.": at_zero / error_of_mean(reset[..., 0] - pt[..., 0]),
        },
    ]
    slips = [{}, {}, {"z: divide by seeds - 1 in the variance: these are samples.": reuse / error_of_mean(helps, 0)}]
    means = {"mean error pretrained": pt[..., 1].mean(-1), "mean error reset": reset[..., 1].mean(-1)}
    names = "richness", "reuse", "z"
    compare_parts(values, dict(zip(names, zip(truth, named, slips, strict=True), strict=True)), **means)
    return "Richness plus reuse is the whole gain; the second needs pretraining, the first does not."


EXERCISES = {
    "05.1": Exercise(points=4, minutes=8, difficulty=1, check=neuron),
    "05.2": Exercise(points=2, minutes=8, difficulty=2, check=wakes),
    "05.3": Exercise(points=4, minutes=10, difficulty=2, check=read),
    "05.4": Exercise(points=3, minutes=6, difficulty=1, check=split),
}
