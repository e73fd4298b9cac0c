"""The normalizers against torch, autograd, and an adversary who looks for pairs that stretch more than allowed."""

import math

import pytest
import torch

from labkit.depth import normalization
from labkit.depth.normalization import (
    curvature_bound,
    jacobian,
    layer_norm,
    lipschitz_bound,
    normalized,
    pair_bound,
    rms,
    rms_norm,
    singular_values,
)
from tests.depth.conftest import randn

F64 = torch.float64
EPS = [0.0, 1e-5, 1e-2, 1.0]
NORMS = {"rms": rms_norm, "layer": layer_norm}
norms = pytest.mark.parametrize("norm", NORMS)
all_eps = pytest.mark.parametrize("eps", EPS)


@all_eps
def test_values_are_those_of_torch(eps):
    u = randn(7, 12) * torch.logspace(-2, 2, 7, dtype=F64)[:, None]
    torch.testing.assert_close(rms_norm(u, eps), torch.nn.functional.rms_norm(u, (12,), None, eps))
    torch.testing.assert_close(layer_norm(u, eps), torch.nn.functional.layer_norm(u, (12,), None, None, eps))
    for norm, function in NORMS.items():
        torch.testing.assert_close(normalized(u, eps, norm), function(u, eps))
        torch.testing.assert_close(normalized(u.mT, eps, norm, dim=0).mT, function(u, eps))


@norms
def test_the_output_has_a_norm_below_that_of_ones(norm):
    u = randn(100, 12) * torch.logspace(-3, 3, 100, dtype=F64)[:, None]
    assert (NORMS[norm](u, 1e-3).norm(dim=-1) < math.sqrt(12)).all()
    assert rms(NORMS[norm](u, 0.0)).numpy() == pytest.approx(1, abs=1e-12)


@norms
@all_eps
def test_jacobian_is_that_of_autograd(norm, eps):
    u = randn(5, 6)
    expected = torch.stack([torch.autograd.functional.jacobian(lambda v: NORMS[norm](v, eps), row) for row in u])
    torch.testing.assert_close(jacobian(u, eps, norm), expected, rtol=0, atol=1e-12)


@all_eps
def test_singular_values_of_the_jacobian(eps):
    u = randn(5, 6, seed=1)
    for norm, zeros in (("rms", 0), ("layer", 1)):
        across, along = singular_values(u, eps, norm)
        expected = torch.linalg.svdvals(jacobian(u, eps, norm))
        ours = torch.cat([across[:, None].expand(-1, 5 - zeros), along[:, None], torch.zeros(5, zeros, dtype=F64)], 1)
        torch.testing.assert_close(ours.sort(1, descending=True).values, expected, rtol=0, atol=1e-10)


def stretch(u, v, eps, norm):
    return (NORMS[norm](u, eps) - NORMS[norm](v, eps)).norm(dim=-1) / (u - v).norm(dim=-1)


def pairs(n, d, least=0.0):
    """Far and near pairs of all sizes and angles, the rms of each at least ``least``; none equal."""
    u, v = randn(n, d, seed=2), randn(n, d, seed=3)
    near = torch.arange(n)[:, None] % 3
    v = torch.where(near == 0, v, torch.where(near == 1, u + 1e-3 * v, -u + 1e-2 * v))
    size = torch.rand(2, n, 1, dtype=F64, generator=torch.Generator().manual_seed(4)) * 8 - 4
    u, v = (part / rms(part)[:, None] * (least + 10**power) for part, power in zip((u, v), size, strict=True))
    return u, v


@norms
@all_eps
def test_no_pair_stretches_more_than_allowed(norm, eps):
    u, v = pairs(20_000, 8)
    ratio = stretch(u, v, eps, norm)
    slack = 1 + 1e-9
    assert (ratio <= slack * pair_bound(u, v, eps, norm)).all()
    if norm == "rms":
        least = torch.minimum(rms(u), rms(v))
        assert (ratio <= slack * lipschitz_bound(eps, least)).all()
        assert (ratio <= slack * lipschitz_bound(eps)).all()


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_gradient_ascent_on_the_stretch_does_not_exceed_the_constant(least):
    """An adversary who improves pairs step by step comes close (the constant is sharp), never beyond."""
    eps = 1e-2
    u, v = (part[:512].clone().requires_grad_() for part in pairs(30_000, 4, least))
    adversary = torch.optim.Adam([u, v], lr=2e-2)

    def kept(w):  # onto rms ≥ least
        return w * (least / rms(w).clamp(min=1e-9)).clamp(min=1)[:, None]

    bound, best = lipschitz_bound(eps, least).item(), 0.0
    for _ in range(300):
        a, b = kept(u), kept(v)
        apart = (a - b).norm(dim=-1) > 1e-4
        ratio = stretch(a, b, eps, "rms")[apart]
        best = max(best, ratio.max().item())
        adversary.zero_grad()
        (-ratio.sum()).backward()
        adversary.step()
    assert 0.98 * bound <= best <= bound * (1 + 1e-9)


