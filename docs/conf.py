"""How the pages become a site: `python -m sphinx -W -b html docs build/docs`. Nothing is fetched.

The pages are plain Markdown, to be read on a code host as they are. What a site needs beyond that
is added while they are read, and is in no page:

- the table of contents, from the lists of `index.md`;
- below each page of `reference/api/`, the docstrings of its module;
- links that leave `docs/` (to tests, examples, the README): to the repository, if
  TOOLKEEP_REPOSITORY names where its files can be seen, else only their text.
"""

import importlib
import os
import re
import sys
from pathlib import Path, PurePosixPath
from textwrap import dedent, indent

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from toolkeep import __version__

sys.path.insert(0, str(Path(__file__).parent))
from drawing import api
from drawing.contents import parts

project = "toolkeep"
version = release = __version__
copyright = "the authors of toolkeep"
language = "en"
smartquotes_action = "qe"  # quotes and ellipses; `--json` keeps its dashes

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["**/__pycache__"]
html_theme = "furo"
html_title = f"toolkeep {release}"
html_show_sourcelink = html_show_sphinx = html_copy_source = False
html_extra_path = ["llms.txt"]
html_static_path = ["site"]
html_css_files = ["toolkeep.css"]
html_js_files = ["copy.js"]
html_search_scorer = str(Path(__file__).parent / "site" / "scorer.js")
html_theme_options = {
    "light_css_variables": {
        "color-sidebar-link-text--top-level": "var(--color-foreground-secondary)",
        "color-sidebar-item-background--current": "var(--color-background-hover)",
        "sidebar-item-spacing-vertical": "0.3rem",
        "sidebar-caption-space-above": "1rem",
    }
}
pygments_style, pygments_dark_style = "tango", "monokai"

myst_heading_anchors = 4
default_role = "code"  # docstrings set names in single backticks
maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"

suppress_warnings = [
    "ref.python"
]  # `Tool` in a signature: that of the runtime, or the blocking one
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "inherited-members": "BaseModel,BaseException,Exception,Enum,str,int,tuple,dict,object",
}

REPOSITORY = os.environ.get("TOOLKEEP_REPOSITORY", "").rstrip("/")
INDENTED = re.compile(r"^ {2,}", re.MULTILINE)
OF_A_MODULE = "reference/api/"
OF_A_TREE = ("toolkeep.errors", "toolkeep.events")
"""Modules whose classes are told apart by their bases; elsewhere these are mostly private."""


def contents(index: str) -> str:
    """A hidden table of contents for each list of the index."""
    return "\n\n".join(
        f"```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {part.caption}\n\n"
        + "\n".join(entry.place.removesuffix(".md") for entry in part.entries)
        + "\n```"
        for part in parts(index)
    )


def docstrings(module: str) -> str:
    """Of what is at home in this module, without what an adapter has from its framework."""
    options = [f"   :exclude-members: {', '.join(['model_config', *api.guests(module)])}"]
    if module.startswith("toolkeep.adapters.") or module in OF_A_TREE:
        options.append("   :no-inherited-members:")
    if module in OF_A_TREE:
        options.append("   :show-inheritance:")
    directive = "\n".join([f".. automodule:: {module}", *options])
    return f"## In full\n\n```{{eval-rst}}\n{directive}\n```"


def mended(
    app: Sphinx, kind: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """What docstrings do as in Markdown: a letter after a closing backtick, and indented blocks.
    The first paragraph of a module's is at the top of its page already."""
    blocks = "\n".join(lines).split("\n\n")[1 if kind == "module" else 0 :]
    lines[:] = "\n\n".join(map(as_rst, blocks)).splitlines()


def as_rst(block: str) -> str:
    if INDENTED.search(block) and not block.lstrip().startswith(("- ", ":", "..")):
        return "::\n\n" + indent(dedent(block), "    ") + "\n"
    return re.sub(r"(`[^`\n]+`)(?=\w)", r"\1\\ ", block)


def complete(app: Sphinx, name: str, source: list[str]) -> None:
    if name == "index":
        source[0] += f"\n{contents(source[0])}\n"
    elif name == "reference/api":
        source[0] += "\n```{toctree}\n:hidden:\n:titlesonly:\n:glob:\n\napi/*\n```\n"
    elif name.startswith(OF_A_MODULE):
        source[0] += f"\n{docstrings(name.removeprefix(OF_A_MODULE))}\n"


class LinksThatLeave(SphinxTransform):
    """Remove references to files outside of `docs/` before they are resolved."""

    default_priority = 5

    def apply(self, **kwargs: object) -> None:
        found = [*self.document.findall(pending_xref), *self.document.findall(download_reference)]
        for node in found:
            place = outside(self.env.docname, str(node["reftarget"]))
            if place is not None:
                node.replace_self(link_or_text(node, place))


def outside(page: str, target: str) -> str | None:
    """The path of a target below the root of the repository, if it is not in `docs/`."""
    path: list[str] = []
    for part in (PurePosixPath("docs", page).parent / target.partition("#")[0]).parts:
        if part == "..":
            path.pop()
        elif part != ".":
            path.append(part)
    return None if path[:1] == ["docs"] else "/".join(path)


def link_or_text(node: nodes.Element, place: str) -> nodes.Element:
    held = nodes.inline("", "", *node.children)
    if not REPOSITORY:
        return held
    return nodes.reference("", "", held, refuri=f"{REPOSITORY}/{place}")


def import_all(app: Sphinx) -> None:
    """Before autodoc does it: it pretends to be a type checker, which some frameworks break on."""
    for page in app.env.found_docs:
        if page.startswith(OF_A_MODULE):
            importlib.import_module(page.removeprefix(OF_A_MODULE))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-before-read-docs", lambda app, env, names: import_all(app))
    app.connect("source-read", complete)
    app.connect("autodoc-process-docstring", mended)
    app.add_transform(LinksThatLeave)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
