"""The tests that every room has of its public functions: the same values on every device, `device=` forgotten nowhere.

A test module says which calls (name -> function and inputs on the CPU; name -> function without inputs) and takes what
comes back under names that pytest finds.
"""

from dataclasses import asdict, is_dataclass

import pytest
import torch

from tests.stand_in import forgotten_device


def assert_same(result, expected, **tolerance):
    """Equal to rounding: tensors, tuples and dataclasses of them; names of regimes exactly."""
    if is_dataclass(expected):
        result, expected = asdict(result), asdict(expected)
    if isinstance(expected, list):
        assert result == expected
    else:
        torch.testing.assert_close(result, expected, **tolerance)


def same_everywhere(calls, **tolerance):
    """Two tests of {name: (function, *inputs)}: on every device as on the CPU; and without a forgotten device."""

    @pytest.mark.parametrize("name", calls)
    def test_same_values_on_every_device(device, name):
        function, *inputs = calls[name]
        assert_same(device.run(function, *inputs), function(*inputs), **tolerance)

    @pytest.mark.parametrize("name", calls)
    def test_nothing_is_made_without_a_device(name):
        function, *inputs = calls[name]
        with forgotten_device():
            result = function(*inputs)
        assert_same(result, function(*inputs), rtol=0, atol=0)

    return test_same_values_on_every_device, test_nothing_is_made_without_a_device


def made_everywhere(made, **tolerance):
    """Two tests of {name: function without inputs}, which makes its tensors on the device of `labkit.compute`."""

    @pytest.mark.parametrize("name", made)
    def test_a_seed_means_the_same_on_every_device(device, name, monkeypatch):
        expected = made[name]()
        monkeypatch.setenv("LABKIT_DEVICE", str(device.place))
        assert_same(device.back(made[name]()), expected, **tolerance)

    @pytest.mark.parametrize("name", made)
    def test_what_is_made_has_a_device(name):
        with forgotten_device():
            result = made[name]()
        assert_same(result, made[name](), rtol=0, atol=0)

    return test_a_seed_means_the_same_on_every_device, test_what_is_made_has_a_device
