"""A block inserted into a trained network and trained on: the risks behind the three bars of lesson 12.

An old network (depth 2, width 16) learns from n samples of the teacher task for so many steps; a block of 32 hidden
units goes in after block 1; all of it is trained on, on the same samples. Beside it the jumpboard of that sample, the
fallback of Condition 2, and the control: the old network trained on for as long. Risks have a last axis of two
losses, "ce" and "prob" (1 − p_y).
"""

from collections.abc import Mapping

import numpy as np
import torch

from labkit import compute, training
from labkit.depth import jumpboard, network
from labkit.depth.bounds import RiskChange, decompose_test_change
from labkit.depth.network import LOSSES, PostNormResNet
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import Recipe

WIDTH, DEPTH, LAYER, HIDDEN = 16, 2, 1, 32
TEST = 20_000  # inputs; the mean over labels is exact
APART = 10_000  # between the seeds of what one row draws: sample, weights, features, orders


def insertion(n: np.ndarray, pretraining: np.ndarray, further: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """Risks of each row, (row, 2): of old, jumpboard and new model on T, of jumpboard and new one on S; the control."""
    task = TeacherTask(compute.generator(TEACHER_SEED))
    x_test = task.sample_inputs(TEST, compute.generator(APART - 1))
    found = {}
    for size, before in sorted(set(zip(n.tolist(), pretraining.tolist(), strict=True))):
        here = (n == size) & (pretraining == before)
        seeds, order = np.unique(seed[here], return_inverse=True)
        draws = [training.generators(APART * part + s for s in seeds.tolist()) for part in range(1, 5)]
        x, y = task.sample_each(size, draws[0])
        old = PostNormResNet(task.in_dim, WIDTH, DEPTH, WIDTH, task.n_classes, generators=draws[1])
        old = network.fit(old, x, y, before, generators=draws[3]).model
        start = network.insert_block(old, LAYER, HIDDEN, generators=draws[2])
        board = jumpboard.jumpboard(old, LAYER, x, y, w1=start.params[f"w1.{LAYER + 1}"]).model
        for steps in sorted(set(further[here].tolist())):
            orders = [training.generators(APART * part + s for s in seeds.tolist()) for part in (5, 5)]
            trained = network.fit(start, x, y, steps, generators=orders[0]).model
            new = jumpboard.fall_back(trained, board, x, y)
            control = network.fit(old, x, y, steps, generators=orders[1]).model
            models = {"old": old, "jump": board, "new": new.model, "continued": control}
            risks = {f"{name}_test": [task.risk(m, x_test, loss) for loss in LOSSES] for name, m in models.items()}
            for name in ("old", "jump", "new"):
                risks[f"{name}_train"] = [jumpboard.mean_loss(models[name], x, y, loss) for loss in LOSSES]
            values = {name: torch.stack(parts, -1).cpu().numpy() for name, parts in risks.items()}
            values["fell_back"] = new.fell_back.cpu().numpy()
            rows = np.flatnonzero(here)[further[here] == steps]
            for name, value in values.items():
                column = found.setdefault(name, np.empty((len(n), *value.shape[1:]), value.dtype))
                column[rows] = value[order[further[here] == steps]]
    return found


def bars(columns: Mapping[str, np.ndarray], loss: int = 0) -> RiskChange:
    """The three bars of each row, of what `insertion` returns or of a table of it; loss: 0 for "ce", 1 for "prob"."""
    names = ("old_test", "jump_test", "new_test", "jump_train", "new_train")
    return decompose_test_change(*(torch.as_tensor(columns[name][..., loss]) for name in names))


def recipe() -> Recipe:
    return Recipe(
        insertion,
        grid={
            "n": [250, 500, 1000, 2000, 4000, 8000, 16_000],
            "pretraining": [60, 400],
            "further": [25, 50, 100, 200, 400],
        },
        seeds=compute.pick(quick=4, standard=12, full=48),
        remake={"n": 500, "further": 25},
        batched=1680,
        tolerances=dict.fromkeys(
            [f"{model}_{sample}" for model in ("old", "jump", "new", "continued") for sample in ("test", "train")], 1e-6
        ),
    )
