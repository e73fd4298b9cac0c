"""How many samples each needs: layer by layer n ~ d^q, a kernel n ~ d^2q. What is measured, and what theory expects.

Everything on the sphere ‖x‖² = d, where a dot-product kernel has one eigenvalue for each degree and a random teacher
of degree q = 2 has almost all of its variance in degree 4. That a kernel learns degree ℓ only from n ~ d^ℓ samples,
and the layer-wise method from d^q: arXiv 2605.14567. The learning curve of kernel ridge regression: Bordelon, Canatar
and Pehlevan, arXiv 2002.02561; Jacot et al., arXiv 2006.09796. Counts, shares of variance and sizes: derived here.
"""

import math
from collections.abc import Sequence

import torch
from scipy.special import eval_gegenbauer, roots_gegenbauer
from torch import Tensor

from labkit import compute
from labkit.recovery import kernel, spectral, theory
from labkit.recovery.hermite import lift_dim
from labkit.recovery.teacher import HierarchicalTeacher
from labkit.sweep import Table
from labkit.validate import as_tensors, refuse, require_finite, require_positive, require_whole

METHODS = ("spectral", "kernel")
HOLDOUT = 0.2  # of the samples, which the layer-wise method keeps for its second layer
SIZES = {"spectral": 100, "kernel": 400}  # on a curve whose crossing is sought: the kernel's ends in a cliff
BISECTIONS = 60  # of ln κ over 80: to rounding
VALIDATION, TEST = 2000, {"spectral": 20_000, "kernel": 4000}  # inputs; a kernel takes n operations for each of them


# ---- the kernel


def kernel_dim(dim: int, degree: int) -> int:
    """C(d+2q−1, 2q) + C(d+2q−2, 2q−1): the features of (1 + x·x′/d)^{2q} on the sphere in d ≥ 2 dimensions.

    Polynomials of degree ≤ 2q, without those that ‖x‖² = d makes equal to one of lower degree. With so many samples
    the kernel interpolates any label of degree 2q exactly. Raises ValueError for dim < 2, a degree not 1, 2, 3, 4.

    >>> kernel_dim(10, 2)  # 715 + 220
    935
    """
    require_whole(2, dim=dim)
    lift_dim(dim, degree)
    return math.comb(dim + 2 * degree - 1, 2 * degree) + math.comb(dim + 2 * degree - 2, 2 * degree - 1)


def kernel_spectrum(dim: int, degree: int) -> tuple[Tensor, Tensor]:
    """Eigenvalue of (1 + x·x′/d)^{2q} in each degree k = 0 … 2q, and its multiplicity, both (2q + 1,); dim ≥ 3.

    The eigenfunctions are the harmonic polynomials, C(d+k−1, k) − C(d+k−3, k−2) of degree k. Funk and Hecke:
    λ_k = E (1+t)^{2q} P_k(t), t the first coordinate of a random unit vector, P_k the Gegenbauer polynomial with
    P_k(1) = 1. Σ λ_k · multiplicity = k(x, x) = 2^{2q}.

    >>> value, count = kernel_spectrum(10, 2)
    >>> count.tolist(), value @ count
    ([1.0, 10.0, 54.0, 210.0, 660.0], tensor(16.0000, dtype=torch.float64))
    """
    require_whole(3, dim=dim)
    lift_dim(dim, degree)
    order, power = dim / 2 - 1, 2 * degree
    t, weight = roots_gegenbauer(power + 1, order)  # exact up to degree 4q + 1
    values, counts = [], []
    for k in range(power + 1):
        harmonic = eval_gegenbauer(k, order, t) / eval_gegenbauer(k, order, 1.0)
        values.append(float((weight * (1 + t) ** power * harmonic).sum() / weight.sum()))
        counts.append(math.comb(dim + k - 1, k) - (math.comb(dim + k - 3, k - 2) if k > 1 else 0))
    as_here = {"dtype": compute.dtype(), "device": compute.device()}
    return torch.tensor(values, **as_here), torch.tensor(counts, **as_here)


