"""Right and wrong answers to the exercises of lesson 11, as a learner would write them."""

import torch
from torch import autograd, linalg
from torch.nn import functional


def entropy(logits, y):
    return functional.cross_entropy(logits, y, reduction="sum")


def by_autograd(loss=entropy, after=lambda g: g):
    """g from one backward pass through the loss as given."""

    def answer(top, z, y):
        z = z.clone().requires_grad_()
        return after(autograd.grad(loss(top(z), y), z)[0])

    return answer


def one_by_one(top, z, y):
    rows = []
    for row, label in zip(z, y, strict=True):
        row = row.clone().requires_grad_()
        functional.cross_entropy(top(row), label).backward()
        rows.append(row.grad)
    return torch.stack(rows)


def of_logits(top, z, y):
    return torch.softmax(top(z), -1) - functional.one_hot(y, top(z).shape[1])


def chosen(logits, y):
    return logits.gather(1, y[:, None]).sum()


def moment(g, phi):
    return g.T @ phi / len(g)


def slope_of(first=lambda g, phi, new: moment(g, phi), second=lambda new, old: moment(*new), after=lambda a, b: a * b):
    """Minus the sum of what ``after`` makes of two moments."""

    def answer(g, phi, g_new, phi_new):
        new = g_new, phi_new
        return -after(first(g, phi, new), second(new, (g, phi))).sum()

    return answer


def both(one, two):
    return moment(*(torch.cat(pair) for pair in zip(one, two, strict=True)))


def sums(g, phi, *_):
    return g.T @ phi


def solved(cross=moment, second=lambda phi: phi.T @ phi / len(phi), add=lambda lam, eye: lam * eye, after=lambda v: -v):
    """V from moments as given."""

    def answer(g, phi, lam):
        eye = torch.eye(phi.shape[1], dtype=phi.dtype)
        return after(linalg.solve(second(phi) + add(lam, eye), cross(g, phi).T).T)

    return answer


def by_inverse(g, phi, lam):
    return -moment(g, phi) @ linalg.inv(moment(phi, phi) + lam * torch.eye(phi.shape[1], dtype=phi.dtype))


def root_inverse(g, phi, lam):
    values, vectors = linalg.eigh(phi.T @ phi / len(phi) + lam * torch.eye(phi.shape[1], dtype=phi.dtype))
    return -moment(g, phi) @ vectors @ torch.diag(values**-0.5) @ vectors.T


def diagonal(g, phi, lam):
    return -moment(g, phi) / ((phi**2).mean(0) + lam)


def in_units(g, phi, lam):
    return solved()(g, phi, lam * (phi**2).mean())


def times(g, phi, lam):
    return -moment(g, phi) @ (phi.T @ phi / len(phi) + lam * torch.eye(phi.shape[1], dtype=phi.dtype))


def backward(
    slope=lambda a: 1 - torch.tanh(a) ** 2,
    features=torch.tanh,
    back=lambda g, w2: g @ w2,
    one=lambda d, n: d / n,
    two=lambda d, n: d / n,
    order=lambda one, two: (one, two),
):
    """Both gradients of a block, with a mistake."""

    def answer(g, z, w1, w2):
        a, n = z @ w1.T, len(g)
        return order(one((back(g, w2) * slope(a)).T @ z, n), two(g.T @ features(a), n))

    return answer


def by_torch(g, z, w1, w2):
    w1, w2 = w1.clone().requires_grad_(), w2.clone().requires_grad_()
    return autograd.grad((g * (torch.tanh(z @ w1.T) @ w2.T)).sum(1).mean(), (w1, w2))


def first_norm(square, eps):
    return square / (square + eps)


def factor(size=lambda u: (u**2).mean(-1), total=lambda r2, eps: (r2 + eps) ** -0.5, first=first_norm):
    """1/√(r² + ε), with a mistake."""
    return lambda u, eps: total(first(size(u), eps), eps)


