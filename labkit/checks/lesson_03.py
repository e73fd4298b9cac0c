"""Exercises of lesson 03, predicting generalization: one coefficient, two equations, where the best regime changes."""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.checks.attempt import call, compare, kind, pair, seeded, uniform
from labkit.checks.verdict import Exercise, NotAttempted, Wrong
from labkit.diagonal import replica
from labkit.diagonal.penalty import q, q_prime, root_k_finetune
from labkit.diagonal.tasks import FULL, SUBSET, TaskPair


def one_coefficient(answer) -> str:
    """shrink(r, root_k, tau): the b with b + tau q'(b; root_k) = r."""
    r, root_k, tau = coefficients(seeded(9), 12)
    b = replica.prox(r, root_k, tau)
    size, sign = r.abs(), r.sign()

    def with_price(price: Callable[[Tensor], Tensor]) -> Tensor:
        return sign * root_of(lambda b: b + tau * price(b), size)

    slips = {
        "The sign of r is lost: the estimate has the sign of r.": b.abs(),
        "Right for positive r only: q' is odd, so b is odd in r.": torch.where(r > 0, b, 0),
        "The 1/2 in q' is missing: q'(b) = asinh(2b/root_k)/2.": replica.prox(r, root_k, 2 * tau),
    }
    mistakes = {
        "tau is missing: it multiplies q'.": replica.prox(r, root_k, 1.0),
        "That has the cost q where its slope q' belongs.": with_price(lambda b: q(b, root_k)),
        "q' is taken at r. It belongs at b, the unknown: that is what makes it an equation.": r
        - tau * q_prime(r, root_k),
        "That is the r that belongs to b = r: the equation is turned over.": r + tau * q_prime(r, root_k),
        "That has k where root_k belongs.": replica.prox(r, root_k**2, tau),
        "That has the square root of root_k: root_k is already the root.": replica.prox(r, root_k.sqrt(), tau),
        "The 2 inside asinh is missing: q'(b) = asinh(2b/root_k)/2.": replica.prox(r, 2 * root_k, tau),
        "That is the soft threshold at tau, a lasso: q' is not constant.": sign * (size - tau).clamp_min(0),
        "That is linear shrinkage, a ridge: right for small r only.": r * root_k / (root_k + tau),
        "That is how far b follows r, the derivative: the next exercise.": replica.prox_prime(r, root_k, tau),
        "That is r itself: the price is missing.": r,
    }
    compare(answer, b, mistakes, slips, r=r, root_k=root_k, tau=tau)
    return "Small values shrink in proportion, large ones by nearly the same amount: a ridge inside, a lasso outside."


def derivative(answer) -> str:
    """follow(b, root_k, tau) = h/(h + tau), h = sqrt(root_k^2 + 4 b^2)."""
    r, root_k, tau = coefficients(seeded(10), 12)
    b = replica.prox(r, root_k, tau)
    h = torch.sqrt(root_k**2 + 4 * b**2)
    mistakes = {
        "That is 1 - db/dr, how far b lags behind.": tau / (h + tau),
        "That is dr/db: turn it over.": 1 + tau / h,
        "That is q'' itself: b moves by 1/(1 + tau q'').": 1 / h,
        "tau is missing: it multiplies q''.": h / (h + 1),
        "That has q' where q'' belongs.": 1 / (1 + tau * q_prime(b, root_k)),
        "tau counts twice: q'' = 1/sqrt(k + 4b^2), without a 2.": h / (h + 2 * tau),
        "tau counts half: q'' = 1/sqrt(k + 4b^2), without a 1/2.": h / (h + tau / 2),
        "The 4 in front of b^2 is missing.": (g := torch.sqrt(root_k**2 + b**2)) / (g + tau),
        "k is the square of root_k: square it under the root.": (g := torch.sqrt(root_k + 4 * b**2)) / (g + tau),
        "The root is missing: q'' = 1/sqrt(k + 4b^2).": h**2 / (h**2 + tau),
        "Right at b = 0 only: b is missing.": root_k / (root_k + tau),
        "The minus sign is wrong: (1 + tau q'') db/dr = 1.": h / (h - tau),
    }
    compare(answer, h / (h + tau), mistakes, {}, b=b, root_k=root_k, tau=tau)
    return "A coefficient that is large, or whose root_k is, follows the data; a small one hardly does."


