"""Small ResNets from digits to few digits: which scale helps, and what of it is readout noise: lesson 06.

Pretrained at each scale κ and weight_scale, then fine-tuned with a new readout of scale γ, plain and centered, and from
scratch as the control (``labkit.transfer.digits``). Every row is one net; all rows of a seed share images and draws.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from labkit import compute
from labkit.data.digits import TASKS
from labkit.results import Recipe
from labkit.sweep import Table
from labkit.transfer.digits import FINETUNING, Finetuned, Pretrained, few_shots, finetune, pretrain
from labkit.transfer.resnet import SMALL_BATCH_NORM, match_norms, rescale_convolutions

KAPPAS = [0.2, 1.0, 5.0]
WEIGHT_SCALES = [0.3, 1.0, 3.0]
SHOTS = [3, 10]  # images a class
AXES = "task", "n", "gamma", "statistics", "matched", "centered", "weight_scale", "kappa", "seed"
USUAL = {"task": "subset", "n": 3, "gamma": 1.0, "centered": False, "weight_scale": 1.0}  # the lesson starts here
USUAL |= {"statistics": "batch", "matched": False}
BATCH_NORM_KAPPAS = [0.1, 0.3, 1.0, 3.0, 10.0]
BATCH_NORM_SHOTS, BATCH_NORM_RATE = 3, 0.005
REMADE = 3  # seeds
# Weights 1e-6 apart before pretraining end as nets whose numbers differ by sd s: accuracy .03, PR and ENSD .37, CKA
# .015, steps 1.2 and 10, loss .0016. An average over three nets may be off by 3·s/√3.
LOOSE = {"accuracy": 0.06, "pr_before": 0.7, "pr_after": 0.7, "ensd": 0.7, "cka": 0.03, "steps": 3, "loss": 0.003}
LOOSE |= {"pretraining_steps": 20, "pretraining_loss": 0.003, "pretraining_accuracy": 0.03, "stem_norm": 0.002}
# From scratch, in a hundred steps, they stay .001 apart in accuracy and .003 in PR.
TIGHT = {"accuracy": 0.01, "pr_before": 1e-3, "pr_after": 0.02, "ensd": 0.02, "cka": 0.005, "loss": 1e-4}


def transfer(
    kappa: np.ndarray,
    weight_scale: np.ndarray,
    task: np.ndarray,
    n: np.ndarray,
    gamma: np.ndarray,
    centered: np.ndarray,
    seed: np.ndarray,
) -> dict[str, np.ndarray]:
    """Each net pretrained once, fine-tuned in every row that wants it; what `numbers` tells, each (row,)."""
    return _rows({"task": task, "n": n, "gamma": gamma, "centered": centered}, kappa, weight_scale, seed)


def scratch(
    kappa: np.ndarray, weight_scale: np.ndarray, task: np.ndarray, n: np.ndarray, centered: np.ndarray, seed: np.ndarray
) -> dict[str, np.ndarray]:
    """The control: the same scales, task and images without pretraining."""
    return _rows({"task": task, "n": n, "centered": centered}, kappa, weight_scale, seed, max_steps=0)


def batch_norm(
    kappa: np.ndarray,
    task: np.ndarray,
    centered: np.ndarray,
    statistics: np.ndarray,
    matched: np.ndarray,
    seed: np.ndarray,
) -> dict[str, np.ndarray]:
    """With batch norm, where κ is a learning rate: `BATCH_NORM_SHOTS` images a class, γ = 1.

    matched: between pretraining and fine-tuning the convolutions get the norms that they had at κ = 1 before
    pretraining; f is the same, and the angular speed no longer depends on κ.
    """
    cells = {"task": task, "centered": centered, "statistics": statistics, "matched": matched}
    cells |= {"n": np.full(len(seed), BATCH_NORM_SHOTS), "gamma": np.ones(len(seed))}
    return _rows(cells, kappa, np.ones(len(seed)), seed, BATCH_NORM_RATE, net=SMALL_BATCH_NORM)


def with_matched_norms(old: Pretrained) -> Pretrained:
    """The same functions; every convolution has the norm with which it was drawn at κ = 1, its statistics follow."""
    drawn, before = rescale_convolutions(old.net, old.initial, 1 / old.kappa), old.phase.params
    after, known = match_norms(old.net, before, drawn), {}
    for name, both in old.statistics.items():
        ratio = (after[name].flatten(1).norm(dim=1) / before[name].flatten(1).norm(dim=1))[:, None]
        known[name] = torch.stack([both[:, 0] * ratio, both[:, 1] * ratio**2], 1)  # mean and variance
    return replace(old, phase=replace(old.phase, params=after), statistics=known)


def numbers(old: Pretrained, new: Finetuned) -> dict[str, torch.Tensor]:
    """A row: accuracy, steps, loss, reached and diverged of fine-tuning; features; the same of pretraining, if any.

    accuracy, pr_before, pr_after, ensd and cka are nan where the net diverged.
    """
    found = {name: getattr(new, name) for name in ("accuracy", "pr_before", "pr_after", "ensd", "cka")}
    found |= {name: getattr(new.phase, name) for name in ("steps", "loss", "reached", "diverged")}
    if old.phase.steps.any():
        before = {name: getattr(old.phase, name) for name in ("steps", "loss", "reached", "diverged")}
        found |= {f"pretraining_{name}": value for name, value in (before | {"accuracy": old.accuracy}).items()}
    if old.net.norm:  # how much of κ pretraining has left
        found["stem_norm"] = old.phase.params["stem"].flatten(1).norm(dim=1)
    return found


def _rows(
    cells: dict[str, np.ndarray],
    kappa: np.ndarray,
    weight_scale: np.ndarray,
    seed: np.ndarray,
    lr: float = FINETUNING["lr"],
    **pretraining,
) -> dict[str, np.ndarray]:
    """The rows in any order: a net is pretrained once, all seeds of a scale as one stack, and kept for all its rows."""
    found: dict[str, np.ndarray] = {}
    for scales in sorted(set(zip(kappa.tolist(), weight_scale.tolist(), strict=True))):
        here = (kappa == scales[0]) & (weight_scale == scales[1])
        seeds = np.unique(seed[here])  # ascending
        old = pretrain(*scales, seeds, **pretraining)
        starts = {False: old, True: with_matched_norms(old) if "matched" in cells else None}
        own = {} if "gamma" in cells else {"gamma": scales[1] / scales[0]}  # of a readout as it was drawn
        for task, n in sorted(set(zip(cells["task"][here].tolist(), cells["n"][here].tolist(), strict=True))):
            sample = few_shots(old, task, n)
            at = here & (cells["task"] == task) & (cells["n"] == n)
            others = {name: values for name, values in cells.items() if name not in ("task", "n")}
            for choice in sorted(set(zip(*(values[at].tolist() for values in others.values()), strict=True))):
                chosen = dict(zip(others, choice, strict=True))
                rows = np.flatnonzero(at & np.all([others[name] == value for name, value in chosen.items()], 0))
                start = starts[chosen.pop("matched", False)]
                new = finetune(start, task, n, **chosen, **own, lr=lr, sample=sample)
                place = np.searchsorted(seeds, seed[rows])
                for name, value in numbers(start, new).items():
                    value = value.cpu().numpy()
                    value = value.astype(np.float32) if value.dtype.kind == "f" else value
                    found.setdefault(name, np.empty(len(kappa), value.dtype))[rows] = value[place]
    return found


@dataclass(frozen=True)
class Grid:
    """The columns of a table as arrays with named axes.

    Fields
        axes: name -> its values, in the order of the axes of every array; the last one is "seed"
        values: name of a result -> array; nan where a net diverged
    """

    axes: dict[str, list]
    values: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def place(self, **setting: object) -> tuple:
        """Where a setting lies in each array, `USUAL` where none is given: all κ without a kappa, or with None."""
        unknown = set(setting) - set(AXES[:-1])
        if unknown:
            raise ValueError(f"a setting has {', '.join(AXES[:-1])}, got {', '.join(sorted(unknown))}")
        setting, place = {name: value for name, value in (USUAL | setting).items() if value is not None}, []
        for axis, values in list(self.axes.items())[:-1]:
            if axis in setting and setting[axis] not in values:
                raise ValueError(f"{axis} must be one of {values}, got {setting[axis]!r}")
            place.append(values.index(setting[axis]) if axis in setting else slice(None))
        return tuple(place)

    def at(self, name: str, **setting: object) -> np.ndarray:
        """A result at a setting, see `place`: (kappa, seed), or (seed,) with a kappa.

        >>> from labkit.results import load
        >>> arrays(load("digits_transfer").table).at("accuracy", task="new", kappa=0.2).shape
        (12,)
        """
        return self.values[name][self.place(**setting)]

    def overall(self, name: str, **setting: object) -> np.ndarray:
        """A result averaged over all settings with the values given, seed by seed: (kappa, seed).

        >>> from labkit.results import load
        >>> grid = arrays(load("digits_transfer").table)
        >>> grid.overall("accuracy", task="new", weight_scale=3.0).shape
        (3, 12)
        """
        others = [axis for axis in list(self.axes)[:-2] if axis not in setting]
        part = self.values[name][self.place(**dict.fromkeys(others) | setting)]
        return part.mean(tuple(range(part.ndim - 2)))

    def gains(self, average: bool = False, **setting: object) -> np.ndarray:
        """Accuracy at a κ minus that at the next larger one, seed by seed: (kappa − 1, seed). > 0: smaller is better.

        ``average``: `overall` settings that are not given, else at the `USUAL` ones.

        >>> from labkit.results import load
        >>> arrays(load("digits_scratch").table).gains(task="shift").shape
        (2, 12)
        """
        return -np.diff((self.overall if average else self.at)("accuracy", **setting), axis=0)

    def change(self, name: str, old: float, new: float, **setting: object) -> np.ndarray:
        """What accuracy gains, `overall`, when the value of an axis goes from old to new: (kappa, seed).

        >>> from labkit.results import load
        >>> arrays(load("digits_transfer").table).change("gamma", 1.0, 0.1, task="new").shape
        (3, 12)
        """
        old, new = (self.overall("accuracy", **{name: value}, **setting) for value in (old, new))
        return new - old


def arrays(table: Table) -> Grid:
    """A shipped table with an axis an argument, in the order of `AXES` (those that the table has).

    >>> from labkit.results import load
    >>> grid = arrays(load("digits_transfer").table)
    >>> list(grid.axes), grid["accuracy"].shape
    (['task', 'n', 'gamma', 'centered', 'weight_scale', 'kappa', 'seed'], (3, 2, 2, 2, 3, 3, 12))
    """
    names = [name for name in AXES if name in table.columns]
    axes = {name: list(dict.fromkeys(table[name].tolist())) for name in names}
    place = tuple(np.array([axes[name].index(value) for value in table[name].tolist()]) for name in names)
    shape, values = [len(stops) for stops in axes.values()], {}
    for name, column in table.columns.items():
        if name not in names:
            values[name] = np.empty(shape, column.dtype)
            values[name][place] = column
    return Grid(axes, values)


def recipe() -> Recipe:
    seeds = compute.pick(quick=3, standard=12, full=48)
    grid = {"kappa": KAPPAS, "weight_scale": WEIGHT_SCALES, "task": list(TASKS), "n": SHOTS}
    grid |= {"gamma": [1.0, 0.1], "centered": [False, True]}
    part = {"kappa": 1.0, "weight_scale": 1.0, "task": "subset", "n": 3}
    return Recipe(transfer, grid, seeds, part, 24 * seeds, LOOSE, REMADE, chaotic=True)


def scratch_recipe() -> Recipe:
    seeds = compute.pick(quick=3, standard=12, full=48)
    grid = {"kappa": KAPPAS, "weight_scale": [1.0], "task": list(TASKS), "n": SHOTS}
    grid |= {"centered": [False, True]}
    part = {"kappa": 1.0, "task": "subset", "n": 3}
    return Recipe(scratch, grid, seeds, part, 6 * seeds, TIGHT, REMADE)


def batch_norm_recipe() -> Recipe:
    seeds = compute.pick(quick=3, standard=8, full=24)
    grid = {"kappa": BATCH_NORM_KAPPAS, "task": ["subset", "new"], "centered": [False, True]}
    grid |= {"statistics": ["batch"], "matched": [False, True]}
    part = {"kappa": 1.0, "task": "subset"}
    return Recipe(batch_norm, grid, seeds, part, 8 * seeds, LOOSE, REMADE, chaotic=True)
