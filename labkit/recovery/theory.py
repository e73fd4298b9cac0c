"""When a feature leaves the noise, and the law that the steps add up to. δ = n/D is ``samples_per_dim``.

Three laws for the squared overlap ρ_k = ⟨A_k, v_k⟩² of an eigenvector of Ĉ = (1/n) Σ t (HHᵀ − I), t = clip(y), with
feature k, all for the Gaussian surrogate:

==========  =========================================================================================================
``exact``   the spiked-matrix equations (Lu & Li, arXiv 1702.06435, adapted to several features), for D → ∞, with
            their expectations over (y, h) by quadrature, or on frozen draws for any link
``simple``  δ ≫ 1, link "id": ρ_k = (1 − n_k/n)₊ with the threshold n_k = D·E y²/(2a_k²) (derived here; that of
            arXiv 2605.14567 up to constants)
``plus``    the same divided by 1 + 2/δ: the noise that a strong feature makes for itself (derived here)
==========  =========================================================================================================
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import zeta
from torch import Tensor

from labkit import compute
from labkit.recovery.hermite import as_matrix, from_matrix
from labkit.validate import as_tensors, refuse, require_finite, require_generator, require_positive, require_whole

LINKS = {"id": lambda u: u, "tanh": torch.tanh, "even": lambda u: u**2 - 1}
LAWS = ("exact", "plus", "simple")
TAILS = ("cut", "noise")
DRAWS = 200_000  # where draws are needed and no number is given
MAX_STEPS = 60  # of a safeguarded Newton iteration; 4 to 14 are usual
TOLERANCE = 1e-10  # of 1/δ
NODES, SMOOTHING = 4096, 0.02  # of label_quadrature; e^{−(.02 ω)²/2} is 1e-15 at the largest ω
BLOCK = 1_000_000  # numbers of one temporary of the exact law
STRONG, BINS, PER_DECADE = 60, 384, 48  # of `cascade`: features, bins of their labels; of `staircase`: points


# ---- strengths


def amplitudes(gamma: float, n_features: int, tail: str = "cut") -> Tensor:
    """a_k = k^{−γ}/√Z, (n_features,): Z = Σ_{j ≤ d₁} j^{−2γ} ("cut") or ζ(2γ) ("noise": the infinite sum).

    Raises ValueError for γ < 0, n_features < 1, and for γ ≤ 1/2 with "noise".

    >>> amplitudes(1.0, 3)
    tensor([0.8571, 0.4286, 0.2857], dtype=torch.float64)
    """
    admit_model(gamma, n_features, tail=tail)
    k = torch.arange(1, n_features + 1, dtype=compute.dtype(), device=compute.device())
    total = (k ** (-2 * gamma)).sum() if tail == "cut" else float(zeta(2 * gamma))
    return k**-gamma / total**0.5


def tail_variance(gamma: float, n_features: int, tail: str = "cut") -> float:
    """1 − Σ_{k ≤ d₁} a_k²: the variance of the features that ``tail="noise"`` turns into label noise; else 0.

    >>> tail_variance(1.0, 12, tail="noise")
    0.0486
    """
    admit_model(gamma, n_features, tail=tail)
    return float(zeta(2 * gamma, n_features + 1) / zeta(2 * gamma)) if tail == "noise" else 0.0


def admit_model(gamma: float, n_features: int, noise_std: float = 0.0, link: str = "id", tail: str = "cut") -> None:
    """Refuse what no teacher can be made of, in a sentence."""
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must lie in [0, inf), got {gamma}")
    require_whole(1, n_features=n_features)
    if not 0 <= noise_std < math.inf:
        raise ValueError(f"noise_std must lie in [0, inf), got {noise_std}")
    for name, value, allowed in (("link", link, LINKS), ("tail", tail, TAILS)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    if tail == "noise":
        _require_summable(torch.tensor(gamma, device="cpu"))
        if link != "id":
            raise ValueError(f'link must be "id" when tail is "noise" (a tail inside g is not noise), got {link!r}')


def _require_summable(gamma: Tensor) -> None:
    reason = "must be > 1/2: else Σ k^(-2γ) diverges, the strengths depend on n_features, and no power law forms"
    refuse("gamma", gamma, (gamma > 0.5) & gamma.isfinite(), reason)


# ---- the simple law


def scaling_exponent(gamma: float | Tensor) -> Tensor:
    """The exponent of MSE(n) between the ends of `window`: −1 + 1/(2γ), γ > 1/2 (arXiv 2605.14567).

    Raises ValueError for γ ≤ 1/2: Σ k^{−2γ} diverges, what is learned depends on d₁, and no power law forms.

    >>> scaling_exponent(1.0)
    tensor(-0.5000, dtype=torch.float64)
    """
    (gamma,) = as_tensors(gamma=gamma)
    _require_summable(gamma)
    return -1 + 1 / (2 * gamma)


def recovery_threshold(
    k: int | Tensor, gamma: float, n_features: int, lift_dim: int, noise_std: float = 0.0, tail: str = "cut"
) -> Tensor:
    """n_k = D (1 + σ²)/(2a_k²): the samples beyond which feature k = 1, 2, … leaves the noise; shape of k.

    Raises ValueError for k outside 1 … n_features, lift_dim < n_features.

    >>> recovery_threshold(2, gamma=1.0, n_features=3, lift_dim=600)
    tensor(1633.3333, dtype=torch.float64)
    """
    strengths = amplitudes(gamma, n_features, tail)
    admit_model(gamma, n_features, noise_std)
    require_whole(1, lift_dim=lift_dim)
    if lift_dim < n_features:
        raise ValueError(f"lift_dim must be >= n_features = {n_features}, got {lift_dim}")
    k = torch.as_tensor(k, device=strengths.device)
    if k.is_floating_point():
        raise TypeError(f"k must be an integer or an integer tensor, got {k.dtype}")
    refuse("k", k, (k >= 1) & (k <= n_features), f"must lie in [1, {n_features}]")
    return lift_dim * (1 + noise_std**2) / (2 * strengths[k - 1] ** 2)


def window(gamma: float, n_features: int, noise_std: float = 0.0, tail: str = "cut") -> tuple[float, float]:
    """The ends of the power law in δ = n/D: n_1/D, before which nothing is learned, and n_{d₁}/D, where features run
    out and `mse_parametric` takes over (with "noise": the tail is all that is left).

    >>> window(1.0, 12)
    (0.78, 112.7)
    """
    ends = torch.tensor([1, n_features], device=compute.device())
    first, last = recovery_threshold(ends, gamma, n_features, n_features, noise_std, tail).tolist()
    return first / n_features, last / n_features


def learned_features(
    samples_per_dim: float | Tensor, gamma: float, n_features: int, noise_std: float = 0.0, tail: str = "cut"
) -> Tensor:
    """How many features have n_k < n, int64, shape of δ.

    >>> learned_features(torch.tensor([0.5, 5.0, 50.0]), gamma=1.0, n_features=12)
    tensor([0, 2, 7])
    """
    found = overlap(samples_per_dim, gamma, n_features, noise_std, law="simple", tail=tail)
    return (found > 0).sum(-1)


def mse_power_law(samples_per_dim: float | Tensor, gamma: float, noise_std: float = 0.0) -> Tensor:
    """What `mse_curve` follows for 1 ≪ K ≪ d₁: C/ζ(2γ) · K^{1−2γ}, K = (2δ/(ζ(2γ)(1+σ²)))^{1/(2γ)} (derived here).

    C = 2 − 1/(2γ+1) + 1/(2γ−1): the error that learned features still make, and the tail of those not learned.

    >>> mse_power_law(1000.0, gamma=1.0)
    tensor(0.0465, dtype=torch.float64)
    """
    (delta,) = as_tensors(samples_per_dim=samples_per_dim)
    require_positive(samples_per_dim=delta)
    admit_model(gamma, 1, noise_std, tail="noise")
    total = float(zeta(2 * gamma))
    learned = (2 * delta / (total * (1 + noise_std**2))) ** (1 / (2 * gamma))
    return (2 - 1 / (2 * gamma + 1) + 1 / (2 * gamma - 1)) / total * learned ** (1 - 2 * gamma)


def mse_parametric(samples_per_dim: float | Tensor, n_features: int, noise_std: float = 0.0) -> Tensor:
    """Far beyond the window, where every feature is known: (d₁(1 + σ²) + 4)/δ (derived here).

    For labels as they are. Clipped at 3 sd the 4, self-noise of strong features, shrinks: the exact law is then 10 to
    25 % lower for σ = 0, and the same within 1 % for σ = 3.

    >>> mse_parametric(1000.0, 5, noise_std=0.5)
    tensor(0.0103, dtype=torch.float64)
    """
    (delta,) = as_tensors(samples_per_dim=samples_per_dim)
    require_positive(samples_per_dim=delta)
    admit_model(0.0, n_features, noise_std)
    return (n_features * (1 + noise_std**2) + 4) / delta


# ---- the exact law


@dataclass(frozen=True)
class Labels:
    """What the exact law needs of the labels: weighted draws of t and of the squared features."""

    t: Tensor  # (draw,), clipped labels
    squares: Tensor  # (draw, n_features), h²
    weight: Tensor  # (draw,), sums to 1

    def binned(self, bins: int = 512) -> "Labels":
        """Draws of nearly equal t joined, in bins of equal count; the two atoms at ±clip stay apart.

        A curve over δ from 200 000 draws then costs milliseconds, at an error far below the noise of the draws.
        """
        t, order = self.t.sort()
        low, inside = (t == t[0]).sum(), ((t > t[0]) & (t < t[-1])).sum()
        inner = low + torch.arange(bins + 1, device=t.device) * inside // bins
        ends = torch.cat([inner, inner.new_full((1,), len(t))])
        values = torch.cat([t.new_ones(len(t), 1), t[:, None], self.squares[order]], 1) * self.weight[order, None]
        upto = values.cumsum(0)[(ends - 1).clamp_min(0)]
        sums = upto.diff(dim=0, prepend=torch.zeros_like(upto[:1]))
        sums = sums[ends.diff(prepend=ends.new_zeros(1)) > 0]
        return Labels(sums[:, 1] / sums[:, 0], sums[:, 2:] / sums[:, :1], sums[:, 0])


def draw_labels(
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    clip: float | None = 3.0,
    draws: int = 10_000,
    generator: torch.Generator | None = None,
    link: str = "id",
    tail: str = "cut",
) -> Labels:
    """Draws of (t, h²) of the surrogate: t = y limited to ± ``clip``·√(E y²).

    Without a generator the draws are those of seed 0: curves then move smoothly with their parameters. ``clip=None``
    warns: max t then depends on the draws, and with it whatever lies near a threshold.

    >>> draw_labels(1.0, 3, draws=1000).squares.shape
    torch.Size([1000, 3])
    """
    strengths = amplitudes(gamma, n_features, tail)
    admit_model(gamma, n_features, noise_std, link, tail)
    require_whole(2, draws=draws)
    _admit_clip(clip)
    generator = generator or compute.generator(0)
    require_generator(generator)
    drawn = torch.randn(draws, n_features + 1, dtype=torch.float64, generator=generator, device="cpu").to(strengths)
    squares = drawn[:, :-1] ** 2
    noise = math.sqrt(noise_std**2 + tail_variance(gamma, n_features, tail))
    t = LINKS[link]((squares - 1) @ strengths / math.sqrt(2)) + noise * drawn[:, -1]
    if clip is None:
        warnings.warn(
            "clip=None: the largest of heavy-tailed labels make outliers of their own, and the theory follows the "
            "draws; clip=3.0 avoids both",
            stacklevel=2,
        )
    else:
        size = math.sqrt(1 + noise_std**2) if link == "id" else t.square().mean().sqrt()
        t = t.clamp(-clip * size, clip * size)
    return Labels(t, squares, t.new_full((draws,), 1 / draws))


def label_quadrature(
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    clip: float = 3.0,
    tail: str = "cut",
    listed: Tensor | None = None,
) -> Labels:
    """The same for the identity link, without draws: a grid of t with its density and E[h_k² | t].

    y = Σ a_k z_k + noise with z_k = (h_k² − 1)/√2 has the characteristic function Π (1 − i√2 a_k ω)^{−1/2}
    e^{−i a_k ω/√2} e^{−v ω²/2}; weighing by h_k² divides it by 1 − i√2 a_k ω; one FFT inverts each (derived here).
    The noise variance v is at least .02² (of Var u = 1), to smooth the densities of few features without noise. With
    ``listed``, numbers k (m,), the squares of these features only are given, and all but the `STRONG` first features
    enter the density as noise of their variance: many weak features are that.

    >>> found = label_quadrature(1.0, 3)
    >>> found.weight @ found.t**2  # below E y² = 1: clipped
    tensor(0.8409, dtype=torch.float64)
    """
    a = amplitudes(gamma, n_features, tail)
    admit_model(gamma, n_features, noise_std, tail=tail)
    _admit_clip(clip)
    if clip is None:
        raise ValueError("clip must be a number: the law needs bounded labels")
    if listed is not None:
        listed = torch.as_tensor(listed, device=a.device)
        refuse("listed", listed, (listed >= 1) & (listed <= n_features), f"must lie in [1, {n_features}]")
    a, weak, probes = (a, a[:0], a) if listed is None else (a[:STRONG], a[STRONG:], a[listed - 1])
    variance = noise_std**2 + tail_variance(gamma, n_features, tail) + float((weak**2).sum())
    variance = max(variance, SMOOTHING**2)
    # below: at most −Σa/√2, and sub-Gaussian; above: P(h_1² > 40) = 3e-10
    below = min(float(a.sum()) / math.sqrt(2), 8) + 8 * math.sqrt(variance)
    period = below + 28 + 8 * math.sqrt(variance)
    omega = 2 * math.pi / period * torch.arange(NODES // 2 + 1, dtype=a.dtype, device=a.device)
    pull = math.sqrt(2) * a[:, None] * omega  # (k, ω); all at −ω, as irfft wants it
    phase = torch.complex(-variance / 2 * omega**2, (a.sum() / math.sqrt(2) - below) * omega)
    logs = torch.complex(pull.square().log1p().sum(0) / 2, pull.atan().sum(0))  # Σ log(1 + i·pull)
    transform = (phase - logs / 2).exp()
    pull = pull if listed is None else math.sqrt(2) * probes[:, None] * omega
    given = transform / torch.complex(torch.ones_like(pull), pull)
    values = torch.fft.irfft(torch.cat([transform[None], given]), NODES)  # mass, mass · E[h² | y]
    limit = clip * math.sqrt(1 + noise_std**2)
    y = period / NODES * torch.arange(NODES, dtype=a.dtype, device=a.device) - below
    inside = (y.abs() < limit) & (values[0] > 1e-12)
    atoms = torch.stack([values[:, y <= -limit].sum(1), values[:, y >= limit].sum(1)], 1)
    mass = torch.cat([atoms, values[:, inside]], 1)
    t = torch.cat([y.new_tensor([-limit, limit]), y[inside]])
    real = mass[0] > 1e-12
    weight = mass[0, real] / mass[0, real].sum()
    return Labels(t[real], (mass[1:, real] / mass[0, real]).mT, weight)


def _admit_clip(clip: float | None) -> None:
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be positive and finite, or None, got {clip}")


def bulk_edge(t: Tensor, samples_per_dim: float | Tensor, weight: Tensor | None = None) -> Tensor:
    """Where the eigenvalues of pure noise end, from the labels t (draw,) alone; shape of δ.

    ψ(λ̄) − E t, where E t²/(λ̄ − t)² = 1/δ, λ̄ > max t, and ψ(λ) = λ(1/δ + E t/(λ − t)). For δ ≫ 1 that is
    2√(E t²/δ) + E t³/(δ E t²). For δ < 1 Ĉ also has the eigenvalue −E t, of what no sample sees: the larger counts.
    Exact for D → ∞ when H is Gaussian; with real labels a usable cut on real data.

    Raises ValueError for fewer than two labels, labels that are all equal, NaN, or δ ≤ 0.

    >>> bulk_edge(torch.tensor([-1.0, 1.0]), samples_per_dim=100.0)  # 2/√100 to leading order
    tensor(0.2010)
    """
    t, weight, delta = _admit_labels(t, weight, samples_per_dim)
    root, mean = _bulk(t, weight, delta.flatten()), (weight * t).sum()
    edge = _psi(root, t, weight, delta.flatten()).view(delta.shape)
    return torch.where(delta < 1, edge.clamp_min(0), edge) - mean


@dataclass(frozen=True)
class Spikes:
    """The exact law at one or many δ (...)."""

    edge: Tensor  # (...), upper end of the bulk
    outlier: Tensor  # (..., n_features), eigenvalue of feature k; the edge where it has not left the bulk
    overlap: Tensor  # (..., n_features), ρ_k; 0 there


def exact(labels: Labels, samples_per_dim: float | Tensor) -> Spikes:
    """Edge, outliers and overlaps on given draws.

    Feature k is out iff E t(h_k² − 1)/(λ − t) = 1/δ has a root λ_k > λ̄ (`bulk_edge`). Its eigenvalue is ψ(λ_k) − E t,
    and ρ_k = ψ′/(ψ′ + E t²h_k²/(λ_k − t)²), ψ′ = 1/δ − E t²/(λ_k − t)².

    >>> exact(label_quadrature(1.0, 3), 100.0).overlap
    tensor([0.98, 0.96, 0.92], dtype=torch.float64)
    """
    t, weight, delta = _admit_labels(labels.t, labels.weight, samples_per_dim)
    flat, mean = delta.flatten(), (weight * t).sum()
    excess = (labels.squares - 1).mT * t  # (n_features, draw)
    size = max(1, BLOCK // excess.numel())
    parts = [_spikes(t, weight, labels.squares.mT, excess, part) for part in flat.split(size)]
    edge, outlier, found = (torch.cat(values) for values in zip(*parts, strict=True))
    wide = (*delta.shape, len(excess))
    return Spikes((edge - mean).view(delta.shape), (outlier - mean).view(wide), found.view(wide))


def _spikes(t: Tensor, weight: Tensor, squares: Tensor, excess: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ψ at the edge (δ,), ψ at the outliers and ρ, both (δ, k)."""
    start = _bulk(t, weight, delta)
    edge = _psi(start, t, weight, delta)
    pull = (weight / (start[:, None] - t)) @ excess.mT  # E t(h²−1)/(λ̄ − t), (δ, k)
    at, k = (pull > 1 / delta[:, None]).nonzero(as_tuple=True)  # the pairs that are out
    outlier, found = edge[:, None].repeat(1, len(excess)), torch.zeros_like(pull)
    if len(at):
        root = _spike(t, weight * excess[k], delta[at], start[at])
        ratio = t / (root[:, None] - t)
        slope = 1 / delta[at] - (weight * ratio**2).sum(-1)
        found[at, k] = slope / (slope + (weight * squares[k] * ratio**2).sum(-1))
        outlier[at, k] = _psi(root, t, weight, delta[at])
    return edge, outlier, found


