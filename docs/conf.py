"""Configuration of the documentation: `python -m sphinx -W docs out/docs` builds it."""

import sys
from pathlib import Path

import nnstretch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "nnstretch"
author = "the authors of nnstretch"
version = release = nnstretch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_pages"]
exclude_patterns = ["_extensions"]
show_warning_types = True
smartquotes = False

# Markdown
myst_enable_extensions = ["attrs_block", "attrs_inline", "deflist"]
myst_heading_anchors = 3

# Docstrings: Google style.
autodoc_default_options = {"members": True, "inherited-members": "BaseException", "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

# Pages
html_theme = "furo"
html_title = f"nnstretch {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3b6ea8", "color-brand-content": "#3b6ea8"},
    "dark_css_variables": {"color-brand-primary": "#6a9fd8", "color-brand-content": "#6a9fd8"},
}
