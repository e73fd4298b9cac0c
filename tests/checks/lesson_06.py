"""Right and wrong answers to the exercises of lesson 06, as a learner would write them."""

import torch

# ---- 06.1


def rescale(stem=lambda k, a: k * a, readout=lambda k, a: a / k, block=lambda k, a: 1.0):
    """06.1 with the factors as given; ``block`` is that of every weight of a block."""

    def answer(w, kappa, weight_scale):
        factors = dict.fromkeys(w, block(kappa, weight_scale))
        factors |= {"stem": stem(kappa, weight_scale), "readout": readout(kappa, weight_scale)}
        return {name: factors[name] * value for name, value in w.items()}

    return answer


def in_place(w, kappa, weight_scale):
    w["stem"] *= kappa * weight_scale
    w["readout"] *= weight_scale / kappa
    return w


def only_two(w, kappa, weight_scale):
    return {name: value for name, value in rescale()(w, kappa, weight_scale).items() if name in ("stem", "readout")}


def one_channel(w, kappa, weight_scale):
    new = rescale()(w, kappa, weight_scale)
    new["stem"][0] = w["stem"][0]
    return new


# ---- 06.2


def parts_of(effect=None, noise=None, z=None, order=(0, 1, 2)):
    """06.2 with a part replaced by a function of both (m, seed, 2)."""

    def answer(plain, centered):
        was, left = (acc[..., 0] - acc[..., 1] for acc in (plain, centered))
        right = was.mean(1), (was - left).mean(1), left.mean(1) / (left.std(1) / left.shape[1] ** 0.5)
        made = [right[i] if part is None else part(plain, centered) for i, part in enumerate((effect, noise, z))]
        return tuple(made[i] for i in order)

    return answer


def paired(accuracy):
    return accuracy[..., 0] - accuracy[..., 1]


def in_errors(values, correction=1):
    return values.mean(1) / (values.std(1, correction=correction) / values.shape[1] ** 0.5)


def unpaired(plain, centered):
    return paired(centered).mean(1) / (centered.var(1).sum(-1) / centered.shape[1]) ** 0.5


def by_loop(plain, centered):
    rows = []
    for before, after in zip(plain.tolist(), centered.tolist(), strict=True):
        was, left = ([small - balanced for small, balanced in seeds] for seeds in (before, after))
        n, mean = len(left), sum(left) / len(left)
        variance = sum((value - mean) ** 2 for value in left) / (n - 1)
        rows.append((sum(was) / n, sum(was) / n - mean, mean / (variance / n) ** 0.5))
    return [list(column) for column in zip(*rows, strict=True)]


# ---- 06.3


def slope(loss, point):
    point = point.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(point), point)[0]


def ratio(size=lambda g: g.norm(), last=lambda value, kappa: value, top=slope):
    """06.3 by another size of a gradient, or with something done to the ratio at the end."""

    def answer(loss, w, kappas):
        below = size(slope(loss, w))
        return torch.stack([last(size(top(loss, kappa * w)) / below, kappa) for kappa in kappas])

    return answer


def chain(loss, w, kappas):
    return torch.stack(
        [slope(lambda v, k=k: loss(k * v), w).norm() / slope(loss, w).norm() for k in kappas]
    )  # fmt: skip


def by_first(loss, w, kappas):
    sizes = torch.stack([slope(loss, kappa * w).norm() for kappa in kappas])
    return sizes / sizes[0]


def by_differences(loss, w, kappas, step=1e-5):
    def size(point):
        changes = []
        for i in range(point.numel()):
            e = torch.zeros_like(point).flatten()
            e[i] = step
            e = e.view_as(point)
            changes.append((loss(point + e) - loss(point - e)) / (2 * step))
        return torch.stack(changes).norm()

    return [size(kappa * w) / size(w) for kappa in kappas]


# ---- 06.4


def rates(sgd=lambda lr, wd, k: k**2 * lr, adam=lambda lr, wd, k: k * lr, decay=lambda lr, wd, k: wd / k**2):
    return lambda lr, wd, k: (sgd(lr, wd, k), adam(lr, wd, k), decay(lr, wd, k))


