"""Settings of Sphinx for the tutorial's web site; `site_build.py` writes its pages and runs it."""

import json
import os

from helpers.tools import notebooks

project = "BERT on any device"
html_title = project
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
copybutton_selector = "div:not(.output) > div.highlight pre"  # code, and nothing that it printed
# The stored outputs are the pages: nothing is ever run.
nb_execution_mode = "off"
nb_merge_streams = True
# A widget needs a kernel; stored is a line of text in its place.
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

myst_heading_anchors = 4
myst_heading_slug_func = "site_build.anchor"

html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],  # the search stands in the navigation already
    "use_fullscreen_button": False,
    "article_header_start": ["toggle-primary-sidebar.html", "launch.html"],
    "footer_content_items": [],  # the repository has no single author, and says its licence
}
html_show_copyright = False
html_use_index = False  # no page has entries for it
html_show_sphinx = False
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css", "fit.css"]

LAUNCH = json.loads(os.environ.get("SITE_LAUNCH", "{}"))
RECIPES = {number: path.name for number, path in notebooks.recipes().items()}
FIT = """
Without a kernel, the page [Will it fit?](../fit.md) shows the same, and a link can hold a choice.
"""


def add_launch_links(app, pagename, templatename, context, doctree) -> None:
    """Say where a page's notebook runs, on other pages the first one, and which code it has."""
    notebook = pagename if pagename.startswith("notebooks/") else "notebooks/00_start_here"
    context["recipe"] = RECIPES.get(notebook.rpartition("/")[2][:2])
    context["launch"] = {
        name: address.format(notebook=f"{notebook}.ipynb") for name, address in LAUNCH.items()
    }


def add_fit_link(app, docname, source) -> None:
    """Put a link below the memory explorer, into what is read but not into the file."""
    if not docname.startswith("notebooks/") or "memory_explorer()" not in source[0]:
        return
    notebook = json.loads(source[0])
    cells = []
    for cell in notebook["cells"]:
        cells.append(cell)
        if cell["cell_type"] == "code" and "memory_explorer()" in "".join(cell["source"]):
            cells.append({"cell_type": "markdown", "id": "fit", "metadata": {}, "source": FIT})
    source[0] = json.dumps(notebook | {"cells": cells})


def setup(app) -> None:
    """Register what is added to each page."""
    app.connect("source-read", add_fit_link)
    app.connect("html-page-context", add_launch_links)
