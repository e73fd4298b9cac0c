"""Pairs of sparse tasks that share a chosen part of their features, and the inputs to learn them from.

Data model of arXiv 2602.20062: a coordinate matters for pretraining with probability ρ_PT; it matters for
fine-tuning with probability ρ_shared if it mattered for pretraining, else ρ_new. Our choices: amplitudes
1/√ρ, so that E β*² = 1 and the zero predictor has error 1, and fixed counts (rounded) in place of coin flips,
which removes the spread of the counts from averages over seeds.
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from labkit import compute
from labkit.diagonal.penalty import ell_order, pretraining_dependence, regime_name, regime_weights, root_k_finetune
from labkit.validate import require_generator, require_whole


@dataclass(frozen=True)
class TaskPair:
    """A pretraining and a fine-tuning task: shares of active coordinates.

    Raises ValueError for a share outside [0, 1], ρ_PT = 0 or ρ_FT = 0 (a task without features has no
    amplitude).

    >>> TaskPair(rho_pt=0.1, rho_shared=0.5, rho_new=0.05).rho_ft
    0.095
    """

    rho_pt: float  # of all coordinates, active in pretraining
    rho_shared: float  # of those, active in fine-tuning
    rho_new: float  # of the others, active in fine-tuning

    def __post_init__(self) -> None:
        for name in ("rho_pt", "rho_shared", "rho_new"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not 0 <= value <= 1:  # also False for NaN
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        if self.rho_pt == 0:
            raise ValueError("rho_pt must be > 0 (pretraining without any feature), got 0")
        if self.rho_ft == 0:
            raise ValueError(
                "rho_shared or rho_new must be > 0 (fine-tuning without any feature), got "
                f"rho_pt = {self.rho_pt}, rho_shared = {self.rho_shared}, rho_new = {self.rho_new}"
            )

    @property
    def rho_ft(self) -> float:
        """Share of all coordinates that are active in fine-tuning, ρ_PT·ρ_shared + (1 − ρ_PT)·ρ_new."""
        return self.rho_pt * self.rho_shared + (1 - self.rho_pt) * self.rho_new

    def regime_names(self, c: float | Tensor, lam: float | Tensor, gamma: float | Tensor):
        """In which regime a feature is that both tasks use, as ``penalty.regime_name`` says it.

        It is read at |β_PT| = 1/√ρ_PT and |β_FT| = 1/√ρ_FT. Arguments and errors as for ``penalty.root_k_finetune``.

        >>> SUBSET.regime_names(c=1e-3, lam=torch.tensor([-1.0, -0.95, 1.0]), gamma=0.1)
        ['I', 'IV', 'IV']
        """
        beta_pt, beta_ft = self.rho_pt**-0.5, self.rho_ft**-0.5
        ell = ell_order(beta_ft, root_k_finetune(beta_pt, c, lam, gamma))
        return regime_name(regime_weights(ell, pretraining_dependence(beta_ft, beta_pt, c, lam, gamma)))

    def sample(self, dim: int, generator: torch.Generator, batch: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """(β*_PT, β*_FT), each (*batch, dim), with values 0 and ±1/√ρ: fixed counts, random places and signs.

        Drawn on the CPU and moved to ``compute.device()``. Raises ValueError when dim is so small that a task
        is left without features.

        >>> beta_pt, beta_ft = SUBSET.sample(100, compute.generator(0))
        >>> tuple(on.sum().item() for on in (beta_pt != 0, beta_ft != 0, beta_pt * beta_ft != 0))
        (40, 4, 4)
        """
        require_whole(1, dim=dim)
        require_generator(generator)
        n_pt = round(self.rho_pt * dim)
        n_shared, n_new = round(self.rho_shared * n_pt), round(self.rho_new * (dim - n_pt))
        if n_pt == 0 or n_shared + n_new == 0:
            raise ValueError(f"dim must be large enough for one feature per task, got {dim} for {self}")
        uniform = torch.rand(3, *batch, dim, dtype=torch.float64, generator=generator, device="cpu")
        rank = uniform[0].argsort(dim=-1)  # a random permutation of 0 … dim−1
        sign = torch.where(uniform[1:] < 0.5, -1.0, 1.0).double()
        active_pt = rank < n_pt
        active_ft = (rank < n_shared) | ((rank >= n_pt) & (rank < n_pt + n_new))
        beta_pt = sign[0] * active_pt / math.sqrt(self.rho_pt)
        beta_ft = sign[1] * active_ft / math.sqrt(self.rho_ft)
        return tuple(beta.to(compute.device(), compute.dtype()) for beta in (beta_pt, beta_ft))


FULL = TaskPair(0.1, 1.0, 0.0)  # fine-tuning uses exactly the pretrained features
NONE = TaskPair(0.1, 0.0, 0.1)  # only others
SUBSET = TaskPair(0.4, 0.1, 0.0)  # a tenth of them
PARTIAL = TaskPair(0.1, 0.5, 0.05)  # half of them, and nearly as many others


def design(n: int, dim: int, generator: torch.Generator, batch: tuple[int, ...] = ()) -> Tensor:
    """Inputs (*batch, n, dim) with rows x ~ N(0, I/dim): x·β* has variance 1 when E β*² = 1.

    Drawn on the CPU and moved to ``compute.device()``. Raises ValueError for n or dim < 1.

    >>> design(3, 5, compute.generator(0)).shape
    torch.Size([3, 5])
    """
    require_whole(1, n=n, dim=dim)
    require_generator(generator)
    x = torch.randn(*batch, n, dim, dtype=torch.float64, generator=generator, device="cpu") / math.sqrt(dim)
    return x.to(compute.device(), compute.dtype())
