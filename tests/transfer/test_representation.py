import numpy as np
import pytest
import torch

from labkit.spectra import participation_ratio
from labkit.transfer.representation import (
    centered_kernel_alignment,
    compare,
    effective_shared_dimensions,
    shared_units,
)
from tests.transfer.conftest import randn

N = 1000
BOTH = [effective_shared_dimensions, centered_kernel_alignment]
SHAPES = [(50, 4, 7), (12, 30, 5), (6, 40, 60), (200, 1, 1)]  # n, p, q; also far more units than inputs


def rotation(dim, seed=9):
    return torch.linalg.qr(randn(dim, dim, seed=seed))[0]


def by_grams(z1, z2):
    """ENSD and CKA from the n × n matrices H z zᵀ H, as they are defined."""
    n = len(z1)
    h = np.eye(n) - np.ones((n, n)) / n
    k1, k2 = (h @ z.numpy() @ z.numpy().T @ h for z in (z1, z2))
    t12, t11, t22 = np.trace(k1 @ k2), np.trace(k1 @ k1), np.trace(k2 @ k2)
    return np.trace(k1) * np.trace(k2) * t12 / (t11 * t22), t12 / np.sqrt(t11 * t22)


@pytest.mark.parametrize("n, p, q", SHAPES)
def test_both_are_what_the_gram_matrices_say(n, p, q):
    z1 = randn(n, p) + 3
    z2 = torch.tanh(randn(n, q, seed=1) + z1[:, :1])
    ensd, cka = by_grams(z1, z2)
    assert abs(effective_shared_dimensions(z1, z2) - ensd) <= 1e-10 * max(1, ensd)
    assert abs(centered_kernel_alignment(z1, z2) - cka) <= 1e-10


@pytest.mark.parametrize("n, p, q", SHAPES)
def test_identities(n, p, q):
    z1, z2 = randn(n, p) + 1, randn(n, q, seed=1)
    pr1, pr2 = participation_ratio(z1), participation_ratio(z2)
    ensd, cka = effective_shared_dimensions(z1, z2), centered_kernel_alignment(z1, z2)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(effective_shared_dimensions(z1, z1), pr1, **close)
    torch.testing.assert_close(centered_kernel_alignment(z1, z1), torch.ones_like(pr1), **close)
    torch.testing.assert_close(ensd, cka * (pr1 * pr2).sqrt(), **close)
    torch.testing.assert_close(effective_shared_dimensions(z2, z1), ensd, **close)
    moved = 1e3 * z1 @ rotation(p) + 7
    torch.testing.assert_close(effective_shared_dimensions(moved, 1e-3 * z2 @ rotation(q)), ensd, **close)
    assert ensd <= (pr1 * pr2).sqrt() * (1 + 1e-12)


@pytest.mark.parametrize("function", [*BOTH, shared_units])
def test_leading_axes_broadcast(function):
    z1, z2 = randn(2, 1, 30, 4), randn(3, 30, 4, seed=1) + 1
    found = function(z1, z2)
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(found[i, j], function(z1[i, 0], z2[j]))


def test_nothing_grows_with_the_square_of_the_number_of_inputs():
    z = randn(300_000, 2)  # 720 GB as a Gram matrix
    assert abs(effective_shared_dimensions(z, z @ rotation(2)) - participation_ratio(z)) < 1e-6


def relu_with_mean(seed):
    return (randn(N, 20, seed=seed) + 1).relu()


SANITY = {  # section 4 of the notes, n = 1000: of 20-d white data x, y independent -> (number of the notes, ours)
    "PR of x": (19.63, lambda x, y: participation_ratio(x)),
    "x and rotated x": (19.63, lambda x, y: effective_shared_dimensions(x, x @ rotation(20))),
    "x and rotated x, units": (19.2, lambda x, y: shared_units(x, x @ rotation(20))),
    "x and y": (0.40, effective_shared_dimensions),
    "x and y, units": (19.2, shared_units),
    "8 shared": (8.13, lambda x, y: effective_shared_dimensions(x, torch.cat([x[:, :8], y[:, 8:]], 1))),
    "8 shared, units": (19.4, lambda x, y: shared_units(x, torch.cat([x[:, :8], y[:, 8:]], 1))),
    "PR of 5 of 20": (4.96, lambda x, y: participation_ratio(x[:, :5])),
    "x and 5 of 20": (5.01, lambda x, y: effective_shared_dimensions(x, x[:, :5])),
    "other units": (
        19.63,
        lambda x, y: effective_shared_dimensions(torch.cat([x, 0 * x], 1), torch.cat([0 * x, x], 1)),
    ),
}


@pytest.mark.parametrize("case", SANITY)
def test_the_sanity_table_of_the_notes(case):
    """One draw there, twelve here: the same to three standard deviations of a draw, which are small."""
    note, ours = SANITY[case]
    found = torch.stack([ours(randn(N, 20, seed=s), randn(N, 20, seed=100 + s)) for s in range(12)])
    assert abs(found.mean() - note) <= 3 * found.std() * (1 + 1 / 12) ** 0.5 + 0.005  # two decimals
    assert found.std() < 0.35


def test_on_other_units_nothing_is_shared_in_unit_space():
    x = randn(N, 20)
    assert shared_units(torch.cat([x, 0 * x], 1), torch.cat([0 * x, x], 1)) == 0


