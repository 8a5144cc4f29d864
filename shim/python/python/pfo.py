"""The former name of :mod:`pfo_gpu`, with a warning.

PyPI has another package called ``pfo``. This is a module, and not a folder, so that neither package writes over
the other: in one folder Python prefers a package to a module, and from another folder this module looks for it.
"""

import importlib
import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Optional


class _FormerNames(MetaPathFinder, Loader):
    """Gives ``pfo.x`` the module ``pfo_gpu.x``, so that none is loaded twice."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:
        return ModuleSpec(name, self) if name.startswith("pfo.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module("pfo_gpu" + spec.name[len("pfo") :])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def _other() -> Optional[ModuleSpec]:
    """The other package called ``pfo``, if any folder of ``sys.path`` has it."""
    for folder in sys.path:
        spec = PathFinder.find_spec("pfo", [folder])
        if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
            return spec
    return None


_found = _other()
if _found is not None and _found.loader is not None:
    _module = importlib.util.module_from_spec(_found)
    sys.modules["pfo"] = _module
    _found.loader.exec_module(_module)
else:
    warnings.warn("pfo is now called pfo_gpu: write `import pfo_gpu`", FutureWarning, stacklevel=2)
    sys.modules["pfo"] = importlib.import_module("pfo_gpu")
    sys.meta_path.insert(0, _FormerNames())
