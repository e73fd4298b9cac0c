"""Pretraining to add mod 15, fine-tuning to add mod 15, 5, 21 or 7, by the balancedness κ: lesson 07.

Three tables of the same nets (`Setup`): `modular_pretraining` has accuracy against step and the spectrum of what was
kept; `modular_arithmetic` every fine-tuning of them, and two controls; `modular_shares` more nets at κ = 1, fine-tuned
mod 5 and mod 21, to see whether what was kept decides. κ acts at a ``place``:

======================  ===============================================================================================
``pretraining``         `rescale` by κ before pretraining
``fine-tuning only``    pretraining at κ = 1, new unembedding, then `rescale` by κ
``scratch``             as the first without a step of pretraining: the untrained body under the new unembedding
======================  ===============================================================================================

A seed draws the same weights, the same training pairs and the same new unembedding whatever κ, place and fraction, so
that differences are paired. `by_seed` and `arrays` make of the tables what a notebook wants. On the profile "full" the
net has two layers and norms, and moduli are between 59 and 113: made for a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labkit import compute
from labkit.results import Recipe
from labkit.training import Params
from labkit.transfer.arithmetic import addition, fourier_power
from labkit.transfer.representation import compare
from labkit.transfer.transformer import (
    NEW_SPLIT,
    SPLIT,
    WEIGHTS,
    Learned,
    Transformer,
    learn,
    rescale,
    start_fine_tuning,
    streams,
)

PLACES = ("pretraining", "fine-tuning only", "scratch")
KAPPAS = (0.1, 0.3, 1.0, 3.0, 10.0)
FRACTIONS = (0.2, 0.3)  # of all pairs, to fine-tune on
GROUP = 4  # nets that a test makes anew: seeds are ``first`` + 0 … 3


@dataclass(frozen=True)
class Setup:
    """The sizes of one profile: net, moduli, steps."""

    net: Transformer = Transformer()
    modulus: int = 15  # N, of pretraining
    moduli: tuple[int, ...] = (15, 5, 21, 7)  # M, of fine-tuning: the same, a subset, a shared and a new prime, new
    fraction: float = 0.6  # of all pairs, to pretrain on
    pretraining: int = 1000  # steps
    fine_tuning: int = 500
    pretraining_record: int = 10  # steps between two looks
    record_every: int = 25  # the same of fine-tuning
    dtype: torch.dtype = torch.float64  # in float32 rounding grows a million times until it decides what is kept


STANDARD = Setup()
QUICK = Setup(pretraining=100, fine_tuning=50)
FULL = Setup(
    Transformer(vocabulary=113, width=128, hidden=512, layers=2, norm=True),
    modulus=77,  # 7·11
    moduli=(77, 11, 91, 59),  # 91 = 7·13
    fraction=0.4,
    pretraining=4000,
    fine_tuning=2000,
    dtype=torch.float32,
)


def setup() -> Setup:
    """That of the current profile."""
    return compute.pick(quick=QUICK, standard=STANDARD, full=FULL)


def initial(kappa: Sequence[float] | np.ndarray, seeds: Sequence[int], how: Setup) -> Params:
    """One net for each seed, rescaled by its κ (net,)."""
    start = how.net.initial(how.modulus, streams(seeds, WEIGHTS), dtype=how.dtype)
    return rescale(start, torch.as_tensor(kappa), norm=how.net.norm)


def pretrain(kappa: Sequence[float] | np.ndarray, seeds: Sequence[int], how: Setup, progress: bool = False) -> Learned:
    """The nets of `initial` learn to add mod N."""
    return learn(
        how.net,
        initial(kappa, seeds, how),
        how.modulus,
        how.fraction,
        streams(seeds, SPLIT),
        how.pretraining,
        record_every=how.pretraining_record,
        progress=progress,
    )


def fine_tune(
    body: Params, modulus: int, fraction: float, seeds: Sequence[int], how: Setup, kappa: float | None = None
) -> Learned:
    """A new unembedding, with ``kappa`` a `rescale` by it; then learn to add mod M."""
    start = start_fine_tuning(body, modulus, seeds)
    if kappa is not None:
        start = rescale(start, kappa, norm=how.net.norm)
    return learn(
        how.net, start, modulus, fraction, streams(seeds, NEW_SPLIT), how.fine_tuning, record_every=how.record_every
    )


def spectrum(net: Transformer, params: Params, modulus: int) -> Tensor:
    """Share of each frequency 1 … ⌊M/2⌋ in the `fourier_power` of the embedding (net, ⌊M/2⌋); sums to 1."""
    power = fourier_power(params["embed"][:, : net.vocabulary].double(), modulus)
    return power / power.sum(-1, keepdim=True)


def _summary(run: Learned, how: Setup, modulus: int) -> dict[str, Tensor]:
    """What a row keeps of a phase, (net, ...); what has two entries has them before and after."""
    ends = (run.start, run.params)
    pairs, _ = addition(how.modulus, how.net.vocabulary, run.loss.device)
    with torch.no_grad():
        before, after = (how.net.features(params, pairs).double() for params in ends)
    norms = [torch.stack([params[name].norm(dim=(1, 2)) for name in ("embed", "unembed")], 1) for params in ends]
    widest = max(how.modulus, *how.moduli) // 2
    shares = [spectrum(how.net, params, modulus) for params in ends]
    return {
        "curve": run.accuracy.T.half(),
        "loss": run.loss.float(),
        "norm": torch.stack(norms, 1).float(),
        "spectrum": torch.stack([functional.pad(share, (0, widest - modulus // 2)) for share in shares], 1).half(),
        "kept": torch.stack([spectrum(how.net, params, how.modulus) for params in ends], 1).half(),
        "diverged": run.diverged,
    } | {name: value.float() for name, value in compare(before, after).items()}


def pretraining(kappa: np.ndarray, first: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """Pretraining of the nets ``first + seed``: the columns of `_summary` for modulus N, but not "kept"."""
    how = setup()
    run = pretrain(kappa, (first + seed).tolist(), how)
    return {name: value for name, value in _arrays(_summary(run, how, how.modulus)).items() if name != "kept"}


def fine_tuning(
    place: np.ndarray,
    kappa: np.ndarray,
    modulus: np.ndarray,
    fraction: np.ndarray,
    seed: np.ndarray,
    first: np.ndarray | int = 0,
) -> dict[str, np.ndarray]:
    """Fine-tuning of the nets ``first + seed``: the columns of `_summary`. Each net is pretrained once in a call."""
    how, found, bodies = setup(), {}, {}
    numbers, early = first + seed, np.where(place == "fine-tuning only", 1.0, kappa)
    cells = list(zip(place.tolist(), kappa.tolist(), modulus.tolist(), fraction.tolist(), strict=True))
    for cell in dict.fromkeys(cells):
        rows = np.array([row for row, its in enumerate(cells) if its == cell])
        where, late, to, share = cell
        seeds = numbers[rows].tolist()
        key = (where == "scratch", early[rows[0]], tuple(seeds))
        if key not in bodies:
            begin = early[rows], seeds, how
            bodies[key] = initial(*begin) if where == "scratch" else pretrain(*begin).params
        again = late if where == "fine-tuning only" else None
        run = fine_tune(bodies[key], to, share, seeds, how, again)
        for name, value in _arrays(_summary(run, how, to)).items():
            if name not in found:
                found[name] = np.empty((len(seed), *value.shape[1:]), value.dtype)
            found[name][rows] = value
    return found


def _arrays(columns: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in columns.items()}


TOLERANCES = {
    "curve": 2e-3,  # half precision
    "loss": 1e-5,
    "norm": 1e-4,
    "spectrum": 1e-3,
    "kept": 1e-3,
    "pr_before": 1e-4,
    "pr_after": 1e-4,
    "ensd": 1e-4,
    "cka": 1e-4,
}


def pretraining_recipe() -> Recipe:
    groups = compute.pick(quick=1, standard=4, full=4)
    grid = {"kappa": KAPPAS, "first": [GROUP * group for group in range(groups)]}
    return Recipe(pretraining, grid, GROUP, {"kappa": 0.3, "first": 0}, GROUP * groups, TOLERANCES)


def fine_tuning_recipe() -> Recipe:
    seeds, moduli = compute.pick(quick=2, standard=16, full=16), setup().moduli
    grid = {"place": PLACES, "kappa": KAPPAS, "modulus": moduli, "fraction": FRACTIONS}
    remake = {"place": "scratch", "kappa": 1.0, "modulus": moduli[1], "fraction": FRACTIONS[0]}
    rows = seeds * len(KAPPAS) * len(moduli) * len(FRACTIONS)  # of one place: nets are pretrained once
    return Recipe(fine_tuning, grid, seeds, remake, rows, TOLERANCES)


def shares_recipe() -> Recipe:
    """The nets of κ = 1, and more of them."""
    groups, (_, subset, mixed, _) = compute.pick(quick=1, standard=16, full=16), setup().moduli
    grid = {"place": ["pretraining"], "kappa": [1.0], "first": [GROUP * group for group in range(groups)]}
    grid |= {"modulus": [subset, mixed], "fraction": [FRACTIONS[0]]}
    return Recipe(fine_tuning, grid, GROUP, {"first": 0}, 2 * GROUP, TOLERANCES)