@pytest.mark.parametrize("eps", EPS)
@norms
def test_curvature_is_bounded_and_for_eps_0_the_bound_is_met(norm, eps):
    """D²N(u)[v, v] by autograd, for unit v; the worst v has cos² = 1/3 with u."""
    d = 6
    u = randn(40, d, seed=5)
    if norm == "layer":
        u = u - u.mean(-1, keepdim=True)
    w = randn(40, d, seed=6)
    if norm == "layer":
        w = w - w.mean(-1, keepdim=True)
    unit = u / u.norm(dim=-1, keepdim=True)
    w = w - (w * unit).sum(-1, keepdim=True) * unit
    v = math.sqrt(1 / 3) * unit + math.sqrt(2 / 3) * w / w.norm(dim=-1, keepdim=True)
    found = []
    for direction in (v, randn(40, d, seed=7)):
        direction = direction / direction.norm(dim=-1, keepdim=True)
        origin = torch.zeros(40, 1, dtype=F64)

        def first(s, direction=direction):
            along = lambda s: NORMS[norm](u + s * direction, eps)  # noqa: E731
            return torch.autograd.functional.jvp(along, s, torch.ones_like(s), create_graph=True)[1]

        second = torch.autograd.functional.jvp(first, origin, torch.ones_like(origin))[1]
        found.append(second.norm(dim=-1))
    bound = curvature_bound(u, eps, norm)
    assert (torch.stack(found) <= bound * (1 + 1e-10)).all()
    if eps == 0:
        torch.testing.assert_close(found[0], bound, rtol=1e-10, atol=0)


def test_twice_is_not_once():
    """The factor 1/√(r² + eps), r = rms(N(u)), of the theory notes."""
    for eps, size, expected in ((1e-5, 1.0, 5e-11), (1e-5, 0.1, 4.9e-4), (1e-2, 1.0, 5e-5), (1e-2, 0.1, 0.40)):
        u = size * rms_norm(randn(16), 0.0)
        once = rms_norm(u, eps)
        deviation = (rms_norm(once, eps) / once - 1).abs().max().item()
        factor = 1 / math.sqrt(size**2 / (size**2 + eps) + eps)
        assert deviation == pytest.approx(abs(factor - 1), abs=1e-12)
        assert deviation == pytest.approx(expected, rel=0.05)


def test_constants_broadcast_and_know_the_ends():
    eps, least = torch.tensor([1e-4, 1e-2], dtype=F64), torch.tensor([[0.0], [1.0]], dtype=F64)
    bound = lipschitz_bound(eps, least, gain=2.0)
    assert bound.shape == (2, 2) and bound[0].tolist() == pytest.approx([200, 20])
    assert bound[1, 1].item() == pytest.approx(2 / math.sqrt(1.01))
    assert lipschitz_bound(0.0).item() == math.inf
    assert lipschitz_bound(0.0, gain=0.0).item() == 0


WIDTHS = (*range(2, 41), 63, 64, 65, 100, 127, 128, 129, 199, 200)
SCALES = 10.0 ** torch.arange(-20, 21, 5, dtype=F64)
OF_LAYER = {  # every function that divides by s of u - mean u
    "layer_norm": layer_norm,
    "jacobian": lambda u, eps: jacobian(u, eps, "layer"),
    "singular_values": lambda u, eps: torch.stack(singular_values(u, eps, "layer")),
    "pair_bound": lambda u, eps: pair_bound(u, u, eps, "layer"),
    "curvature_bound": lambda u, eps: curvature_bound(u, eps, "layer"),
}
both_types = pytest.mark.parametrize("dtype", [torch.float32, F64])


