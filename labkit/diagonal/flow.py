"""How training gets there: gradient flow of the four weight vectors, with trajectories.

The flow ẇ = −v·g, v̇ = −w·g (g the gradient in β, sign flipped for the minus pathway) multiplies w₊+v₊ and
w₋−v₋ by eˢ, w₊−v₊ and w₋+v₋ by e⁻ˢ, with ds/dt = Xᵀ(y − Xβ). So s = Xᵀν stays in the range of Xᵀ, and
integrating the n numbers ν̇ = y − Xβ and multiplying the weights keeps every invariant exactly, whatever the
step: time is approximate, the endpoint is not. (Derived here; the network is that of arXiv 2602.20062.)
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.diagonal.interpolate import batch_shape
from labkit.diagonal.penalty import admit, root_k_finetune, root_k_init
from labkit.validate import require_broadcast, require_whole

MAX_STEPS = 200_000  # of one call of train
LARGEST = 80.0  # of |2s|: cosh 80 is 3e34, close to what float32 holds
GROWTH = 1.2  # × cap × time passed bounds a step: at cap .25 ten recorded times a decade cost one step each
ROS2 = 1 - 1 / math.sqrt(2)  # the coefficient that makes the two-stage Rosenbrock method L-stable and second order


class Weights(NamedTuple):
    """The four weight vectors, each (…, dim): f(x) = (w₊∘v₊ − w₋∘v₋)·x; w first layer, v readout."""

    w_plus: Tensor
    v_plus: Tensor
    w_minus: Tensor
    v_minus: Tensor

    @property
    def beta(self) -> Tensor:
        return self.w_plus * self.v_plus - self.w_minus * self.v_minus

    @property
    def root_k(self) -> Tensor:
        return root_k_init(*self)


@dataclass(frozen=True)
class Trajectory:
    """Gradient flow at the requested times; time leads in ``s``, ``beta``, ``loss`` and ``weights``."""

    times: Tensor  # (time,)
    s: Tensor  # (time, …, dim), the exponents
    loss: Tensor  # (time, …), ½‖Xβ − y‖²
    start: Weights

    @property
    def weights(self) -> Weights:
        """All four weights at all times, each (time, …, dim)."""
        return _grow(self.start, self.s)

    @property
    def beta(self) -> Tensor:
        return self.weights.beta

    @property
    def final(self) -> Weights:
        return _grow(self.start, self.s[-1])


@dataclass(frozen=True)
class Transfer:
    """Pretraining, re-initialization, fine-tuning."""

    pretraining: Trajectory
    finetuning: Trajectory

    @property
    def beta_pt(self) -> Tensor:
        return self.pretraining.final.beta

    @property
    def root_k(self) -> Tensor:
        """√k as measured on the re-initialized weights, not by ``penalty.root_k_finetune``."""
        return self.finetuning.start.root_k

    @property
    def beta_ft(self) -> Tensor:
        return self.finetuning.final.beta


@dataclass(frozen=True)
class Descent:
    """What ``raw_gradient_descent`` reached."""

    weights: Weights
    loss: Tensor  # (steps + 1, …), before each step and at the end
    drift: Tensor  # (…), largest |change of w² − v²| over coordinates and pathways; 0 for the flow


def initial_weights(dim: int, c: float | Tensor, lam: float | Tensor) -> Weights:
    """Weights with w² + v² = c and w² − v² = λc on both pathways, so β = 0: w = √(c(1+λ)/2), v = √(c(1−λ)/2).

    c > 0 and λ in [−1, 1] are numbers or tensors (…); the vectors are (…, dim). ValueError otherwise.

    >>> initial_weights(3, c=2.0, lam=0.0).w_plus
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    require_whole(1, dim=dim)
    c, lam = admit(c=c, lam=lam)
    shape = (*require_broadcast(c=c, lam=lam), dim)
    w = torch.sqrt(c * (1 + lam) / 2)[..., None].expand(shape)
    v = torch.sqrt(c * (1 - lam) / 2)[..., None].expand(shape)
    return Weights(w, v, w, v)


