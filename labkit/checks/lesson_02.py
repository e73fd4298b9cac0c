"""Exercises of lesson 02, pretraining writes a prior: the k map, two exponents, the trade-off, regime IV."""

import torch
from torch import Tensor

from labkit.checks.attempt import as_tensor, call, compare, kind, pair, seeded, uniform
from labkit.checks.verdict import Exercise, NotAttempted, Wrong
from labkit.diagonal.penalty import (
    ell_order,
    pretraining_dependence,
    q,
    q_prime,
    regime_name,
    regime_weights,
    root_k_finetune,
)


def k_map(answer) -> str:
    """root_k_finetune(beta_pt, c, lam, gamma): twice the summed first layer squared, plus gamma^2."""
    beta_pt, c, lam, gamma = knobs(seeded(4), 10)
    truth = root_k_finetune(beta_pt, c, lam, gamma)
    r = torch.sqrt(1 + (beta_pt / c) ** 2)
    summed, floor = 2 * c * (1 + lam) * (1 + r), gamma**2
    flipped, bare = 2 * c * (1 - lam) * (1 + r) + floor, lam * c * (1 + r) + floor
    slips = {
        "Right for lam >= 0 only: you add |w_plus| + |w_minus|. The signed sum is meant, and for lam < 0 one of "
        "the two turns negative.": 2 * c * (lam + r + (1 + lam * r).abs()) + floor,
        "The readout is gamma/sqrt(2) in each path: its squares add up to gamma^2.": summed + 2 * floor,
        "That is k. Return its square root, root_k, the sum of the squared weights.": truth**2,
    }
    mistakes = {
        "Square the readout weights: gamma enters as gamma^2.": summed + gamma,
        "The sign of lam is off: lam < 0 means a smaller first layer, which forgets.": flipped,
        "That is the root of root_k: the sum of squared weights is root_k already.": truth.sqrt(),
        "That adds w_plus^2 + w_minus^2, a protocol that keeps their norm. Here both paths get the signed sum "
        "w_plus + w_minus.": 2 * c * (lam + r) + floor,
        "That has lam where 1 + lam belongs: the network would forget everything at lam = 0.": bare,
        "beta_pt is missing: that is root_k of a feature that pretraining never used.": 4 * c * (1 + lam) + floor,
        "gamma is missing: the readout weights count as well.": summed,
        "Both paths have a readout of gamma/sqrt(2): one of them is missing.": summed + floor / 2,
        "c + |beta_pt| stands for the root of c^2 + beta_pt^2: right only when one of them is tiny.": 2
        * (1 + lam)
        * (2 * c + beta_pt.abs())
        + floor,
        "c + beta_pt stands for the root of c^2 + beta_pt^2, which is even in beta_pt.": 2
        * (1 + lam)
        * (2 * c + beta_pt)
        + floor,
        "Only one path is in it: both get the summed first layer.": truth / 2,
        "Both paths get the signed sum, so its square counts twice.": summed / 2 + floor,
        "That is root_k of pretraining, 2 c: the weights have moved, and the readout is new.": 2 * c,
        "c is missing next to the root: unused features keep their weights too.": summed - 2 * c * (1 + lam) + floor,
    }
    compare(answer, truth, mistakes, slips, beta_pt=beta_pt, c=c, lam=lam, gamma=gamma)
    return "The summed first layer is the memory, 1 + lam its volume, and the floor 4c(1 + lam) + gamma^2."


