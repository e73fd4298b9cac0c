"""Risk on the population and loss on the training sample, by depth, width and number of samples: lesson 14.

Students of the teacher task, as ``labkit.depth.study.students`` trains them: hidden = width, Adam on batches of 256
for `STEPS` steps, cosine rate from 1e-2, residual weights ∝ 1/√depth. A seed draws the same sample and the same order
of batches for every depth and width, so that differences between them are paired. `deep_failures` has two controls:
"unscaled" starts the residuals without the 1/√depth, "slow" trains at the rate 3e-3.
"""

from collections.abc import Sequence

import numpy as np

from labkit import compute
from labkit.depth.jumpboard import mean_loss
from labkit.depth.study import students
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import Recipe
from labkit.sweep import Table

STEPS = 250
TEST = 20_000  # inputs; the expectation over labels is exact
SETTINGS = {"usual": {}, "unscaled": {"residual_std": 1.0}, "slow": {"lr": 3e-3}}


def trained(
    n: np.ndarray, width: np.ndarray, depth: np.ndarray, seed: np.ndarray, setting: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Cross-entropy of each row in nats: ``risk`` of the population, ``train`` of the sample it was trained on."""
    task = TeacherTask(compute.generator(TEACHER_SEED))
    population = task.sample_inputs(TEST, compute.generator(0))
    setting = np.full(len(n), "usual") if setting is None else setting
    kinds = list(zip(setting.tolist(), n.tolist(), width.tolist(), depth.tolist(), strict=True))
    risk, train = np.empty(len(n)), np.empty(len(n))
    for kind in sorted(set(kinds)):
        rows = [row for row, its in enumerate(kinds) if its == kind]
        model, x, y = students(
            task, kind[1], STEPS, seed[rows].tolist(), kind[2], kind[3], dtype=population.dtype, **SETTINGS[kind[0]]
        )
        risk[rows] = task.risk(model, population).cpu().numpy()
        train[rows] = mean_loss(model, x, y).cpu().numpy()
    return {"risk": risk, "train": train}


def cube(table: Table, name: str, axes: Sequence[str] = ("n", "width", "depth")) -> np.ndarray:
    """A result as an array with one axis for each argument, in the order of the grid, and the seeds last.

    >>> from labkit.results import load
    >>> cube(load("depth_width_data").table, "risk").shape
    (5, 4, 5, 8)
    """
    return table[name].reshape(*(len(np.unique(table[axis])) for axis in axes), -1)


def averaged(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds, the last axis, and its standard error."""
    return values.mean(-1), values.std(-1, ddof=1) / values.shape[-1] ** 0.5


GRID = {"width": [4, 8, 16, 32], "depth": [1, 2, 4, 8, 16]}
TOLERANCES = {"risk": 1e-5, "train": 1e-5}  # rounding grows as a network learns


def recipe() -> Recipe:
    """The shipped grid."""
    seeds = compute.pick(quick=2, standard=8, full=48)
    grid = {"n": [500, 1000, 2000, 4000, 8000]} | GRID
    return Recipe(trained, grid, seeds, {"n": 1000, "width": 8, "depth": 2}, seeds, TOLERANCES)


def deep_failures() -> Recipe:
    """The controls, of the narrowest and the widest networks."""
    seeds = compute.pick(quick=2, standard=8, full=48)
    grid = {"setting": ["unscaled", "slow"], "n": [8000], "width": [4, 32], "depth": GRID["depth"]}
    return Recipe(trained, grid, seeds, {"setting": "unscaled", "n": 8000, "width": 4, "depth": 4}, seeds, TOLERANCES)
