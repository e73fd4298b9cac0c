"""Insert a block, or train the old network as long? The five ways of ``labkit.depth.study.insertion``: lesson 14.

The old network (depth 2, width 16) learns from n samples for so many steps; a block of 32 hidden units goes in after
block 1; then `FURTHER` steps on the same samples. All ways of a seed share the old network and the samples.
"""

import warnings

import numpy as np
import torch

from labkit import compute
from labkit.depth.study import WAYS, insertion, students
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import Recipe
from labkit.sweep import Table

FURTHER = 200  # steps of training after the insertion, or without it


CHOICES = {"stop": "old", "train on": "continue", "insert, train all": "insert", "insert, train block": "block"}


def risks(n: np.ndarray, pretraining: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """``WAY_risk`` of the population and ``WAY_train`` of the sample, each (row,), nats; WAY "old" is the start."""
    task, found = TeacherTask(compute.generator(TEACHER_SEED)), {}
    for size, steps in sorted(set(zip(n.tolist(), pretraining.tolist(), strict=True))):
        rows = np.flatnonzero((n == size) & (pretraining == steps))
        seeds = seed[rows].tolist()
        with warnings.catch_warnings():  # of a fresh sample: its step is 0 then
            warnings.filterwarnings("ignore", "no step along this direction")
            old = students(task, size, steps, seeds, dtype=task.teacher.params["out"].dtype)
            done = insertion(task, old, seeds, further=FURTHER)
        values = {"old_risk": done.old_risk, "old_train": done.old_train}
        values |= {f"{way}_risk": done.risk[way] for way in WAYS} | {f"{way}_train": done.train[way] for way in WAYS}
        for name, value in values.items():
            found.setdefault(name, np.empty(len(n)))[rows] = value.cpu().numpy()
    return found


def arrays(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """`bars` and their sum, (n, pretraining, 3, seed); changes of the risk by `CHOICES`, (n, pretraining, 4, seed).

    >>> from labkit.results import load
    >>> [part.shape for part in arrays(load("insert_or_train").table)]
    [(7, 2, 3, 12), (7, 2, 4, 12)]
    """
    both = bars(table).T.numpy()
    changes = [table[f"{way}_risk"] - table["old_risk"] for way in CHOICES.values()]
    shape = *(len(np.unique(table[name])) for name in ("n", "pretraining")), -1
    return tuple(np.stack([part.reshape(shape) for part in parts], 2) for parts in ((*both, sum(both)), changes))


def bars(columns, ways: tuple[str, str] = ("continue", "insert")) -> torch.Tensor:
    """(row, 2): what the second of two ways adds to the training loss, and what it adds to the gap L − L_S.

    Their sum is the difference of the risks, exactly (derived here). ``columns``: a table of `risks`.
    """
    risk, train = (
        torch.as_tensor(columns[f"{ways[1]}_{what}"] - columns[f"{ways[0]}_{what}"]) for what in ("risk", "train")
    )
    return torch.stack([train, risk - train], 1)


def recipe() -> Recipe:
    seeds = compute.pick(quick=4, standard=12, full=48)
    grid = {"n": [250, 500, 1000, 2000, 4000, 8000, 16_000], "pretraining": [60, 400]}
    names = [f"{way}_{what}" for way in ("old", *WAYS) for what in ("risk", "train")]
    return Recipe(risks, grid, seeds, {"n": 500, "pretraining": 60}, seeds, dict.fromkeys(names, 1e-5))
