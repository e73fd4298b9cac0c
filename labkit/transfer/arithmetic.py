"""Addition modulo M: the task, the characters that two moduli share, and how much of each an embedding holds.

A function of a + b mod M is a sum of characters χ_k(a + b) = χ_k(a)·χ_k(b), χ_k(a) = e^{2πika/M}, k = 0 … M−1. What a
network keeps of a modulus can therefore be read off its embedding, frequency by frequency.

Modular addition as a task for pretraining and fine-tuning is that of Anguita et al. 2026, arXiv 2602.20062; moduli,
sizes and the reading by characters are our choice.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import compute
from labkit.validate import as_tensors, refuse, require_finite, require_whole


def addition(modulus: int, vocabulary: int = 30, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """All pairs of tokens and their sums: pairs (V², 2) of 0 … V−1 and labels (a + b) mod M (V²,), both int64.

    ``modulus`` need not divide ``vocabulary``, but no residue may be without a token: 2 ≤ M ≤ V, else ValueError.

    >>> pairs, labels = addition(5, vocabulary=6)
    >>> pairs[10].tolist(), labels[10].item()
    ([1, 4], 0)
    """
    require_modulus(modulus, vocabulary)
    tokens = torch.arange(vocabulary, device=device or compute.device())
    pairs = torch.cartesian_prod(tokens, tokens)
    return pairs, pairs.sum(1) % modulus


def split(n: int, fraction: float, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """Which of n samples each net learns from, and which are held out: indices (net, n_train) and (net, n − n_train).

    n_train = round(fraction·n), the same for all nets, which one CPU generator each chooses; on the CPU, to be moved.
    Raises ValueError for a fraction outside (0, 1), or one that leaves nothing to learn from or to test on.

    >>> train, test = split(10, 0.6, [compute.generator(0)])
    >>> train.shape, sorted(train[0].tolist() + test[0].tolist()) == list(range(10))
    (torch.Size([1, 6]), True)
    """
    require_whole(2, n=n)
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction}")
    size = round(fraction * n)
    if not 0 < size < n:
        raise ValueError(f"fraction must leave samples to learn from and to test on, got {fraction} of {n}")
    if not generators:
        raise ValueError("generators must hold one generator a net, got none")
    order = torch.stack([torch.randperm(n, generator=g, device="cpu") for g in generators])
    return order[:, :size], order[:, size:]


def shared_characters(first: int | Tensor, second: int | Tensor) -> int | Tensor:
    """How many of the M − 1 nontrivial characters of Z/M are characters of Z/N as well: gcd(N, M) − 1 (derived here).

    e^{2πika/M} has period N if and only if kN/M is whole, that is for k a multiple of M/gcd(N, M): gcd of them, one
    of which is the constant. Symmetric; integers, or int64 tensors that broadcast. Raises ValueError for a modulus < 2.

    >>> shared_characters(15, torch.tensor([15, 5, 21, 7]))
    tensor([14, 4, 2, 0])
    """
    for name, value in (("first", first), ("second", second)):
        if not isinstance(value, Tensor):
            require_whole(2, **{name: value})
        elif value.dtype != torch.int64:
            raise TypeError(f"{name} must be an integer or an int64 tensor, got {value.dtype}")
        else:
            refuse(name, value, value >= 2, "must be >= 2")
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        return math.gcd(first, second) - 1
    device = first.device if isinstance(first, Tensor) else second.device
    return torch.gcd(*(torch.as_tensor(value, device=device) for value in (first, second))) - 1


def shared_frequencies(first: int, second: int) -> list[int]:
    """The frequencies k = 1 … ⌊N/2⌋ of the first modulus N that the second shares; k stands for the pair k, N − k.

    >>> shared_frequencies(15, 5), shared_frequencies(15, 21), shared_frequencies(15, 7)
    ([3, 6], [5], [])
    """
    require_whole(2, first=first, second=second)
    step = first // math.gcd(first, second)
    return [k for k in range(1, first // 2 + 1) if k % step == 0]


def character_overlaps(first: int, second: int, vocabulary: int) -> Tensor:
    """How alike the characters of Z/N and Z/M are on the tokens 0 … V−1: squared overlaps (N, M), from 0 to 1.

    Entry (k, k') is |⟨χ_k, χ_k'⟩|²/V², what one of the two explains of the other. With δ = k/N − k'/M it is the
    geometric series (sin πVδ / (V sin πδ))², and 1 where δ is whole (derived here): about 1 as long as |δ| is well
    below 1/V, so that few tokens tell few frequencies apart. Where N divides V the characters of N are orthogonal on
    the tokens, and the entries add up to what they explain of those of M, in dimensions, the constant included.
    float64 on the CPU. Raises ValueError for a modulus < 2 or above V.

    >>> overlap = character_overlaps(15, 7, vocabulary=30)  # no frequency in common, but 2/15 is almost 1/7
    >>> round(overlap[2, 1].item(), 2), round(overlap.sum().item() - 1, 2)
    (0.76, 2.5)
    """
    require_modulus(first, vocabulary)
    require_modulus(second, vocabulary)
    one, two = (torch.arange(n, dtype=torch.int64, device="cpu") for n in (first, second))
    apart = (one[:, None] * second - two * first) % (first * second)  # NMδ, whole: no rounding where δ is
    turn = torch.pi * apart.double() / (first * second)
    return torch.where(apart == 0, 1.0, (vocabulary * turn).sin() / (vocabulary * turn.sin())).square()


def fourier_power(embedding: Tensor, modulus: int) -> Tensor:
    """Power of each frequency in an embedding (..., V, d) of the tokens 0 … V−1: (..., ⌊M/2⌋), for k = 1 … ⌊M/2⌋.

    Ē_r is the mean of the rows with residue r mod M. The power of k is (1/M)·‖Σ_r Ē_r e^{−2πikr/M}‖² over the width,
    summed over k and M − k, which a real embedding cannot tell apart. Then Σ_k power = Σ_r ‖Ē_r − mean of Ē‖²
    (Parseval). Raises ValueError for a modulus < 2 or one that has residues without a token, and for NaN.

    >>> angle = 2 * torch.pi * 3 / 15 * torch.arange(30, dtype=torch.float64)
    >>> fourier_power(torch.stack([angle.cos(), angle.sin()], 1), 15)
    tensor([0., 0., 15., 0., 0., 0., 0.], dtype=torch.float64)
    """
    (embedding,) = as_tensors(embedding=embedding)
    if embedding.dim() < 2 or 0 in embedding.shape:
        raise ValueError(f"embedding must be (..., V, width) and not empty, got {tuple(embedding.shape)}")
    require_modulus(modulus, embedding.shape[-2])
    require_finite(embedding=embedding)
    residue = torch.arange(embedding.shape[-2], device=embedding.device) % modulus
    classes = torch.arange(modulus, device=embedding.device)
    member = (residue == classes[:, None]).to(embedding)  # (M, V)
    means = (member / member.sum(1, keepdim=True)) @ embedding  # (..., M, d)
    angle = (2 * torch.pi / modulus) * (classes[1 : modulus // 2 + 1, None] * classes % modulus).to(embedding)
    power = sum((wave @ means).square().sum(-1) for wave in (angle.cos(), angle.sin()))
    alone = classes[1 : modulus // 2 + 1] * 2 == modulus  # k = M − k: a pair of one
    return power * (2 - alone.to(embedding)) / modulus


def power_share(power: Tensor, frequencies: Sequence[int]) -> Tensor:
    """The share of some frequencies in `fourier_power` (..., ⌊M/2⌋): (...), from 0 to 1.

    >>> power_share(torch.tensor([1.0, 0.0, 2.0, 1.0]), [3])
    tensor(0.5000)
    """
    (power,) = as_tensors(power=power)
    places = [k - 1 for k in frequencies]
    if not all(0 <= place < power.shape[-1] for place in places):
        raise ValueError(f"frequencies must lie in 1 … {power.shape[-1]}, got {list(frequencies)}")
    chosen = torch.tensor(places, dtype=torch.int64, device=power.device)
    return power.index_select(-1, chosen).sum(-1) / power.sum(-1)


def require_modulus(modulus: int, vocabulary: int) -> None:
    """Refuse a modulus < 2, and one with residues for which there is no token."""
    require_whole(2, modulus=modulus)
    require_whole(1, vocabulary=vocabulary)
    if vocabulary < modulus:
        raise ValueError(f"vocabulary must be >= {modulus}, a token for each residue of the modulus, got {vocabulary}")
