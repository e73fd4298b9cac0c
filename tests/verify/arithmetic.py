"""The Transformer on modular addition, section 7 of the theory notes on deep networks, from the shipped tables.

``labkit sweep modular_pretraining`` (and ``modular_arithmetic``, ``modular_controls``) makes them anew; `make test`
remakes a part of each. Nets and seeds of the notes are others, so that means are compared within both errors; a
verdict (an order, a winner) stands as 1 for "it holds".

What does not reproduce is no claim. Mod 21, κ = 10 is not worse than κ = 1 in these tables, whose matrices start with
variance 1/fan_in: -.03 ± .12 (fraction .2) and +.03 ± .09 (.3) over 16 paired seeds, against -.31 and -.29 in the
notes. Where they start with a third of that, as in torch.nn.Linear (the table ``modular_scale``, 32 seeds), it is
worse at fraction .2, by .15 ± .07, and not at .3, by .03 ± .06: the notes' gap is twice what more seeds leave of it.
And the share of mod 3 is not quite without a say in mod 21: over the 80 nets Spearman's rho is .29 (the five nets of a
seed are not independent), in the notes .04 over 40. PR after pretraining does not rise with κ: 5.3, 4.9, 4.2, 4.7,
4.8. Shares of mod 5 below .1 are common here, 29 of 80 nets, in the notes 2 of 40; these nets reach .42 ± .03 mod 5,
and four of the 18 with a share of .1 to .3 stay below .8, in the notes none of 8.
"""

import numpy as np
from scipy.stats import spearmanr

from labkit.results import load
from labkit.results.modular_arithmetic import KAPPAS, arrays, runs, share
from tests.verify.claim import Claim

MEDIANS = dict(zip(KAPPAS, (112, 125, 200, 400, 650), strict=True))  # steps to 90 %
MIXED = {  # mod 21: mean and standard error of the notes, 8 seeds
    0.2: dict(
        zip(KAPPAS, ((0.527, 0.085), (0.594, 0.091), (0.602, 0.089), (0.410, 0.068), (0.288, 0.034)), strict=True)
    ),
    0.3: dict(
        zip(KAPPAS, ((0.879, 0.061), (0.877, 0.065), (0.877, 0.075), (0.812, 0.071), (0.591, 0.079)), strict=True)
    ),
}
NORMS = dict(zip(KAPPAS, (5.3, 6.0, 8.2, 11.3, 13.4), strict=True))  # of E after pretraining
BANDS = ((0, 0.1), (0.1, 0.3), (0.3, 1))  # of the mod-5 share


def mean(values):
    return values.mean(), values.std(ddof=1) / np.sqrt(len(values))


def banded(grid):
    """Accuracy mod 5, fraction .2, of the nets of each band of the mod-5 share: all κ."""
    held = grid.at("accuracy", modulus=5, fraction=0.2).ravel()
    kept = share(grid.at("kept", modulus=5, fraction=0.2)[..., 0, :], 5).ravel()
    return [held[(kept >= low) & (kept < high)] for low, high in BANDS]


def claims():
    old, new = arrays(load("modular_pretraining").table), runs()
    never = np.where(np.isnan(old["ninety"]), np.inf, old["ninety"])  # (kappa, seed)
    found = dict(zip(KAPPAS, np.median(never, 1), strict=True))
    for kappa, note in MEDIANS.items():
        yield Claim(f"median steps to 90 %, κ = {kappa:g}", found[kappa], note, tolerance=0.35 * note)
    order = max(found[0.1], found[0.3]) < found[1.0] < found[3.0] < found[10.0]
    yield Claim("… {.1, .3} < 1 < 3 < 10", float(order), 1)
    for kappa, note in NORMS.items():
        ours = mean(old.at("norm", kappa=kappa)[:, 1, 0])
        yield Claim(f"‖E‖ after pretraining, κ = {kappa:g}", ours[0], note, ours[1], tolerance=0.15 * note)
    for fraction, notes in MIXED.items():
        held = {kappa: new.at("accuracy", modulus=21, fraction=fraction, kappa=kappa) for kappa in KAPPAS}
        for kappa in KAPPAS[:4]:
            (note, error), (ours, se) = notes[kappa], mean(held[kappa])
            yield Claim(f"accuracy mod 21, fraction {fraction}, κ = {kappa:g}", ours, note, se, error)
        for kappa in (0.1, 0.3, 3.0, 10.0):
            ours, se = mean(held[kappa] - held[1.0])
            (a, da), (b, db) = notes[kappa], notes[1.0]
            yield Claim(f"… minus that of κ = 1, κ = {kappa:g}", ours, a - b, se, np.hypot(da, db))
    scale = load("modular_scale").table
    for fraction, notes in MIXED.items():
        held = {kappa: scale.select(fraction=fraction, kappa=kappa)["accuracy"] for kappa in (0.1, 1.0, 10.0)}
        for kappa in (1.0, 10.0):
            (note, error), (ours, se) = notes[kappa], mean(held[kappa])
            yield Claim(f"torch's variance: mod 21, fraction {fraction}, κ = {kappa:g}", ours, note, se, error)
        (change, se), (a, da), (b, db) = mean(held[10.0] - held[1.0]), notes[10.0], notes[1.0]
        yield Claim("… κ = 10 minus κ = 1", change, a - b, se, np.hypot(da, db))
        if fraction == 0.2:
            yield Claim("… worse by more than 2 standard errors", float(change < -2 * se), 1)
    low, middle, high = banded(new)
    yield Claim("nets with a mod-5 share < .1: at least 5", float(len(low) >= 5), 1)
    yield Claim("… none of them is as good as any with a share above .3", float(low.max() < high.min()), 1)
    yield Claim("… and half are below .5 (notes: .29 and .23)", float(np.median(low) < 0.5), 1)
    yield Claim("share .1 to .3: median accuracy (notes: .82 to 1)", np.median(middle), 0.95, tolerance=0.07)
    yield Claim("share above .3: median accuracy (notes: ≥ .99)", np.median(high), 1.0, tolerance=0.01)
    kept = share(new.at("kept", modulus=5, fraction=0.2)[..., 0, :], 5).ravel()
    p = spearmanr(kept, new.at("accuracy", modulus=5, fraction=0.2).ravel()).pvalue
    yield Claim("the share of mod 5 predicts mod 5 (p < .05)", float(p < 0.05), 1)