def staircase(labels: Labels, samples_per_dim: Tensor, per_decade: int = PER_DECADE) -> Tensor:
    """Overlaps ρ_k at many δ (δ,) → (δ, n_features): those of `exact` to .001, for 100 features in milliseconds.

    `exact` seeks λ for each δ and k. Here λ is given: E t(h_k² − 1)/(λ − t) = 1/δ says at once which δ belongs to it,
    and ρ_k there; ``per_decade`` values of λ − max t to a factor of ten, one product of matrices for each average,
    straight lines in ln δ between. ``labels.binned()`` first makes it faster still. Derived here.

    >>> labels = label_quadrature(1.0, 12)
    >>> staircase(labels, torch.tensor([20.0, 100.0]))[:, :3]
    tensor([[0.8832, 0.7537, 0.5204],
            [0.9766, 0.9537, 0.9163]], dtype=torch.float64)
    """
    return _staircase(labels, samples_per_dim, per_decade).clamp_min(0)


def _staircase(labels: Labels, samples_per_dim: Tensor, per_decade: int) -> Tensor:
    """The same, negative below the threshold."""
    t, weight, delta = _admit_labels(labels.t, labels.weight, samples_per_dim)
    if delta.dim() != 1 or not len(delta):
        raise ValueError(f"samples_per_dim must be (points,), not empty, got {tuple(delta.shape)}")
    delta = delta.to(t)
    low = _bulk(t, weight, delta.min()[None]) - t.max()  # no root lies below
    high = low + 4 * delta.max() * ((labels.squares - 1).mT @ (weight * t)).amax()
    count = 2 + int(per_decade * (high / low).log10())
    gap = low * (high / low) ** torch.linspace(0, 1, count, dtype=t.dtype, device=t.device)
    ratio = t / (t.max() + gap[:, None] - t)  # (λ, draw)
    pull = (weight * ratio) @ (labels.squares - 1)  # (λ, k)
    squared = weight * ratio**2
    slope = pull - squared.sum(1, keepdim=True)
    found = (slope / (slope + squared @ labels.squares)).mT.contiguous()  # negative inside the bulk
    # 1/pull rises with λ wherever a feature is out; below, where it need not, the minimum from above keeps it sorted
    at = torch.where(pull > 0, -pull.log(), torch.inf).flip(0).cummin(0).values.flip(0).mT.contiguous()  # (k, λ)
    wanted = delta.log().expand(len(at), -1).contiguous()
    right = torch.searchsorted(at, wanted).clamp(1, count - 1)
    (x0, x1), (y0, y1) = ((part.gather(1, right - 1), part.gather(1, right)) for part in (at, found))
    share = torch.where(x1 > x0, (wanted - x0) / (x1 - x0), 1).clamp(0, 1)
    return (y0 + share * (y1 - y0)).mT


