"""Exercises of lesson 11, the jumpboard: activation gradients, honest slopes, the best direction, dead starts."""

import torch
from torch import Tensor
from torch.nn import functional

from labkit.checks.attempt import as_tensor, call, close, pair, recognize, seeded
from labkit.checks.verdict import Exercise, Wrong

SHAPES = ("one number", "one value for each sample", "rows and columns as the docstring has them")  # by dimensions


def value_of(returned: object, shape: tuple[int, ...]) -> Tensor:
    value = as_tensor(returned, shape, SHAPES[len(shape)])
    if not value.isfinite().all():
        raise Wrong("Your function returned nan or infinite values: a division or a root?")
    return value


def judge(value: Tensor, truth: Tensor, mistakes: dict[str, Tensor], slips: dict[str, Tensor], what: str) -> None:
    """As `compare`, for answers whose inputs have other shapes than they: ``what`` names the answer."""
    off = ~close(value, truth)
    if not off.any():
        return
    recognize(value, truth, mistakes, slips, what)
    at = tuple(((value - truth).abs() == (value - truth).abs().max()).nonzero()[0].tolist())
    where = f"{what}[{', '.join(map(str, at))}]" if at else what
    raise Wrong(f"{where} is {value[at]:.4g}, expected {truth[at]:.4g} ({int(off.sum())} of {off.numel()} are off).")


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def activation_gradient(answer) -> str:
    """activation_gradient(top, z, y) -> g (n, d), against the product of the Jacobian of top with p − e_y."""
    n, d, classes, generator = 9, 6, 4, seeded(111)
    z, y = normal(generator, n, d), torch.tensor([0, 3, 1, 2, 2, 0, 1, 3, 0], device="cpu")
    inner, out = normal(generator, d, d) / d**0.5, normal(generator, classes, d)

    def top(z: Tensor) -> Tensor:
        u = z + torch.tanh(z @ inner)
        return u / (u.square().mean(-1, keepdim=True) + 1e-2).sqrt() @ out.T

    jacobian = torch.stack([torch.autograd.functional.jacobian(top, row) for row in z])  # (n, classes, d)
    p = torch.softmax(top(z), -1)
    error = p - functional.one_hot(y, classes)

    def back(error: Tensor) -> Tensor:
        return (error[..., None] * jacobian).sum(1)

    truth, likely = back(error), functional.one_hot(p.argmax(-1), classes)
    mine = p.gather(1, y[:, None])
    mistakes = {
        "Those are gradients of the mean loss: every g is too small by 1/n. Differentiate the sum.": truth / n,
        "Every row is the same, a mean over samples: g has one row for each sample.": truth.mean(0).expand(n, d),
        "Every row is the same, a sum over samples: g has one row for each sample.": truth.sum(0).expand(n, d),
        "That is the gradient of −logit of y: the softmax is missing.": back(-functional.one_hot(y, classes)),
        "That is the gradient of 1 − p_y: take −ln p_y.": mine * truth,
        "That is for the predicted class: take the class y.": back(p - likely),
        "That is the gradient of −ln p_y for y = 0 in every row: y is missing.": back(
            p - functional.one_hot(0 * y, classes)
        ),
    }
    slips = {"The sign is off: g is the gradient of the loss, not of ln p_y.": -truth}
    returned = call(answer, top=top, z=z, y=y)
    if getattr(returned, "shape", None) == error.shape:
        raise Wrong(
            "Your function returned one number for each class: differentiate with respect to z, not the logits."
        )
    judge(value_of(returned, (n, d)), truth, mistakes, slips, "g")
    return "One backward pass, and every sample says how it wants its layer changed."


