"""How much of one representation is in another: features z (..., n, units) of the same n inputs, before and after.

With K = z·zᵀ of column-centered features, and PR = (tr K)²/tr K² from ``labkit.spectra``,

    CKA = tr K₁K₂ / √(tr K₁² tr K₂²),    ENSD = tr K₁ tr K₂ tr K₁K₂ / (tr K₁² tr K₂²) = CKA·√(PR₁·PR₂).

=========================  ==================================================================================
PR falls, ENSD ≈ new PR    a part of the old features was kept: rich, and it depends on pretraining
PR stays, CKA ≈ 1          nothing moved: lazy
PR falls, ENSD ≪ new PR    other features were learned: rich, and it does not depend on pretraining
=========================  ==================================================================================

Centered, because the mean of ReLU features alone looks like a shared dimension; in sample space, because rotating the
units changes nothing that a readout could see. `shared_units` is the other convention. Compare only what was taken
from the same n, and n ≥ 10·PR. ENSD as remembered from Giaffar, Rullán Buxó and Aoi; CKA of Kornblith et al., arXiv
1905.00414; the identities are derived here.
"""

import torch
from torch import Tensor

from labkit.spectra import participation_ratio, spread
from labkit.validate import as_tensors, require_broadcast

COMPARED = ("pr_before", "pr_after", "ensd", "cka")


def effective_shared_dimensions(z1: Tensor, z2: Tensor) -> Tensor:
    """ENSD = tr K₁ tr K₂ tr K₁K₂ / (tr K₁² tr K₂²), K = z·zᵀ of centered columns: (..., n, p), (..., n, q) → (...).

    A number of dimensions from 0 to √(PR₁·PR₂), and PR itself for z₁ = z₂; rotations and scales of the units leave it
    alone. Of unrelated white features it is p·q/n, not 0. Nothing larger than the features is formed. Raises
    ValueError for other shapes, unlike n, NaN or infinity, and when all rows of one of them are equal (0/0); TypeError
    for integers and half precision.

    >>> z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> effective_shared_dimensions(z, z), effective_shared_dimensions(z, z[:, :1])
    (tensor(2.), tensor(1.))
    """
    z1, z2 = _pair(z1, z2)
    traces = z1.square().sum((-2, -1)) * z2.square().sum((-2, -1))
    return traces * _overlap(z1, z2) / (_overlap(z1, z1) * _overlap(z2, z2))


def centered_kernel_alignment(z1: Tensor, z2: Tensor) -> Tensor:
    """Linear CKA = tr K₁K₂ / √(tr K₁² tr K₂²), K = z·zᵀ of centered columns: (..., n, p), (..., n, q) → (...).

    In [0, 1], and 1 when the features agree up to rotation and scale. Raises as `effective_shared_dimensions`.

    >>> z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> centered_kernel_alignment(z, z.flip(1)), centered_kernel_alignment(z, z[:, :1]) ** 2
    (tensor(1.), tensor(0.5000))
    """
    z1, z2 = _pair(z1, z2)
    return _overlap(z1, z2) / (_overlap(z1, z1) * _overlap(z2, z2)).sqrt()


def shared_units(z1: Tensor, z2: Tensor) -> Tensor:
    """PR₁·PR₂·tr C₁C₂ with C = zᵀz/tr(zᵀz), uncentered, PR = 1/tr C²: (..., n, units), (..., n, units) → (...).

    The convention of the predecessor study's code: which units and directions both use, whichever inputs they stand
    for. It needs the same units, in the same order; n may differ. Independent features that use all p units alike
    share p, and the same information on other units shares 0: not to be mixed with `effective_shared_dimensions`.
    Raises as it does, and for unlike numbers of units.

    >>> z = torch.eye(4)
    >>> shared_units(z[:, :2], z[:, :2]), shared_units(z, z.roll(1, 0))
    (tensor(2.), tensor(4.))
    """
    z1, z2 = _pair(z1, z2, center=False, same_n=False)
    if z1.shape[-1] != z2.shape[-1]:
        raise ValueError(f"z1 and z2 must have the same units, got {z1.shape[-1]} and {z2.shape[-1]}")
    moments = [z.mT @ z for z in (z1, z2)]
    c1, c2 = (m / m.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] for m in moments)
    return (c1 * c2).sum((-2, -1)) / (c1.square().sum((-2, -1)) * c2.square().sum((-2, -1)))