def _psi(root: Tensor, t: Tensor, weight: Tensor, delta: Tensor) -> Tensor:
    return root * (1 / delta + (weight * t / (root[:, None] - t)).sum(-1))


def _bulk(t: Tensor, weight: Tensor, delta: Tensor) -> Tensor:
    """λ̄ of each δ (δ,): Newton on f^{−1/2} = √δ, f = E t²/(λ−t)², which is nearly a straight line."""

    def step(root, rows):
        gap = root[:, None] - t
        terms = weight * (t / gap) ** 2
        f = terms.sum(-1)
        return f, f * ((f * delta[rows]).sqrt() - 1) / (terms / gap).sum(-1)

    low = t.max().expand_as(delta)
    return _solve(step, low + (delta * (weight * t**2).sum()).sqrt(), low, delta)  # from where f ≤ 1/δ


def _spike(t: Tensor, excess: Tensor, delta: Tensor, start: Tensor) -> Tensor:
    """λ > ``start`` with F = Σ excess/(λ−t) = 1/δ, for pairs with excess (pair, draw): Newton on 1/F = δ."""

    def step(root, rows):
        inverse = 1 / (root[:, None] - t)
        terms = excess[rows] * inverse
        pull = terms.sum(-1)
        return pull, (delta[rows] * pull**2 - pull) / (terms * inverse).sum(-1)

    return _solve(step, start, start, delta)