def honest_slope(answer) -> str:
    """honest_slope(g, phi, g_new, phi_new) -> −⟨M, M_new⟩."""
    generator, d, m, n, n_new = seeded(112), 5, 7, 40, 25
    g, g_new = normal(generator, n, d) + 0.3, normal(generator, n_new, d) + 0.3
    phi, phi_new = normal(generator, n, m).relu(), normal(generator, n_new, m).relu()
    first, second = g.T @ phi / n, g_new.T @ phi_new / n_new
    pooled = torch.cat([g, g_new]).T @ torch.cat([phi, phi_new]) / (n + n_new)
    truth = -(first * second).sum()
    mistakes = {
        "That is the slope on the sample that chose V, −‖M‖²: evaluate on the new one.": -first.square().sum(),
        "V is chosen on the new sample too: choose it on the first one.": -second.square().sum(),
        "V is evaluated on both samples together: only the new one is honest.": -(first * pooled).sum(),
        "V is chosen on both samples together: the new one may not take part.": -(pooled * second).sum(),
        "Both M are sums over samples: take means.": n * n_new * truth,
        "The M of the first sample is a sum: take the mean.": n * truth,
        "The M of the new sample is a sum: take the mean.": n_new * truth,
        "Each M is a mean over its own sample: divide the new one by the number of new samples.": n_new / n * truth,
        "That is the mean of the products of entries: ⟨M, V⟩ is their sum.": truth / (d * m),
        "V is normalized: take V = −M as it is.": truth / first.norm(),
        "Each sample counts by itself: E⟨g, Vφ⟩ is a mean of products, not a product of means.": (
            g_new.mean(0) @ (-first) @ phi_new.mean(0)
        ),
    }
    slips = {"That is G: the slope is −G.": -truth}
    returned = call(answer, g=g, phi=phi, g_new=g_new, phi_new=phi_new)
    judge(value_of(returned, ()), truth, mistakes, slips, "The slope")
    return "What is negative here is a direction; what is negative on its own sample may be noise."


def best_direction(answer) -> str:
    """best_direction(g, phi, lam) -> V = −M(Φ + λI)⁻¹ (d, m)."""
    generator, d, m, n, lam = seeded(113), 5, 7, 30, 0.4
    g, phi = normal(generator, n, d), normal(generator, n, m).relu()
    cross, second, eye = g.T @ phi / n, phi.T @ phi / n, torch.eye(m, dtype=torch.float64, device="cpu")
    centered = phi - phi.mean(0)

    def v(cross: Tensor, second: Tensor) -> Tensor:
        return -torch.linalg.solve(second, cross.T).T

    values, vectors = torch.linalg.eigh(second + lam * eye)
    truth = v(cross, second + lam * eye)
    mistakes = {
        "That is −M, the gradient direction: (Φ + λI)⁻¹ is missing.": -cross,
        "λ is missing.": v(cross, second),
        "M and Φ are sums over samples, so λ is too small beside them: divide both by n.": v(
            n * cross, n * second + lam * eye
        ),
        "Φ is a sum over samples: divide it by n.": v(cross, n * second + lam * eye),
        "M is a sum over samples: divide it by n.": n * truth,
        "Φ is the second moment of the features, not their covariance: do not center.": v(
            cross, centered.T @ centered / n + lam * eye
        ),
        "That multiplies by Φ + λI: take its inverse.": -cross @ (second + lam * eye),
        "That is the inverse root of Φ + λI: take the whole inverse.": -cross @ (vectors * values.rsqrt()) @ vectors.T,
        "Only the diagonal of Φ is used: features that resemble each other share what they explain.": (
            -cross / (second.diagonal() + lam)
        ),
        "λ is subtracted: add it.": v(cross, second - lam * eye),
        "λ is added to every entry of Φ: it belongs on the diagonal.": v(cross, second + lam),
    }
    slips = {
        "The sign is off: −M descends.": -truth,
        "λ is in units of the mean of Φ's diagonal there, as on the slider below: add λ itself.": v(
            cross, second + lam * second.diagonal().mean() * eye
        ),
    }
    returned = call(answer, g=g, phi=phi, lam=lam)
    if getattr(returned, "shape", None) == (m, d):
        judge(value_of(returned, (m, d)), truth.T + 1, {}, {"That is V transposed: V is (d, m).": truth.T}, "V")
    judge(value_of(returned, (d, m)), truth, mistakes, slips, "V")
    return "A ridge regression of g on the features, with the sign that descends."


