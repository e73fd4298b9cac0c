"""Two-layer ReLU nets pretrained and fine-tuned over λ, c, γ, n and task, with both controls: lesson 05.

One row is one net. A seed has one teacher, one sample of each task and one draw of the directions for all settings:
they are compared seed by seed. ``relu_norms`` has ‖w‖² and v² of every neuron after pretraining.
"""

from typing import NamedTuple

import numpy as np
import torch

from labkit import compute
from labkit.results import Recipe
from labkit.sweep import Table
from labkit.transfer.protocol import SOURCES
from labkit.transfer.relu import TASKS, Sizes, fine_tune, pretrain

LAM = [-0.99, -0.9, 0.0, 0.9, 0.99]
C = [0.03, 0.1, 0.3, 1.0, 3.0]
GAMMA = [0.03, 0.3, 1.0]
SIZES = {20: Sizes(), 100: Sizes(dim=100, hidden=512, n_pt=2000)}  # by dim; 100 for a GPU
# of averages over the seeds: a step more or less at the stop loss, and float32 training amplifies rounding
TOLERANCES = {"error": 3e-3, "pr_before": 0.05, "pr_after": 0.1, "ensd": 0.1, "cka": 5e-3, "moved": 5e-3, "drift": 0.01}
TOLERANCES |= {"steps": 10, "pt_steps": 5, "w_norm": 3e-3, "v_norm": 3e-3}


def bridge(
    dim: np.ndarray,
    c: np.ndarray,
    lam: np.ndarray,
    gamma: np.ndarray,
    n: np.ndarray,
    task: np.ndarray,
    source: np.ndarray,
    seed: np.ndarray,
) -> dict[str, np.ndarray]:
    """What `fine_tune` gives, of each row; and of its pretraining pt_steps, pt_reached and the drift of the invariant.

    The nets of one (c, λ) are pretrained once. What starts from scratch has no γ: it is trained once for all of them.
    """
    found: dict[str, np.ndarray] = {}

    def keep(name: str, rows: np.ndarray, values: torch.Tensor) -> None:
        values = values.cpu().numpy()
        found.setdefault(name, np.empty(len(c), np.float32 if values.dtype.kind == "f" else values.dtype))[rows] = (
            values
        )

    for setting in sorted(set(zip(dim.tolist(), c.tolist(), lam.tolist(), strict=True))):
        here = np.flatnonzero((dim == setting[0]) & (c == setting[1]) & (lam == setting[2]))
        seeds = sorted(set(seed[here].tolist()))
        net = np.searchsorted(seeds, seed)
        old = pretrain(*setting[1:], seeds, SIZES[setting[0]])
        for name, values in (
            ("pt_steps", old.phase.steps.to(torch.int32)),
            ("pt_reached", old.phase.reached),
            ("drift", old.drift),
        ):
            keep(name, here, values[torch.as_tensor(net[here], device=values.device)])
        for size, start in sorted(set(zip(n[here].tolist(), source[here].tolist(), strict=True))):
            rows = here[(n[here] == size) & (source[here] == start)]
            kinds = [(int(net[i]), str(task[i]), 0.0 if start == "scratch" else float(gamma[i])) for i in rows]
            each = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
            nets, tasks, gammas = (list(part) for part in zip(*each, strict=True))
            done = fine_tune(old, int(size), tasks, gammas, str(start), nets)
            done["steps"] = done["steps"].to(torch.int32)
            which = torch.tensor([each[kind] for kind in kinds], device=old.drift.device)
            for name, values in done.items():
                keep(name, rows, values[which])
    return found