def order(answer) -> str:
    """ell_order(beta_ft, root_k) = beta q'/q, from 2 (ridge) down to 1 (lasso)."""
    generator = seeded(5)
    beta_ft, root_k = signed(generator, 0.1, 3, 10), uniform(generator, -4, 1, 10).exp()
    ell, price, total = ell_order(beta_ft, root_k), q_prime(beta_ft, root_k), q(beta_ft, root_k)
    slips = {"Right for positive beta_ft only: q is even, so ell has to be even.": ell * beta_ft.sign()}
    mistakes = {
        "u is off by a factor of 2: u = 2 beta_ft/root_k.": ell_order(beta_ft / 2, root_k),
        "u is turned over: it is large where beta_ft is large.": ell_order(root_k / 4, beta_ft.abs()),
        "That is beta q': divide by q to get an exponent.": beta_ft * price,
        "That is q'/q, the slope against beta: one against ln|beta| has a factor beta.": price / total,
        "That is |q'/q|, the slope against |beta|: one against ln|beta| has a factor |beta|.": (price / total).abs(),
        "That is q' alone, a price and not an exponent.": price,
        "That is the cost q itself, not its exponent.": total,
        "That is 2 - ell, the weight of regime I.": 2 - ell,
        "That is ell - 1: how q falls with root_k, not how it grows with beta_ft.": ell - 1,
        "That is 1 - ell, the derivative of ln q against ln root_k.": 1 - ell,
        "That has k where root_k belongs.": ell_order(beta_ft, root_k**2),
        "That has the square root of root_k: root_k is already the root.": ell_order(beta_ft, root_k.sqrt()),
    }
    compare(answer, ell, mistakes, slips, beta_ft=beta_ft, root_k=root_k)
    return "2 is a ridge, 1 is a lasso, and the way from one to the other is logarithmic."


def dependence(answer) -> str:
    """pretraining_dependence(beta_ft, beta_pt, c, lam, gamma) = -(ell - 1) E, E = d ln root_k / d ln|beta_pt|."""
    generator = seeded(6)
    beta_pt, c, lam, gamma = knobs(generator, 10)
    beta_ft = signed(generator, 0.2, 2, 10)
    pd = pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)
    ell = ell_order(beta_ft, root_k_finetune(beta_pt, c, lam, gamma))
    ell_at_pt = ell_order(beta_pt, root_k_finetune(beta_pt, c, lam, gamma))
    e, e_without_floor = pd / (1 - ell), beta_pt**2 / torch.hypot(c, beta_pt) / (c + torch.hypot(c, beta_pt))
    slips = {
        "The sign is off: a feature that pretraining grew gets cheaper.": -pd,
        "E is too large by a factor of 2: differentiate root_k, not k.": 2 * pd,
        "E is too small by a factor of 2: differentiate root_k, not its square root.": pd / 2,
        "Right for positive beta_pt only: root_k is even in beta_pt.": pd * beta_pt.sign(),
    }
    mistakes = {
        "That is E, how root_k follows beta_pt. How does ln q follow ln root_k?": e,
        "That is -E: the exponent of q against root_k is 1 - ell, not always -1.": -e,
        "E is multiplied by -ell: u moves with root_k too, so ln q follows ln root_k with 1 - ell.": -ell * e,
        "E is multiplied by ell: how does ln q follow ln root_k, and with which sign?": ell * e,
        "E is missing: root_k does not follow beta_pt one to one.": 1 - ell,
        "E is missing and the sign is off.": ell - 1,
        "That is ell, the derivative against ln|beta_ft|: this one is against ln|beta_pt|.": ell,
        "That is the slope against beta_pt: one against ln|beta_pt| has a factor beta_pt.": pd / beta_pt,
        "That is the slope against |beta_pt|: one against ln|beta_pt| has a factor |beta_pt|.": pd / beta_pt.abs(),
        "gamma is missing in E: the floor gamma^2 does not follow beta_pt.": (1 - ell) * e_without_floor,
        "That is ell + PD - 1, the weight of regime III.": ell + pd - 1,
        "beta_ft and beta_pt are mixed up.": pretraining_dependence(beta_pt, beta_ft, c, lam, gamma),
        "E is taken at beta_ft: root_k was written by pretraining, at beta_pt.": (1 - ell)
        * (2 * (1 + lam) * beta_ft**2 / torch.hypot(c, beta_ft))
        / root_k_finetune(beta_pt, c, lam, gamma),
        "ell is taken at beta_pt: the price is paid for beta_ft.": (1 - ell_at_pt) * e,
    }
    compare(answer, pd, mistakes, slips, beta_ft=beta_ft, beta_pt=beta_pt, c=c, lam=lam, gamma=gamma)
    return "Reuse is the chain of two exponents: how root_k follows pretraining, how the cost follows root_k."


