"""Settings of Sphinx for the tutorial's web site; `site_build.py` writes its pages and runs it."""

import json
import os

project = "BERT on any device"
html_title = project
language = "en"
extensions = ["myst_nb"]
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
}
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]

LAUNCH = json.loads(os.environ.get("SITE_LAUNCH", "{}"))


def add_launch_links(app, pagename, templatename, context, doctree) -> None:
    """Say where a page's notebook runs; on a page that is none, the first one."""
    notebook = pagename if pagename.startswith("notebooks/") else "notebooks/00_start_here"
    context["launch"] = {
        name: address.format(notebook=f"{notebook}.ipynb") for name, address in LAUNCH.items()
    }


def setup(app) -> None:
    """Register what is added to each page."""
    app.connect("html-page-context", add_launch_links)
