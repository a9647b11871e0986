"""How the pages become a site: ``make docs``. Nothing comes from the network, then or later."""

import sys
from pathlib import Path

from pygments.lexers import TextLexer

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from stagelink import __version__  # from this very tree

project = "stagelink"
author = "the stagelink authors"
copyright = author  # noqa: A001 - Sphinx names it so
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["grafana", "pictures"]
html_theme = "furo"
html_title = f"stagelink {version}"
html_show_sourcelink = False
html_show_copyright = False

myst_heading_anchors = 3  # page.md#a-heading works as it does where the pages are read as files
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes are told in their class, once
# "bytes" in a signature is the builtin, whatever else is called so.
suppress_warnings = ["ref.python"]


def setup(app):  # noqa: ANN001, ANN201, D103 - Sphinx calls it
    app.add_lexer("hex", TextLexer)  # read as it is
