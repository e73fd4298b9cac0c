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
from labkit.depth.jumpboard import (
    RIDGE,
    activation_gradient,
    direction_from,
    draw_features,
    fall_back,
    features,
    jumpboard,
    mean_loss,
    moments,
)
from labkit.depth.network import (
    FIRST_SEED,
    PostNormResNet,
    block_names,
    fit,
    insert_block,
    require_pair,
    require_several,
)
from labkit.depth.task import TeacherTask
from labkit.validate import as_tensors, refuse, require_finite, require_whole

WAYS = ("jumpboard", "fresh", "continue", "insert", "block")
WEIGHTS, SAMPLE, FRESH, ORDER, FURTHER = range(5)  # what a seed is used for


class Students(NamedTuple):
    """A stack of trained networks, and the sample of each: x (net, n, in), y (net, n)."""

    model: PostNormResNet
    x: Tensor
    y: Tensor


def streams(seeds: Sequence[int], purpose: int) -> list[torch.Generator]:
    """One generator a seed, another one for each purpose."""
    require_whole(0, **{f"seeds[{i}]": seed for i, seed in enumerate(seeds)})
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
    if len(seeds) != model.n_nets:
        raise ValueError(f"seeds must be those of old, {model.n_nets}, one a net, got {len(seeds)}")
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


def block_scores(
    model: PostNormResNet,
    layer: int,
    chosen: tuple[Tensor, Tensor],
    judged: tuple[Tensor, Tensor],
    blocks: Sequence[int],
    ridge: float = RIDGE,
) -> Tensor:
    """s_i = ⟨g_i, Vφ_i⟩ for blocks of several widths m at once: (net, m, n).

    The samples (x, y) ``chosen`` choose each ridge direction V, the others are scored. A block has the first m of the
    same features, so the wider one can do what the narrower one does. Same as ``jumpboard.direction`` and ``scores``
    for each m, in a third of the time. Raises ValueError for no block, ridge < 0, and as ``activation_gradient`` does.

    >>> model, x = PostNormResNet(3, 8, 2, 8, 2), torch.eye(3, dtype=torch.float64)
    >>> sample = x, torch.tensor([0, 1, 0])
    >>> block_scores(model, 1, sample, sample, blocks=(2, 4)).shape
    torch.Size([1, 2, 3])
    """
    require_several(1, blocks=blocks)
    require_pair(chosen=chosen, judged=judged)
    known_g, g = (activation_gradient(model, layer, *sample) for sample in (chosen, judged))
    w1 = draw_features(model, max(blocks))
    first, phi = (features(model, model.bottom(x, layer), w1) for x, _ in (chosen, judged))
    known = moments(known_g, first)
    found = []
    for m in blocks:
        v = direction_from(known, layer, w1[:, :m], ridge=ridge).v  # (net, d, m)
        found.append((torch.einsum("i...m,idm->i...d", phi[..., :m], v) * g).flatten(2).sum(2))
    return torch.stack(found, 1)


def mean_scores(scores: Tensor, n: int) -> Tensor:
    """What n samples show of a direction: means of scores (..., sample) over groups of n → (..., group), in units of G.

    −1 is what infinitely many show, a mean ≥ 0 shows no descent; the scatter is sd(s)/(G√n). The samples that do not
    fill a group are left out. Raises ValueError unless 1 ≤ n ≤ their number, for NaN and where all scores sum to 0.

    >>> mean_scores(torch.tensor([-1.0, -3.0, 1.0, -1.0]), n=2)
    tensor([-2., -0.])
    """
    (scores,) = as_tensors(scores=scores)
    if not scores.dim() or 0 in scores.shape:
        raise ValueError(f"scores must be (..., sample) and not empty, got {tuple(scores.shape)}")
    require_finite(scores=scores)
    require_whole(1, n=n)
    if n > scores.shape[-1]:
        raise ValueError(f"n must lie in [1, {scores.shape[-1]}], the number of scores, got {n}")
    groups = scores[..., : scores.shape[-1] // n * n].unflatten(-1, (-1, n)).mean(-1)
    unit = scores.mean(-1, keepdim=True).abs()
    refuse("|mean of scores|", unit, unit > 0, "must be > 0: it is the unit")
    return groups / unit