def reinitialize(weights: Weights, gamma: float | Tensor) -> Weights:
    """Between the stages: both pathways get the signed sum w₊ + w₋ as first layer, γ/√2 as readout; so β = 0.

    gamma ≥ 0 is a number or a tensor (…). Protocol of arXiv 2602.20062, γ as total readout scale: v₊² + v₋² =
    γ².
    """
    w_plus, w_minus, gamma = admit(w_plus=weights.w_plus, w_minus=weights.w_minus, gamma=gamma)
    w, v = torch.broadcast_tensors(w_plus + w_minus, gamma[..., None] / math.sqrt(2))
    return Weights(w, v, w, v)


@torch.no_grad()
def train(
    x: Tensor, y: Tensor, weights: Weights, times: float | Tensor, cap: float = 0.25, explicit: bool = False
) -> Trajectory:
    """Gradient flow of L = ½‖Xβ − y‖² from ``weights``, recorded at ``times``, or at every step up to a time.

    Default: two-stage Rosenbrock steps (ROS2, second order, L-stable), two solves with 1 + (1−1/√2)ηJ,
    J = X diag(dβ/ds) Xᵀ, η ≤ cap/‖ds/dt‖∞ and ≤ 1.2·cap × the time passed: eight decades of time take
    about 100 steps, and β(t) is right to about 1 %. Explicit: ν += η(y − Xβ) with also η ≤ cap/λmax(J),
    exponentiated Euler, first order: the plain reference, which needs thousands of steps in the stiff tail.
    Either way the endpoint is that of ``interpolate.min_penalty``, whatever the steps. A batch shares its
    steps.

    Arguments (leading axes broadcast)
        x: (…, n, dim), n ≤ dim
        y: (…, n)
        weights: four vectors (…, dim)
        times: (time,), increasing, > 0; or a number > 0, when to end: then every step is recorded, which
            shows a trajectory with the fewest points, close together where β moves
        cap: largest change of s in a step, > 0 (keep it ≤ 1 for stable explicit steps)

    Raises ValueError for shapes that do not fit, NaN or infinity, times not increasing; RuntimeError after
    200 000 steps.

    >>> x, y = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([2.0]).double()
    >>> run = train(x, y, initial_weights(2, c=0.01, lam=0.0), torch.logspace(-1, 3, 9).double())
    >>> run.beta[-1]
    tensor([0.0691, 0.9654], dtype=torch.float64)
    """
    x, y, times, *start = admit(x=x, y=y, times=times, **_named(weights))
    start = Weights(*start)
    batch = batch_shape(x, y, **start._asdict())
    every_step, times = times.dim() == 0, torch.atleast_1d(times)
    if times.dim() != 1 or len(times) == 0 or times[0] <= 0 or (times.diff() <= 0).any():
        got = times.tolist()
        raise ValueError(f"times must be a vector of increasing positive numbers, or one number, got {got}")
    if not cap > 0:
        raise ValueError(f"cap must be > 0, got {cap}")
    n, dim = x.shape[-2:]
    x, y = x.expand(*batch, n, dim).reshape(-1, n, dim), y.expand(*batch, n).reshape(-1, n, 1)
    start = Weights(*(v.expand(*batch, dim) for v in start))
    a = ((start.w_plus + start.v_plus) ** 2 + (start.w_minus - start.v_minus) ** 2).reshape(-1, dim, 1)
    b = ((start.w_minus + start.v_minus) ** 2 + (start.w_plus - start.v_plus) ** 2).reshape(-1, dim, 1)
    eye = torch.eye(n, dtype=x.dtype, device=x.device).expand(len(x), n, n)
    flow = _Flow(x, x.mT, y, a / 4, b / 4, eye)

    two_s, t, steps = torch.zeros_like(a), 0.0, 0
    trace = (x**2 @ (a + b)).sum((1, 2)).max() / 2  # of J at the start, at least λmax
    shortest_time = (1 / trace).item()
    probe = torch.ones_like(y)  # becomes the top eigenvector of J
    eps, largest_y = torch.finfo(x.dtype).eps, y.abs().amax(1, keepdim=True)
    longest_row = x.abs().sum(-1, keepdim=True).amax(1, keepdim=True)
    record, when = [], []
    for target in times.tolist():
        while t < target:
            gap, half_slope = flow.at(two_s)
            noise = 8 * eps * (largest_y + longest_row * half_slope.amax(1, keepdim=True))
            gap = gap * (gap.abs().amax(1, keepdim=True) > noise)  # below it, a problem has arrived
            rate = torch.bmm(flow.x_t, gap)  # ds/dt
            fastest = rate.abs().max().item()
            if explicit:
                for _ in range(2):
                    probe = probe / probe.norm(dim=1, keepdim=True)
                    probe = x @ (2 * half_slope * (flow.x_t @ probe))
                fastest = max(fastest, probe.norm(dim=1).max().item())
            eta = min(target - t, cap / fastest if fastest > 0 else math.inf)
            if not explicit and fastest > 0:  # else all has arrived
                eta = min(eta, GROWTH * cap * (t + shortest_time))
            two_s = two_s + 2 * eta * rate if explicit else flow.rosenbrock(two_s, gap, half_slope, eta)
            t = target if eta == target - t else t + eta
            steps += 1
            if steps == MAX_STEPS:
                advice = "use explicit=False" if explicit else "end earlier, or rescale x and y to be of order one"
                raise RuntimeError(f"{steps} steps reached time {t:.3g} of {target:.3g}: {advice}")
            if every_step or t == target:
                record.append(two_s)
                when.append(t)
    gaps = torch.stack([flow.at(two_s)[0] for two_s in record])  # (time, b, n, 1)
    loss = ((gaps**2).sum((-2, -1)) / 2).reshape(-1, *batch)
    times = torch.tensor(when, dtype=times.dtype, device=times.device)
    return Trajectory(times, torch.stack(record).reshape(-1, *batch, dim) / 2, loss, start)