def norms(dim: np.ndarray, c: np.ndarray, lam: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """w_norm and v_norm, ‖w_j‖² and v_j² after pretraining, each (row, hidden); the drift of the invariant (row,)."""
    found = {}
    for setting in sorted(set(zip(dim.tolist(), c.tolist(), lam.tolist(), strict=True))):
        rows = np.flatnonzero((dim == setting[0]) & (c == setting[1]) & (lam == setting[2]))
        old = pretrain(*setting[1:], seed[rows].tolist(), SIZES[setting[0]])
        w, v = old.phase.params["w"].square().sum(-1), old.phase.params["v"][:, 0].square()
        for name, values in (("w_norm", w), ("v_norm", v), ("drift", old.drift)):
            values = values.cpu().numpy().astype(np.float32)
            found.setdefault(name, np.empty((len(c), *values.shape[1:]), np.float32))[rows] = values
    return found


class Grid(NamedTuple):
    """``axes`` maps their names to their values, in order; ``values`` the name of a result to its array over them."""

    axes: dict[str, np.ndarray]
    values: dict[str, np.ndarray]

    def at(self, name: str, **places: float | str) -> np.ndarray:
        """A result at these values of some axes, over the axes that are left, in their order.

        >>> from labkit.results import load
        >>> arrays(load("relu_bridge").table).at("error", c=0.3, gamma=0.3, n=80, task="new", source="reset").shape
        (5, 10)
        """
        index = [slice(None)] * len(self.axes)
        for axis, value in places.items():
            stops = self.axes[axis].tolist() if axis in self.axes else []
            if value not in stops:
                raise ValueError(f"{axis} must be one of {stops or list(self.axes)}, got {value!r}")
            index[list(self.axes).index(axis)] = stops.index(value)
        return self.values[name][tuple(index)]


def arrays(table: Table) -> Grid:
    """A table of `bridge` or `norms` with an axis for each argument (one-valued ``dim`` left out), seed last.

    Added to `bridge` is both_reached: fine-tuning reached its loss, and so did pretraining where the net comes from it;
    elsewhere the step limit came first, or the net diverged.

    >>> from labkit.results import load
    >>> grid = arrays(load("relu_bridge").table)
    >>> list(grid.axes), grid.values["error"].shape
    (['c', 'lam', 'gamma', 'n', 'task', 'source', 'seed'], (5, 5, 3, 2, 2, 3, 10))
    >>> late = ~grid.at("both_reached", c=0.03, lam=0.99, gamma=0.3, n=40, task="new", source="pretrained")
    >>> f"{late.sum()} of {late.size} seeds stopped at the step limit"
    '1 of 10 seeds stopped at the step limit'
    >>> arrays(load("relu_norms").table).values["w_norm"].shape
    (5, 5, 10, 48)
    """
    names = [name for name in ("c", "lam", "gamma", "n", "task", "source", "seed") if name in table.columns]
    axes = {name: np.array(list(dict.fromkeys(table[name].tolist()))) for name in names}
    shape = tuple(map(len, axes.values()))
    results = {name: values for name, values in table.columns.items() if name not in (*names, "dim")}
    if "reached" in results:
        not_from_it = table["source"] != SOURCES[0]
        results["both_reached"] = table["reached"] & (table["pt_reached"] | not_from_it)
    return Grid(axes, {name: values.reshape(*shape, *values.shape[1:]) for name, values in results.items()})


def recipe() -> Recipe:
    dim, n, seeds = compute.pick(quick=(20, [80], 4), standard=(20, [40, 80], 10), full=(100, [200, 400], 50))
    grid = {"dim": [dim], "c": C, "lam": LAM, "gamma": GAMMA, "n": n, "task": list(TASKS), "source": list(SOURCES)}
    rows = len(GAMMA) * len(n) * len(TASKS) * len(SOURCES) * seeds  # of one (c, λ): one pretraining
    part = {"c": 0.3, "lam": -0.9, "gamma": 0.3, "n": n[-1], "task": "subset", "source": "pretrained"}
    return Recipe(bridge, grid, seeds, part, rows, TOLERANCES, chaotic=True)


def norms_recipe() -> Recipe:
    dim, seeds = compute.pick(quick=(20, 4), standard=(20, 10), full=(100, 50))
    grid = {"dim": [dim], "c": C, "lam": LAM}
    return Recipe(norms, grid, seeds, {"c": 0.3, "lam": -0.9}, seeds, TOLERANCES, chaotic=True)
