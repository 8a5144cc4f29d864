"""The adapters, with the frameworks that they are for. `make test-frameworks-matrix` runs them."""

import importlib.util

if importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
