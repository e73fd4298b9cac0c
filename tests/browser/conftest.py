"""One server and one browser for all browser tests."""

import pytest

from tests.browser import lab
from tests.lessons.run import ROOT


@pytest.fixture(scope="session")
def browser():
    try:
        lab.chromium_path()
    except RuntimeError as missing:
        pytest.fail(str(missing), pytrace=False)  # not a skip: without it `make test` has not tested the panels
    with lab.browser() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with lab.server(ROOT / "lessons", tmp_path_factory.mktemp("jupyter")) as address:
        yield address
