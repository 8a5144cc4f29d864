"""Packages that only tables and pictures require."""

from __future__ import annotations

import importlib
from typing import Any


def imported(module: str, wanted_by: str) -> Any:
    """Imports a module of pandas or matplotlib. Raises ``ModuleNotFoundError`` with the remedy if
    it is not installed."""
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{wanted_by} requires {package}; install it with `pip install {package}`", name=package
        ) from None
    return importlib.import_module(module)
