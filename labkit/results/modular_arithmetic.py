"""Pretraining to add mod 15, fine-tuning to add mod 15, 5, 21 or 7, at several ratios κ of early to late: lesson 07.

Three tables of the same nets (`Setup`): `modular_pretraining` has accuracy against step and the spectrum of what was
kept, `modular_arithmetic` every fine-tuning of them, and `modular_controls` two others, of half of the seeds. A fourth,
`modular_scale`, has what mod 21 makes of nets that start with smaller matrices. κ acts at a ``place``:

======================  ===============================================================================================
``pretraining``         `rescale` by κ before pretraining
``fine-tuning only``    pretraining at κ = 1, new unembedding, then `rescale` by κ
``scratch``             as the first without a step of pretraining: the untrained body under the new unembedding
======================  ===============================================================================================

A seed draws the same weights, the same training pairs and the same new unembedding whatever κ, place and fraction, so
that differences are paired. `arrays` makes of a table what a notebook wants, `live` is a run now. On the profile "full"
the net has two layers and norms, 113 tokens and N = 77: made for a GPU.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional
from tqdm.auto import tqdm

from labkit import compute
from labkit.results import Recipe, load
from labkit.sweep import Table
from labkit.training import Params
from labkit.transfer.arithmetic import addition, character_overlaps, fourier_power, shared_frequencies
from labkit.transfer.protocol import told
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
    steps_to,
    streams,
)

PLACES = ("pretraining", "fine-tuning only", "scratch")
KAPPAS = (0.1, 0.3, 1.0, 3.0, 10.0)
FRACTIONS = (0.2, 0.3)  # of all pairs, to fine-tune on
DTYPE = torch.float32


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
    gain: float = 1.0  # of the matrices at the start: see `Transformer.initial`


STANDARD = Setup()
QUICK = Setup(pretraining=100, fine_tuning=50)
FULL = Setup(
    Transformer(vocabulary=113, width=128, hidden=512, layers=2, norm=True),
    modulus=77,  # 7·11
    moduli=(77, 11, 91, 113),  # 91 = 7·13
    fraction=0.4,
    pretraining=4000,
    fine_tuning=2000,
)


def setup() -> Setup:
    """That of the current profile."""
    return compute.pick(quick=QUICK, standard=STANDARD, full=FULL)


def initial(kappa: Sequence[float] | np.ndarray, seeds: Sequence[int], how: Setup) -> Params:
    """One net for each seed, rescaled by its κ (net,)."""
    start = how.net.initial(how.modulus, streams(seeds, WEIGHTS), how.gain, dtype=DTYPE)
    return rescale(start, torch.as_tensor(kappa), norm=how.net.norm)


def pretrain(kappa: Sequence[float] | np.ndarray, seeds: Sequence[int], how: Setup, **options) -> Learned:
    """The nets of `initial` learn to add mod N; ``options`` go to `learn`."""
    return learn(
        how.net,
        initial(kappa, seeds, how),
        how.modulus,
        how.fraction,
        streams(seeds, SPLIT),
        how.pretraining,
        record_every=how.pretraining_record,
        **options,
    )


def fine_tune(
    body: Params,
    modulus: int,
    fraction: float,
    seeds: Sequence[int],
    how: Setup,
    kappa: float | None = None,
    **options,
) -> Learned:
    """A new unembedding, with ``kappa`` a `rescale` by it; then learn to add mod M."""
    start = start_fine_tuning(body, modulus, seeds)
    if kappa is not None:
        start = rescale(start, kappa, norm=how.net.norm)
    splits = streams(seeds, NEW_SPLIT)
    return learn(how.net, start, modulus, fraction, splits, how.fine_tuning, record_every=how.record_every, **options)


def spectrum(net: Transformer, params: Params, modulus: int) -> Tensor:
    """Share of each frequency 1 … ⌊M/2⌋ in the `fourier_power` of the embedding (net, ⌊M/2⌋); sums to 1.

    nan where the embedding is not finite: a net that diverged is a result.
    """
    embed = params["embed"][:, : net.vocabulary].double()
    good = embed.isfinite().all(2).all(1)
    power = fourier_power(torch.where(good[:, None, None], embed, 0), modulus)
    return power / power.sum(-1, keepdim=True)  # 0/0


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


def pretraining(kappa: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """Pretraining: the columns of `_summary` for modulus N, but not "kept"."""
    how = setup()
    run = pretrain(kappa, seed.tolist(), how)
    return {name: value for name, value in _arrays(_summary(run, how, how.modulus)).items() if name != "kept"}


def fine_tuning(
    modulus: np.ndarray, kappa: np.ndarray, fraction: np.ndarray, seed: np.ndarray
) -> dict[str, np.ndarray]:
    """Fine-tuning: the columns of `_summary`. Each net is pretrained once in a call."""
    return controls(np.full(len(seed), PLACES[0]), modulus, kappa, fraction, seed)


def controls(
    place: np.ndarray,
    modulus: np.ndarray,
    kappa: np.ndarray,
    fraction: np.ndarray,
    seed: np.ndarray,
) -> dict[str, np.ndarray]:
    """`fine_tuning` with κ at any of the `PLACES`."""
    how, found, bodies = setup(), {}, {}
    cells = list(zip(*(part.tolist() for part in (place, modulus, kappa, fraction)), strict=True))
    for cell in dict.fromkeys(cells):
        rows = np.array([row for row, its in enumerate(cells) if its == cell])
        where, to, scale, share = cell
        seeds = seed[rows].tolist()
        early = 1.0 if where == "fine-tuning only" else scale
        key = where == "scratch", early, tuple(seeds)
        if key not in bodies:
            begin = [early] * len(seeds), seeds, how
            bodies[key] = initial(*begin) if where == "scratch" else pretrain(*begin).params
        run = fine_tune(bodies[key], to, share, seeds, how, scale if where == "fine-tuning only" else None)
        for name, value in _arrays(_summary(run, how, to)).items():
            if name not in found:
                found[name] = np.empty((len(seed), *value.shape[1:]), value.dtype)
            found[name][rows] = value
    return found


LINEAR = 3**-0.5  # the gain of torch.nn.Linear, whose default variance is 1/(3 fan_in)


def smaller(kappa: np.ndarray, fraction: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """``accuracy`` mod the third modulus and ``old_accuracy`` mod N (row,) of nets that start with gain `LINEAR`."""
    how, bodies = replace(setup(), gain=LINEAR), {}
    found = {name: np.empty(len(seed), np.float32) for name in ("accuracy", "old_accuracy")}
    for scale, share in dict.fromkeys(zip(kappa.tolist(), fraction.tolist(), strict=True)):
        rows = np.flatnonzero((kappa == scale) & (fraction == share))
        seeds = seed[rows].tolist()
        if (scale, *seeds) not in bodies:
            bodies[scale, *seeds] = pretrain([scale] * len(seeds), seeds, how)
        old = bodies[scale, *seeds]
        new = fine_tune(old.params, how.moduli[2], share, seeds, how)
        for name, run in (("accuracy", new), ("old_accuracy", old)):
            found[name][rows] = run.accuracy[-1].cpu().numpy()
    return found


def _arrays(columns: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.cpu().numpy() for name, value in columns.items()}


# --- What a notebook wants of the tables, and one run now ---------------------------------------------------------

AXES = ("place", "modulus", "kappa", "fraction", "seed")


@dataclass(frozen=True, eq=False)
class Grid:
    """A table as arrays with one axis for each of its arguments, then those of the result.

    ``axes``: name -> its values, in the order of the axes of ``values``; ``steps`` (record,) is the last axis of
    "curve". ``grid.at("curve", modulus=21, kappa=1)`` is a slice by values, the axes that were named being gone.
    """

    axes: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    steps: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def at(self, name: str, **where: float | str) -> np.ndarray:
        """Raises ValueError for an axis or a value that there is not."""
        if unknown := set(where) - set(self.axes):
            raise ValueError(f"there is no axis {', '.join(sorted(unknown))}, only {', '.join(self.axes)}")
        place = []
        for axis, stops in self.axes.items():
            if axis in where and where[axis] not in stops.tolist():
                raise ValueError(f"{axis} must be one of {', '.join(map(str, stops.tolist()))}, got {where[axis]}")
            place.append(stops.tolist().index(where[axis]) if axis in where else slice(None))
        return self.values[name][tuple(place)]


def arrays(table: Table, how: Setup = STANDARD) -> Grid:
    """One of the three tables as a `Grid`; ``how``: the sizes it was made with.

    Results, the first axes left out: "curve" (record,), accuracy on held-out pairs; "accuracy", the last of it; "half",
    "ninety", the first recorded step with .5 and .9, nan for never; "loss" of training at the end; "norm" (2, 2), of E
    and U at start and end; "balancedness" (2,), λ_EU at start and end; "spectrum" (2, k), shares of the frequencies
    k = 1, 2, … of the modulus it learns in the embedding, at start and end, 0 beyond ⌊M/2⌋; "kept" (2, ⌊N/2⌋), the same
    for the modulus N of pretraining; "pr_before", "pr_after", "ensd", "cka" of the features at "="; "diverged".

    >>> grid = arrays(load("modular_pretraining").table)
    >>> grid["curve"].shape, grid.at("kept", kappa=3).shape
    ((5, 16, 101), (16, 2, 7))
    """
    columns = dict(table.columns)
    axes = {name: np.array(list(dict.fromkeys(columns[name].tolist()))) for name in AXES if name in columns}
    order = {name: {value: i for i, value in enumerate(stops.tolist())} for name, stops in axes.items()}
    index = tuple(np.array([order[name][value] for value in columns[name].tolist()]) for name in axes)
    shape, values = tuple(map(len, axes.values())), {}
    if len(table) != np.prod(shape):
        raise ValueError(f"table must have one row for each of the {shape} values of {', '.join(axes)}")
    for name in set(columns) - set(axes):
        column = columns[name]
        column = column.astype(float) if column.dtype.kind == "f" else column
        values[name] = np.empty(shape + column.shape[1:], column.dtype)
        values[name][index] = column
    curve, square = values["curve"], values["norm"] ** 2
    steps = np.linspace(0, how.fine_tuning if "modulus" in axes else how.pretraining, curve.shape[-1])
    over_time = torch.as_tensor(np.moveaxis(curve, -1, 0)), torch.as_tensor(steps)
    for name, level in (("half", 0.5), ("ninety", 0.9)):
        values[name] = steps_to(over_time[1], over_time[0], level - 1e-3).numpy()  # .9 is .8999 in half precision
    values["accuracy"] = curve[..., -1]
    values["balancedness"] = (square[..., 0] - square[..., 1]) / square.sum(-1)
    values.setdefault("kept", values["spectrum"][..., : how.modulus // 2])
    return Grid(axes, values, steps)


def runs(place: str = "pretraining") -> Grid:
    """The shipped fine-tunings with κ at one of the `PLACES`: axes modulus, kappa, fraction, seed.

    >>> grid = runs()
    >>> grid.at("accuracy", modulus=21).shape, runs("scratch").at("curve", modulus=5, kappa=1).shape
    ((5, 2, 16), (2, 8, 21))
    """
    if place not in PLACES:
        raise ValueError(f"place must be one of {', '.join(PLACES)}, got {place!r}")
    if place == PLACES[0]:
        return arrays(load("modular_arithmetic").table)
    table = load("modular_controls").table.select(place=place)
    return arrays(Table({name: column for name, column in table.columns.items() if name != "place"}))


def share(kept: np.ndarray, modulus: int, pretraining: int = STANDARD.modulus) -> np.ndarray:
    """The share of the frequencies that N = ``pretraining`` has in common with M in "kept" (..., ⌊N/2⌋): (...).

    >>> float(share(np.array([0.1, 0.0, 0.3, 0.0, 0.4, 0.2, 0.0]), 5))  # k = 3 and 6 of 15
    0.5
    """
    return kept[..., [k - 1 for k in shared_frequencies(pretraining, modulus)]].sum(-1)


def alike(
    kept: np.ndarray,
    modulus: int,
    pretraining: int = STANDARD.modulus,
    vocabulary: int = STANDARD.net.vocabulary,
) -> np.ndarray:
    """`share` with each frequency of N = ``pretraining`` weighted by how alike M's are on the tokens: (...).

    Σ_k kept_k·max_k' |⟨χ_k, χ_k'⟩|²/V² over k' = 1 … M−1, see `character_overlaps` (derived here). The same as `share`
    where M divides N and N divides V.

    >>> kept = np.array([0.0, 0.5, 0.3, 0.0, 0.0, 0.2, 0.0])  # k = 2, 3, 6
    >>> [round(float(rule(kept, m)), 2) for m in (5, 7) for rule in (share, alike)]  # 2/15 is almost 1/7
    [0.5, 0.5, 0.0, 0.39]
    """
    overlap = character_overlaps(pretraining, modulus, vocabulary)[1 : pretraining // 2 + 1, 1:]
    return kept @ overlap.amax(1).numpy()


def rank_correlation(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Spearman's ρ over all nets, and what it scatters by when what belongs to a seed is dealt to the seeds at random.

    Both (kappa, seed); the nets of one seed are not independent, so whole seeds are shuffled. ρ is then a sum of one
    entry from each row of a matrix (seed, seed), whose variance over permutations is Σ d²/(n − 1), d that matrix less
    the means of its rows and columns (Hoeffding 1951). nan where one of the two is constant.

    >>> "{:.2f} ± {:.2f}".format(*rank_correlation(np.array([[1, 2, 3, 4]]), np.array([[1, 3, 2, 4]])))
    '0.80 ± 0.58'
    """
    ranks = [rankdata(values, axis=None).reshape(values.shape) for values in (one, other)]
    first, second = (rank - rank.mean() for rank in ranks)
    pairs = first.T @ second / np.sqrt((first**2).sum() * (second**2).sum())  # (seed, seed)
    left = pairs - pairs.mean(0) - pairs.mean(1, keepdims=True) + pairs.mean()
    return float(np.trace(pairs)), float(np.sqrt((left**2).sum() / (len(pairs) - 1)))