def two_equations(answer) -> str:
    """solve(alpha, share, beta_star, root_k) -> (omega, tau), each to 1 %."""
    for task, lam in ((FULL, -0.9), (TaskPair(0.2, 0.5, 0.1), 0.0)):
        alpha, (share, beta_star, root_k) = 0.2, kinds(task, 0.1, lam, 0.1)
        found = pair(call(answer, alpha=alpha, share=share, beta_star=beta_star, root_k=root_k), "omega, tau")
        try:
            omega, tau = (float(value) for value in found)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            words = " and ".join(kind(value) for value in found)
            raise Wrong(f"omega and tau must be two numbers, got {words}.") from None
        if not (0 < omega < torch.inf and 0 < tau < torch.inf):
            raise Wrong(f"omega and tau must be positive and finite, got omega={omega:.4g}, tau={tau:.4g}.")
        said = replica.generalization_error(task, 0.1, lam, 0.1, alpha)
        explain(omega, tau, float(said.omega), float(said.tau), alpha, share, beta_star, root_k)
    return "Two numbers, and the error of thousands of coefficients is known: omega^2 alpha."


def explain(
    omega: float, tau: float, right_omega: float, right_tau: float, alpha: float, share: Tensor, star: Tensor, k: Tensor
) -> None:
    """Raise `Wrong` when (omega, tau) is off by more than 1 %, with the mistake that leads there."""

    def same(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return all(abs(x / y - 1) < 0.01 for x, y in zip(a, b, strict=True))

    mine, energy = (omega, tau), float((share * star**2).sum())
    if same(mine, (right_omega, right_tau)):
        return
    if same(mine, (right_omega**2, right_tau)):
        raise Wrong("That is omega^2: take the root.", share=0.5)
    if same(mine, (right_tau, right_omega)):
        raise Wrong("Return (omega, tau), in this order: yours are swapped.", share=0.5)
    if abs(omega / (energy * (1 - alpha) / alpha) ** 0.5 - 1) < 0.01:
        raise Wrong("That omega is the ridge answer, error 1 - alpha: the penalty is not quadratic here.")
    if abs(omega / (energy / alpha) ** 0.5 - 1) < 0.01:
        raise Wrong("That omega is where the iteration starts, with an error of 1: put the new error in and go on.")
    for says, wrong in {
        "alpha is missing in the first equation: omega^2 = error/alpha.": fixed_point(alpha, share, star, k, spread=1),
        "E prox' must be alpha, not 1 - alpha.": fixed_point(alpha, share, star, k, follow=1 - alpha),
        "The kinds must be weighted by share: they are not equally frequent.": fixed_point(
            alpha, torch.full_like(share, 1 / len(share)), star, k
        ),
        "That has k where root_k belongs.": fixed_point(alpha, share, star, k**2),
    }.items():
        if same(mine, wrong):
            raise Wrong(says)
    error, follow = (float(value) for value in averages(omega, tau, share, star, k))
    if abs(follow / alpha - 1) > 0.02:
        raise Wrong(
            f"At your (omega, tau) = ({omega:.3g}, {tau:.3g}), E prox' is {follow:.3g} and must be {alpha:g}. Solve "
            "for tau exactly in every round: small steps of both together stall at wrong values."
        )
    raise Wrong(
        f"E prox' is alpha at your tau, but omega^2 = {omega**2:.3g} and error/alpha = {error / alpha:.3g}: go on with "
        "the rounds until both agree."
    )


def averages(omega: float, tau: float, share: Tensor, star: Tensor, root_k: Tensor) -> tuple[Tensor, Tensor]:
    """E(b - beta*)^2 and E prox' over z and the kinds."""
    z = torch.linspace(-7, 7, 201, dtype=torch.float64, device="cpu")
    weight = torch.exp(-(z**2) / 2)
    weight = share[:, None] * weight / weight.sum()
    r = star[:, None] + omega * z
    wrong = replica.prox(r, root_k[:, None], tau) - star[:, None]
    return (weight * wrong**2).sum(), (weight * replica.prox_prime(r, root_k[:, None], tau)).sum()


def fixed_point(
    alpha: float, share: Tensor, star: Tensor, root_k: Tensor, follow: float | None = None, spread: float | None = None
) -> tuple[float, float]:
    """(omega, tau) of the learner's scheme, with E prox' = follow and omega^2 = error/spread; both alpha by default."""
    omega, follow, spread = float((share * star**2).sum()) ** 0.5, follow or alpha, spread or alpha
    for _ in range(40):
        low, high = 1e-6, 1e6
        for _ in range(30):
            tau = (low * high) ** 0.5
            low, high = (tau, high) if averages(omega, tau, share, star, root_k)[1] > follow else (low, tau)
        omega = float(averages(omega, tau, share, star, root_k)[0] / spread) ** 0.5
    return omega, tau


def kinds(task: TaskPair, c: float, lam: float, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """share, beta_star, root_k of the kinds that occur: pretrained or not, times needed or not."""
    old, new, pt = task.rho_pt, 1 - task.rho_pt, task.rho_pt**-0.5
    share = [old * task.rho_shared, old * (1 - task.rho_shared), new * task.rho_new, new * (1 - task.rho_new)]
    share, spike = torch.tensor(share, dtype=torch.float64, device="cpu"), task.rho_ft**-0.5
    beta_pt, star = (share.new_tensor(values) for values in ([pt, pt, 0, 0], [spike, 0, spike, 0]))
    there = share > 0
    return share[there], star[there], root_k_finetune(beta_pt, c, lam, gamma)[there]


C, GAMMA = 1e-3, 0.1  # of the last exercise, with the task SUBSET


def switch(answer) -> str:
    """The first alpha at which the best lam of SUBSET is not in regime IV, to 0.02."""
    alpha = call(answer) if callable(answer) else answer
    if alpha is None or alpha is Ellipsis:
        raise NotAttempted("Replace the stub by your own code, then run this cell again.")
    try:
        alpha = float(alpha)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Wrong(f"alpha must be a number, got {kind(alpha)}.") from None
    if not 0 < alpha < 1:
        hint = ": a ratio, not a number of samples." if alpha > 1 else "."
        raise Wrong(f"alpha must lie between 0 and 1, got {alpha:g}{hint}")
    grid = torch.arange(0.1, 0.7, 0.005, dtype=torch.float64, device="cpu")
    lam, names = best(grid)
    right = next(i for i, name in enumerate(names) if name != "IV")
    reuse = next(i for i in range(right, len(grid)) if lam[i] > 0)
    afresh = next(i for i in range(right, len(grid)) if lam[i] == -1)
    if abs(alpha - float(grid[right])) <= 0.02:
        return f"There IV gives way to {names[right]}: a border crossed, not a jump. The best lam drifts on towards -1."
    for at, says in (
        (float(grid[reuse]), "That is where lam = 1 takes over, much later. Regime IV ends before."),
        (float(grid[afresh]), "That is where the best lam is exactly -1. The regime has its new name before."),
        (
            SUBSET.rho_pt,
            "That is the share of pretrained features. Counting is not enough: compare the predicted errors.",
        ),
        (SUBSET.rho_ft, "That is the share of features that return: with so few samples nothing is recovered yet."),
    ):
        if abs(alpha - at) <= 0.012:
            raise Wrong(says)
    there = float(best(grid.new_tensor([alpha]))[0])
    there = f"At alpha = {alpha:.3g} the best lam is {there:.4g}"
    raise Wrong(f"{there}, still in regime IV: it is more." if alpha < grid[right] else f"{there}: it is less.")


def best(alpha: Tensor) -> tuple[Tensor, list[str]]:
    """The best lam of SUBSET at each alpha (points,), and its regime."""
    lam = torch.cat([alpha.new_tensor([-1]), 2 * torch.logspace(-4, 0, 80, dtype=alpha.dtype, device="cpu") - 1])
    lam = lam[replica.generalization_error(SUBSET, C, lam, GAMMA, alpha[:, None]).error.argmin(-1)]
    return lam, SUBSET.regime_names(C, lam, GAMMA)


def coefficients(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """r of both signs, root_k from 0.01 to 5, tau from 0.2 to 2."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64, device="cpu").repeat(count // 2)
    r = signs * uniform(generator, 0.3, 3, count)
    return r, uniform(generator, -4.6, 1.6, count).exp(), uniform(generator, -1.6, 0.7, count).exp()


def root_of(function: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """The b in [0, value] where the growing ``function`` reaches value."""
    low, high = torch.zeros_like(value), value
    for _ in range(60):
        middle = (low + high) / 2
        below = function(middle) < value
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


EXERCISES = {
    "03.1": Exercise(points=3, minutes=10, difficulty=2, check=one_coefficient),
    "03.2": Exercise(points=2, minutes=6, difficulty=1, check=derivative),
    "03.3": Exercise(points=4, minutes=25, difficulty=3, check=two_equations),
    "03.4": Exercise(points=3, minutes=12, difficulty=2, check=switch),
}