def compare(before: Tensor, after: Tensor) -> dict[str, Tensor]:
    """pr_before, pr_after, ensd and cka of features (..., n, units) before and after fine-tuning, each (...).

    nan where they are not finite, or do not vary over the inputs, of which one alone is too few: nets that diverged or
    died are results. Raises ValueError for other shapes, empty features and unlike n; TypeError for what is no tensor,
    integers and half precision.

    >>> before = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> {name: round(value.item(), 2) for name, value in compare(before, before[:, :1]).items()}
    {'pr_before': 2.0, 'pr_after': 1.0, 'ensd': 1.0, 'cka': 0.71}
    """
    before, after = _admit(before=before, after=after)
    for name, z in (("before", before), ("after", after)):
        if z.dim() < 2 or 0 in z.shape:
            raise ValueError(f"{name} must be (..., n, units) and not empty, got {tuple(z.shape)}")
    if before.shape[-2] != after.shape[-2]:
        rows = f"{before.shape[-2]} and {after.shape[-2]}"
        raise ValueError(f"before and after must be of the same inputs, got {rows} rows")
    lead = {"leading axes of before": before[..., 0, 0], "leading axes of after": after[..., 0, 0]}
    if before.shape[-2] == 1:
        return {name: before.new_full(require_broadcast(**lead), torch.nan) for name in COMPARED}
    require_broadcast(**lead)
    good = _varies(before) & _varies(after)
    before, after = (torch.where(good[..., None, None], z, _line(z)) for z in (before, after))
    found = (
        participation_ratio(before),
        participation_ratio(after),
        effective_shared_dimensions(before, after),
        centered_kernel_alignment(before, after),
    )
    return {name: torch.where(good, value, torch.nan) for name, value in zip(COMPARED, found, strict=True)}


def _varies(z: Tensor) -> Tensor:
    size = z.abs().amax((-2, -1), keepdim=True)
    scaled = z / torch.where(size > 0, size, 1)
    away = (scaled - scaled.mean(-2, keepdim=True)).square().sum((-2, -1)) / (z.shape[-2] * z.shape[-1])
    return away > (8 * torch.finfo(z.dtype).eps) ** 2  # False also for nan


def _line(z: Tensor) -> Tensor:
    """Features that vary, in place of some that do not."""
    return torch.arange(z.shape[-2], dtype=z.dtype, device=z.device)[:, None].expand_as(z)


def _overlap(z1: Tensor, z2: Tensor) -> Tensor:
    """tr K₁K₂ = ‖z₁ᵀz₂‖_F², or through K₁ and K₂ where there are far more units than inputs."""
    (n, p), q = z1.shape[-2:], z2.shape[-1]
    if n * (p + q) < p * q:
        return ((z1 @ z1.mT) * (z2 @ z2.mT)).sum((-2, -1))
    return torch.sum((z1.mT @ z2) ** 2, (-2, -1))


def _admit(**named: Tensor) -> tuple[Tensor, ...]:
    """Each first by itself: beside a wider dtype half precision would not be seen."""
    for name, value in named.items():
        (z,) = as_tensors(**{name: value})
        if z.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64, got {z.dtype}: use {name}.float()")
    return as_tensors(**named)


def _pair(z1: Tensor, z2: Tensor, center: bool = True, same_n: bool = True) -> tuple[Tensor, Tensor]:
    z1, z2 = _admit(z1=z1, z2=z2)
    z1, z2 = spread(z1, center, "z1"), spread(z2, center, "z2")
    if same_n and z1.shape[-2] != z2.shape[-2]:
        raise ValueError(f"z1 and z2 must be of the same inputs, got {z1.shape[-2]} and {z2.shape[-2]} rows")
    require_broadcast(**{"leading axes of z1": z1[..., 0, 0], "leading axes of z2": z2[..., 0, 0]})
    return z1, z2