def measured(u, eps):
    z = u / ((u**2).mean(-1, keepdim=True) + eps).sqrt()
    return ((z / (z**2 + 0).mean(-1, keepdim=True).add(eps).sqrt()) / z)[:, 0]


RIGHT = {
    "11.1": [by_autograd(), one_by_one, by_autograd(after=lambda g: g.numpy())],
    "11.2": [slope_of(), lambda g, phi, g2, phi2: ((g2 @ -moment(g, phi)) * phi2).sum(1).mean()],
    "11.3": [solved(), by_inverse],
    "11.4": [backward(), by_torch],
    "11.5": [factor(), measured],
}  # fmt: skip

# id -> a phrase of the message, the points it earns, the wrong answer
WRONG = {
    "11.1": [
        ("gradients of the mean loss", 0, by_autograd(functional.cross_entropy)),
        ("a mean over samples", 0, by_autograd(after=lambda g: g.mean(0).expand_as(g))),
        ("a sum over samples", 0, by_autograd(after=lambda g: g.sum(0).expand_as(g))),
        ("the softmax is missing", 0, by_autograd(lambda out, y: -chosen(out, y))),
        ("gradient of 1 − p_y", 0, by_autograd(lambda out, y: -chosen(out.softmax(-1), y))),
        ("for the predicted class", 0, by_autograd(lambda out, y: entropy(out, out.argmax(-1)))),
        ("for y = 0", 0, by_autograd(lambda out, y: entropy(out, 0 * y))),
        ("not of ln p_y", 1, by_autograd(after=lambda g: -g)),
        ("not the logits", 0, of_logits),
        ("constant factor", 0, by_autograd(after=lambda g: g / 0.6931)),
        ("expected (9, 6): rows and columns", 0, by_autograd(after=lambda g: g.sum(0))),
        ("g[", 0, by_autograd(after=lambda g: g**3)),
        ("nan or infinite", 0, by_autograd(after=lambda g: g / 0)),
    ],
    "11.2": [
        ("slope on the sample that chose V", 0, slope_of(second=lambda new, old: moment(*old))),
        ("on the new sample too", 0, slope_of(first=lambda g, phi, new: moment(*new))),
        ("evaluated on both samples", 0, slope_of(second=both)),
        ("chosen on both samples", 0, slope_of(first=lambda g, phi, new: both((g, phi), new))),
        ("Both M are sums", 0, slope_of(first=sums, second=lambda new, old: sums(*new))),
        ("The M of the first sample is a sum", 0, slope_of(first=sums)),
        ("The M of the new sample is a sum", 0, slope_of(second=lambda new, old: sums(*new))),
        ("by the number of new samples", 0, slope_of(second=lambda new, old: sums(*new) / len(old[0]))),
        ("⟨M, V⟩ is their sum", 0, slope_of(after=lambda a, b: (a * b).mean())),
        ("V is normalized", 0, slope_of(after=lambda a, b: a / a.norm() * b)),
        ("a mean of products", 0, slope_of(second=lambda new, old: torch.outer(new[0].mean(0), new[1].mean(0)))),
        ("That is G", 1.5, slope_of(after=lambda a, b: -a * b)),
        ("expected (): one number", 0, lambda g, phi, *new: moment(g, phi)),
        ("The slope is", 0, slope_of(after=lambda a, b: a * b + 1)),
    ],
    "11.3": [
        ("the gradient direction", 0, lambda g, phi, lam: -moment(g, phi)),
        ("λ is missing", 0, solved(add=lambda lam, eye: 0)),
        ("λ is too small beside them", 0, solved(sums, lambda phi: phi.T @ phi)),
        ("Φ is a sum", 0, solved(second=lambda phi: phi.T @ phi)),
        ("M is a sum", 0, solved(sums)),
        ("do not center", 0, solved(second=lambda phi: torch.cov(phi.T, correction=0))),
        ("take its inverse", 0, times),
        ("the inverse root", 0, root_inverse),
        ("Only the diagonal", 0, diagonal),
        ("λ is subtracted", 0, solved(add=lambda lam, eye: -lam * eye)),
        ("every entry of Φ", 0, solved(add=lambda lam, eye: lam)),
        ("−M descends", 1.5, solved(after=lambda v: v)),
        ("units of the mean", 1.5, in_units),
        ("V transposed", 1.5, solved(after=lambda v: -v.T)),
        ("constant factor", 0, solved(after=lambda v: -2 * v)),
        ("V[", 0, solved(after=lambda v: -v + 1)),
        ("expected (5, 7)", 0, solved(after=lambda v: v.sum(0))),
    ],
    "11.4": [
        ("derivative of tanh is missing", 2, backward(slope=torch.ones_like)),
        ("not 1 − φ.", 2, backward(slope=lambda a: 1 - torch.tanh(a))),
        ("derivative of a sigmoid", 2, backward(slope=lambda a: torch.tanh(a) * (1 - torch.tanh(a)))),
        ("derivative of a ReLU", 2, backward(slope=lambda a: (a > 0).double())),
        ("φ stands where", 2, backward(slope=torch.tanh)),
        ("without its tanh", 2, backward(slope=lambda a: 1 - a**2)),
        ("W₂ᵀg is missing", 2, backward(back=lambda g, w2: torch.ones(len(g), w2.shape[1]).double())),
        ("dL/dw1 is a sum", 2, backward(one=lambda d, n: d)),
        ("sign of dL/dw1", 3, backward(one=lambda d, n: -d / n)),
        ("not W₁z", 2, backward(features=lambda a: a)),
        ("not its derivative", 2, backward(features=lambda a: 1 - torch.tanh(a) ** 2)),
        ("features of a ReLU", 2, backward(features=torch.relu)),
        ("dL/dw2 is a sum", 2, backward(two=lambda d, n: d)),
        ("sign of dL/dw2", 3, backward(two=lambda d, n: -d / n)),
        ("yours are swapped", 2, backward(order=lambda one, two: (two, one))),
        ("transposed?", 0, backward(order=lambda one, two: (one.T, two.T))),
        ("pair (dL/dw1, dL/dw2)", 0, lambda g, z, w1, w2: 0.0),
        ("dL/dw1[", 0, backward(slope=torch.exp, features=torch.exp)),
    ],
    "11.5": [
        ("That is the first norm", 0, lambda u, eps: ((u**2).mean(-1) + eps) ** -0.5),
        ("both norms together", 0, lambda u, eps: factor()(u, eps) * ((u**2).mean(-1) + eps) ** -0.5),
        ("missing in the second norm", 0, factor(total=lambda r2, eps: r2**-0.5)),
        ("missing in the first norm", 0, factor(first=lambda a, eps: torch.ones_like(a))),
        ("by a root: it is missing", 0, factor(total=lambda r2, eps: 1 / (r2 + eps))),
        ("the norm divides by it", 0, factor(total=lambda r2, eps: (r2 + eps) ** 0.5)),
        ("r stands where r²", 0, factor(total=lambda r2, eps: (r2**0.5 + eps) ** -0.5)),
        ("ε is squared", 0, factor(total=lambda r2, eps: (r2 + eps**2) ** -0.5)),
        ("not the sum", 0, factor(size=lambda u: (u**2).sum(-1))),
        ("standard deviation", 0, factor(size=lambda u: u.var(-1, correction=0))),
        ("for ε = 0 only", 0, lambda u, eps: torch.ones(len(u))),
        ("deviation from 1", 1, lambda u, eps: factor()(u, eps) - 1),
        ("The factor[", 0, lambda u, eps: factor()(u, eps) ** 3),
        ("expected (8,): one value for each sample", 0, lambda u, eps: factor()(u, eps)[:, None]),
    ],
}  # fmt: skip
