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
    app.connect("autodoc-process-signature", without_constructor)


MADE_BY_CALLS = {
    f"stagelink.{name}"
    for name in (
        "Connector",
        "Draft",
        "Payload",
        "PutTicket",
        "Receipt",
        "StreamReader",
        "StreamWriter",
    )
}


def without_constructor(app, what, name, thing, options, signature, returns):  # noqa: ANN001, ANN201, ARG001, D103
    made_by_us = name in MADE_BY_CALLS or signature == "(*args, **kwargs)"  # or a protocol
    return ("", "") if made_by_us else None