def test_white_data_has_the_participation_of_theory():
    found = torch.stack([participation_ratio(randn(N, 20, seed=s)) for s in range(12)])
    assert abs(found.mean() - 20 * N / (20 + N)) <= 3 * found.std() / 12**0.5


def test_a_mean_looks_like_compression_and_sharing_unless_it_is_centered_away():
    z1, z2 = relu_with_mean(0), relu_with_mean(1)
    assert participation_ratio(z1, center=False) < 3 and participation_ratio(z1) > 19
    ensd, cka = by_grams(z1, z2)
    assert ensd < 0.5 and abs(effective_shared_dimensions(z1, z2) - ensd) < 1e-9
    raw = (z1.mT @ z2).square().sum() / ((z1.mT @ z1).square().sum() * (z2.mT @ z2).square().sum()).sqrt()
    assert raw > 0.8 > 0.1 > cka


def test_shared_units_is_participation_in_unit_space_and_needs_no_common_inputs():
    z, other = relu_with_mean(0), relu_with_mean(3)[:200]
    torch.testing.assert_close(shared_units(z, z), participation_ratio(z, center=False))
    c1, c2 = (m.T @ m / np.trace(m.T @ m) for m in (z.numpy(), other.numpy()))
    expected = np.trace(c1 @ c2) / (np.trace(c1 @ c1) * np.trace(c2 @ c2))
    assert abs(shared_units(z, other) - expected) < 1e-10


def test_gradients_flow():
    z1, z2 = randn(12, 3).requires_grad_(), randn(12, 4, seed=1).requires_grad_()
    for function in BOTH:
        torch.autograd.gradcheck(function, (z1, z2))
    torch.autograd.gradcheck(shared_units, (z1, randn(9, 3, seed=2).requires_grad_()))


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_scale_does_not_matter_in_single_precision(scale):
    z1, z2 = randn(40, 3).float(), randn(40, 5, seed=1).float()
    for function in BOTH:
        torch.testing.assert_close(function(scale * z1, z2 / scale), function(z1, z2), rtol=1e-4, atol=1e-5)


Z = randn(8, 3)
BAD = {
    "rows": ((Z, randn(9, 3)), ValueError, "z1 and z2 must be of the same inputs, got 8 and 9 rows"),
    "one axis": ((Z, Z[:, 0]), ValueError, r"z2 must be \(..., n, dim\) with rows as samples"),
    "empty": ((Z[:0], Z[:0]), ValueError, "z1 must be .* not empty"),
    "nan": ((Z, Z / 0), ValueError, r"z2\[0, 0\] = -?inf must be finite"),
    "constant": ((Z, torch.ones(8, 3).double()), ValueError, "variance of z2 must be > 0: all rows are equal"),
    "integers": ((Z, torch.ones(8, 3, dtype=int)), TypeError, r"z2 must be a floating tensor, .* use z2.double\(\)"),
    "half": ((Z.half(), Z.half()), TypeError, r"z1 must be float32 or float64"),
    "half beside double": ((Z, Z.half()), TypeError, r"z2 must be float32 or float64, got torch.float16"),
    "a list": ((Z, [[1.0]]), TypeError, "z2 must be a number or a torch tensor, got list"),
    "batches": ((randn(2, 8, 3), randn(3, 8, 3)), ValueError, "do not broadcast: leading axes of z1 .2,., .* z2 .3,."),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("function", [*BOTH, compare])
def test_what_has_no_answer_is_refused_in_a_sentence(function, bad):
    inputs, error, sentence = BAD[bad]
    if function is compare and bad in ("nan", "constant"):
        assert all(value.isnan() for value in compare(*inputs).values())
        return
    if function is compare:
        sentence = (
            sentence.replace("z1", "before").replace("z2", "after").replace("dim\\) with rows as samples", "units")
        )
    with pytest.raises(error, match=sentence):
        function(*inputs)


def test_compare_refuses_arrays_and_says_nan_of_a_single_input():
    with pytest.raises(TypeError, match="after must be a number or a torch tensor, got ndarray"):
        compare(Z, Z.numpy())
    with pytest.raises(ValueError, match=r"before must be \(..., n, units\) and not empty, got \(2, 0, 3\)"):
        compare(torch.ones(2, 0, 3), torch.ones(2, 0, 3))
    for name, value in compare(randn(2, 1, 1, 3), randn(4, 1, 5)).items():
        assert value.shape == (2, 4) and value.isnan().all(), name


def test_unlike_units_are_refused():
    with pytest.raises(ValueError, match="the same units, got 3 and 4"):
        shared_units(Z, randn(8, 4))
    with pytest.raises(ValueError, match="variance of z1 must be > 0"):
        shared_units(0 * Z, Z)


def test_compare_says_nan_of_nets_that_diverged_or_died():
    before, after = randn(5, 40, 6) + 1, randn(5, 40, 6, seed=1)
    broken = after.clone()
    broken[0, 3, 2], broken[1], broken[2, 0, 0] = torch.nan, 0.5, torch.inf
    found, clean = compare(before, broken), compare(before, after)
    assert set(found) == {"pr_before", "pr_after", "ensd", "cka"}
    for name, values in found.items():
        assert values[:3].isnan().all(), name
        torch.testing.assert_close(values[3:], clean[name][3:], rtol=0, atol=0)
    torch.testing.assert_close(clean["ensd"], effective_shared_dimensions(before, after))
    torch.testing.assert_close(clean["pr_after"], participation_ratio(after))
