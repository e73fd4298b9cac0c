"""The experiments of this part as functions: many seeds of a student at once, and what inserting a block does to them.

A seed decides a student's weights, its sample and the order of its batches; the teacher is the same for all. What is
compared starts from the same old network and sees the same samples, so differences are paired by seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import compute, training
from labkit.depth.jumpboard import draw_features, fall_back, jumpboard, mean_loss
from labkit.depth.network import FIRST_SEED, PostNormResNet, block_names, fit, insert_block
from labkit.depth.task import TeacherTask
from labkit.validate import require_whole

WAYS = ("jumpboard", "fresh", "continue", "insert", "block")
WEIGHTS, SAMPLE, FRESH, ORDER, FURTHER = range(5)  # what a seed is used for


class Students(NamedTuple):
    """A stack of trained networks, and the sample of each: x (net, n, in), y (net, n)."""

    model: PostNormResNet
    x: Tensor
    y: Tensor


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose."""
    return training.generators([10 * int(seed) + 100_000 + purpose for seed in seeds])


def students(
    task: TeacherTask,
    n: int,
    steps: int,
    seeds: Sequence[int],
    width: int = 16,
    depth: int = 2,
    lr: float = 1e-2,
    dtype: torch.dtype = torch.float32,
    residual_std: float | None = None,
    batch: int = 256,
) -> Students:
    """Students with hidden = width, each trained on n samples of its own: Adam, cosine rate, batches of ``batch``.

    In float32, which training does not mind; ``model.to(dtype=torch.float64)`` before slopes are compared.

    >>> from labkit.depth.task import TEACHER_SEED
    >>> found = students(TeacherTask(compute.generator(TEACHER_SEED)), n=500, steps=20, seeds=range(3))
    >>> found.model.n_nets, found.x.shape
    (3, torch.Size([3, 500, 9]))
    """
    require_whole(1, n=n, steps=steps)
    start = PostNormResNet(
        task.in_dim,
        width,
        depth,
        width,
        task.n_classes,
        generators=streams(seeds, WEIGHTS),
        residual_std=residual_std,
        dtype=dtype,
    )
    x, y = task.sample_each(n, streams(seeds, SAMPLE), dtype)
    return Students(fit(start, x, y, steps, lr, batch, streams(seeds, ORDER)).model, x, y)


@dataclass(frozen=True)
class Insertion:
    """Risks before and after, each (net,), in nats; ``risk`` and ``train`` by the way from the old network.

    ``"jumpboard"``: ridge direction and line search on the training sample, nothing else; ``"fresh"``: the same on n
    fresh samples. Then ``further`` steps of training on the training sample: ``"continue"`` of the old network (the
    control), ``"insert"`` of all weights with the new block, which starts alive at zero, ``"block"`` of the new block
    only. ``risk`` is that of the population, ``train`` that of the training sample.
    """

    old_risk: Tensor
    old_train: Tensor
    risk: dict[str, Tensor]
    train: dict[str, Tensor]
    fell_back: Tensor

    def change(self, way: str) -> Tensor:
        """Population risk after minus before (net,): negative is better."""
        return self.risk[way] - self.old_risk

    @property
    def against_control(self) -> Tensor:
        """Risk of inserting and training all minus that of training the old network as long (net,)."""
        return self.risk["insert"] - self.risk["continue"]

    @property
    def bars(self) -> Tensor:
        """(net, 3): −margin, −erm_gain and the growth of the gap, whose sum is ``change("insert")``, exactly.

        margin = L(f_old) − L(f̃_S); erm_gain = L_S(f̃_S) − L_S(f_new); gap(f) = L(f) − L_S(f), new minus f̃_S.
        """
        margin = self.old_risk - self.risk["jumpboard"]
        erm_gain = self.train["jumpboard"] - self.train["insert"]
        gap = {way: self.risk[way] - self.train[way] for way in ("insert", "jumpboard")}
        return torch.stack([-margin, -erm_gain, gap["insert"] - gap["jumpboard"]], 1)


def insertion(
    task: TeacherTask,
    old: Students,
    seeds: Sequence[int],
    layer: int = 1,
    hidden: int = 32,
    further: int = 200,
    lr: float = 1e-2,
    population: Tensor | None = None,
    fallback: bool = False,
) -> Insertion:
    """Insert a block into trained students, in five ways, and compare.

    Arguments
        old: as `students` gives them, of the same ``seeds``
        layer, hidden: where the block goes, and its m
        further: steps of training, Adam with a cosine rate from lr
        population: inputs on which risks are taken, expectation over y; by default 20 000
        fallback: Condition 2: where training ended above the training loss of the jumpboard, take the jumpboard

    >>> from labkit.depth.task import TEACHER_SEED
    >>> task = TeacherTask(compute.generator(TEACHER_SEED))
    >>> done = insertion(task, students(task, 500, 20, range(2)), range(2), hidden=4, further=5)
    >>> bool((done.bars.sum(1) - done.change("insert")).abs().max() < 1e-6)
    True
    """
    model, x, y = old
    if population is None:
        population = task.sample_inputs(20_000, compute.generator(0), x.dtype)
    fresh = task.sample_each(x.shape[1], streams(seeds, FRESH), x.dtype)
    first, again = (training.generators([FIRST_SEED + int(seed) for seed in seeds]) for _ in range(2))
    fine, w1 = model.to(dtype=compute.dtype(x.device)), draw_features(model, hidden, first)
    like, own = fine.params["out"], x.dtype
    boards = [
        jumpboard(fine, layer, xs.to(like), ys, w1.to(like)).model.to(dtype=own) for xs, ys in ((x, y), fresh)
    ]  # the block that is trained starts from the same W_1
    inserted = insert_block(model, layer, hidden, generators=again)
    more = {"steps": further, "lr": lr}
    ways = {
        "jumpboard": boards[0],
        "fresh": boards[1],
        "continue": fit(model, x, y, generators=streams(seeds, FURTHER), **more).model,
        "insert": fit(inserted, x, y, generators=streams(seeds, FURTHER), **more).model,
        "block": fit(
            inserted, x, y, generators=streams(seeds, FURTHER), only=block_names(inserted, layer + 1), **more
        ).model,
    }
    chosen = fall_back(ways["insert"], boards[0], x, y)
    if fallback:
        ways["insert"] = chosen.model
    return Insertion(
        old_risk=task.risk(model, population),
        old_train=mean_loss(model, x, y),
        risk={way: task.risk(it, population) for way, it in ways.items()},
        train={way: mean_loss(it, x, y) for way, it in ways.items()},
        fell_back=chosen.fell_back,
    )