def _solve(step: Callable, root: Tensor, low: Tensor, delta: Tensor) -> Tensor:
    """The roots > ``low`` of decreasing functions = 1/δ: Newton inside a bracket, else halving or doubling.

    ``step(root, rows)`` gives the values, and where Newton goes from ``root``, of the rows still sought.
    """
    found, rows = root.clone(), torch.arange(len(root), device=root.device)
    high = torch.full_like(root, torch.inf)
    for _ in range(MAX_STEPS):
        value, move = step(root, rows)
        found[rows] = root
        above = value * delta[rows] > 1
        low, high = torch.where(above, root, low), torch.where(above, high, root)
        middle = torch.where(high.isinf(), low + low.abs() + 1, (low + high) / 2)
        moved = root + move
        root = torch.where((moved > low) & (moved < high), moved, middle)
        open_ = (value * delta[rows] - 1).abs() > TOLERANCE
        if not open_.any():
            break
        rows, root, low, high = rows[open_], root[open_], low[open_], high[open_]
    return found


def _admit_labels(t: Tensor, weight: Tensor | None, samples_per_dim: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    t, delta = as_tensors(t=t, samples_per_dim=samples_per_dim)
    if t.dim() != 1 or len(t) < 2:
        raise ValueError(f"t must be (draw,) with at least two labels, got {tuple(t.shape)}")
    require_finite(t=t)
    require_positive(samples_per_dim=delta)
    if t.min() == t.max():
        raise ValueError(f"t must not be constant: labels that are all {t[0].item():g} tell nothing about x")
    return t, t.new_full((len(t),), 1 / len(t)) if weight is None else weight.to(t), delta


# ---- curves


def overlap(
    samples_per_dim: float | Tensor,
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    law: str = "exact",
    clip: float | None = 3.0,
    draws: int | None = None,
    generator: torch.Generator | None = None,
    link: str = "id",
    tail: str = "cut",
) -> Tensor:
    """Squared overlaps ρ_k of eigenvectors with features at δ = n/D (...) → (..., n_features).

    Arguments
        law: "exact", "plus" or "simple"; the last two are for link "id" and need neither clip nor draws
        draws: None, the default, takes expectations by `label_quadrature`, and for a link other than "id" or
            clip=None from 200 000 draws; a number takes so many, see `draw_labels`

    To move δ alone, keep ``label_quadrature(...)`` and call `exact`. Raises ValueError for arguments out of range.

    >>> overlap(100.0, gamma=1.0, n_features=3, law="simple")
    tensor([0.9932, 0.9728, 0.9388], dtype=torch.float64)
    """
    (delta,) = as_tensors(samples_per_dim=samples_per_dim)
    require_positive(samples_per_dim=delta)
    admit_model(gamma, n_features, noise_std, link, tail)
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}")
    if law == "exact":
        if draws is None and link == "id" and clip is not None:
            labels = label_quadrature(gamma, n_features, noise_std, clip, tail)
        else:
            labels = draw_labels(gamma, n_features, noise_std, clip, draws or DRAWS, generator, link, tail)
            labels = labels.binned() if delta.dim() else labels
        return exact(labels, delta.to(labels.t)).overlap
    if link != "id":
        raise ValueError(f'law must be "exact" for link {link!r}, got {law!r}')
    needed = (1 + noise_std**2) / (2 * amplitudes(gamma, n_features, tail).to(delta) ** 2)  # n_k/D
    found = (1 - needed / delta[..., None]).clamp_min(0)
    return found / (1 + 2 / delta[..., None]) if law == "plus" else found


