"""Exercises of lesson 01, lazy and rich: a conserved quantity, root_k, the inverse of q', sparse recovery."""

import torch
from torch import Tensor

from labkit.checks.attempt import call, close, compare, evaluate, kind, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.diagonal.interpolate import min_penalty
from labkit.diagonal.penalty import q_prime, q_prime_inverse, root_k_init


def conserved(answer) -> str:
    """conserved(w, v): any quantity that the flow of a path beta = w v leaves alone and that tells lam apart.

    Judged by running the flow: w + v grows like e^s and w - v shrinks like e^-s, exactly. So every one-to-one
    function of w^2 - v^2 passes, whatever its sign or scale.
    """
    c, lam = 1.3, torch.tensor([-0.9, -0.5, 0.1, 0.5, 0.9], dtype=torch.float64, device="cpu")
    w, v = torch.sqrt(c * (1 + lam) / 2), torch.sqrt(c * (1 - lam) / 2)
    v = v * torch.tensor([1, -1, 1, 1, -1], device="cpu")  # beta may start with either sign
    s = torch.linspace(-1, 1, 9, dtype=torch.float64, device="cpu")
    plus, minus = torch.outer(w + v, s.exp()), torch.outer(w - v, (-s).exp())  # (init, time)
    w, v = (plus + minus) / 2, (plus - minus) / 2

    value = evaluate(answer, w.shape, w=w, v=v)
    scale = value.abs().max()
    if ((value - value[0, 0]).abs() <= 1e-6 * scale).all():
        raise Wrong("A constant is conserved, but it says nothing about the initialization.")
    drift = value.amax(1) - value.amin(1)
    if (drift <= 1e-6 * scale).all():
        gaps = value[:, 0].sort().values.diff()
        if (gaps > 1e-6 * scale).all():
            return "It stays put along every flow and tells lam apart: training cannot forget it."
        raise Wrong("It is conserved, but two different lam give the same value: keep the sign.", share=0.5)
    moving = {
        "That is beta itself: it moves whenever the path learns.": w * v,
        "That is the squared size of the weights: it grows with |beta|. Change one sign.": w**2 + v**2,
        "w + v grows like e^s. What does w - v do at the same time?": w + v,
        "w - v shrinks like e^-s. What does w + v do at the same time?": w - v,
        "The ratio moves: the two weights approach each other in size as the path grows.": w / v,
        "The ratio moves: the weights approach each other in size as the path grows.": v / w,
        "w squared alone moves. The other layer changes at the same time: compare the two.": w**2,
        "v squared alone moves. The other layer changes at the same time: compare the two.": v**2,
    }
    for says, wrong in moving.items():
        if close(value, value[0, 0] / wrong[0, 0] * wrong).all():
            raise Wrong(says)
    row = int(drift.argmax())
    raise Wrong(
        f"It moves: along the flow that starts with lam={lam[row]:.2g} it goes from {value[row, 0]:.3g} "
        f"to {value[row, -1]:.3g}."
    )


def root_k(answer) -> str:
    """root_k(w_plus, v_plus, w_minus, v_minus) = sqrt(||theta||^4 - 4 beta(0)^2) of any initialization."""
    weights = uniform(seeded(2), -1.5, 1.5, 4, 8)
    w_plus, v_plus, w_minus, v_minus = weights
    theta = (weights**2).sum(0)
    beta, crossed = w_plus * v_plus - w_minus * v_minus, w_plus * v_plus + w_minus * v_minus
    slips = {
        "That is k. The penalty is written with its square root, root_k.": theta**2 - 4 * beta**2,
        "That is ||theta||^2: right when beta(0) = 0, but here the flow does not start at zero.": theta,
    }
    mistakes = {
        "The factor in front of beta(0)^2 is missing: A - B = 4 beta(0).": (theta**2 - beta**2).sqrt(),
        "Only the plus path is in it: the minus path counts as well.": w_plus**2 + v_plus**2,
        "Only the minus path is in it: the plus path counts as well.": w_minus**2 + v_minus**2,
        "That doubles the plus path: right only when both paths start alike.": 2 * (w_plus**2 + v_plus**2),
        "That is beta(0), where the flow starts. root_k measures how large the weights are.": beta,
        "The sign of the minus path in beta(0) is off.": (theta**2 - 4 * crossed**2).sqrt(),
        "The sign of 4 beta(0)^2 is off: A B is below the square of the mean.": (theta**2 + 4 * beta**2).sqrt(),
        "That is the norm of the weights: root_k has its square.": theta.sqrt(),
    }
    truth = root_k_init(w_plus, v_plus, w_minus, v_minus)
    compare(answer, truth, mistakes, slips, w_plus=w_plus, v_plus=v_plus, w_minus=w_minus, v_minus=v_minus)
    return "Of four initial weights, gradient flow remembers this number and where it started, beta(0)."