def by_steps(lr, weight_decay, kappa):
    """What torch's own optimizers need: one step on w and on κw of a loss that knows only the direction of w."""
    torch.manual_seed(0)
    w, target = torch.randn(2, 9, dtype=torch.float64, device="cpu")

    def moved(kind, k, rate, **more):
        point = (k * w).requires_grad_()
        optimizer = kind([point], lr=rate, **more)
        (1 - point @ target / point.norm()).backward()
        optimizer.step()
        return point.detach() - k * w

    found = []
    for rate, wd, k in zip(lr.tolist(), weight_decay.tolist(), kappa.tolist(), strict=True):
        row = []
        for kind, more in ((torch.optim.SGD, {}), (torch.optim.Adam, {"eps": 0.0})):
            wanted = k * moved(kind, 1.0, rate, **more)
            row.append(rate * float(wanted.norm() / moved(kind, k, rate, **more).norm()))
        shrunk = [k * wd * w.norm() * rate, k * w.norm() * row[0]]  # of the step by decay alone
        found.append((*row, float(shrunk[0] / shrunk[1])))
    return [list(column) for column in zip(*found, strict=True)]


# ---- 06.5


def measures(x, y, center=-2, shared=None):
    """PR of both and ENSD: in sample space by singular values and ‖XᵀY‖², ``center`` an axis or None."""
    if center is not None:
        x, y = x - x.mean(center, keepdim=True), y - y.mean(center, keepdim=True)
    tx, ty = (z.square().sum((-2, -1)) for z in (x, y))
    sx, sy = (torch.linalg.svdvals(z).pow(4).sum(-1) for z in (x, y))
    return tx**2 / sx, ty**2 / sy, tx * ty * (x.mT @ y).square().sum((-2, -1)) / (sx * sy)


def read(squeeze=None, kept=None, code=None, order=(0, 1, 2)):
    """06.5 with a part replaced by a function of x, y and the three measures."""

    def answer(x, y):
        before, after, shared = measures(x, y)
        right = [after / before, shared / after]
        right.append(torch.where(right[1] < 0.5, 2, torch.where(right[0] < 0.8, 1, 0)))
        made = [
            right[i] if part is None else part(x, y, *(right if i == 2 else (before, after, shared)))
            for i, part in enumerate((squeeze, kept, code))
        ]
        return tuple(made[i] for i in order)

    return answer


def other(center, which):
    """The ratio of 06.5 after another centering: 0 compression, 1 kept."""

    def part(x, y, *_):
        before, after, shared = measures(x, y, center)
        return (after / before, shared / after)[which]

    return part


def roots(x, y, *_):
    sx, sy = (torch.linalg.svdvals(z - z.mean(1, keepdim=True)) for z in (x, y))
    return (sy.sum(1) ** 2 / sy.square().sum(1)) / (sx.sum(1) ** 2 / sx.square().sum(1))


def of_units(x, y, before, after, shared):
    cx, cy = (z.mT @ z for z in (x, y))
    cx, cy = (c / c.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] for c in (cx, cy))
    return (cx * cy).sum((1, 2)) / (cx.square().sum((1, 2)) * cy.square().sum((1, 2))) / after


