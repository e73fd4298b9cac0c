"""The stand-in lets honest code through, with the same numbers, and catches every way to stay on the CPU."""

import numpy as np
import pytest
import torch

from tests.stand_in import STAND_IN, StandIn, forgotten_device


def write(x):
    x[x > 2] = -1.0
    x[0, :2] = x[1, 1:]
    x[:, 2] += 4
    return x


HONEST = {
    "arithmetic": lambda x: ((2 * x + 1) ** 2).sum(-1) / 3,
    "factories": lambda x: (
        x + torch.zeros(3, device=x.device, dtype=x.dtype) + torch.ones_like(x) + x.new_full((3,), 2)
    ),
    "numbers": lambda x: x + torch.tensor(2.0, device=x.device) + x.new_tensor([1.0, 2.0, 3.0]),
    "as_tensor": lambda x: torch.as_tensor(x, device=x.device) * torch.as_tensor([1.0, 2.0, 3.0], device=x.device),
    "scalar tensor": lambda x: x * torch.tensor(2.0),  # CUDA lets a CPU tensor without axes pass
    "mask": lambda x: x[x > 1.5],
    "where": lambda x: torch.where(x > 1, x, -x).index_fill(-1, torch.tensor([0], device=x.device), 7.0),
    "in place": lambda x: x.clone().mul_(2).add_(1).clamp_(max=4),
    "writes": lambda x: write(x.clone()),
    "item": lambda x: x * (x.max().item() + float(x[0, 0]) + sum(x[0].tolist()) + len(x)),
    "linear algebra": lambda x: torch.linalg.cholesky(x.mT @ x + torch.eye(3, device=x.device, dtype=x.dtype)),
    "eigenvalues": lambda x: torch.linalg.eigh(x.mT @ x).eigenvalues,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "vmap": lambda x: torch.vmap(lambda row: row.cumsum(0))(x),
    "sampling": lambda x: x + torch.rand(3, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device),
    "out": lambda x: torch.mul(x, 3, out=torch.empty_like(x)),
    "in and out": lambda x: torch.from_numpy(np.tanh(x.cpu().numpy())).to(x.device),
}

STAYING_BEHIND = {
    "forgotten device": lambda x: x + torch.zeros(3),
    "hard-coded cpu": lambda x: x + torch.ones(3, device="cpu"),
    "from_numpy": lambda x: x * torch.from_numpy(np.ones(3)),
    "moved to the CPU": lambda x: x.cpu() + x,
    "index on the CPU": lambda x: x[torch.arange(2)],
    "list with a CPU scalar": lambda x: torch.stack([x[0, 0], torch.tensor(1.0)]),
    "write into a CPU scalar": lambda x: torch.tensor(0.0, dtype=x.dtype).add_(x[0, 0]),
    "out on the CPU": lambda x: torch.mul(x, 3, out=torch.empty(2, 3, dtype=x.dtype)),
    "numpy": lambda x: x.numpy(),
    "as a numpy array": lambda x: np.asarray(x),
    "CPU generator on the device": lambda x: torch.rand(3, generator=torch.Generator(), device=x.device),
}


def sample():
    return torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 2 + 0.25


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_gives_the_same_values(name):
    expected = HONEST[name](sample())
    with StandIn():
        result = HONEST[name](sample().to(STAND_IN))
        assert result.device == STAND_IN and result.dtype == expected.dtype
        back = result.cpu()
    assert back.device.type == "cpu"
    torch.testing.assert_close(back, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", STAYING_BEHIND)
def test_code_that_stays_on_the_cpu_is_caught(name):
    STAYING_BEHIND[name](sample())  # on the CPU all of it works: that is why it goes unnoticed
    with StandIn(), pytest.raises((RuntimeError, TypeError)):
        STAYING_BEHIND[name](sample().to(STAND_IN))


def test_gradients():
    def slope(x):
        x = x.requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return second

    with StandIn():
        result = slope(sample().to(STAND_IN))
        assert result.device == STAND_IN
        torch.testing.assert_close(result.cpu(), 6 * sample())


def test_outside_the_mode_nothing_works():
    with StandIn():
        x = sample().to(STAND_IN)
    with pytest.raises(RuntimeError, match="StandIn"):
        x + 1


def test_forgotten_device():
    with forgotten_device(), pytest.raises(RuntimeError):
        STAYING_BEHIND["forgotten device"](sample().to("cpu"))
    x = sample()
    with forgotten_device():
        assert torch.zeros(3).is_meta  # a result made only of forgotten tensors has no values
        assert torch.equal(HONEST["factories"](x), x + 3)
    assert not torch.zeros(3).is_meta