def block_gradients(answer) -> str:
    """block_gradients(g, z, w1, w2) -> (dL/dw1 (m, d), dL/dw2 (d, m)) of h = w2 tanh(w1 z), against autograd."""
    generator, d, m, n = seeded(114), 4, 6, 12
    g, z, w1, w2 = (normal(generator, *shape) for shape in ((n, d), (n, d), (m, d), (d, m)))
    own = [w.clone().requires_grad_() for w in (w1, w2)]
    one, two = torch.autograd.grad((g * (torch.tanh(z @ own[0].T) @ own[1].T)).sum() / n, own)
    a = z @ w1.T
    phi, back = torch.tanh(a), g @ w2

    def first(slope: Tensor, by: Tensor = back) -> Tensor:
        return (by * slope).T @ z / n

    mistakes1 = {
        "dL/dw1: the derivative of tanh is missing.": first(torch.ones_like(phi)),
        "dL/dw1: the derivative of tanh is 1 − φ², not 1 − φ.": first(1 - phi),
        "dL/dw1: φ(1 − φ) is the derivative of a sigmoid, that of tanh is 1 − φ².": first(phi * (1 - phi)),
        "dL/dw1: that is the derivative of a ReLU, that of tanh is 1 − φ².": first((a > 0).double()),
        "dL/dw1: φ stands where its derivative 1 − φ² belongs.": first(phi),
        "dL/dw1: 1 − φ² is taken at z W₁ᵀ without its tanh.": first(1 - a**2),
        "dL/dw1: W₂ᵀg is missing.": first(1 - phi**2, torch.ones_like(back)),
        "dL/dw1 is a sum over samples: take the mean.": n * one,
    }
    mistakes2 = {
        "dL/dw2: the features are tanh(W₁z), not W₁z.": g.T @ a / n,
        "dL/dw2: φ itself belongs here, not its derivative.": g.T @ (1 - phi**2) / n,
        "dL/dw2: the features of a ReLU; here they are tanh(W₁z).": g.T @ a.relu() / n,
        "dL/dw2 is a sum over samples: take the mean.": n * two,
    }
    signs = "The sign of {} is off: it is the gradient, not the way down."
    returned = pair(call(answer, g=g, z=z, w1=w1, w2=w2), "dL/dw1, dL/dw2")
    shapes = [tuple(getattr(part, "shape", ())) for part in returned]
    if shapes == [(d, m), (m, d)]:
        swapped = [value_of(part, shape) for part, shape in zip(returned, shapes, strict=True)]
        says = "Return (dL/dw1, dL/dw2), in this order and each of the shape of its weight"
        right = close(swapped[0], two).all() and close(swapped[1], one).all()
        raise Wrong(f"{says}: yours are swapped." if right else f"{says}: transposed?", 0.5 if right else 0)
    wrong = []
    parts = (returned[0], one, mistakes1, "dL/dw1"), (returned[1], two, mistakes2, "dL/dw2")
    for part, truth, mistakes, name in parts:
        try:
            judge(value_of(part, tuple(truth.shape)), truth, mistakes, {signs.format(name): -truth}, name)
        except Wrong as found:
            wrong.append(found)
    if wrong:
        raise Wrong(str(wrong[0]), share=(2 - len(wrong) + sum(found.share for found in wrong)) / 2)
    return "W₁ = 0 kills the one, W₂ = 0 the other, both zero kill both: then nothing ever moves."


def second_norm(answer) -> str:
    """second_norm(u, eps) -> 1/√(r² + ε) (n,), r² = mean u²/(mean u² + ε)."""
    generator = seeded(115)
    for eps in (0.02, 0.3):
        u = normal(generator, 8, 5) * torch.linspace(0.1, 2, 8, dtype=torch.float64, device="cpu")[:, None]
        square, total = u.square().mean(-1), u.square().sum(-1)
        spread, r2 = u.var(-1, correction=0), square / (square + eps)
        truth = (r2 + eps).rsqrt()
        mistakes = {
            "That is the first norm, 1/√(mean u² + ε): the second one sees z.": (square + eps).rsqrt(),
            "That is both norms together: only the second one is asked for.": truth * (square + eps).rsqrt(),
            "ε is missing in the second norm.": r2.rsqrt(),
            "ε is missing in the first norm: then z has rms 1.": torch.full_like(truth, (1 + eps) ** -0.5),
            "The norm divides by a root: it is missing.": truth**2,
            "That is √(r² + ε): the norm divides by it.": 1 / truth,
            "r stands where r² belongs.": (r2.sqrt() + eps).rsqrt(),
            "ε is squared.": (r2 + eps**2).rsqrt(),
            "The mean of u² is asked for, not the sum.": (total / (total + eps) + eps).rsqrt(),
            "rms, not the standard deviation: N does not subtract the mean.": (spread / (spread + eps) + eps).rsqrt(),
            "The factor is 1 for ε = 0 only.": torch.ones_like(truth),
        }
        slips = {"That is the deviation from 1: the factor itself is asked for.": truth - 1}
        judge(value_of(call(answer, u=u, eps=eps), (8,)), truth, mistakes, slips, "The factor")
    return "Small for a layer of rms 1, and 40 % for a weak one: a norm at the end of the block is no detail."


EXERCISES = {
    "11.1": Exercise(points=2, minutes=8, difficulty=2, check=activation_gradient),
    "11.2": Exercise(points=3, minutes=6, difficulty=2, check=honest_slope),
    "11.3": Exercise(points=3, minutes=8, difficulty=2, check=best_direction),
    "11.4": Exercise(points=4, minutes=12, difficulty=3, check=block_gradients),
    "11.5": Exercise(points=2, minutes=6, difficulty=2, check=second_norm),
}