def mse_curve(
    samples_per_dim: float | Tensor,
    gamma: float,
    n_features: int,
    noise_std: float = 0.0,
    law: str = "exact",
    clip: float | None = 3.0,
    draws: int | None = None,
    generator: torch.Generator | None = None,
    tail: str = "cut",
) -> Tensor:
    """Error against the label without noise, Var u = 1: Σ_k a_k²(1 − ρ_k²) + the variance of the tail; shape of δ.

    A feature of overlap ρ_k gets the coefficient a_k ρ_k from the latent regression (derived here). Link "id"; the
    other arguments are those of `overlap`.

    >>> mse_curve(torch.tensor([20.0, 200.0]).double(), gamma=1.0, n_features=12, law="simple")
    tensor([0.2610, 0.0536], dtype=torch.float64)
    """
    found = overlap(samples_per_dim, gamma, n_features, noise_std, law, clip, draws, generator, tail=tail)
    strengths = amplitudes(gamma, n_features, tail).to(found)
    return (strengths**2 * (1 - found**2)).sum(-1) + tail_variance(gamma, n_features, tail)


@dataclass(frozen=True)
class Cascade:
    """The steps at many δ, and the two parts of the error that they add up to."""

    overlap: Tensor  # (δ, n_features), ρ_k
    unlearned: Tensor  # (δ,), Σ a_k² over features with ρ_k = 0, and the tail
    learned: Tensor  # (δ,), Σ a_k²(1 − ρ_k²) over the others

    @property
    def mse(self) -> Tensor:
        return self.unlearned + self.learned