@both_types
@pytest.mark.parametrize("name", OF_LAYER)
def test_a_vector_constant_up_to_rounding_has_no_layer_norm_without_eps(name, dtype):
    """At each width and scale, also where the entries are equal only up to one unit of rounding."""
    for width in WIDTHS:
        for scale in SCALES.tolist():
            u = torch.full((width,), 0.3 * scale, dtype=dtype)
            off = u.clone()
            off[width // 2] = torch.nextafter(off[0], off.new_tensor(math.inf))
            for constant in (u, off, torch.stack([-u, u])):
                with pytest.raises(ValueError, match=r"spread of u.* beyond rounding, when eps = 0"):
                    OF_LAYER[name](constant, 0.0)
    assert layer_norm(u, 1e-30).abs().max() == 0  # with any eps it is 0, exactly


@both_types
def test_a_nearly_constant_vector_keeps_its_direction(dtype):
    """u = c + δ·noise with δ far above rounding: LayerNorm of what is stored, in exact arithmetic by float64."""
    delta = 1e3 * torch.finfo(dtype).eps
    for width in WIDTHS:
        noise = randn(width, seed=width)
        noise = noise / noise.abs().max()
        for scale in SCALES:
            u = (scale * (1 + delta * noise)).to(dtype)
            own = (u - u[0]).double()
            own = own - own.mean()
            expected = own / own.square().mean().sqrt()
            torch.testing.assert_close(layer_norm(u, 0.0).double(), expected, rtol=0, atol=20 * delta / 1e3 * width)


@both_types
@norms
def test_constants_of_vectors_of_any_size(norm, dtype):
    """u → cu and eps → c²eps multiplies s by c: exact for powers of 2, where squares and cubes leave the floats."""
    u = randn(4, 6, seed=9).to(dtype)
    for eps in (0.0, 0.25):
        for power in (-60, -50, 50, 60) if dtype == torch.float32 else (-500, 500):
            if eps and abs(power) > 50:
                continue  # eps itself leaves float32
            c = 2.0**power
            other, its = u * c, eps * c * c
            torch.testing.assert_close(NORMS[norm](other, its), NORMS[norm](u, eps))
            torch.testing.assert_close(jacobian(other, its, norm) * c, jacobian(u, eps, norm))
            for ours, one in zip(singular_values(other, its, norm), singular_values(u, eps, norm), strict=True):
                torch.testing.assert_close(ours * c, one)
            torch.testing.assert_close(
                pair_bound(other, other.flip(0), its, norm) * c, pair_bound(u, u.flip(0), eps, norm)
            )
            torch.testing.assert_close(curvature_bound(other, its, norm) * c * c, curvature_bound(u, eps, norm))
            torch.testing.assert_close(rms(other) / c, rms(u))
            bounds = (lipschitz_bound(eps * k * k, rms(u) * k) for k in (c, 1.0))
            torch.testing.assert_close(next(bounds) * c, next(bounds))


def test_extreme_constants():
    assert lipschitz_bound(0.0, 1e-200).item() == pytest.approx(1e200)
    assert lipschitz_bound(torch.tensor(0.0), 1e-30).item() == pytest.approx(1e30)
    across, along = singular_values(torch.full((3,), 1e-15), 1e-30)
    assert across.item() == pytest.approx(1e15 / math.sqrt(2)) and along.item() == pytest.approx(1e15 / math.sqrt(8))
    least = torch.tensor(0.0, dtype=F64, requires_grad=True)
    lipschitz_bound(0.04, least).backward()
    assert least.grad == 0


@norms
def test_gradients_pass_also_where_the_vector_is_zero(norm):
    """∂N/∂u at u = 0 is C/√eps, by autograd and by `jacobian`."""
    u = torch.zeros(4, dtype=F64)
    found = torch.autograd.functional.jacobian(lambda v: NORMS[norm](v, 0.01), u)
    torch.testing.assert_close(found, jacobian(u, 0.01, norm))
    torch.testing.assert_close(found, 10 * (torch.eye(4, dtype=F64) - (0.25 if norm == "layer" else 0)))


REFUSED = {
    r"eps must lie in \[0, inf\), got -1e-05": lambda: rms_norm(randn(3), -1e-5),
    r"eps must lie in \[0, inf\), got nan": lambda: layer_norm(randn(3), math.nan),
    r"u\[1\] = nan must be finite": lambda: rms_norm(torch.tensor([1.0, math.nan])),
    r"u must be \(\.\.\., d\) and not empty, got \(\)": lambda: rms_norm(torch.tensor(1.0)),
    r"u must be \(\.\.\., d\) and not empty, got \(2, 0\)": lambda: rms_norm(torch.ones(2, 0)),
    r"largest \|entry\| of u\[1\] = 0 must be > 0 when eps = 0": lambda: rms_norm(torch.tensor([[1.0], [0.0]]), 0.0),
    r"largest \|entry\| of u must be <= .*got 3e\+38": lambda: rms_norm(torch.full((2,), 3e38)),
    r"u must be \(\.\.\., d\) and not empty, got \(0,\)": lambda: rms(torch.ones(0)),
    "u.0. = nan must be finite": lambda: rms(torch.tensor([math.nan])),
    r"spread of u must be > 0, beyond rounding, when eps = 0.*got 0": lambda: layer_norm(torch.ones(3), 0.0),
    r"norm must be one of rms, layer, got 'batch'": lambda: jacobian(randn(3), norm="batch"),
    r"min_rms must lie in \[0, inf\), got -1": lambda: lipschitz_bound(1e-5, -1.0),
    r"do not broadcast: u \(3,\), v \(4,\)": lambda: pair_bound(randn(3), randn(4)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        REFUSED[sentence]()


def test_integers_are_refused():
    with pytest.raises(TypeError, match="u must be a floating tensor"):
        normalization.rms_norm(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="eps must be a number, got '1'"):
        normalization.rms_norm(torch.ones(2), "1")