NETWORKS = 4000  # random networks asked of the learner
CORNER_HINTS = {
    "I": "1+lam, c and gamma must be drawn on a log scale, down to 1e-3 or lower (tiny root_k).",
    "II": "c and gamma must become small while lam stays near 0 or 1: draw each on its own.",
    "III": "c or gamma must also become large against beta: draw them on a log scale, up to 10.",
}


def tradeoff(answer) -> str:
    """tradeoff(generator, n) -> (ell, pd) of n random networks, which have to show the whole triangle."""
    ell, pd = networks(answer, seed=7)
    if (ell == ell[0]).all() and (pd == pd[0]).all():
        raise Wrong("All your networks are the same one: draw n of them.")
    if ((ell > -1 - SLACK) & (ell < SLACK)).all() and ((pd > 1 - SLACK) & (pd < 2 + SLACK)).all():
        raise Wrong("Return (ell, pd), in this order: yours are swapped.", share=0.5)
    refuse(ell, (ell > 1 - SLACK) & (ell < 2 + SLACK), "ell", "must lie in [1, 2]")
    if (pd > -SLACK).all() and pd.max() > SLACK:
        raise Wrong("The sign of pd is off: it lies in [-1, 0].")
    refuse(pd, (pd > -1 - SLACK) & (pd < SLACK), "pd", "must lie in [-1, 0]")
    total = ell + pd
    refuse(
        total,
        total > 1 - SLACK,
        "ell + pd",
        "cannot be below 1: take both from the same networks, with PD = -(ell - 1) E",
    )

    again, other = networks(answer, seed=7)[0], networks(answer, seed=8)[0]
    if torch.equal(ell, other):
        raise Wrong("Two generators gave the same networks: draw from the generator you are given.", share=0.5)
    if not torch.equal(ell, again):
        raise Wrong("The same seed gave other networks: draw only from the generator you are given.", share=0.5)

    weights = torch.stack([2 - ell, -pd, total - 1], dim=1)  # (network, regime)
    reached = weights.amax(0) >= 0.8
    missing = [regime for regime, there in zip(CORNER_HINTS, reached.tolist(), strict=True) if not there]
    if missing:
        raise Wrong(
            f"The trade-off holds, but your samples never reach regime {missing[0]}: {CORNER_HINTS[missing[0]]}",
            share=0.25 + 0.25 * (3 - len(missing)),
        )
    return "Thousands of networks, all three corners, and not one with -PD larger than ell - 1."


SLACK = 1e-9  # rounding


def networks(answer: object, seed: int) -> tuple[Tensor, Tensor]:
    """(ell, pd), each (NETWORKS,) and finite."""
    ell, pd = pair(call(answer, generator=seeded(seed), n=NETWORKS), "ell, pd")
    ell, pd = as_tensor(ell, (NETWORKS,)), as_tensor(pd, (NETWORKS,))
    if not (ell.isfinite() & pd.isfinite()).all():
        raise Wrong("Some of your values are nan or infinite: is lam = -1 with gamma = 0 among them, or c = 0?")
    return ell, pd


def refuse(value: Tensor, allowed: Tensor, name: str, rule: str) -> None:
    if not allowed.all():
        bad = value[~allowed]
        raise Wrong(f"{name} {rule}: {len(bad)} of your {len(value)} networks break this, the first has {bad[0]:.4g}.")


KNOBS = ("c", "lam", "gamma", "beta_pt", "beta_ft")


