"""Kernel ridge against scikit-learn, and against what it must do: interpolate, choose λ, find the crossing."""

import math

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge as Sklearn

from labkit import compute
from labkit.recovery import kernel
from labkit.recovery.kernel import fit, polynomial_kernel, samples_to_reach
from labkit.recovery.teacher import HierarchicalTeacher

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=compute.generator(seed))


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("ridge", [1e-3, 10.0])
def test_same_as_scikit_learn(degree, ridge):
    x, y, new = randn(30, 4), randn(30, seed=1), randn(9, 4, seed=2)
    ours = fit(x, y, degree, new, new[:, 0], ridges=(ridge,))
    size = float(polynomial_kernel(x, x, degree).diagonal().mean())
    theirs = Sklearn(alpha=ridge * size, kernel="poly", degree=2 * degree, gamma=1 / 4, coef0=1)
    theirs.fit(x.numpy(), (y - y.mean()).numpy())
    torch.testing.assert_close(ours.predict(new), torch.tensor(theirs.predict(new.numpy())) + y.mean())


def test_the_ridge_of_least_validation_error_is_taken():
    x, new = randn(40, 5), randn(200, 5, seed=2)
    y, clean = x[:, 0] + 2 * randn(40, seed=1), new[:, 0]
    chosen = fit(x, y, 1, new, clean)
    errors = {r: float(((fit(x, y, 1, new, clean, (r,)).predict(new) - clean) ** 2).mean()) for r in kernel.RIDGES}
    assert chosen.ridge == min(errors, key=errors.get) >= 0.1  # noisy labels want a large one


def test_more_samples_than_features_interpolate_a_polynomial_exactly():
    """C(d+4, 4) features of degree ≤ 4 for d = 4: 70. The crossing that lesson 10 has to show."""
    teacher = HierarchicalTeacher(4, 2, 2, 1.0, "id", 0.0, compute.generator(0))
    val = teacher.sample_inputs(300, compute.generator(1))
    for n, exact in ((50, False), (90, True)):
        x, y = teacher.sample(n, compute.generator(2))
        model = fit(x, y, 2, val, teacher.target(val), ridges=(1e-9, 1e-3))
        error = ((model.predict(val) - teacher.target(val)) ** 2).mean() / teacher.target(val).var()
        assert (error < 1e-4) == exact


def test_crossing_of_a_power_law_is_exact():
    n = torch.tensor([100.0, 150.0, 400.0], dtype=F64)
    assert samples_to_reach(n, 50 / n, level=0.2).item() == pytest.approx(250)
    assert samples_to_reach(n, 50 / n, level=0.01).item() == math.inf
    assert math.isnan(samples_to_reach(n, 50 / n, level=0.9))


X, Y = randn(5, 2), randn(5, seed=1)
REFUSED = {
    "degree must be 1, 2, 3 or 4, got 5": lambda: polynomial_kernel(X, X, 5),
    r"x and other must be \(n, dim\), \(m, dim\), got \(5, 2\), \(5, 3\)": lambda: polynomial_kernel(X, randn(5, 3), 1),
    r"x must be \(n, dim\), not empty, and its labels \(n,\), got \(5, 2\) and \(4,\)": lambda: fit(X, Y[:4], 1, X, Y),
    r"x_val must be \(n, dim\), not empty": lambda: fit(X, Y, 1, X[:0], Y[:0]),
    "y must not be constant: labels that are all 1": lambda: fit(X, torch.ones(5, dtype=F64), 1, X, Y),
    r"ridges\[1\] = -1 must be positive": lambda: fit(X, Y, 1, X, Y, ridges=(1.0, -1.0)),
    "ridges must hold at least one value": lambda: fit(X, Y, 1, X, Y, ridges=()),
    r"y\[0\] = nan must be finite": lambda: fit(X, torch.full((5,), math.nan, dtype=F64), 1, X, Y),
    "ridge 1e-12 is too small for torch.float32": lambda: fit(
        randn(60, 1).float(), randn(60, seed=1).float(), 2, X[:, :1].float(), Y.float(), ridges=(1e-12,)
    ),
    r"n must be \(size,\), increasing": lambda: samples_to_reach(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.5])),
    "level must be positive and finite, got 0": lambda: samples_to_reach(X[0].exp().sort()[0], X[0].exp(), level=0),
    "error must be positive|error.* must be positive": lambda: samples_to_reach(
        torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_input_is_refused_in_a_sentence(sentence):
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        REFUSED[sentence]()
