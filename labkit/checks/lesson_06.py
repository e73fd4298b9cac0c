"""Exercises of lesson 06: three scales, what centering takes away, scale as learning rate, reading PR and ENSD."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from labkit.checks.attempt import as_tensor, call, close, compare_parts, kind, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def tuple_of(returned: object, names: str) -> tuple:
    """The values that a function had to return; ``names`` says which, separated by commas."""
    count = names.count(",") + 1
    try:
        parts = tuple(returned)
    except TypeError:
        parts = ()
    if len(parts) != count:
        raise Wrong(f"Your function must return ({names}), {count} tensors; it returned {len(parts) or 'one'}.")
    return parts


# ---- 06.1


def network(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """A small norm-free ResNet without biases: stem, one block, average pool, readout."""
    z = functional.conv2d(x, w["stem"], padding=1).relu()
    branch = functional.conv2d(functional.conv2d(z, w["conv1"], padding=1).relu(), w["conv2"], padding=1)
    return (functional.conv2d(z, w["skip"]) + branch).relu().mean((2, 3)) @ w["readout"].T


def scales(answer) -> str:
    """rescale(w, kappa, weight_scale) -> new weights: stem × kappa·weight_scale, readout × weight_scale/kappa."""
    generator, kappa, alpha = seeded(61), 0.3, 1.7
    shapes = {"stem": (4, 1, 3, 3), "conv1": (6, 4, 3, 3), "conv2": (6, 6, 3, 3), "skip": (6, 4, 1, 1)}
    w = {name: normal(generator, *shape) for name, shape in (shapes | {"readout": (5, 6)}).items()}
    given = {name: value.clone() for name, value in w.items()}
    returned = call(answer, w=given, kappa=kappa, weight_scale=alpha)
    if not isinstance(returned, dict) or set(returned) != set(w):
        told = sorted(map(str, returned)) if isinstance(returned, dict) else kind(returned)
        raise Wrong(f"Return a dict with the keys of w, {sorted(w)}; your function returned {told}.")
    new = {name: as_tensor(returned[name], tuple(w[name].shape), f"the shape of w[{name!r}]") for name in w}
    blocks = [name for name in ("conv1", "conv2", "skip") if not close(new[name], w[name]).all()]
    if blocks:
        raise Wrong(
            f"You changed {', '.join(blocks)} too. Every convolution of a branch multiplies again while the skip has "
            "only one: that is no pure scale. Leave the blocks."
        )
    factors = []
    for name in ("stem", "readout"):
        factor = (new[name] * w[name]).sum() / w[name].square().sum()
        if not close(new[name], factor * w[name]).all():
            raise Wrong(f"w[{name!r}] must be multiplied by one number, so that its direction stays.")
        factors.append(float(factor))

    def has(stem: float, readout: float) -> bool:
        return all(abs(f / t - 1) < 1e-5 for f, t in zip(factors, (stem, readout), strict=True))

    slips = {
        "The wrong way round: kappa < 1 makes the stem smaller and the readout larger.": (alpha / kappa, alpha * kappa),
        "weight_scale is missing: it multiplies both, stem and readout.": (kappa, 1 / kappa),
        "weight_scale multiplies both: in yours it cancels, and the absolute scale stays.": (
            kappa * alpha,
            1 / (kappa * alpha),
        ),
        "weight_scale multiplies both weights by itself, not by its root: the output by its square.": (
            kappa * alpha**0.5,
            alpha**0.5 / kappa,
        ),
        "Right output, but weight_scale belongs in both: once in the stem, once in the readout.": (
            kappa,
            alpha**2 / kappa,
        ),
        "weight_scale belongs in both: all of it is in the stem, though the output is right.": (
            kappa * alpha**2,
            1 / kappa,
        ),
        "weight_scale is squared: both weights are multiplied by weight_scale itself.": (
            kappa * alpha**2,
            alpha**2 / kappa,
        ),
    }
    mistakes = {
        "Both are multiplied by kappa: the output grows by kappa². Divide one of the two.": (
            kappa * alpha,
            kappa * alpha,
        ),
        "The readout does not undo kappa: the function changes.": (kappa * alpha, alpha),
        "The stem lacks kappa: the function changes.": (alpha, alpha / kappa),
        "weight_scale is missing in the readout.": (kappa * alpha, 1 / kappa),
        "weight_scale is missing in the stem.": (kappa, alpha / kappa),
        "kappa is squared: stem × kappa, readout × 1/kappa.": (kappa**2 * alpha, alpha / kappa**2),
        "The root of kappa: stem × kappa, readout × 1/kappa.": (kappa**0.5 * alpha, alpha / kappa**0.5),
        "The readout is divided by kappa², the stem multiplied by kappa once.": (kappa * alpha, alpha / kappa**2),
        "Nothing has changed.": (1.0, 1.0),
    }
    if has(kappa * alpha, alpha / kappa):
        if any(not torch.equal(given[name], w[name]) for name in w):
            raise Wrong("Right, but your function changed w itself: make new tensors, a * b and not a *= b.", 0.5)
        x = normal(generator, 3, 1, 8, 8)
        ratio = float((network(new, x) / network(w, x)).mean())
        return f"The outputs are {ratio:.4g} times as large, which is weight_scale², whatever kappa is."
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, pair in named.items():
            if has(*pair):
                raise Wrong(says, share)
    raise Wrong(
        f"At kappa={kappa}, weight_scale={alpha} the stem is multiplied by {factors[0]:.4g}, expected "
        f"{kappa * alpha:.4g}, the readout by {factors[1]:.4g}, expected {alpha / kappa:.4g}."
    )


# ---- 06.2


def standard_error(values: Tensor, ddof: int = 1) -> Tensor:
    """Of the mean over the seeds, the last axis."""
    return values.std(-1, correction=ddof) / values.shape[-1] ** 0.5


def left_over(answer) -> str:
    """left_over(plain, centered) -> (effect, noise, z), each (m,); inputs (m, seed, 2), last axis small stem, balanced.

    effect: paired difference in the plain protocol; noise: the part of it that centering removes; z: what is left, in
    units of its standard error.
    """
    generator, cases, seeds = seeded(62), 10, 12
    common = 0.7 + 0.05 * normal(generator, cases, seeds, 1)  # a seed has easy or hard images in both protocols
    inputs = {
        "plain": common + 0.01 * normal(generator, cases, seeds, 2),
        "centered": common + 0.03 + 0.01 * normal(generator, cases, seeds, 2),
    }
    inputs["plain"][..., 0] += uniform(generator, -0.02, 0.08, cases, 1)
    inputs["centered"][..., 0] += uniform(generator, -0.03, 0.04, cases, 1)
    plain, centered = inputs.values()
    values = [as_tensor(part, (cases,)) for part in tuple_of(call(answer, **inputs), "effect, noise, z")]
    was, left = plain[..., 0] - plain[..., 1], centered[..., 0] - centered[..., 1]
    z = left.mean(-1) / standard_error(left)
    truth = was.mean(-1), (was - left).mean(-1), z
    if close(values[0], truth[1]).all() and close(values[1], truth[0]).all() and close(values[2], z).all():
        raise Wrong("Return (effect, noise, z), in this order: the first two are swapped.", 0.5)
    loose = (standard_error(centered[..., 0]) ** 2 + standard_error(centered[..., 1]) ** 2).sqrt()
    gain = centered - plain
    named = [
        {
            "effect: the sign is off: positive where the small stem is better.": -truth[0],
            "effect: that is what is left after centering: effect is for the plain protocol.": left.mean(-1),
            "effect: average over the seeds, do not add.": was.sum(-1),
            "effect: that is a median over the seeds: take the mean.": was.median(-1).values,
            "effect: that is the accuracy of the small stem: subtract the balanced one.": plain[..., 0].mean(-1),
            "effect: a difference is asked for, not a ratio.": (plain[..., 0] / plain[..., 1]).mean(-1),
        },
        {
            "noise: that is what is left: noise is what centering takes away.": left.mean(-1),
            "noise: the sign is off: plain minus centered, so that effect − noise is left.": -truth[1],
            "noise: that is the share of the effect: give it in units of accuracy.": truth[1] / truth[0],
            "noise: the plain and the centered effect are added: subtract.": (was + left).mean(-1),
            "noise: that is how much centering gains for the small stem: the balanced net gains too.": gain[
                ..., 0
            ].mean(-1),
            "noise: that is how much centering gains for the balanced net: the small stem gains too.": gain[
                ..., 1
            ].mean(-1),
            "noise: that is the gain of centering, averaged over both nets.": gain.mean((-1, -2)),
            "noise: average over the seeds, do not add.": (was - left).sum(-1),
            "noise: that is the whole effect: subtract what is left.": truth[0],
        },
        {
            "z: the seeds are paired: take the standard error of the differences.": left.mean(-1) / loose,
            "z: that is the scatter of single seeds: the standard error is smaller by root seeds.": left.mean(-1)
            / left.std(-1),
            "z: divide the standard deviation by the root of the number of seeds, not the number.": z * seeds**0.5,
            "z: that is what is left itself: divide it by its standard error.": left.mean(-1),
            "z: that is the standard error itself: it goes below what is left.": standard_error(left),
            "z: the sign is off: positive where the small stem is better.": -z,
            "z: that is upside down.": 1 / z,
            "z: that is for the plain protocol: z is for what is left.": was.mean(-1) / standard_error(was),
            "z: that is for the noise: z is for what is left.": truth[1] / standard_error(was - left),
        },
    ]
    slips = [{}, {}, {"z: divide by seeds - 1 in the variance: these are samples.": z * (seeds / (seeds - 1)) ** 0.5}]
    places = {f"mean accuracy {name}": value[..., 0].mean(-1) for name, value in inputs.items()}
    names = "effect", "noise", "z"
    compare_parts(values, dict(zip(names, zip(truth, named, slips, strict=True), strict=True)), **places)
    return "effect − noise is what is left; whether it is there at all, only z can say."


# ---- 06.3


def invariant_loss(x: Tensor, y: Tensor, out: Tensor, eps: float | None) -> Callable[[Tensor], Tensor]:
    """w (hidden, in) -> mean cross-entropy of a net whose first layer is batch-normalized, or (eps None) is not."""

    def loss(w: Tensor) -> Tensor:
        z = x @ w.T
        if eps is not None:
            z = (z - z.mean(0)) / (z.var(0, correction=0) + eps).sqrt()
        return functional.cross_entropy(z.relu() @ out.T, y)

    return loss


def measured(answer) -> str:
    """gradient_ratio(loss, w, kappas) -> ‖∇loss at κw‖ / ‖∇loss at w‖, (m,), for a net with and one without a norm."""
    generator = seeded(63)
    x, w, out = normal(generator, 40, 6), normal(generator, 8, 6), normal(generator, 4, 8) / 2
    y = torch.arange(40, device="cpu") % 4
    kappas = torch.tensor([0.1, 0.3, 2.0, 6.0], dtype=torch.float64, device="cpu")
    losses = [invariant_loss(x, y, out, eps) for eps in (1e-2, None)]  # the ε is large, so that it shows

    def gradients(loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """∇loss at w (hidden, in) and at each κw (m, hidden, in)."""
        points = [(k * w).requires_grad_() for k in (1.0, *kappas.tolist())]
        first, *others = (torch.autograd.grad(loss(p), p)[0] for p in points)
        return first, torch.stack(others)

    def each(measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.stack([measure(*gradients(loss)) for loss in losses])

    def norms(g: Tensor) -> Tensor:
        return g.flatten(-2).norm(dim=-1)

    truth = each(lambda g, at: norms(at) / norms(g))
    value = torch.stack([as_tensor(call(answer, loss=loss, w=w, kappas=kappas), (4,)) for loss in losses])
    if not value.isfinite().all():
        raise Wrong("Your function returned nan or infinite values: a division or a root?")
    heights = torch.stack([torch.stack([loss(k * w) / loss(w) for k in kappas]) for loss in losses])
    mistakes = {
        "That is the gradient of loss(κw) with respect to w: the chain rule adds a κ. Differentiate with respect to "
        "the scaled weights themselves.": truth * kappas,
        "That is upside down: the gradient at κw goes above.": 1 / truth,
        "Those are squared norms: take the root.": truth**2,
        "That is 1/κ, which holds for a net with a norm and ε = 0: measure the loss that is handed over.": (
            1 / kappas
        ).expand(2, 4),
        "That is 1/κ², the change of the angular speed: the gradient itself is asked for.": (kappas**-2).expand(2, 4),
        "That is the norm at κw: divide it by the norm at w.": each(lambda g, at: norms(at)),
        "That is relative to the first of kappas: divide by the norm at w, which is κ = 1.": each(
            lambda g, at: norms(at) / norms(at)[0]
        ),
        "That is the ratio of the losses: take the ratio of their gradients.": heights,
        "Those are sums over the entries, in which signs cancel: take norms.": each(
            lambda g, at: at.sum((-2, -1)) / g.sum()
        ),
        "The gradient at κw is divided by κ: leave it as it is.": truth / kappas,
        "That is 1: the gradient was taken at w both times.": torch.ones_like(truth),
    }
    slips = {
        "Those are sums of absolute values: take the root of the sum of squares.": each(
            lambda g, at: at.abs().sum((-2, -1)) / g.abs().sum()
        ),
        "Those are largest entries: take the root of the sum of squares.": each(
            lambda g, at: at.abs().amax((-2, -1)) / g.abs().max()
        ),
    }
    if close(value, truth).all():
        return "With the norm about 1/κ (the rest is its ε), without it something else: so one has to measure."
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, wrong in named.items():
            if close(value, wrong).all():
                raise Wrong(says, share)
    row, column = divmod(int(((value - truth) / truth).abs().flatten().argmax()), 4)
    what = ("with", "without")[row]
    raise Wrong(
        f"For a net {what} a norm, at κ = {kappas[column]:g}, you return {value[row, column]:.4g}, expected "
        f"{truth[row, column]:.4g}."
    )


# ---- 06.4


def matched(answer) -> str:
    """matched(lr, weight_decay, kappa) -> (SGD rate, Adam rate, SGD weight decay) that make κw move as w does, (m,)."""
    generator = seeded(64)
    inputs = {
        "lr": 10 ** uniform(generator, -3, -1, 12),
        "weight_decay": 10 ** uniform(generator, -4, -2, 12),
        "kappa": 10 ** uniform(generator, -1, 1, 12),
    }
    lr, decay, kappa = inputs.values()
    values = [as_tensor(part, (12,)) for part in tuple_of(call(answer, **inputs), "sgd, adam, decay")]
    truth = kappa**2 * lr, kappa * lr, decay / kappa**2
    if close(values[0], truth[1]).all() and close(values[1], truth[0]).all():
        raise Wrong("Return (sgd, adam, decay), in this order: the first two are swapped.", 0.5)
    direction = "{}: the other way round: larger weights need a larger rate to turn as fast."
    named = [
        {
            direction.format("sgd"): lr / kappa**2,
            "sgd: the step must grow by kappa, and the gradient has shrunk by kappa: both count.": kappa * lr,
            "sgd: a step of the same size turns a longer vector less, not more.": lr / kappa,
            "sgd: with the same rate small weights turn faster: that is what the control removes.": lr,
            "sgd: one power of kappa for the gradient and one for the length of w: two in all.": kappa**3 * lr,
            "sgd: kappa² is a factor of lr: lr is missing.": kappa**2,
        },
        {
            "adam: it divides the gradient by its own size, so kappa counts once only, for the length of w.": kappa**2
            * lr,
            direction.format("adam"): lr / kappa,
            "adam: its steps do not shrink with the gradient, but they turn a longer w less.": lr,
            "adam: that is the wrong way round, and the gradient does not count.": lr / kappa**2,
        },
        {
            "decay: lr · decay · w is to shrink w by the same share, with a rate kappa² as large.": decay,
            "decay: the other way round: the rate has grown by kappa², so the decay has to fall.": decay * kappa**2,
            "decay: the rate has grown by kappa², not by kappa.": decay / kappa,
            "decay: w is longer, but so is the change that decay makes: only the rate counts.": decay / kappa**3,
            "decay: the rate has grown by kappa², so the decay falls by kappa².": decay * kappa,
        },
    ]
    parts = zip(truth, named, ({}, {}, {}), strict=True)
    compare_parts(values, dict(zip(("sgd", "adam", "decay"), parts, strict=True)), **inputs)
    return "With these, nets at all κ are the same function after every step: κ was a learning rate in disguise."


# ---- 06.5


def centered(z: Tensor, axis: int | None = -2) -> Tensor:
    return z if axis is None else z - z.mean(axis, keepdim=True)


def gram_measures(x: Tensor, y: Tensor, axis: int | None = -2) -> tuple[Tensor, Tensor, Tensor]:
    """PR of x, PR of y and ENSD of both, (case,), in sample space; ``axis`` is centered."""
    kx, ky = (z @ z.mT for z in (centered(x, axis), centered(y, axis)))
    tx, ty = (k.diagonal(dim1=-2, dim2=-1).sum(-1) for k in (kx, ky))
    sx, sy = (k.square().sum((-2, -1)) for k in (kx, ky))
    return tx**2 / sx, ty**2 / sy, tx * ty * (kx * ky).sum((-2, -1)) / (sx * sy)


def unit_ensd(x: Tensor, y: Tensor) -> Tensor:
    """ENSD in unit space, of uncentered activations: which units are used, not which inputs are alike."""
    cx, cy = (z.mT @ z for z in (x, y))
    cx, cy = (c / c.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] for c in (cx, cy))
    return (cx * cy).sum((-2, -1)) / (cx.square().sum((-2, -1)) * cy.square().sum((-2, -1)))


def codes(compression: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept < 0.5, 2.0, torch.where(compression < 0.8, 1.0, 0.0))


def activations(generator: torch.Generator, cases: int = 12, n: int = 200, p: int = 12) -> dict[str, Tensor]:
    """Before and after, (case, n, p): lazy, a subset kept, new features; in turn, each with a large mean."""
    x = normal(generator, cases, n, p)
    keep = torch.arange(p, device="cpu") < 4
    other = normal(generator, cases, n, p)
    mixed = torch.linalg.qr(normal(generator, cases, p, p)).Q  # units are rotated: sample space does not mind
    kinds = torch.arange(cases, device="cpu")[:, None, None] % 3
    small = 0.15 * normal(generator, cases, n, p)
    after = torch.where(kinds == 0, x + small, torch.where(kinds == 1, x * keep + small, other * keep + small))
    return {"before": x + 1.5, "after": after @ mixed + 1.5}


def reading(answer) -> str:
    """reading(before, after) -> (compression, kept, code), each (case,): PR after/before, ENSD/PR after, 0, 1 or 2."""
    inputs = activations(seeded(65))
    x, y = inputs.values()
    cases = len(x)
    names = "compression, kept, code"
    values = [as_tensor(part, (cases,), "one value a case") for part in tuple_of(call(answer, **inputs), names)]
    before, after, shared = gram_measures(x, y)
    squeeze, kept = after / before, shared / after
    truth = squeeze, kept, codes(squeeze, kept)
    raw, rows = gram_measures(x, y, None), gram_measures(x, y, -1)
    roots = [(s.sum(-1) ** 2 / s.square().sum(-1)) for s in (torch.linalg.svdvals(centered(z)) for z in (x, y))]
    named = [
        {
            "compression: that is upside down: below 1 where dimensions are lost.": 1 / squeeze,
            "compression: the mean counts as a dimension there: center the columns.": raw[1] / raw[0],
            "compression: you centered each input over its units: center each unit over the inputs.": rows[1] / rows[0],
            "compression: that takes singular values for their squares: PR = (Σs²)² / Σs⁴.": roots[1] / roots[0],
            "compression: that is PR after: divide it by PR before.": after,
            "compression: that is the difference: a ratio is asked for.": after - before,
            "compression: that is ENSD over PR before: PR after belongs above.": shared / before,
        },
        {
            "kept: that is ENSD itself: divide it by PR after.": shared,
            "kept: that is ENSD over PR before: divide it by PR after.": shared / before,
            "kept: that is CKA, ENSD over the root of both PR: divide it by PR after.": shared
            / (before * after).sqrt(),
            "kept: the mean counts as a shared dimension there: center the columns.": raw[2] / raw[1],
            "kept: you centered each input over its units: center each unit over the inputs.": rows[2] / rows[1],
            "kept: that compares units, which are others after a rotation: compare inputs, with ‖XᵀY‖².": unit_ensd(
                x, y
            )
            / after,
            "kept: that is upside down.": 1 / kept,
        },
        {
            "code: 1 and 2 are swapped: 2 where less than half is kept.": torch.where(
                truth[2] > 0, 3 - truth[2], truth[2]
            ),
            "code: only compression is read: what is compressed may be new features, 2.": (squeeze < 0.8).double(),
            "code: only what is kept is read: a net that kept all of it and lost nothing is lazy, 0.": torch.where(
                kept < 0.5, 2.0, 1.0
            ),
            "code: lazy is 0, also where nothing was lost.": truth[2].clamp(min=1),
            "code: 0 and 1 are swapped: 1 where dimensions were lost.": torch.where(
                truth[2] < 2, 1 - truth[2], truth[2]
            ),
            "code: the limits are the wrong way round: a kept share below 0.5 is 2.": codes(squeeze, 1 - kept),
        },
    ]
    places = {"PR_before": before, "PR_after": after, "ENSD": shared}
    parts = zip(truth, named, ({}, {}, {}), strict=True)
    compare_parts(values, dict(zip(("compression", "kept", "code"), parts, strict=True)), **places)
    return "Lost dimensions, and how many of those left are old ones: two numbers that tell three stories apart."


EXERCISES = {
    "06.1": Exercise(points=3, minutes=8, difficulty=1, check=scales),
    "06.2": Exercise(points=4, minutes=10, difficulty=2, check=left_over),
    "06.3": Exercise(points=3, minutes=8, difficulty=2, check=measured),
    "06.4": Exercise(points=3, minutes=8, difficulty=2, check=matched),
    "06.5": Exercise(points=3, minutes=10, difficulty=2, check=reading),
}
