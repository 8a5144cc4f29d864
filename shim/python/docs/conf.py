"""How the reference of the Python package is built: ``make reference``."""

import pfo_gpu

project = "pfo-gpu"
author = "The pfo developers"
copyright = author
version = release = pfo_gpu.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "inherited-members": True}
add_module_names = False
napoleon_numpy_docstring = False

html_theme = "alabaster"
html_show_sourcelink = False
