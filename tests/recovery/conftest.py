import pytest

from labkit import compute


@pytest.fixture
def generator():
    return compute.generator(0)
