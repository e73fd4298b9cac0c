"""The task: labels drawn by a deep teacher, so that the best possible risk is known; and the digits as real data.

x = (ξ, 1) with ξ ~ N(0, I); the teacher is a post-norm ReLU network and the label is drawn from
softmax(temperature·f(x)): an irreducible risk, known exactly. Expectations over y given x are taken in closed form,
which leaves only the scatter of x in a population risk. Setting of the experiments of ours on arXiv 2605.08297.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.data import digits
from labkit.depth.network import PostNormResNet, require_dtype, require_generators, require_loss
from labkit.validate import as_tensors, require_finite, require_generator, require_positive, require_whole

DIM, WIDTH, DEPTH, N_CLASSES = 8, 16, 4, 4
TEMPERATURE = 3.0
RESIDUAL_STD = 1.0  # of the teacher's blocks: with the 1/√D of a student four blocks are hardly deeper than two
TEACHER_SEED = 3  # of the teacher in the course: its Bayes risk is .58 nats
ROWS = 20_000  # samples at a time where a population is passed through a stack of networks


@dataclass(frozen=True, eq=False)
class TeacherTask:
    """A teacher of random weights, drawn when it is made.

    Arguments
        generator: CPU generator of the weights
        dim: of ξ; an input has dim + 1 coordinates, the last is 1
        width, depth, hidden, n_classes: of the teacher; hidden = width by default
        temperature: > 0, factor of the logits: the larger, the less noise in the labels

    ``teacher``, a `PostNormResNet` of one net, is made on the device and in the dtype of ``labkit.compute``.

    >>> from labkit import compute
    >>> task = TeacherTask(compute.generator(0))
    >>> x, y = task.sample(100, compute.generator(1))
    >>> x.shape, y.shape, bool(task.bayes_risk(x) < 1.386)  # ln 4
    (torch.Size([100, 9]), torch.Size([100]), True)
    """

    generator: InitVar[torch.Generator]
    dim: int = DIM
    width: int = WIDTH
    depth: int = DEPTH
    hidden: int | None = None
    n_classes: int = N_CLASSES
    temperature: float = TEMPERATURE
    teacher: PostNormResNet = field(init=False, repr=False)

    def __post_init__(self, generator: torch.Generator) -> None:
        require_whole(1, dim=self.dim)
        require_generator(generator)
        (temperature,) = as_tensors(temperature=self.temperature)
        require_positive(temperature=temperature)
        if temperature.dim():
            raise ValueError(f"temperature must be a number, got shape {tuple(temperature.shape)}")
        hidden = self.width if self.hidden is None else self.hidden
        sizes = (self.dim + 1, self.width, self.depth, hidden, self.n_classes)
        teacher = PostNormResNet(*sizes, generators=[generator], residual_std=RESIDUAL_STD)
        object.__setattr__(self, "teacher", teacher)

    @property
    def in_dim(self) -> int:
        """Coordinates of an input: dim + 1."""
        return self.dim + 1

    def sample_inputs(self, n: int, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        """n inputs (n, dim + 1), drawn on the CPU and moved; a floating dtype, by default that of the teacher."""
        require_whole(1, n=n)
        require_dtype(dtype)
        require_generator(generator)
        like = self.teacher.params["out"]
        xi = torch.randn(n, self.dim, dtype=torch.float64, generator=generator, device="cpu")
        x = torch.cat([xi, torch.ones(n, 1, dtype=torch.float64, device="cpu")], 1)
        return x.to(like.device, dtype or like.dtype)

    def probabilities(self, x: Tensor) -> Tensor:
        """P(y | x) of x (..., dim + 1) → (..., class), in the dtype of x. Raises ValueError for another x, NaN."""
        (x,) = as_tensors(x=x)
        if not x.dim() or x.shape[-1] != self.in_dim or 0 in x.shape:
            raise ValueError(f"x must be (..., {self.in_dim}) and not empty, got {tuple(x.shape)}")
        require_finite(x=x)
        like = self.teacher.params["out"]
        flat = x.reshape(-1, self.in_dim).to(like.dtype)
        parts = [self.teacher(rows)[0] for rows in flat.split(ROWS)]
        p = torch.softmax(self.temperature * torch.cat(parts), -1)
        return p.to(x.dtype).reshape(*x.shape[:-1], self.n_classes)

    def sample(self, n: int, generator: torch.Generator, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """n samples: x (n, dim + 1), and classes y (n,), int64, drawn on the CPU and moved."""
        x = self.sample_inputs(n, generator, dtype)
        p = self.probabilities(x).cpu().double()
        uniform = torch.rand(n, 1, dtype=torch.float64, generator=generator, device="cpu")
        y = (p.cumsum(1)[:, :-1] < uniform).sum(1)
        return x, y.to(x.device)

    def sample_each(
        self, n: int, generators: Sequence[torch.Generator], dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """One sample for each net: x (net, n, dim + 1), y (net, n)."""
        require_generators(generators)
        xs, ys = zip(*(self.sample(n, generator, dtype) for generator in generators), strict=True)
        return torch.stack(xs), torch.stack(ys)

    def bayes_risk(self, x: Tensor, loss: str = "ce") -> Tensor:
        """The least possible risk on the inputs x (n, dim + 1), a scalar.

        "ce": the mean entropy of P(y | x), in nats. "prob" (loss 1 − p_y): 1 − mean max_y P(y | x), reached by
        putting all mass on the most likely class.
        """
        require_loss(loss)
        p = self.probabilities(x)
        return -torch.xlogy(p, p).sum(-1).mean() if loss == "ce" else 1 - p.amax(-1).mean()

    def risk(self, model: PostNormResNet, x: Tensor, loss: str = "ce") -> Tensor:
        """The risk of each net on the inputs x (n, dim + 1), in expectation over y: (net,)."""
        return self.losses(model, x, loss).mean(1)

    def losses(self, model: PostNormResNet, x: Tensor, loss: str = "ce") -> Tensor:
        """E[ℓ(f(x), y) | x] of each net and input: (net, n); differences of two models on the same x are paired."""
        require_loss(loss)
        model.require_sample(x)
        if x.dim() != 2:
            raise ValueError(f"x must be (n, {self.in_dim}), the same for all nets, got {tuple(x.shape)}")
        if model.n_classes != self.n_classes:
            raise ValueError(f"model must have the {self.n_classes} classes of the task, got {model.n_classes}")
        found = []
        with torch.no_grad():
            for rows in x.split(ROWS):
                p, log_q = self.probabilities(rows), torch.log_softmax(model(rows), -1)
                found.append(-(p * log_q).sum(-1) if loss == "ce" else 1 - (p * log_q.exp()).sum(-1))
        return torch.cat(found, 1)


class DigitsSample(NamedTuple):
    """Training and test digits: x (n, 65) or images (n, 1, 8, 8), y (n,)."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def digits_sample(
    n: int,
    generator: torch.Generator,
    images: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> DigitsSample:
    """n handwritten digits to train on, drawn at random, and the other 1797 − n to test on.

    As vectors of 64 pixels and a constant 1, or with ``images`` as they are. Raises ValueError unless 1 ≤ n ≤ 1796.

    >>> from labkit import compute
    >>> sample = digits_sample(1000, compute.generator(0))
    >>> sample.x.shape, sample.x_test.shape
    (torch.Size([1000, 65]), torch.Size([797, 65]))
    """
    parts = digits.split(digits.load(device, dtype), n, generator)
    train, test = ((part.x if images else _with_one(part.x.flatten(1)), part.y) for part in parts)
    return DigitsSample(*train, *test)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)