def grids() -> dict[str, Grid]:
    """All shipped grids: "known" of pretraining, and `runs` of each of the `PLACES`."""
    return {"known": arrays(load("modular_pretraining").table)} | {place: runs(place) for place in PLACES}


def cell(grids: dict[str, Grid], place: str, kappa: float, modulus: int, fraction: float) -> dict[str, np.ndarray]:
    """Both phases of all seeds at one point of `grids`; modulus N, which has no controls, counts as "pretraining".

    "old" (seed, record) and "new" (seed, record), accuracies; "control" (record,), the median of the untrained, empty
    for N; "kept" (seed, ⌊N/2⌋) and "spectrum" (seed, ⌊M/2⌋), shares of power after either phase; "sizes" (3,), the
    medians of PR before and after fine-tuning and of ENSD.

    >>> part = cell(grids(), "pretraining", 1, 5, 0.2)
    >>> part["old"].shape, part["new"].shape, part["spectrum"].shape
    ((16, 101), (16, 21), (16, 2))
    """
    place = place if modulus in grids[place].axes["modulus"] else PLACES[0]
    where, scratch = {"kappa": kappa, "modulus": modulus, "fraction": fraction}, grids[PLACES[2]]
    first = {"kappa": kappa if place == PLACES[0] else 1.0}
    controlled = modulus in scratch.axes["modulus"]
    return {
        "old": grids["known"].at("curve", **first),
        "new": grids[place].at("curve", **where),
        "control": np.median(scratch.at("curve", **where), 0) if controlled else np.empty(0),
        "kept": grids["known"].at("kept", **first)[:, 1],
        "spectrum": grids[place].at("spectrum", **where)[:, 1, : modulus // 2],
        "sizes": np.array([np.median(grids[place].at(part, **where)) for part in ("pr_before", "pr_after", "ensd")]),
    }


def outcomes(grid: Grid, modulus: int, fraction: float = FRACTIONS[0]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the nets of all κ in a grid of `runs`: the spectrum that each kept of N = 15 (net, 7), the `share` of it that
    M can use (net,), and the accuracy mod M in which fine-tuning ended (net,).

    >>> [part.shape for part in outcomes(runs(), 5)]
    [(80, 7), (80,), (80,)]
    """
    kept, accuracy = (grid.at(part, modulus=modulus, fraction=fraction) for part in ("kept", "accuracy"))
    kept = kept[..., 0, :].reshape(-1, kept.shape[-1])
    return kept, share(kept, modulus), accuracy.ravel()


def deal(shares: np.ndarray, seed: int) -> np.ndarray:
    """Ten of 80 nets, in random order: five of the 25 with the smallest of ``shares`` (net,), five not of the 30.

    >>> ten = deal(np.arange(80), seed=0)
    >>> len(set(ten.tolist())), int((ten < 25).sum()), int((ten >= 30).sum())
    (10, 5, 5)
    """
    ranked, draw = shares.argsort(), np.random.default_rng(seed)
    return draw.permutation(np.r_[draw.permutation(ranked[:25])[:5], draw.permutation(ranked[30:])[:5]])


def paired(change: np.ndarray) -> str:
    """Mean ± standard error of differences (seed,), "n.s." where the mean is within two standard errors of 0.

    >>> paired(np.array([-0.1, -0.3, -0.2, -0.4])), paired(np.array([0.1, -0.1, 0.3]))
    ('−0.25 ± 0.06', '+0.10 ± 0.12 (n.s.)')
    """
    return told(change, digits=2)


@dataclass(frozen=True, eq=False)
class Live:
    """A run of now: ``curve`` (kappa, seed, record) of pretraining at ``steps``, ``kept`` (kappa, seed, k) after it,
    ``new_curve`` (kappa, seed, record) of fine-tuning at ``new_steps`` to add mod ``modulus``. On another computer than
    that of the shipped tables a net parts ways with its twin there, by rounding."""

    kappas: tuple[float, ...]
    steps: np.ndarray
    curve: np.ndarray
    kept: np.ndarray
    new_steps: np.ndarray
    new_curve: np.ndarray
    modulus: int

    def told(self) -> str:
        """How it ended, in one sentence."""
        ends = self.new_curve[..., -1]
        parts = zip(self.kappas, ends.mean(1), ends.std(1, ddof=1) / ends.shape[1] ** 0.5, strict=True)
        each = ", ".join("κ = {:g}: {:.2f} ± {:.2f}".format(*part) for part in parts)
        return f"After {self.steps[-1]} steps mod 15, accuracy mod {self.modulus} in the end: {each}."


def live(
    kappas: Sequence[float] = (0.1, 0.3, 1.0, 3.0),
    seeds: Sequence[int] = range(4),
    modulus: int = 21,
    fraction: float = 0.3,
    pretraining: int = 600,
    fine_tuning: int = 400,
    progress: Callable[[Iterable], Iterable] = tqdm,
) -> Live:
    """Pretraining of each κ and seed as one stack, then one fine-tuning. ``progress`` wraps an iterable with a bar.

    >>> live(kappas=[1.0], seeds=[0, 1], pretraining=20, fine_tuning=25, progress=iter).curve.shape
    (1, 2, 3)
    """
    how = replace(STANDARD, pretraining=pretraining, fine_tuning=fine_tuning)
    looks = len(range(0, pretraining, how.pretraining_record)) + len(range(0, fine_tuning, how.record_every)) + 2
    ticks = iter(progress(range(looks)))
    shape = len(kappas), len(seeds)
    nets = np.repeat(kappas, shape[1]), [int(seed) for seed in seeds] * shape[0]
    old = pretrain(*nets, how, tick=lambda: next(ticks, None))
    new = fine_tune(old.params, modulus, fraction, nets[1], how, tick=lambda: next(ticks, None))
    next(ticks, None)  # the bar is done
    kept = spectrum(how.net, old.params, how.modulus)
    curves = (run.accuracy.T.unflatten(0, shape).cpu().numpy() for run in (old, new))
    steps = (run.recorded.cpu().numpy() for run in (old, new))
    (curve, new_curve), (at, new_at) = curves, steps
    return Live(tuple(kappas), at, curve, kept.unflatten(0, shape).cpu().numpy(), new_at, new_curve, modulus)


# --- Recipes -------------------------------------------------------------------------------------------------------

TOLERANCES = {  # of averages over four nets
    "curve": 0.05,
    "loss": 0.02,
    "norm": 0.5,
    "spectrum": 1e-3,
    "kept": 1e-3,
    "pr_before": 1.0,
    "pr_after": 1.0,
    "ensd": 0.7,
    "cka": 0.1,
}
REMADE = {"remake_seeds": 4, "tolerances": TOLERANCES, "chaotic": True}  # rounding grows about a million times


def pretraining_recipe() -> Recipe:
    seeds = compute.pick(quick=4, standard=16, full=16)
    return Recipe(pretraining, {"kappa": KAPPAS}, seeds, {"kappa": 0.3}, batched=seeds, **REMADE)


def fine_tuning_recipe() -> Recipe:
    seeds, moduli = compute.pick(quick=4, standard=16, full=16), setup().moduli
    grid = {"modulus": moduli, "kappa": KAPPAS, "fraction": FRACTIONS}
    remake = {"modulus": moduli[1], "kappa": 1.0, "fraction": FRACTIONS[0]}
    return Recipe(fine_tuning, grid, seeds, remake, _rows(grid, seeds), **REMADE)


def controls_recipe() -> Recipe:
    seeds, moduli = compute.pick(quick=4, standard=8, full=8), setup().moduli[1:]
    grid = {"place": PLACES[1:], "modulus": moduli, "kappa": KAPPAS, "fraction": FRACTIONS}
    remake = {"place": "scratch", "modulus": moduli[0], "kappa": 1.0, "fraction": FRACTIONS[0]}
    return Recipe(controls, grid, seeds, remake, _rows(grid, seeds), **REMADE)


def scale_recipe() -> Recipe:
    seeds, grid = compute.pick(quick=4, standard=32, full=32), {"kappa": (1.0, 0.1, 10.0), "fraction": FRACTIONS}
    more = REMADE | {"tolerances": {"accuracy": 0.15, "old_accuracy": 0.02}}
    return Recipe(smaller, grid, seeds, {"kappa": 1.0, "fraction": FRACTIONS[1]}, _rows(grid, seeds), **more)


def _rows(grid: dict[str, Sequence], seeds: int) -> int:
    """All of a table: in one call a net is pretrained once."""
    return seeds * math.prod(map(len, grid.values()))
