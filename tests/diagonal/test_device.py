"""Every public function of the room gives the same values on every device, and forgets `device=` nowhere."""

import inspect

import pytest
import torch

from labkit import compute
from labkit.diagonal import flow, interpolate, penalty, replica, tasks
from tests.everywhere import made_everywhere, same_everywhere


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=compute.generator(seed))


BETA_PT, BETA_FT = randn(4, 6, seed=1), randn(4, 6, seed=2)
X, Y, ROOT_K = randn(2, 3, 6, seed=3), randn(2, 3, seed=4), randn(6, seed=5).exp()
WEIGHTS = flow.Weights(*randn(4, 6, seed=6))
TIMES = torch.logspace(-1, 1, 3, dtype=torch.float64)
LAM = torch.linspace(-0.99, 0.9, 6, dtype=torch.float64)
ALPHA = torch.tensor([[0.3], [0.8], [1.2]], dtype=torch.float64)

CALLS = {
    "q": (penalty.q, BETA_FT, ROOT_K),
    "q_prime": (penalty.q_prime, BETA_FT, ROOT_K),
    "q_prime_inverse": (penalty.q_prime_inverse, BETA_FT, ROOT_K),
    "q_ridge": (penalty.q_ridge, BETA_FT, ROOT_K),
    "q_lasso": (penalty.q_lasso, BETA_FT, ROOT_K),
    "root_k_init": (penalty.root_k_init, BETA_PT, BETA_FT, BETA_PT + 1, 0.5),
    "root_k_finetune": (penalty.root_k_finetune, BETA_PT, 0.1, LAM, 0.3),
    "ell_order": (penalty.ell_order, BETA_FT, ROOT_K),
    "pretraining_dependence": (penalty.pretraining_dependence, BETA_FT, BETA_PT, 0.1, LAM, 0.3),
    "regime_weights": (penalty.regime_weights, 1.5 + LAM.abs() / 4, -LAM.abs() / 2),
    "regime_name": (penalty.regime_name, torch.eye(3, dtype=torch.float64)),
    "admit": (lambda beta, c: penalty.admit(beta=beta, c=c), BETA_FT, 0.1),
    "min_penalty": (interpolate.min_penalty, X, Y, ROOT_K),
    "min_penalty from beta0": (interpolate.min_penalty, X, Y, ROOT_K, BETA_PT[:2]),
    "min_norm": (interpolate.min_norm, X, Y),
    "batch_shape": (lambda *inputs: list(interpolate.batch_shape(*inputs)), X, Y),
    "basis_pursuit": (interpolate.basis_pursuit, X, Y),
    "recovery_threshold": (interpolate.recovery_threshold, LAM.abs() / 2),
    "initial_weights": (lambda c: flow.initial_weights(6, c, -0.5), ROOT_K[:2]),
    "reinitialize": (flow.reinitialize, WEIGHTS, 0.3),
    "train": (flow.train, X, Y, WEIGHTS, TIMES),
    "train explicit": (lambda *inputs: flow.train(*inputs, explicit=True), X, Y, WEIGHTS, TIMES[:1]),
    "pretrain_finetune": (flow.pretrain_finetune, X, Y, X.flip(0), Y, 0.1, -0.5, 0.3, TIMES),
    "prox": (replica.prox, BETA_FT, ROOT_K, 0.3),
    "prox_prime": (replica.prox_prime, BETA_FT, ROOT_K, 0.3),
    "generalization_error": (
        lambda *inputs: replica.generalization_error(tasks.PARTIAL, *inputs),
        *(0.1, LAM, 0.3, ALPHA),
    ),
    "generalization_error imperfect": (
        lambda *inputs: replica.generalization_error(tasks.PARTIAL, *inputs),
        *(0.1, LAM, 0.3, ALPHA, ALPHA.flip(0), 0.1),
    ),
    "pretraining_error": (replica.pretraining_error, 0.1, 0.01, ALPHA),
    "pretraining_law": (replica.pretraining_law, 0.1, 0.01, ALPHA),
    "simulate": (
        lambda c, lam, alpha: replica.simulate(
            tasks.FULL, c, lam, 0.1, alpha, 0.5, dim=20, trials=2, generator=compute.generator(0)
        ),
        *(0.1, LAM, ALPHA[1, 0]),
    ),
    "simulate beyond": (
        lambda c, lam: replica.simulate(
            tasks.FULL, c, lam, 0.1, 1.5, 0.5, 0.1, dim=20, trials=2, generator=compute.generator(0)
        ),
        *(0.1, LAM),
    ),
    "raw_gradient_descent": (
        lambda *inputs: flow.raw_gradient_descent(*inputs, lr=0.01, steps=5),
        X,
        Y,
        WEIGHTS,
    ),
}


test_same_values_on_every_device, test_nothing_is_made_without_a_device = same_everywhere(CALLS, rtol=1e-9, atol=1e-12)


SAMPLES = {
    "design": lambda: tasks.design(3, 8, compute.generator(0), batch=(2,)),
    "TaskPair": lambda: tasks.PARTIAL.sample(80, compute.generator(0)),
}

test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device = made_everywhere(SAMPLES, rtol=0, atol=0)


@pytest.mark.parametrize("room", [penalty, interpolate, flow, tasks, replica], ids=lambda room: room.__name__)
def test_every_public_function_is_called_above(room):
    own = inspect.getmembers(room, lambda it: inspect.isfunction(it) and it.__module__ == room.__name__)
    called = {name.split()[0] for name in CALLS | SAMPLES}
    assert {name for name, _ in own if not name.startswith("_")} <= called