class _Flow(NamedTuple):
    """ν̇ = y − Xβ for b problems at once, in few operations: a small problem is all overhead."""

    x: Tensor  # (b, n, dim)
    x_t: Tensor  # (b, dim, n)
    y: Tensor  # (b, n, 1)
    quarter_a: Tensor  # (b, dim, 1)
    quarter_b: Tensor
    eye: Tensor  # (b, n, n)

    def at(self, two_s: Tensor) -> tuple[Tensor, Tensor]:
        """y − Xβ (b, n, 1) and ½ dβ/ds (b, dim, 1), where β = ¼(A e²ˢ − B e⁻²ˢ)."""
        growth = torch.exp(two_s.clamp(-LARGEST, LARGEST))  # a dead coordinate drifts on: 0 · exp must stay 0
        up, down = self.quarter_a * growth, self.quarter_b / growth
        return torch.baddbmm(self.y, self.x, up - down, alpha=-1), up + down

    def rosenbrock(self, two_s: Tensor, gap: Tensor, half_slope: Tensor, eta: float) -> Tensor:
        """2s after a step η of ROS2, ν += η(3k₁ + k₂)/2.

        (1 + gηJ)k₁ = gap(ν) and (1 + gηJ)k₂ = gap(ν + ηk₁) − 2k₁, g = 1 − 1/√2.
        """
        system = torch.baddbmm(self.eye, self.x * half_slope.mT, self.x_t, alpha=2 * ROS2 * eta)
        factor, _ = torch.linalg.cholesky_ex(system)
        first = torch.cholesky_solve(gap, factor)
        ahead, _ = self.at(torch.baddbmm(two_s, self.x_t, first, alpha=2 * eta))
        second = torch.cholesky_solve(ahead.sub_(first, alpha=2), factor)
        return torch.baddbmm(two_s, self.x_t, second.add_(first, alpha=3), alpha=eta)


