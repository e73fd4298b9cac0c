"""The baseline without depth: kernel ridge regression with a dot-product kernel of the label's full degree 2q.

A rotation-invariant kernel learns degree ℓ only from n ~ d^ℓ samples: it needs d^{2q} where the layer-wise method
needs d^q (arXiv 2605.14567). It does not know that the label depends on few directions.
"""

from dataclasses import dataclass

from torch import Tensor

RIDGES = (1e-6, 1e-3, 1e-1, 1.0, 10.0)  # without the large ones the kernel overfits, and its error exceeds Var y


def polynomial_kernel(x: Tensor, other: Tensor, degree: int) -> Tensor:
    """k(x, x′) = (1 + x·x′/d)^{2q} for x (n, dim), x′ (m, dim) → (n, m)."""


@dataclass(frozen=True)
class KernelRidge:
    """What `fit` found."""

    x: Tensor  # (n, dim), the samples it stands on
    dual: Tensor  # (n,), α
    mean: Tensor  # (), of the labels
    degree: int
    ridge: float  # the chosen λ

    def predict(self, x: Tensor) -> Tensor:
        """Σ α_μ k(x, x_μ) + the mean label, of x (m, dim) → (m,)."""


def fit(x: Tensor, y: Tensor, degree: int, x_val: Tensor, y_val: Tensor, ridges: tuple = RIDGES) -> KernelRidge:
    """α = (K + λ·mean(diag K)·I)⁻¹(y − ȳ), the λ of least error on (x_val, y_val).

    Labels without noise for the validation are generous to the kernel. O(n³) time for each λ, 2n² numbers of memory.
    """


def samples_to_reach(n: Tensor, error: Tensor, level: float = 0.5) -> Tensor:
    """The n at which a falling curve (size, ...) crosses ``level`` for the first time, linear in (ln n, ln error).

    ∞ where it never does; the first n where it starts below.
    """
