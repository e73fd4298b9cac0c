import pytest
import torch

from labkit import compute, training
from labkit.depth.network import PostNormResNet, fit
from labkit.depth.task import TEACHER_SEED, TeacherTask

N_NETS = 3


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=compute.generator(seed))


def generators(first=0, n=N_NETS):
    return training.generators(range(first, first + n))


@pytest.fixture(scope="session")
def task():
    return TeacherTask(compute.generator(TEACHER_SEED))


@pytest.fixture(scope="session")
def sample(task):
    """Nobody's training sample."""
    return task.sample(4000, compute.generator(77))


@pytest.fixture(scope="session")
def trained(task):
    """Three trained students of depth 2 and width 16, tanh: smooth."""
    x, y = task.sample(4000, compute.generator(10))
    start = PostNormResNet(9, 16, 2, 16, 4, generators=generators(20), activation="tanh")
    return fit(start, x, y, steps=100).model