def inverse(answer) -> str:
    """q_prime_inverse(s, root_k) = root_k/2 sinh 2s: the coefficient whose marginal cost is s."""
    generator = seeded(3)
    s, root_k = uniform(generator, -1.5, 1.5, 8), uniform(generator, -3, 1, 8).exp()
    half, twice, price = root_k / 2, 2 * s, q_prime(s, root_k)
    mistakes = {
        "The 2 inside sinh is missing: q' carries a factor 1/2 in front of asinh.": half * torch.sinh(s),
        "The factor 1/2 in front is missing: asinh's argument is 2 beta/root_k.": root_k * torch.sinh(twice),
        "Both factors of 2 are missing, the one outside asinh and the one inside.": root_k * torch.sinh(s),
        "That has k where root_k belongs.": root_k**2 / 2 * torch.sinh(twice),
        "That has the square root of root_k: root_k is already the root.": root_k.sqrt() / 2 * torch.sinh(twice),
        "That is q' itself, evaluated at s. Solve s = q'(beta) for beta.": price,
        "That is one over q': the inverse function is meant, not the reciprocal.": 1 / price,
        "root_k is missing: the coefficient scales with it.": torch.sinh(twice) / 2,
        "You divide by root_k: the coefficient grows with it.": torch.sinh(twice) / (2 * root_k),
        "tanh saturates, but beta grows without bound: the inverse of asinh is sinh.": half * torch.tanh(twice),
        "cosh is even, but beta changes sign with s: the inverse of asinh is sinh.": half * torch.cosh(twice),
        "sin is not sinh: the inverse of asinh is the hyperbolic sine.": half * torch.sin(twice),
    }
    compare(answer, q_prime_inverse(s, root_k), mistakes, {}, s=s, root_k=root_k)
    return "Additive steps in s become multiplicative growth of beta: rich learning in one line."


DIM = 40
PROBLEMS = (14, 16)  # seeds
SCALES = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)  # what the best n is measured against
ACCURACY = 0.01  # relative error that counts as recovered


def fewest_samples(answer) -> str:
    """fewest_samples(x, beta_star) -> (c, n): a scale, and the number of first rows that recover beta_star.

    Recovered: relative error of min_penalty(x[:n], x[:n] @ beta_star, 2 c) at most ``ACCURACY``. Full points
    within one row of the best n over ``SCALES``, so that counting n up from 1 at one tiny c is enough.
    """
    for seed in PROBLEMS:
        x, beta_star = sparse_problem(seed)
        c, n = scale_and_rows(call(answer, x=x, beta_star=beta_star))
        error = relative_error(x, beta_star, c, n)
        if not error <= ACCURACY:
            squared = " Did you square the norms? The error itself is asked." if error**2 <= ACCURACY else ""
            raise Wrong(
                f"With your c={c:.3g} and n={n} the relative error is {error:.2g}, more than {ACCURACY}: not recovered."
                + squared
            )
        best = next(m for m in range(1, DIM + 1) if (relative_error(x, beta_star, SCALES, m) <= ACCURACY).any())
        if n <= best + 1:
            continue
        first = next(m for m in range(1, n + 1) if relative_error(x, beta_star, c, m) <= ACCURACY)
        if first < n:
            raise Wrong(
                f"Recovered, but at your own c={c:.3g} fewer rows than n={n} are enough. "
                "Count n up from 1 and stop at the first success.",
                share=0.5,
            )
        raise Wrong(
            f"Recovered, but it took n={n} rows, because c={c:.3g} is too large: the lazier the start, the more "
            f"rows it needs, up to n = {DIM}. Here {best} are enough for a smaller c.",
            share=0.5,
        )
    return "A tiny start finds the sparse vector from far fewer samples than dimensions."


def sparse_problem(seed: int) -> tuple[Tensor, Tensor]:
    """x (DIM, DIM) with rows of variance 1/DIM, and a vector with three spikes of height 1."""
    generator = seeded(seed)
    x = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64, device="cpu") / DIM**0.5
    beta_star = torch.zeros(DIM, dtype=torch.float64, device="cpu")
    spikes = torch.randperm(DIM, generator=generator, device="cpu")[:3]
    beta_star[spikes] = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64, device="cpu")
    return x, beta_star


def relative_error(x: Tensor, beta_star: Tensor, c: float | tuple[float, ...], n: int) -> Tensor:
    """Of what n rows and each scale c (...) recover, (...)."""
    c = torch.as_tensor(c, dtype=x.dtype, device=x.device)
    found = min_penalty(x[:n], x[:n] @ beta_star, 2 * c[..., None]).beta  # (..., DIM)
    return (found - beta_star).norm(dim=-1) / beta_star.norm()


def scale_and_rows(returned: object) -> tuple[float, int]:
    """(c, n) as numbers, or `Wrong`."""
    c, n = pair(returned, "c, n")
    try:
        c, n = float(c), float(n)
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"c and n must be two numbers, got {kind(c)} and {kind(n)}.") from None
    if n <= 1 < c or (not n.is_integer() and c.is_integer()):
        raise Wrong(f"Return (c, n), the scale first: you returned ({c:g}, {n:g}). Swapped?")
    if not n.is_integer() or not 1 <= n <= DIM:
        raise Wrong(f"n must be a whole number from 1 to {DIM}, got {n:g}.")
    if not 0 < c < float("inf"):
        raise Wrong(f"c must be positive and finite, got {c:g}: at c = 0 all weights vanish and nothing moves.")
    return c, int(n)


EXERCISES = {
    "01.1": Exercise(points=2, minutes=5, difficulty=1, check=conserved),
    "01.2": Exercise(points=2, minutes=8, difficulty=2, check=root_k),
    "01.3": Exercise(points=1, minutes=4, difficulty=1, check=inverse),
    "01.4": Exercise(points=3, minutes=10, difficulty=3, check=fewest_samples),
}
