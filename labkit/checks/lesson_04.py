"""Exercises of lesson 04, imperfect pretraining: fixed point, false features, the gain of a negative λ and its end."""

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, compare, compare_parts, pair, seeded, uniform
from labkit.checks.verdict import Exercise, Wrong
from labkit.diagonal.interpolate import recovery_threshold
from labkit.diagonal.penalty import q_prime
from labkit.diagonal.replica import generalization_error, prox, prox_prime
from labkit.diagonal.tasks import FULL, TaskPair


def fixed_point(answer) -> str:
    """residuals(omega, tau, rho_pt, c, alpha_pt) -> (E prox' - alpha, E(beta - beta*)^2/alpha - omega^2)."""
    inputs = setting(seeded(11), 8)
    omega, alpha, c, rho = inputs["omega"], inputs["alpha_pt"], inputs["c"], inputs["rho_pt"]
    returned = pair(call(answer, **inputs), "f1, f2")
    first, second = (as_tensor(part, omega.shape) for part in returned)

    true = averages(**inputs)
    follow, error = true["follow"], true["error"]
    f1, f2 = follow - alpha, error / alpha - omega**2
    named1 = {
        "f1: that is E prox' itself: subtract alpha_pt.": follow,
        "f1 has E prox where E prox', the derivative, belongs.": true["estimate"] - alpha,
        "f1 averages 1 - prox'.": 1 - follow - alpha,
        "f1: alpha_pt is missing: E prox' is alpha_pt in the end, not 1.": follow - 1,
    }
    slips1 = {
        "The sign of f1 is off: E prox' - alpha_pt.": -f1,
        "f1 is E prox'/alpha_pt - 1: it vanishes in the right place, but the difference is asked for.": f1 / alpha,
    }
    named2 = {
        "f2: alpha_pt is missing: fewer samples, more noise.": error - omega**2,
        "f2: divide the error by alpha_pt, do not multiply.": error * alpha - omega**2,
        "f2 has omega where omega^2 belongs.": error / alpha - omega,
        "f2 measures the distance of the estimate to r: take it to beta*.": true["lag"] / alpha - omega**2,
        "f2 has the size of the estimate, E beta^2: subtract beta* first.": true["size"] / alpha - omega**2,
        "f2 has the ridge error, 1 - alpha: right only for c to infinity.": (1 - alpha) / alpha - omega**2,
        "f2: that is E(beta - beta*)^2/alpha_pt itself: subtract omega^2.": error / alpha,
    }
    slips2 = {
        "The sign of f2 is off: E(beta - beta*)^2/alpha_pt - omega^2.": -f2,
        "f2 is multiplied by alpha_pt: it vanishes in the right place, but omega^2 alone is asked for.": f2 * alpha,
    }
    both = {
        "The shares are missing: a part rho_pt of the coordinates has a feature, 1 - rho_pt have none.": {"share": 1.0},
        "Weigh the two kinds by rho_pt and 1 - rho_pt, not evenly.": {"share": 0.5},
        "The shares are swapped: rho_pt belongs to the coordinates with a feature.": {"swapped": True},
        "That has k where root_k belongs: root_k is 2 c.": {"root_k": (2 * c) ** 2},
        "root_k is 2 c, not its square root.": {"root_k": (2 * c).sqrt()},
        "root_k of pretraining is 2 c: both paths count.": {"root_k": c},
        "A true feature is 1/sqrt(rho_pt), not 1.": {"star": torch.ones_like(rho)},
        "A true feature is 1/sqrt(rho_pt), not 1/rho_pt.": {"star": 1 / rho},
        "The noise is omega z, not omega^2 z.": {"noise": omega**2},
        "The noise is omega z: omega is missing in r.": {"noise": torch.ones_like(omega)},
    }
    for says, change in both.items():
        wrong = averages(**inputs, **change)
        if near(first, wrong["follow"] - alpha) and near(second, wrong["error"] / alpha - omega**2):
            raise Wrong(says)
    if near(first, f2) and near(second, f1):
        raise Wrong("Return (f1, f2), in this order: yours are swapped.", share=0.5)
    compare_parts((first, second), {"f1": (f1, named1, slips1), "f2": (f2, named2, slips2)}, **inputs)
    return "Two kinds of coordinates, one noise, one price: all of pretraining in two numbers."


def near(value: Tensor, target: Tensor) -> bool:
    return bool(((value - target).abs() <= 1e-5 * target.abs().max()).all())