def cascade(
    samples_per_dim: Tensor, gamma: float, n_features: int, noise_std: float = 0.0, tail: str = "cut"
) -> Cascade:
    """Overlaps and errors at many δ (δ,), fast enough for a slider with a thousand features.

    The exact law (`staircase`) for the first 30 features and some of the others; in between ρ_k is all but linear in
    k^{2γ}: right to .006 for γ ≥ 1/2, the error to .3 %. Link "id", labels clipped at 3 sd.

    >>> steps = cascade(torch.tensor([20.0, 1000.0]), gamma=1.0, n_features=500)
    >>> (steps.overlap > 0).sum(1), steps.mse
    (tensor([ 4, 35]), tensor([0.4261, 0.0464], dtype=torch.float64))
    """
    power = amplitudes(gamma, n_features, tail) ** 2
    some = torch.arange(1, n_features + 1, device=power.device)
    if n_features > STRONG:
        spaced = torch.logspace(math.log10(STRONG / 2), math.log10(n_features), STRONG // 2, device=power.device)
        some = torch.cat([some[: STRONG // 2], spaced[1:].round().long().unique()])
    labels = label_quadrature(gamma, n_features, noise_std, tail=tail, listed=some).binned(BINS)
    (delta,) = as_tensors(samples_per_dim=samples_per_dim)
    found = _staircase(labels, delta.to(labels.t), PER_DECADE)
    if n_features > STRONG:
        k = torch.arange(1, n_features + 1, device=power.device)
        found = found @ _between(some, k.to(power) ** (2 * gamma or 1)).to(found)
    found = found.clamp_min_(0)
    unlearned = (found == 0).to(found) @ power.to(found)
    learned = power.sum().to(found) - unlearned - found.square() @ power.to(found)
    return Cascade(found, unlearned + tail_variance(gamma, n_features, tail), learned)


def _between(some: Tensor, x: Tensor) -> Tensor:
    """(m, n_features): values at the features ``some`` (m,) → values at all, on straight lines in x (n_features,)."""
    k = torch.arange(1, len(x) + 1, device=x.device)
    right = torch.searchsorted(some, k).clamp_min(1)
    x0, x1 = x[some[right - 1] - 1], x[some[right] - 1]
    share = (x - x0) / (x1 - x0)
    weights = x.new_zeros(len(some), len(x))
    return weights.scatter_(0, right[None] - 1, 1 - share[None]).scatter_(0, right[None], share[None])


def local_slope(x: Tensor, y: Tensor, decades: float = 0.5) -> Tensor:
    """d ln y / d ln x at each x (points,), rising, by the ends of so many decades around it (less at the border).

    >>> x = torch.logspace(0, 2, 9)
    >>> local_slope(x, 3 / x**2)[::4]
    tensor([-2.0000, -2.0000, -2.0000])
    """
    x, y = as_tensors(x=x, y=y)
    if x.dim() != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(f"x and y must be (points,), two or more, got {tuple(x.shape)} and {tuple(y.shape)}")
    require_positive(x=x, y=y)
    if not (x.diff() > 0).all():
        raise ValueError("x must rise")
    if not 0 < decades < math.inf:
        raise ValueError(f"decades must be positive and finite, got {decades}")
    log_x, log_y = x.log10(), y.log10()
    ends = torch.stack([log_x - decades / 2, log_x + decades / 2]).clamp(log_x[0], log_x[-1])
    right = torch.searchsorted(log_x, ends).clamp(1, len(x) - 1)
    share = (ends - log_x[right - 1]) / (log_x[right] - log_x[right - 1])
    low, high = log_y[right - 1] + share * (log_y[right] - log_y[right - 1])
    return (high - low) / (ends[1] - ends[0])


# ---- infinitely many samples, finite d


@dataclass(frozen=True)
class Moment:
    """E u(HHᵀ − I) for q = 2 and Gaussian x, as three matrices (D, D) that add up."""

    signal: Tensor  # √2 Σ a_i A_i A_iᵀ: all that is left for d → ∞
    low_degree: Tensor  # U → 2√2 (SU + US), S = Σ a_i M_i²: from the degree-2 part of the label
    crossed: Tensor  # U → 2√2 Σ a_i M_i U M_i

    @property
    def total(self) -> Tensor:
        return self.signal + self.low_degree + self.crossed


def population_moment(directions: Tensor, amplitudes: Tensor) -> Moment:
    """The moment matrix of infinitely many samples, for directions (D, d₁) of degree 2 and amplitudes (d₁,).

    The two corrections are why weak features stay hidden at small d, whatever n. Derived here, by Wick's theorem.

    >>> population_moment(torch.eye(6)[:, :2], torch.tensor([1.0, 0.5])).total.shape
    torch.Size([6, 6])
    """
    directions, a, matrices, s = _admit_directions(directions, amplitudes)
    one = torch.eye(len(s), dtype=s.dtype, device=s.device)
    # as maps (a, d | b, c) of U_bc to (·)_ad
    sides = torch.einsum("ab,cd->adbc", s, one) + torch.einsum("ab,cd->adbc", one, s)
    crossed = torch.einsum("i,iab,icd->adbc", a, matrices, matrices)
    signal = math.sqrt(2) * (directions * a) @ directions.mT
    return Moment(signal, *(2 * math.sqrt(2) * _on_symmetric(part) for part in (sides, crossed)))


def population_variance(directions: Tensor, amplitudes: Tensor) -> tuple[Tensor, Tensor]:
    """(Var u, the part of it that has degree 2) for q = 2 and Gaussian x; they tend to Σa² and 0 for d → ∞.

    Σa² + 2 Σ_ij a_i a_j (2 tr M_i²M_j² + tr M_iM_jM_iM_j), and 4 tr S², S = Σ a_i M_i² (derived here).

    >>> population_variance(torch.eye(3)[:, 1:2], torch.tensor([1.0]))  # u = (x_1²x_2² − 1)/√2
    (tensor(4.), tensor(2.))
    """
    _, a, matrices, s = _admit_directions(directions, amplitudes)
    products = torch.einsum("i,iab,jbc->ijac", a, matrices, matrices)  # a_i M_i M_j
    alternating = torch.einsum("ijac,ijca,j->", products, products / a[:, None, None, None], a)
    squared = (s**2).sum()  # Σ a_i a_j tr M_i²M_j²
    return (a**2).sum() + 2 * (2 * squared + alternating), 4 * squared


def _on_symmetric(part: Tensor) -> Tensor:
    """A map of matrices (dim, dim, dim, dim) as (D, D) in the coefficients of `hermite.as_matrix`."""
    return from_matrix(from_matrix(part).movedim(-1, 0))


def _admit_directions(directions: Tensor, amplitudes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    directions, a = as_tensors(directions=directions, amplitudes=amplitudes)
    if directions.dim() != 2 or a.shape != directions.shape[1:]:
        shapes = f"directions {tuple(directions.shape)}, amplitudes {tuple(a.shape)}"
        raise ValueError(f"directions must be (D, n_features) and amplitudes (n_features,), got {shapes}")
    require_finite(directions=directions, amplitudes=a)
    matrices = as_matrix(directions.mT)  # (n_features, dim, dim)
    return directions, a, matrices, torch.einsum("i,iab,ibc->ac", a, matrices, matrices)
