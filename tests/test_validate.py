"""The checks at the door: what passes keeps dtype and device, what does not is named in the sentence."""

import pytest
import torch

from labkit.validate import as_tensors, require_broadcast, require_finite, require_positive, require_range


def test_numbers_follow_the_tensors():
    beta, c, k = as_tensors(beta=torch.ones(3, dtype=torch.float32), c=1, k=0.5)
    assert beta.dtype == c.dtype == k.dtype == torch.float32
    assert k.shape == () and k.item() == 0.5


def test_the_widest_dtype_wins():
    a, b = as_tensors(a=torch.ones(2, dtype=torch.float32), b=torch.ones((), dtype=torch.float64))
    assert a.dtype == b.dtype == torch.float64


def test_numbers_alone_become_float64_exactly():
    (c,) = as_tensors(c=0.1)
    assert c.dtype == torch.float64 and c.item() == 0.1


def test_gradients_pass_through():
    beta = torch.ones(2, requires_grad=True)
    assert as_tensors(beta=beta)[0] is beta


def test_default_device_is_not_used_for_tensors_of_another():
    beta = torch.ones(2, dtype=torch.float64)
    torch.set_default_device("meta")
    try:
        beta, lam = as_tensors(beta=beta, lam=0.5)
        require_range(-1, 1, lam=lam)
        require_finite(beta=beta)
        with pytest.raises(ValueError, match="got 0.5"):
            require_range(0, 0.25, lam=lam)
    finally:
        torch.set_default_device(None)
    assert lam.device.type == "cpu"


@pytest.mark.parametrize("value, shown", [([1.0], "list"), ("1", "str"), (1j, "complex")])
def test_other_types_are_refused_by_name(value, shown):
    with pytest.raises(TypeError, match=f"c must be a number or a torch tensor, got {shown}"):
        as_tensors(c=value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_tensors_that_are_not_floating_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match="x must be a floating tensor, got dtype"):
        as_tensors(y=torch.ones(2), x=torch.ones(2).to(dtype))


def test_mixed_devices_are_refused_by_name():
    with pytest.raises(ValueError, match="beta is on cpu but root_k is on meta"):
        as_tensors(beta=torch.ones(2), c=1.0, root_k=torch.ones(2, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scalar_out_of_range(dtype):
    with pytest.raises(ValueError, match=r"^lam must lie in \[-1, 1\], got 1\.3$"):
        require_range(-1, 1, lam=torch.tensor(1.3, dtype=dtype))


def test_batch_out_of_range_names_the_first_bad_element():
    lam = torch.zeros(5, 2, dtype=torch.float64)
    lam[3, 0], lam[4, 1] = 1.3, -7.0
    with pytest.raises(ValueError, match=r"^lam\[3, 0\] = 1\.3 must lie in \[-1, 1\]$"):
        require_range(-1, 1, lam=lam)


def test_the_smallest_excess_is_printed():
    with pytest.raises(ValueError, match="got 1.0000000000000002"):
        require_range(-1, 1, lam=torch.tensor(1 + 2**-52, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "require",
    [
        lambda v: require_range(0, torch.inf, v=v),
        lambda v: require_positive(v=v),
        lambda v: require_finite(v=v),
    ],
)
def test_nan_and_infinity_are_refused(require, bad):
    require(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"^v\[1\] = -?(nan|inf) must"):
        require(torch.tensor([1.0, bad]))


def test_ends_of_the_range_belong_to_it():
    require_range(-1, 1, lam=torch.tensor([-1.0, 1.0]))
    require_range(0, torch.inf, gamma=torch.tensor(0.0))
    with pytest.raises(ValueError, match="c must be positive and finite, got 0"):
        require_positive(c=torch.tensor(0.0))
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, inf\), got -1"):
        require_range(0, torch.inf, gamma=torch.tensor(-1.0))


def test_broadcast():
    assert require_broadcast(a=torch.ones(3, 1), b=torch.ones(4)) == (3, 4)
    with pytest.raises(ValueError, match=r"do not broadcast: a \(3,\), b \(4,\)"):
        require_broadcast(a=torch.ones(3), b=torch.ones(4))


@pytest.mark.parametrize(
    "value, says",
    [(torch.ones(2).to_sparse(), "a sparse tensor"), (torch.ones(2, device="meta"), "a meta tensor")],
)
def test_tensors_without_dense_values_are_refused(value, says):
    with pytest.raises(TypeError, match=f"beta must be a dense tensor with values, got {says}"):
        as_tensors(beta=value)