def averages(
    omega, tau, rho_pt, c, alpha_pt, *, share=None, swapped=False, root_k=None, star=None, noise=None
) -> dict[str, Tensor]:
    """Averages over both kinds of coordinates at pretraining, each (n,); the keywords make the mistakes."""
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64, device="cpu")
    weight = torch.softmax(-(z**2) / 2, 0)
    root_k, star = (2 * c if root_k is None else root_k)[:, None], (rho_pt**-0.5 if star is None else star)[:, None]
    noise, total = (omega if noise is None else noise)[:, None], dict.fromkeys(NAMES, 0)
    parts = (1 - rho_pt, rho_pt) if swapped else (rho_pt, 1 - rho_pt)
    for part, true in zip(parts, (star, 0 * star), strict=True):
        r = true + noise * z
        beta, follow = prox(r, root_k, tau[:, None]), prox_prime(r, root_k, tau[:, None])
        values = follow, (beta - true) ** 2, beta, (beta - r) ** 2, beta**2
        for name, value in zip(NAMES, values, strict=True):
            total[name] = total[name] + (part if share is None else share) * (weight * value).sum(-1)
    return total


NAMES = ("follow", "error", "estimate", "lag", "size")


def setting(generator: torch.Generator, count: int) -> dict[str, Tensor]:
    """omega, tau, rho_pt, c, alpha_pt in the range where all of them matter."""
    return {
        "omega": uniform(generator, 0.4, 1.6, count),
        "tau": uniform(generator, 0.2, 1.5, count),
        "rho_pt": uniform(generator, 0.05, 0.4, count),
        "c": uniform(generator, -3, 0, count).exp(),
        "alpha_pt": uniform(generator, 0.15, 0.8, count),
    }


def false_features(answer) -> str:
    """false_share(omega, tau, rho_pt, c): P(|beta| > half a feature | beta* = 0), by the inverse of the prox."""
    inputs = setting(seeded(12), 10)
    del inputs["alpha_pt"]
    omega, tau, rho, c = inputs.values()

    def beyond(r: Tensor) -> Tensor:
        return 2 * torch.special.ndtr(-r / omega)

    half = rho**-0.5 / 2
    r = half + tau * q_prime(half, 2 * c)
    truth = beyond(r)
    slips = {
        "One tail is missing: a false feature can have either sign.": truth / 2,
        "That is the share of all coordinates: asked for is that of those without a feature.": truth * (1 - rho),
        "That is the share that stays below: take one minus it.": 1 - truth,
    }
    mistakes = {
        "The price is missing: to end at b, r has to be b + tau q'(b).": beyond(half),
        "The price shrinks the estimate: r is b plus tau q'(b), not minus.": beyond(half - tau * q_prime(half, 2 * c)),
        "tau is missing: r = b + tau q'(b).": beyond(half + q_prime(half, 2 * c)),
        "That is for a whole feature: the limit is half of 1/sqrt(rho_pt).": beyond(
            2 * half + tau * q_prime(2 * half, 2 * c)
        ),
        "A true feature is 1/sqrt(rho_pt), not 1.": beyond(0.5 + tau * q_prime(0.5, 2 * c)),
        "root_k of pretraining is 2 c: both paths count.": beyond(half + tau * q_prime(half, c)),
        "That has k where root_k belongs: root_k is 2 c.": beyond(half + tau * q_prime(half, 4 * c**2)),
        "Divide r by omega, the standard deviation of the noise, not by omega^2.": beyond(r / omega),
        "omega is missing: the noise is omega z.": beyond(r * omega),
        "That is the prox where its inverse belongs: which r ends at b?": beyond(prox(half, 2 * c, tau)),
        "The coordinates asked for have no feature: beta* = 0.": torch.special.ndtr((2 * half - r) / omega),
    }
    compare(answer, truth, mistakes, slips, **inputs)
    return "No average, no simulation: the prox is increasing, so a tail of the noise becomes a tail of the memory."


GAPS = [0.0, *(2 * 10 ** (-i / 10) for i in range(44, -1, -1))]  # 1+λ from 8e-5 to 2, evenly in its logarithm, and 0


def scan(task: TaskPair, c: float, gamma: float, alpha_ft: float, alpha_pt: float | None, *lam: float) -> Tensor:
    """Error at each λ given; without any, on a grid that ends with λ = 1."""
    lam = torch.tensor(lam or [gap - 1 for gap in GAPS], dtype=torch.float64, device="cpu")
    return generalization_error(task, c, lam, gamma, alpha_ft, alpha_pt).error


# task, c, gamma, alpha_ft, alpha_pt
GAINS = (
    (FULL, 1e-3, 0.01, 0.3, 0.3),
    (TaskPair(0.05, 1.0, 0.0), 1e-3, 0.1, 0.2, 0.15),
    (FULL, 1e-2, 0.05, 0.35, 0.2),
    (TaskPair(0.05, 1.0, 0.0), 1e-4, 0.003, 0.2, 0.1),  # best at 1+λ = 0.002: no even grid of λ finds it
)


def gain(answer) -> str:
    """best_lam(task, c, gamma, alpha_ft, alpha_pt) -> (lam, gain): the saved share of the error at λ = 1."""
    shares, first = [], None
    for given in GAINS:
        says, share = judge_gain(answer, given)
        shares.append(share)
        first = first or says
    if first:
        raise Wrong(first, share=min(shares))
    return "A third to a half of the error, bought with a single number and no new data."


