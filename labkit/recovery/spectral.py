"""Layer by layer: find the hidden directions by an eigenvalue problem, regress on them, read out.

    layer 1   Ĉ = (1/n) Σ t (HHᵀ − I), t the cleaned labels; the eigenvectors beyond the edge are the features
    layer 2   ĥ_k = ⟨v_k, H(x)⟩ on fresh samples; û = least squares of y on 1 and (ĥ_k² − 1)/√2
    readout   a polynomial of û, held constant outside the range it has seen

The algorithm is that of arXiv 2605.14567 (layer-wise spectral estimation); the cleaning of the labels (`fit`), which
laptop-sized d needs, is ours. Ĉ is accumulated in chunks and H never held: memory does not grow with n.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


def radial_normalize(x: Tensor) -> Tensor:
    """x √d/‖x‖ of x (n, dim): the radius is common to all quadratic features and drowns them at small d."""


def low_degree_residual(x: Tensor, y: Tensor, ridge: float | None = None) -> Tensor:
    """y (n,) minus its ridge regression on 1, z, z², z³, z = (‖x‖²/d − 1)√(d/2), and H_2(x √d/‖x‖).

    The degree-2 part of the label makes a bulk of its own in Ĉ (`theory.population_moment`) and carries no spike.
    ``ridge`` (by default D/n) acts on H_2 only. Conjugate gradients with d × d products: H_2 is never formed.
    """


def clip_labels(t: Tensor, at: float = 3.0) -> Tensor:
    """t limited to ± ``at`` · √(mean t²): one large label makes a spurious outlier by itself."""


def drop_trace(moment: Tensor) -> Tensor:
    """P Ĉ P for Ĉ (D, D) of degree 2, P the projection off the direction that sees ‖x‖² only."""


def moment_matrix(x: Tensor, t: Tensor, degree: int) -> Tensor:
    """Ĉ = (1/n) Σ t_μ (H_μ H_μᵀ − I), (D, D), for x (n, dim), t (n,): streamed, at most 3·D² numbers at a time.

    Products in the dtype of x, sums in float64 where the device has it. On the CPU through BLAS ``syrk``, which
    needs half the operations.
    """


def moment_operator(x: Tensor, t: Tensor, degree: int) -> Callable[[Tensor], Tensor]:
    """V (D, b) → Ĉ V without Ĉ, O(chunk · D) memory; for degree 2 through d × d matrices, O(chunk · d · b)."""


def eigenpairs(x: Tensor, t: Tensor, degree: int, k: int, method: str = "auto") -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of Ĉ, descending (k,), and their vectors (D, k).

    ``method``: "dense", "matrix_free" (block Krylov), or "auto", the faster by size. Ask the second for outliers
    only: eigenvalues at the edge of the bulk converge slowly.
    """


@dataclass(frozen=True)
class Recovery:
    """What `fit` found; works on x (n, dim) of any n."""

    degree: int
    directions: Tensor  # (D, K), orthonormal, by falling eigenvalue
    eigenvalues: Tensor  # (K,)
    edge: Tensor  # (), the end of the bulk, from the labels
    coefficients: Tensor  # (K + 1,), of the latent regression; the constant first
    readout: Tensor  # (r + 1,), polynomial in the standardized û
    scale: Tensor  # (4,), mean, spread, least and largest û that the readout has seen
    spectrum: Tensor | None  # (D,), all eigenvalues when the dense method was used

    def features(self, x: Tensor) -> Tensor:
        """ĥ of x (n, dim) → (n, K)."""

    def latent(self, x: Tensor) -> Tensor:
        """û of x (n, dim) → (n,)."""

    def predict(self, x: Tensor) -> Tensor:
        """The label of x (n, dim) → (n,)."""


def fit(
    x: Tensor,
    y: Tensor,
    degree: int,
    n_features: int | None = None,
    clip: float | None = 3.0,
    hygiene: bool = True,
    holdout: float = 0.2,
    readout_degree: int = 5,
    method: str = "auto",
) -> Recovery:
    """Learn y = g(u(x)) from x (n, dim), y (n,), independent rows: the first 80 % find directions, the rest fit them.

    Arguments
        n_features: K; None keeps every eigenvalue beyond the edge (`theory.bulk_edge` of the labels), at most 32
        clip: `clip_labels`; None warns when labels are heavy-tailed
        hygiene: for degree ≥ 2 `radial_normalize`, `low_degree_residual` and (degree 2) `drop_trace` in layer 1;
            degree 1 needs none of them
        holdout: share of fresh samples for layer 2. Its own samples would flatter an eigenvector that is noise
        readout_degree: of the polynomial; 1 is a straight line
        method: of `eigenpairs`
    """


def overlaps(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Squared overlaps of the true directions (D, d₁) with found ones (D, K), orthonormal: (best single, subspace).

    max_j ⟨A_k, v_j⟩² and Σ_j ⟨A_k, v_j⟩², each (d₁,). Where eigenvectors of nearby features mix, only the second
    says that they were found.
    """