def regime_iv(answer) -> str:
    """A dict with the keys ``KNOBS`` (or a function returning one) that lies in the middle of regime IV."""
    setting = read_setting(call(answer) if callable(answer) else answer)
    c, lam, gamma, beta_pt, beta_ft = setting
    try:
        root_k = root_k_finetune(beta_pt, c, lam, gamma)
        ell, pd = ell_order(beta_ft, root_k), pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)
    except ValueError as refused:  # the room's own sentence names argument, value and range
        raise Wrong(f"{refused}.") from None
    weights = regime_weights(ell, pd)
    one, two, three = weights.tolist()
    name = regime_name(weights)
    where = f"omega_I={one:.2g}, omega_II={two:.2g}, omega_III={three:.2g}"
    if three < 0.02 and min(one, two) >= 0.3:
        return f"Regime IV ({where}): sparse new features and cheap old ones, bought with a small 1 + lam."
    floor = "gamma" if gamma**2 > 4 * c * (1 + lam) else "c"
    if beta_pt == 0:
        raise Wrong(f"Without a pretrained feature (beta_pt = 0) there is nothing to reuse: {where}.")
    if name == "I":
        raise Wrong(f"That is regime I ({where}): too little memory. Raise 1 + lam.")
    if name == "II":
        raise Wrong(f"That is regime II ({where}): too much memory. Lower 1 + lam, on a log scale.")
    if name == "III":
        raise Wrong(f"That is regime III ({where}): blind to pretraining because {floor} is large. Lower {floor}.")
    if name == "between":
        raise Wrong(f"That lies between the regimes ({where}): omega_III is too large. Lower {floor}.")
    if three >= 0.02:
        raise Wrong(f"Regime IV, but omega_III must be below 0.02 ({where}). Lower {floor}.", share=0.5)
    nearest, way = ("I", "Raise") if one > two else ("II", "Lower")
    raise Wrong(
        f"Regime IV, but close to {nearest}: both other weights must reach 0.3 ({where}). {way} 1 + lam.",
        share=0.5,
    )


def read_setting(setting: object) -> list[float]:
    """The five numbers in the order of ``KNOBS``, or `Wrong`."""
    if setting is None or setting is Ellipsis:
        raise NotAttempted("Replace the stub by a dict of five numbers, then run this cell again.")
    if not isinstance(setting, dict):
        raise Wrong(f"Give a dict with the keys {', '.join(KNOBS)}; got {kind(setting)}.")
    missing = [name for name in KNOBS if name not in setting]
    if missing:
        raise Wrong(f"The setting has no {missing[0]!r}: it needs {', '.join(KNOBS)}.")
    numbers = []
    for name in KNOBS:
        if setting[name] is None or setting[name] is Ellipsis:
            raise NotAttempted(f"Fill in {name!r}, then run this cell again.")
        try:
            numbers.append(float(setting[name]))
        except (TypeError, ValueError, RuntimeError):
            raise Wrong(f"{name} must be a number, got {kind(setting[name])}.") from None
    return numbers


def knobs(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """beta_pt, c, lam, gamma in the range where all of them matter."""
    beta_pt, c = signed(generator, 0.3, 3, count), uniform(generator, -3, 0.5, count).exp()
    return beta_pt, c, uniform(generator, -0.95, 0.95, count), uniform(generator, 0.2, 1.5, count)


def signed(generator: torch.Generator, low: float, high: float, count: int) -> Tensor:
    """Sizes in [low, high], signs in turn."""
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64, device="cpu").repeat(count // 2)
    return signs * uniform(generator, low, high, count)


EXERCISES = {
    "02.1": Exercise(points=3, minutes=8, difficulty=2, check=k_map),
    "02.2": Exercise(points=2, minutes=6, difficulty=1, check=order),
    "02.3": Exercise(points=2, minutes=8, difficulty=2, check=dependence),
    "02.4": Exercise(points=4, minutes=10, difficulty=3, check=tradeoff),
    "02.5": Exercise(points=2, minutes=5, difficulty=2, check=regime_iv),
}