def judge_gain(answer, given: tuple) -> tuple[str, float]:
    """What is wrong at one setting ("" for nothing), and the share of the points that it still earns."""
    task, c, gamma, alpha_ft, alpha_pt = given
    at = f"At rho_pt={task.rho_pt}, c={c}, gamma={gamma}, alpha_ft={alpha_ft}, alpha_pt={alpha_pt}"
    named = dict(zip(("task", "c", "gamma", "alpha_ft", "alpha_pt"), given, strict=True))
    lam, told = (float(as_tensor(part, ())) for part in pair(call(answer, **named), "lam, gain"))
    if not -1 <= lam <= 1:
        swapped = " Swapped?" if -1 <= told <= 1 else ""
        return f"{at}: lam must lie in [-1, 1], got {lam:.4g}.{swapped}", 0
    mine, full, zero, least = *scan(*given, lam, 1.0, 0.0).tolist(), scan(*given).min().item()
    real, best = 1 - mine / full, 1 - least / full

    def tells(value: float) -> bool:
        return abs(told - value) <= 0.006

    if abs(lam - 1) < 1e-9 and tells(0):
        return f"{at}: lam = 1 is best only after perfect pretraining: hand alpha_pt over, and search again.", 0
    if tells(real):
        if best - real <= 0.01:
            return "", 1
        return (
            f"{at}: lam={lam:.4g} saves {real:.1%}, but another lam saves {best:.1%}. Space the grid evenly in "
            "log(1+lam), from 1+lam = 1e-4 to 2.",
            0.5,
        )
    for says, value, share in (
        ("that is the share of the error that is left: the gain is one minus it.", mine / full, 0.5),
        ("that is the gain in percent: return a share.", 100 * real, 0.5),
        ("the sign of the gain is off: it is positive when the best lam has the smaller error.", -real, 0.5),
        ("that is the saved error itself: divide it by the error at lam = 1.", full - mine, 0.5),
        ("that is the saved error over the error at the best lam: divide by the one at lam = 1.", full / mine - 1, 0),
        ("that is how many times smaller the error is: return 1 - E(lam)/E(1).", full / mine, 0),
        ("that is the gain over lam = 0: compare with lam = 1.", 1 - mine / zero, 0),
    ):
        if tells(value):
            return f"{at}: {says}", share
    return f"{at}: you say that lam={lam:.4g} saves {told:.4g} of the error at lam = 1, it saves {real:.4g}.", 0


# c, gamma, alpha_ft; all features return, rho = .1
ENDS = ((1e-3, 0.1, 0.3), (1e-3, 0.01, 0.3), (1e-2, 0.1, 0.2))
SMALL = 0.05
WITHIN = 0.01


def enough(answer) -> str:
    """enough(c, gamma, alpha_ft): the alpha_pt above which the best λ gains less than 5 %, to within 0.01."""
    for number, given in enumerate(ENDS):
        share = number / len(ENDS) / 2  # of the points, for the settings that were right
        named = dict(zip(("c", "gamma", "alpha_ft"), given, strict=True))
        at = f"At c={given[0]}, gamma={given[1]}, alpha_ft={given[2]}"
        alpha = float(as_tensor(call(answer, **named), ()))
        if not 0.05 < alpha < 1:
            raise Wrong(f"{at}: alpha_pt must lie between 0.05 and 1, got {alpha:.4g}.", share)
        left, here, right = (saved(given, alpha + step) for step in (-WITHIN, 0, WITHIN))
        if left >= SMALL > right:
            continue
        if abs(alpha - float(recovery_threshold(FULL.rho_pt))) < 0.005:
            says = f"{at}: {alpha:.3f} is the recovery threshold, where the gain is {here:.1%}. Follow the gain itself."
            raise Wrong(says, share)
        if saved(given, alpha + 0.03) < SMALL <= saved(given, alpha - 0.03):
            raise Wrong(f"{at}: close, the gain at {alpha:.3f} is {here:.1%}; bisect on to 0.01.", max(share, 0.5))
        if here >= SMALL:
            raise Wrong(f"{at}: at alpha_pt={alpha:.3f} the gain is still {here:.1%}: more is needed.", share)
        raise Wrong(f"{at}: at alpha_pt={alpha:.3f} the gain is only {here:.1%}: less would be enough.", share)
    return "How much pretraining is enough depends on the floor gamma and on the new data, not only on the threshold."


def saved(given: tuple[float, float, float], alpha_pt: float) -> float:
    error = scan(FULL, *given, max(alpha_pt, 1e-3))
    return float(1 - error.min() / error[-1])


EXERCISES = {
    "04.1": Exercise(points=4, minutes=18, difficulty=3, check=fixed_point),
    "04.2": Exercise(points=2, minutes=6, difficulty=2, check=false_features),
    "04.3": Exercise(points=3, minutes=8, difficulty=2, check=gain),
    "04.4": Exercise(points=3, minutes=8, difficulty=2, check=enough),
}
