"""Fixtures shared by all tests: the devices on which everything must give the same values."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from tests.stand_in import STAND_IN, StandIn

DEVICES = ["cpu", "stand-in", *(["cuda"] if torch.cuda.is_available() else [])]


class Device:
    """Where a test computes. `run(f, *inputs)` moves the inputs there, calls f and brings the result back.

    Every tensor of the result must have been there: the right values on the wrong device are a failure.
    """

    def __init__(self, place):
        self.place = torch.device(place)

    def move(self, value):
        """The value (tensors in tuples, lists, dicts and dataclasses included) on this device."""
        return _each_tensor(lambda tensor: tensor.to(self.place), value)

    def back(self, value):
        """The value on the CPU, after checking that it was on this device."""
        return _each_tensor(self._bring, value)

    def run(self, function, *args, **kwargs):
        return self.back(function(*self.move(args), **self.move(kwargs)))

    def _bring(self, tensor):
        assert tensor.device.type == self.place.type, f"result on {tensor.device}, expected {self.place}"
        return tensor.cpu()


@pytest.fixture(params=DEVICES)
def device(request):
    """cpu, a stand-in for a GPU (see `tests.stand_in`), and cuda when there is one."""
    if request.param == "stand-in":
        with StandIn():
            yield Device(STAND_IN)
    else:
        yield Device(request.param)


def _each_tensor(change, value):
    if isinstance(value, torch.Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _each_tensor(change, getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {key: _each_tensor(change, item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_each_tensor(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
