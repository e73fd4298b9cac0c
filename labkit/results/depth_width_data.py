"""Risk on the population and loss on the training sample, by depth, width and number of samples: lesson 14.

Students of the teacher task, as ``labkit.depth.study.students`` trains them: hidden = width, Adam on batches of 256
for `STEPS` steps, cosine rate from 1e-2, residual weights ∝ 1/√depth. A seed draws the same sample and the same order
of batches for every depth and width, so that differences between them are paired. `deep_failures` has two controls:
"unscaled" starts the residuals without the 1/√depth, "slow" trains at the rate 3e-3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Excess:
    """The grid as arrays (n, width, depth, seed): losses above the least possible risk ``bayes``, in nats."""

    axes: dict[str, np.ndarray]  # the values of n, width and depth
    risk: np.ndarray
    train: np.ndarray
    bayes: float

    def nearest(self, n: float, width: float, depth: float) -> tuple[int, int, int]:
        """The place of the grid that is nearest, in ratios."""
        pairs = zip(self.axes.values(), (n, width, depth), strict=True)
        return tuple(int(np.abs(np.log(stops / value)).argmin()) for stops, value in pairs)


def excess(table: Table) -> Excess:
    """The shipped grid as arrays.

    >>> from labkit.results import load
    >>> grid = excess(load("depth_width_data").table)
    >>> grid.risk.shape, grid.nearest(n=700, width=17, depth=8)
    ((5, 4, 5, 8), (0, 2, 3))
    """
    task = TeacherTask(compute.generator(TEACHER_SEED))
    bayes = task.bayes_risk(task.sample_inputs(TEST, compute.generator(0))).item()
    axes = {name: np.unique(table[name]) for name in ("n", "width", "depth")}
    return Excess(
        axes, *(table[name].reshape(*map(len, axes.values()), -1) - bayes for name in ("risk", "train")), bayes
    )


def anew(n: int, width: int, depth: int, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """The same for one setting as one stack in float32, twice as fast: ``risk`` and ``train``, each (seed,)."""
    task = TeacherTask(compute.generator(TEACHER_SEED))
    model, x, y = students(task, n, STEPS, seeds, width, depth)
    risk = task.risk(model, task.sample_inputs(TEST, compute.generator(0), x.dtype))
    return {"risk": risk.double().cpu().numpy(), "train": mean_loss(model, x, y).double().cpu().numpy()}


def averaged(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds, the last axis, and its standard error."""
    return values.mean(-1), values.std(-1, ddof=1) / values.shape[-1] ** 0.5


def told(values: np.ndarray, digits: int = 3) -> str:
    """Mean ± standard error of the seeds, signed.

    >>> told(np.array([-0.011, -0.013]))
    '−0.012 ± 0.001'
    """
    mean, error = averaged(values)
    return f"{mean:+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


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
