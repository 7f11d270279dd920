"""The documentation site: Sphinx makes it of these Markdown pages and of the package's docstrings (`make docs`).

It is read offline: furo loads nothing from elsewhere and Sphinx's search works on files. Every warning is an error, so
a link to a page or a heading that is not there ends the build.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from fedproc import __version__

project = "fedproc"
author = copyright = "The fedproc developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "from_package", "repository", "whole_numbers"]
exclude_patterns = ["results/*/*/**"]  # run folders: pictures and files of theirs come along where a page names them

html_theme = "furo"
html_title = f"fedproc {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # which pages on a disk may not fetch
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

smartquotes = False  # which would make a dash of --beta
default_role = "code"  # docstrings write names in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
