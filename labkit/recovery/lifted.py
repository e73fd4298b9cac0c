"""Layer 1 alone, on the real lift: what it finds of the features, and where its noise ends.

`spectral.fit` is the whole algorithm. Here all samples go into the moment matrix, all eigenvalues are kept, and they
can be compared with the surrogate (`theory.exact` at the same n/D) and with infinitely many samples
(`theory.population_moment`). Three ways to look at one kind of task (ours, see `spectral`):

============  ===========================================================================================
``plain``     Gaussian inputs, as they come
``hygiene``   the same, after ``radial_normalize``, ``low_degree_residual`` and ``drop_trace``
``sphere``    inputs on the sphere ‖x‖² = d, where the degrees mix less; with hygiene
============  ===========================================================================================
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery import spectral, theory
from labkit.recovery.hermite import lift_dim
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.validate import as_tensors

LOOKS = {"plain": ("gaussian", False), "hygiene": ("gaussian", True), "sphere": ("sphere", True)}  # inputs, hygiene
HALF = 0.5  # a feature counts as revealed when one eigenvector has this squared overlap with it
# Strengths below FLOORS/d stay hidden in a lift of degree 2, however many samples there are. A rule of thumb, fitted to
# 10^5 samples, d = 16 … 32, γ = .75 … 1.5: the number of features found differs from it by one on average.
FLOORS = {"plain": 10.0, "hygiene": 4.0, "sphere": 4.0}


@dataclass(frozen=True)
class LayerOne:
    """All eigenpairs of Ĉ, and the end of its noise from the labels alone."""

    moment: Tensor  # Ĉ, (D, D)
    eigenvalues: Tensor  # (D,), rising
    vectors: Tensor  # (D, D), in columns
    edge: Tensor  # (), `theory.bulk_edge` of the cleaned labels

    def overlaps(self, truth: Tensor) -> Tensor:
        """max_j ⟨A_k, v_j⟩², (d₁,), for true directions (D, d₁)."""
        return spectral.overlaps(self.vectors, truth.to(self.vectors))[0]

    def noise_edge(self, truth: Tensor) -> Tensor:
        """The largest eigenvalue of Ĉ on what is orthogonal to the true directions (D, d₁): where the noise does end.

        It takes the truth, so it is a control, not an estimate.
        """
        truth = truth.to(self.moment)
        rest = self.moment - truth @ (truth.mT @ self.moment)
        rest = rest - (rest @ truth) @ truth.mT
        return torch.linalg.eigvalsh((rest + rest.mT) / 2)[-1]


def layer_one(x: Tensor, y: Tensor, degree: int, hygiene: bool = True, clip: float | None = 3.0) -> LayerOne:
    """Ĉ of x (n, dim), y (n,), decomposed. ``hygiene`` and ``clip`` are those of `spectral.fit`; None does not clip.

    Raises ValueError for a degree other than 1 … 4, shapes that do not fit, NaN, constant labels.

    >>> task = teacher(16, 1.0, "hygiene", compute.generator(0))
    >>> found = layer_one(*task.sample(20_000, compute.generator(1)), degree=2)
    >>> (found.overlaps(task.directions) > HALF).sum()
    tensor(3)
    """
    if len(y) and y.min() == y.max():
        raise ValueError(f"y must not be constant: labels that are all {y[0].item():g} tell nothing about x")
    if hygiene and degree >= 2:
        y = spectral.low_degree_residual(x, y)
        x = spectral.radial_normalize(x)
    t = y if clip is None else spectral.clip_labels(y, clip)
    moment = spectral.moment_matrix(x, t, degree)
    if hygiene and degree == 2:
        moment = spectral.drop_trace(moment)
    edge = theory.bulk_edge(t.to(compute.dtype(t.device)), len(t) / len(moment))
    return LayerOne(moment, *torch.linalg.eigh(moment), edge)


def teacher(
    dim: int, gamma: float, look: str, generator: torch.Generator, n_features: int = 12, degree: int = 2
) -> HierarchicalTeacher:
    """The task without label noise that is looked at ``look`` = "plain", "hygiene" or "sphere" (degree ≤ 2).

    >>> teacher(16, 1.0, "sphere", compute.generator(0)).inputs
    'sphere'
    """
    _admit_look(look)
    return HierarchicalTeacher(dim, degree, n_features, gamma, "id", 0.0, generator, inputs=LOOKS[look][0])


def surrogate_labels(x: Tensor, gamma: float, n_features: int, noise_std: float = 0.0) -> Tensor:
    """y (n,) of the surrogate on numbers x (n, D + 1) from N(0, 1): H(x) is the first D columns, the last is the noise.

    The hidden directions are the first n_features axes: a rotation makes them any others. So one x serves all γ and σ.

    >>> surrogate_labels(torch.tensor([[3.0, 0.0, 1.0]]), gamma=1.0, n_features=1, noise_std=0.5)  # 8/√2 + .5
    tensor([6.1569])
    """
    (x,) = as_tensors(x=x)
    if x.dim() != 2 or x.shape[1] <= n_features:
        raise ValueError(f"x must be (n, D + 1) with D >= n_features = {n_features}, got {tuple(x.shape)}")
    theory.admit_model(gamma, n_features, noise_std)
    strengths = theory.amplitudes(gamma, n_features).to(x)
    return (x[:, :n_features] ** 2 - 1) @ strengths / math.sqrt(2) + noise_std * x[:, -1]


def surrogate_layer(
    x: Tensor, n_features: int, samples_per_dim: float, gamma: float, noise_std: float = 0.0
) -> tuple[LayerOne, Tensor]:
    """Layer 1 of the surrogate on the first n = δD rows of x, and Σ_j ⟨A_k, v_j⟩² over v_j beyond the edge, (d₁,).

    x as in `surrogate_labels`, with at least δD rows: kept for other δ, γ and σ, it makes answers move smoothly.

    >>> x = torch.randn(6000, 101, generator=compute.generator(0))
    >>> surrogate_layer(x, n_features=3, samples_per_dim=60.0, gamma=1.0)[1]
    tensor([0.97, 0.94, 0.91], dtype=torch.float64)
    """
    labels = surrogate_labels(x, gamma, n_features, noise_std)
    n = round(samples_per_dim * (x.shape[1] - 1))
    if not 1 <= n <= len(x):
        raise ValueError(f"samples_per_dim must ask for 1 to {len(x)} samples, got {samples_per_dim}: {n} samples")
    layer = layer_one(x[:n, :-1], labels[:n], degree=1)
    return layer, (layer.vectors[:n_features, layer.eigenvalues > layer.edge] ** 2).sum(1)


def overlaps_by_samples(
    task: HierarchicalTeacher,
    look: str,
    stages: Sequence[int],
    generator: torch.Generator,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Tensor:
    """Overlaps of all features after so many samples, (stage, d₁): the first ones of the same, growing data set.

    >>> task = teacher(12, 1.0, "sphere", compute.generator(0))
    >>> overlaps_by_samples(task, "sphere", (500, 20_000), compute.generator(1))[:, 0]
    tensor([0.68, 0.97], dtype=torch.float64)
    """
    _admit_look(look)
    x, y = task.sample(max(stages), generator, torch.float32)
    layers = (layer_one(x[:n], y[:n], task.degree, LOOKS[look][1]) for n in progress(stages))
    return torch.stack([layer.overlaps(task.directions) for layer in layers])


def at_infinity(task: HierarchicalTeacher) -> tuple[Tensor, Tensor]:
    """Overlaps that infinitely many samples give (link "id", no clipping): plain, and without the part of degree 2 of
    the label, each (d₁,). Exact, from `theory.population_moment`.

    Raises ValueError for tasks other than degree 2, Gaussian inputs, link "id".

    >>> plain, cleaned = at_infinity(teacher(16, 1.0, "plain", compute.generator(0)))
    >>> plain[:3], cleaned[:3]
    (tensor([0.91, 0.47, 0.14], dtype=torch.float64), tensor([0.98, 0.89, 0.37], dtype=torch.float64))
    """
    if (task.degree, task.inputs, task.link) != (2, "gaussian", "id"):
        got = f"degree {task.degree}, inputs {task.inputs}, link {task.link}"
        raise ValueError(f"task must have degree 2, inputs gaussian, link id, got {got}")
    moment = theory.population_moment(task.directions, task.amplitudes)
    parts = moment.total, moment.total - moment.low_degree
    plain, cleaned = (spectral.overlaps(torch.linalg.eigh(part)[1], task.directions)[0] for part in parts)
    return plain, cleaned


def count(overlap: Tensor) -> int:
    """How many of the overlaps reach `HALF`.

    >>> count(torch.tensor([0.9, 0.5, 0.1]))
    2
    """
    return int((overlap >= HALF).sum())


def revealed(dim: int, gamma: float, n: float, n_features: int = 12, look: str = "hygiene") -> int:
    """How many features n samples reveal in a lift of degree 2 without label noise, by two limits.

    Noise: ρ_k = 1 − n_k/n ≥ 1/2, the simple law. Dimension: a_k ≥ `FLOORS`/d.

    >>> revealed(24, gamma=1.0, n=1e5), revealed(24, gamma=1.0, n=1e3)
    (4, 1)
    """
    _admit_look(look)
    strengths = theory.amplitudes(gamma, n_features)
    known = theory.overlap(n / lift_dim(dim, 2), gamma, n_features, law="simple") >= HALF
    return int((known & (strengths >= FLOORS[look] / dim)).sum())


def _admit_look(look: str) -> None:
    if look not in LOOKS:
        raise ValueError(f"look must be one of {', '.join(LOOKS)}, got {look!r}")