RIGHT = {
    "06.1": [rescale(), lambda w, k, a: w | {"stem": a * k * w["stem"], "readout": a / k * w["readout"]}],
    "06.2": [parts_of(), by_loop, lambda *a: torch.stack(parts_of()(*a))],
    "06.3": [ratio(), by_differences],
    "06.4": [rates(), by_steps],
    "06.5": [read(), lambda *a: [part.tolist() for part in read()(*a)]],
}

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "06.1": [
        ("wrong way round", 1.5, rescale(lambda k, a: a / k, lambda k, a: a * k)),
        ("weight_scale is missing: it multiplies both", 1.5, rescale(lambda k, a: k, lambda k, a: 1 / k)),
        ("in yours it cancels", 1.5, rescale(readout=lambda k, a: 1 / (k * a))),
        ("not by its root", 1.5, rescale(lambda k, a: k * a**0.5, lambda k, a: a**0.5 / k)),
        ("Right output, but weight_scale", 1.5, rescale(lambda k, a: k, lambda k, a: a**2 / k)),
        ("all of it is in the stem", 1.5, rescale(lambda k, a: k * a**2, lambda k, a: 1 / k)),
        ("weight_scale is squared", 1.5, rescale(lambda k, a: k * a**2, lambda k, a: a**2 / k)),
        ("changed w itself", 1.5, in_place),
        ("Both are multiplied by kappa", 0, rescale(readout=lambda k, a: a * k)),
        ("does not undo kappa", 0, rescale(readout=lambda k, a: a)),
        ("The stem lacks kappa", 0, rescale(stem=lambda k, a: a)),
        ("missing in the readout", 0, rescale(readout=lambda k, a: 1 / k)),
        ("missing in the stem", 0, rescale(stem=lambda k, a: k)),
        ("kappa is squared", 0, rescale(lambda k, a: k**2 * a, lambda k, a: a / k**2)),
        ("The root of kappa", 0, rescale(lambda k, a: k**0.5 * a, lambda k, a: a / k**0.5)),
        ("divided by kappa²", 0, rescale(readout=lambda k, a: a / k**2)),
        ("Nothing has changed", 0, rescale(lambda k, a: 1, lambda k, a: 1)),
        ("You changed conv1, conv2, skip too", 0, rescale(block=lambda k, a: k)),
        ("by one number", 0, one_channel),
        ("with the keys of w", 0, only_two),
        ("returned a Tensor", 0, lambda w, k, a: w["stem"]),
        ("the stem is multiplied by 3", 0, rescale(stem=lambda k, a: 3)),
    ],
    "06.2": [
        ("effect: the sign", 8 / 3, parts_of(effect=lambda p, c: -paired(p).mean(1))),
        ("what is left after centering: effect is", 8 / 3, parts_of(effect=lambda p, c: paired(c).mean(1))),
        ("effect: average", 8 / 3, parts_of(effect=lambda p, c: paired(p).sum(1))),
        ("median", 8 / 3, parts_of(effect=lambda p, c: paired(p).median(1).values)),
        ("accuracy of the small stem", 8 / 3, parts_of(effect=lambda p, c: p[..., 0].mean(1))),
        ("not a ratio", 8 / 3, parts_of(effect=lambda p, c: (p[..., 0] / p[..., 1]).mean(1))),
        ("noise: that is what is left", 8 / 3, parts_of(noise=lambda p, c: paired(c).mean(1))),
        ("noise: the sign", 8 / 3, parts_of(noise=lambda p, c: (paired(c) - paired(p)).mean(1))),
        ("share of the effect", 8 / 3, parts_of(noise=lambda p, c: 1 - paired(c).mean(1) / paired(p).mean(1))),
        ("are added: subtract", 8 / 3, parts_of(noise=lambda p, c: (paired(c) + paired(p)).mean(1))),
        ("the balanced net gains too", 8 / 3, parts_of(noise=lambda p, c: (c - p)[..., 0].mean(1))),
        ("the small stem gains too", 8 / 3, parts_of(noise=lambda p, c: (c - p)[..., 1].mean(1))),
        ("averaged over both nets", 8 / 3, parts_of(noise=lambda p, c: (c - p).mean((1, 2)))),
        ("noise: average over", 8 / 3, parts_of(noise=lambda p, c: (paired(p) - paired(c)).sum(1))),
        ("noise: that is the whole effect", 8 / 3, parts_of(noise=lambda p, c: paired(p).mean(1))),
        ("z: the seeds are paired", 8 / 3, parts_of(z=unpaired)),
        ("scatter of single seeds", 8 / 3, parts_of(z=lambda p, c: paired(c).mean(1) / paired(c).std(1))),
        ("not the number", 8 / 3, parts_of(z=lambda p, c: paired(c).mean(1) / paired(c).std(1) * c.shape[1])),
        ("z: that is what is left itself", 8 / 3, parts_of(z=lambda p, c: paired(c).mean(1))),
        ("z: that is the standard error itself", 8 / 3, parts_of(z=lambda p, c: paired(c).std(1) / c.shape[1] ** 0.5)),
        ("z: the sign", 8 / 3, parts_of(z=lambda p, c: -in_errors(paired(c)))),
        ("z: that is upside down", 8 / 3, parts_of(z=lambda p, c: 1 / in_errors(paired(c)))),
        ("z: that is for the plain", 8 / 3, parts_of(z=lambda p, c: in_errors(paired(p)))),
        ("z: that is for the noise", 8 / 3, parts_of(z=lambda p, c: in_errors(paired(p) - paired(c)))),
        ("seeds - 1", 10 / 3, parts_of(z=lambda p, c: in_errors(paired(c), 0))),
        ("the first two are swapped", 2, parts_of(order=(1, 0, 2))),
        ("3 tensors; it returned 2", 0, parts_of(order=(0, 2))),
        ("2 times the expected", 8 / 3, parts_of(noise=lambda p, c: 2 * (paired(p) - paired(c)).mean(1))),
    ],
    "06.3": [
        ("the chain rule adds", 0, chain),
        ("upside down", 0, ratio(last=lambda value, k: 1 / value)),
        ("squared norms", 0, ratio(lambda g: g.square().sum())),
        ("That is 1/κ, which holds", 0, lambda loss, w, kappas: 1 / kappas),
        ("That is 1/κ²", 0, lambda loss, w, kappas: kappas**-2),
        ("divide it by the norm at w", 0, lambda loss, w, kappas: [slope(loss, k * w).norm() for k in kappas]),
        ("relative to the first of kappas", 0, by_first),
        ("ratio of the losses", 0, lambda loss, w, kappas: [loss(k * w) / loss(w) for k in kappas]),
        ("in which signs cancel", 0, ratio(lambda g: g.sum())),
        ("is divided by κ: leave", 0, ratio(last=lambda value, k: value / k)),
        ("taken at w both times", 0, lambda loss, w, kappas: torch.ones_like(kappas)),
        ("sums of absolute values", 1.5, ratio(lambda g: g.abs().sum())),
        ("largest entries", 1.5, ratio(lambda g: g.abs().max())),
        ("For a net with", 0, ratio(last=lambda value, k: value + 1)),
        ("nan or infinite", 0, lambda loss, w, kappas: kappas * torch.nan),
        ("expected (4,)", 0, lambda loss, w, kappas: slope(loss, w)),
    ],
    "06.4": [
        ("sgd: the other way round", 2, rates(sgd=lambda lr, wd, k: lr / k**2)),
        ("both count", 2, rates(sgd=lambda lr, wd, k: lr * k)),
        ("turns a longer vector less", 2, rates(sgd=lambda lr, wd, k: lr / k)),
        ("what the control removes", 2, rates(sgd=lambda lr, wd, k: lr)),
        ("two in all", 2, rates(sgd=lambda lr, wd, k: lr * k**3)),
        ("lr is missing", 2, rates(sgd=lambda lr, wd, k: k**2)),
        ("kappa counts once only", 2, rates(adam=lambda lr, wd, k: lr * k**2)),
        ("adam: the other way round", 2, rates(adam=lambda lr, wd, k: lr / k)),
        ("adam: its steps do not shrink", 2, rates(adam=lambda lr, wd, k: lr)),
        ("the gradient does not count", 2, rates(adam=lambda lr, wd, k: lr / k**2)),
        ("by the same share", 2, rates(decay=lambda lr, wd, k: wd)),
        ("so the decay has to fall", 2, rates(decay=lambda lr, wd, k: wd * k**2)),
        ("by kappa², not by kappa", 2, rates(decay=lambda lr, wd, k: wd / k)),
        ("only the rate counts", 2, rates(decay=lambda lr, wd, k: wd / k**3)),
        ("the decay falls by kappa²", 2, rates(decay=lambda lr, wd, k: wd * k)),
        ("the first two are swapped", 1.5, lambda *a: [rates()(*a)[i] for i in (1, 0, 2)]),
        ("3 tensors; it returned one", 0, lambda lr, wd, k: 0.1),
        ("3 tensors; it returned 2", 0, lambda *a: rates()(*a)[:2]),
    ],
    "06.5": [
        ("compression: that is upside down", 2, read(squeeze=lambda x, y, b, a, s: b / a)),
        ("compression: the mean counts", 2, read(squeeze=other(None, 0))),
        ("compression: you centered each input", 2, read(squeeze=other(-1, 0))),
        ("singular values for their squares", 2, read(squeeze=roots)),
        ("compression: that is PR after", 2, read(squeeze=lambda x, y, b, a, s: a)),
        ("compression: that is the difference", 2, read(squeeze=lambda x, y, b, a, s: a - b)),
        ("PR after belongs above", 2, read(squeeze=lambda x, y, b, a, s: s / b)),
        ("kept: that is ENSD itself", 2, read(kept=lambda x, y, b, a, s: s)),
        ("kept: that is ENSD over PR before", 2, read(kept=lambda x, y, b, a, s: s / b)),
        ("that is CKA", 2, read(kept=lambda x, y, b, a, s: s / (a * b) ** 0.5)),
        ("kept: the mean counts", 2, read(kept=other(None, 1))),
        ("kept: you centered each input", 2, read(kept=other(-1, 1))),
        ("compares units", 2, read(kept=of_units)),
        ("kept: that is upside down", 2, read(kept=lambda x, y, b, a, s: a / s)),
        ("1 and 2 are swapped", 2, read(code=lambda x, y, r, k, c: torch.where(c > 0, 3 - c, c))),
        ("only compression is read", 2, read(code=lambda x, y, r, k, c: (r < 0.8).long())),
        ("only what is kept is read", 2, read(code=lambda x, y, r, k, c: torch.where(k < 0.5, 2, 1))),
        ("0 and 1 are swapped", 2, read(code=lambda x, y, r, k, c: torch.where(c < 2, 1 - c, c))),
        ("limits are the wrong way", 2, read(code=lambda x, y, r, k, c: torch.where(k > 0.5, 2, (r < 0.8).long()))),
        ("3 tensors; it returned 2", 0, read(order=(0, 1))),
        ("expected (12,)", 0, lambda x, y: (x, y, x)),
        ("2 times the expected", 2, read(squeeze=lambda x, y, b, a, s: 2 * a / b)),
    ],
}  # fmt: skip