def kernel_error(n: float | Tensor, dim: int, power: Tensor, ridges: Sequence[float] = kernel.RIDGES) -> Tensor:
    """Expected test error of `kernel.fit` on the sphere, noiseless labels, at the best of ``ridges``; shape of n.

    ``power`` (2q + 1,): the variance of the label in each degree, `degree_power`. A degree is learned by the share
    λ_k/(λ_k + κ), where n = Σ N_k λ_k/(λ_k + κ) + ridge·2^{2q}/κ, and

        error = Σ power_k (κ/(λ_k + κ))² / (1 − Σ N_k (λ_k/(λ_k + κ))²/n).

    So degree k stays unknown until n ~ N_k ~ d^k/k!, and from n = `kernel_dim` on nothing is left to learn. Raises
    ValueError for n or a ridge ≤ 0, a negative power.

    >>> kernel_error(torch.tensor([100.0, 660.0, 1000.0]), 10, degree_power(10))
    tensor([9.65e-01, 4.76e-01, 8.57e-07], dtype=torch.float64)
    """
    n, power = as_tensors(n=n, power=power)
    if power.dim() != 1 or len(power) not in (3, 5, 7, 9):
        raise ValueError(f"power must be (2q + 1,) with q = 1, 2, 3 or 4, got {tuple(power.shape)}")
    refuse("power", power, (power >= 0) & power.isfinite(), "must be >= 0 and finite")
    require_positive(n=n)
    if not len(ridges):
        raise ValueError("ridges must hold at least one value, got none")
    value, count = (part.to(power) for part in kernel_spectrum(dim, len(power) // 2))
    ridge = n.new_tensor([float(r) for r in ridges])
    require_positive(ridges=ridge)
    noise, size = ridge * (value @ count), n[..., None, None]  # (ridge,), (..., 1, 1)

    def learned(kappa):
        return value / (value + kappa[..., None])  # (..., ridge, degree)

    # n is a falling function of κ. Both of its parts are below n at the largest κ, and one is n/2 at least at the
    # smallest, λ being there for a degree when n exceeds the count of all
    low = torch.full((*n.shape, len(noise)), -60.0, dtype=n.dtype, device=n.device)
    high = low + 80
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        kappa = middle.exp()
        above = (count * learned(kappa)).sum(-1) + noise / kappa > size[..., 0]
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    share = learned(((low + high) / 2).exp())
    missed = (power * (1 - share) ** 2).sum(-1)
    return (missed / (1 - (count * share**2).sum(-1) / size[..., 0])).amin(-1)


def degree_power(dim: int) -> Tensor:
    """The share of Var u in each degree 0 … 4, (5,), for random traceless directions of degree 2 on the sphere.

    Degree 2 has the share 4(d² − 4)/((d + 4)(d² + d − 4)), about 4/d, and degree 4 has the rest, whatever the
    strengths: a ratio of means over teachers (derived here). The part of degree 2 of (xᵀMx)² is
    4d/(d+4)·xᵀ(M² − I/d)x, of variance 32d³/((d+2)(d+4)²)·(tr M⁴ − 1/d), and E tr M⁴ is
    (2d² + 3d − 6)/(d(d² + d + 2)). The squares of all directions sum to a constant, so one feature tells all.

    >>> degree_power(10)
    tensor([0.0000, 0.0000, 0.2588, 0.0000, 0.7412], dtype=torch.float64)
    """
    require_whole(3, dim=dim)
    share = 4 * (dim**2 - 4) / ((dim + 4) * (dim**2 + dim - 4))
    return torch.tensor([0, 0, share, 0, 1 - share], dtype=compute.dtype(), device=compute.device())


# ---- layer by layer


def layerwise_error(n: float | Tensor, dim: int, n_features: int = 2, gamma: float = 1.0, degree: int = 2) -> Tensor:
    """Expected error of `spectral.fit`: the exact law at the n(1 − `HOLDOUT`)/D of its first layer; shape of n.

    Of the second layer only the overlaps count (`theory.mse_curve`). A function of n/D alone.

    >>> layerwise_error(torch.tensor([100.0, 570.0, 10_000.0]).double(), 10)
    tensor([0.9807, 0.5010, 0.0335], dtype=torch.float64)
    """
    (n,) = as_tensors(n=n)
    return theory.mse_curve((1 - HOLDOUT) * n / lift_dim(dim, degree), gamma, n_features).to(n)


def expected_samples(dim: int, method: str, level: float = 0.5) -> Tensor:
    """The n at which `layerwise_error` or `kernel_error` falls to ``level`` times Var u, for two features, q = 2; ().

    A level in (0, 1), far above 1e-6 for the kernel, whose curve ends near `kernel_dim`.

    >>> expected_samples(18, "spectral"), expected_samples(18, "kernel")
    (tensor(1776.8, dtype=torch.float64), tensor(4507.3, dtype=torch.float64))
    """
    _admit_method(method)
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    layered = method == "spectral"
    first, last = (lift_dim(dim, 2), 20 / level * lift_dim(dim, 2)) if layered else (dim, 2 * kernel_dim(dim, 2))
    n = torch.logspace(*map(math.log10, (first, last)), SIZES[method], dtype=compute.dtype(), device=compute.device())
    error = layerwise_error(n, dim) if layered else kernel_error(n, dim, degree_power(dim))
    return kernel.samples_to_reach(n, error, level)


# ---- experiments


def measured_error(
    dim: int,
    n: int,
    method: str,
    seed: int,
    degree: int = 2,
    n_features: int = 2,
    inputs: str = "sphere",
) -> Tensor:
    """Test error / Var of one fit, (): γ = 1, link "id", no noise. Methods of one seed see the same task and samples.

    The kernel chooses its ridge on 2000 noiseless labels, which is generous. The layer-wise method is told degree
    and number of the features, which is generous too. Raises ValueError for a method other than these two.

    >>> measured_error(8, 200, "kernel", seed=0) < 1
    tensor(True)
    """
    _admit_method(method)
    generator = compute.generator(seed)
    teacher = HierarchicalTeacher(dim, degree, n_features, 1.0, "id", 0.0, generator, inputs=inputs)
    val, test = (teacher.sample_inputs(size, generator) for size in (VALIDATION, max(TEST.values())))
    x, y = teacher.sample(n, generator)
    if method == "spectral":
        model = spectral.fit(x, y, degree, n_features=n_features, holdout=HOLDOUT, readout_degree=1)
    else:
        model = kernel.fit(x, y, degree, val, teacher.target(val))
    test = test[: TEST[method]]
    truth = teacher.target(test)
    return ((model.predict(test) - truth) ** 2).mean() / truth.var()


def samples_with_error(n: Tensor, error: Tensor, level: float = 0.5) -> tuple[Tensor, Tensor]:
    """The n at which the mean curve falls to ``level``, and the standard error of its logarithm; both ().

    n (size,) increasing, error (seed, size), at least two seeds. The error bar is the jackknife's: leave out each
    seed in turn and see how far the crossing moves. Not finite where a curve does not cross.

    >>> error = torch.tensor([[0.9, 0.3], [1.1, 0.3]])
    >>> samples_with_error(torch.tensor([100.0, 200.0]), error)
    (tensor(149.0418), tensor(0.0249))
    """
    n, error = as_tensors(n=n, error=error)
    if error.dim() != 2 or len(error) < 2:
        raise ValueError(f"error must be (seed, size) with at least two seeds, got {tuple(error.shape)}")
    seeds = len(error)
    without = (error.sum(0) - error) / (seeds - 1)  # (seed, size)
    logs = kernel.samples_to_reach(n, without, level).log()
    return kernel.samples_to_reach(n, error.mean(0), level), (logs.var(correction=0) * (seeds - 1)).sqrt()


def needed_by_dim(table: Table, method: str, level: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Dims, and `samples_with_error` at each, from a table of dim, method, n, error and seed; each (dim,).

    The table is one of `labkit.sweep.run`: for each dim the sizes in rising order, all with the same seeds.

    >>> from labkit import results
    >>> needed_by_dim(results.load("depth_advantage").table, "kernel")[0]
    tensor([10., 14., 18.], dtype=torch.float64)
    """
    _admit_method(method)
    dims, needed, log_error = list(dict.fromkeys(table["dim"].tolist())), [], []
    for dim in dims:
        part = table.select(dim=dim, method=method)
        shape = -1, len(set(part["seed"].tolist()))
        n, error = (torch.from_numpy(part[name].astype(float).reshape(shape)) for name in ("n", "error"))
        for found, value in zip((needed, log_error), samples_with_error(n[:, 0], error.mT, level), strict=True):
            found.append(value)
    return torch.tensor(dims, dtype=torch.float64, device="cpu"), torch.stack(needed), torch.stack(log_error)


def fit_exponent(dim: Tensor, needed: Tensor, log_error: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of ln ``needed`` against ln ``dim``, and its standard error; all (point,), both ().

    Least squares with weights w = 1/``log_error``², the errors known: slope Σ w(x − x̄)y/Σ w(x − x̄)², x̄ the weighted
    mean, and error 1/√(Σ w(x − x̄)²). Raises ValueError for values ≤ 0, fewer than two points, equal dims.

    >>> fit_exponent(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5.0, 20.0, 80.0]), torch.tensor([0.1, 0.2, 0.1]))
    (tensor(2.0000), tensor(0.1020))
    """
    dim, needed, log_error = as_tensors(dim=dim, needed=needed, log_error=log_error)
    if dim.dim() != 1 or not dim.shape == needed.shape == log_error.shape or len(dim) < 2:
        shapes = f"dim {tuple(dim.shape)}, needed {tuple(needed.shape)}, log_error {tuple(log_error.shape)}"
        raise ValueError(f"dim, needed and log_error must be (point,) with at least two points, got {shapes}")
    require_finite(needed=needed)
    require_positive(dim=dim, needed=needed, log_error=log_error)
    if dim.min() == dim.max():
        raise ValueError(f"dim must hold at least two different values, got {dim.tolist()}")
    x, weight = dim.log(), log_error**-2
    x = x - (weight * x).sum() / weight.sum()
    spread = (weight * x**2).sum()
    return (weight * x * needed.log()).sum() / spread, spread**-0.5


def _admit_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be spectral or kernel, got {method!r}")