def pretrain_finetune(
    x_pt: Tensor,
    y_pt: Tensor,
    x_ft: Tensor,
    y_ft: Tensor,
    c: float | Tensor,
    lam: float | Tensor,
    gamma: float | Tensor,
    times: Tensor | None = None,
) -> Transfer:
    """Both stages as gradient flow: ``initial_weights`` → train → ``reinitialize`` → train.

    x (…, n, dim), y (…, n), c > 0, λ in [−1, 1], γ ≥ 0 numbers or tensors (…). ``times`` as in ``train``, for
    both stages; by default up to 1e14, long past convergence for √k ≥ 1e-10.

    Raises ValueError as ``train`` does, and for λ = −1 with γ = 0: a saddle where nothing moves.
    """
    x_pt, y_pt, x_ft, y_ft, c, lam, gamma = admit(x_pt=x_pt, y_pt=y_pt, x_ft=x_ft, y_ft=y_ft, c=c, lam=lam, gamma=gamma)
    root_k_finetune(0.0, c, lam, gamma)  # refuses the saddle
    if times is None:
        times = torch.logspace(-2, 14, 161, dtype=x_pt.dtype, device=x_pt.device)
    pretraining = train(x_pt, y_pt, initial_weights(x_pt.shape[-1], c, lam), times)
    finetuning = train(x_ft, y_ft, reinitialize(pretraining.final, gamma), times)
    return Transfer(pretraining, finetuning)


@torch.no_grad()
def raw_gradient_descent(x: Tensor, y: Tensor, weights: Weights, lr: float, steps: int) -> Descent:
    """Plain gradient descent on the four vectors, θ ← θ − lr·∇L: the naive way, to compare with ``train``.

    Its invariants drift by O(lr), so it ends near, not at, the interpolator of least penalty; time is lr ×
    step. Shapes as in ``train``. Raises ValueError for lr ≤ 0, steps < 1, or an lr so large that the loss
    diverges.

    >>> x, y = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([2.0]).double()
    >>> raw_gradient_descent(x, y, initial_weights(2, c=0.01, lam=0.0), lr=0.01, steps=2000).weights.beta
    tensor([0.0706, 0.9647], dtype=torch.float64)
    """
    x, y, *start = admit(x=x, y=y, **_named(weights))
    batch_shape(x, y, **weights._asdict())
    if not (0 < lr < math.inf and steps >= 1 and steps == int(steps)):
        raise ValueError(f"lr must be > 0 and steps a whole number >= 1, got lr = {lr}, steps = {steps}")
    w_plus, v_plus, w_minus, v_minus = start
    loss = []
    for step in range(int(steps) + 1):
        gap = y - (x @ (w_plus * v_plus - w_minus * v_minus)[..., None]).squeeze(-1)
        loss.append((gap**2).sum(-1) / 2)
        if step < steps:
            push = lr * (gap[..., None, :] @ x).squeeze(-2)
            w_plus, v_plus = w_plus + push * v_plus, v_plus + push * w_plus
            w_minus, v_minus = w_minus - push * v_minus, v_minus - push * w_minus
    final, loss = Weights(w_plus, v_plus, w_minus, v_minus), torch.stack(loss)
    if not loss[-1].isfinite().all():
        raise ValueError(f"lr = {lr} is too large: the loss diverged")
    plus = final.w_plus**2 - final.v_plus**2 - start[0] ** 2 + start[1] ** 2
    minus = final.w_minus**2 - final.v_minus**2 - start[2] ** 2 + start[3] ** 2
    return Descent(final, loss, torch.maximum(plus.abs(), minus.abs()).amax(-1))


def _named(weights: Weights) -> dict[str, Tensor]:
    if not isinstance(weights, Weights):
        raise TypeError(f"weights must be Weights, such as initial_weights(dim, c, lam), got {type(weights).__name__}")
    return weights._asdict()


def _grow(start: Weights, s: Tensor) -> Weights:
    """The weights after s: w ± v multiplied by e^±s (plus pathway), e^∓s (minus pathway)."""
    s = s.clamp(-LARGEST / 2, LARGEST / 2)
    up, down = torch.exp(s) / 2, torch.exp(-s) / 2
    w_plus, v_plus, w_minus, v_minus = start
    aligned, opposed = (w_plus + v_plus) * up, (w_plus - v_plus) * down
    aligned_minus, opposed_minus = (w_minus + v_minus) * down, (w_minus - v_minus) * up
    return Weights(aligned + opposed, aligned - opposed, aligned_minus + opposed_minus, aligned_minus - opposed_minus)
