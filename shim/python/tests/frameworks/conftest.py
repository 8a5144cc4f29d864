"""What the tests with frameworks share: ranks that stay, and daemons for them."""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    # They are what `make test-frameworks` is for.
    collect_ignore_glob = ["test_*.py"]
else:
    from ranks import Ranks, importing_once
    from recorders import Recorders


@pytest.fixture(scope="session")
def frameworks():
    return importing_once()


@pytest.fixture(scope="session")
def ranks(frameworks, tmp_path_factory):
    ranks = Ranks(tmp_path_factory.mktemp("ranks"), frameworks)
    yield ranks
    ranks.end()


@pytest.fixture
def recorders(tmp_path):
    return Recorders(tmp_path)
