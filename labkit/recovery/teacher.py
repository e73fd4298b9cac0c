"""The teacher: labels that depend on a few hidden directions in lifted space, ever weaker ones.

h_i = ⟨A_i, H_q(x)⟩ with random orthonormal A_i, u = Σ_i a_i (h_i² − 1)/√2 with a_i ∝ i^{−γ}, y = g(u) + σξ. With
degree 1 (H(x) = x, the *Gaussian surrogate*) h is exactly Gaussian and the theory exact for large D.
Model of arXiv 2605.14567; the normalization Σa² = 1, the links and the sphere mode are ours.
"""

import math
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from labkit import compute
from labkit.recovery.hermite import as_matrix, from_matrix, lift_dim, project
from labkit.recovery.theory import LINKS, admit_model, amplitudes, tail_variance
from labkit.validate import require_generator, require_whole

INPUTS = ("gaussian", "sphere")


@dataclass(frozen=True, eq=False)
class HierarchicalTeacher:
    """A task of hierarchical features; directions are drawn when it is made, on the CPU, and moved.

    Arguments
        dim, degree: d, and q = 1 (the surrogate: D = d), 2, 3, 4
        n_features: d₁, at most D (D − 1 on the sphere)
        gamma: a_i ∝ i^{−γ}, ≥ 0
        link: "id", "tanh", or "even" (u² − 1: it hides the features from the second moment)
        noise_std: σ of the label noise, ≥ 0
        tail: "cut" normalizes Σ_{i ≤ d₁} a_i² = 1; "noise" normalizes the infinite sum (γ > 1/2, link "id") and
            turns the features beyond d₁ into label noise of their variance
        inputs: "gaussian", x ~ N(0, I); "sphere", ‖x‖² = d, degrees 1 and 2: A has no component along ‖x‖², and
            directions are scaled by √((d+2)/d) when q = 2, which keeps E h_i h_j = δ_ij

    Raises ValueError for what lies outside these ranges.

    >>> teacher = HierarchicalTeacher(6, 2, 3, gamma=1.0, link="id", noise_std=0.1, generator=compute.generator(0))
    >>> x, y = teacher.sample(100, compute.generator(1))
    >>> x.shape, y.shape, teacher.directions.shape
    (torch.Size([100, 6]), torch.Size([100]), torch.Size([21, 3]))
    """

    dim: int
    degree: int
    n_features: int
    gamma: float
    link: str
    noise_std: float
    generator: InitVar[torch.Generator]
    tail: str = "cut"
    inputs: str = "gaussian"
    directions: Tensor = field(init=False, repr=False)  # A, (D, n_features), orthonormal columns

    def __post_init__(self, generator: torch.Generator) -> None:
        size = lift_dim(self.dim, self.degree)
        admit_model(self.gamma, self.n_features, self.noise_std, self.link, self.tail)
        if self.inputs not in INPUTS:
            raise ValueError(f"inputs must be gaussian or sphere, got {self.inputs!r}")
        sphere = self.inputs == "sphere"
        if sphere and self.degree > 2:
            raise ValueError(f"degree must be 1 or 2 on the sphere, got {self.degree}")
        room = size - (sphere and self.degree == 2)
        if self.n_features > room:
            raise ValueError(f"n_features must be <= {room}, the directions of the lift, got {self.n_features}")
        require_generator(generator)
        drawn = torch.randn(size, self.n_features, dtype=torch.float64, generator=generator, device="cpu")
        if sphere and self.degree == 2:
            trace = from_matrix(torch.eye(self.dim, dtype=torch.float64, device="cpu")) / math.sqrt(self.dim)
            drawn = drawn - trace[:, None] * (trace @ drawn)
        directions = torch.linalg.qr(drawn).Q.to(compute.device(), compute.dtype())
        object.__setattr__(self, "directions", directions)

    @property
    def lift_dim(self) -> int:
        """D."""
        return lift_dim(self.dim, self.degree)

    @property
    def amplitudes(self) -> Tensor:
        """a_i, (n_features,)."""
        return amplitudes(self.gamma, self.n_features, self.tail).to(self.directions)

    @property
    def label_noise_std(self) -> float:
        """√(σ² + the variance of the tail that became noise)."""
        return math.sqrt(self.noise_std**2 + tail_variance(self.gamma, self.n_features, self.tail))

    @property
    def matrices(self) -> Tensor:
        """The symmetric matrices M_i behind the directions when q = 2, (n_features, dim, dim)."""
        return as_matrix(self.directions.mT)

    def sample_inputs(self, n: int, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
        """n inputs (n, dim), drawn on the CPU and moved; ``dtype`` is that of ``labkit.compute`` by default."""
        require_whole(1, n=n)
        require_generator(generator)
        dtype = dtype or compute.dtype()
        x = torch.randn(n, self.dim, dtype=dtype, generator=generator, device="cpu").to(self.directions.device)
        return x * (math.sqrt(self.dim) / x.norm(dim=1, keepdim=True)) if self.inputs == "sphere" else x

    def features(self, x: Tensor) -> Tensor:
        """h of x (n, dim) → (n, n_features), E h_i h_j = δ_ij."""
        scaled = self.inputs == "sphere" and self.degree == 2
        h = project(x, self.directions.to(x.dtype), self.degree)
        return h * math.sqrt((self.dim + 2) / self.dim) if scaled else h

    def latent(self, x: Tensor) -> Tensor:
        """u = Σ a_i (h_i² − 1)/√2 of x (n, dim) → (n,)."""
        return (self.features(x) ** 2 - 1) @ self.amplitudes.to(x.dtype) / math.sqrt(2)

    def target(self, x: Tensor) -> Tensor:
        """The label without noise, g(u), of x (n, dim) → (n,)."""
        return LINKS[self.link](self.latent(x))

    def sample(self, n: int, generator: torch.Generator, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """n samples x (n, dim), y (n,) = g(u) + noise; float32 halves the time of what follows."""
        x = self.sample_inputs(n, generator, dtype)
        y = self.target(x)
        if self.label_noise_std:
            noise = torch.randn(n, dtype=x.dtype, generator=generator, device="cpu").to(x.device)
            y = y + self.label_noise_std * noise
        return x, y
