"""Sphinx's settings for the site; `python hack/docs/site.py` builds it."""

project = "pstraining"
root_doc = "README"
html_title = "pstraining"
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser"]
myst_heading_anchors = 6
myst_links_external_new_tab = False
exclude_patterns: list[str] = []
# What the pages' blocks of code are in is not always what Pygments knows; that is no error of theirs.
suppress_warnings = ["misc.highlighting_failure"]
