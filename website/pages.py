"""What makes the Markdown of docs a site: its table of contents, its blocks, its pictures.

An extension of Sphinx.
"""

import re
from typing import Any

from docutils import nodes
from pygments.lexers.python import PythonConsoleLexer, PythonLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from website.contents import tables_of_contents
from website.pictures.svg import THEMES, variables

STYLE = "".join(
    f"<style>html[data-theme={theme}] svg.rx{{{variables(theme)}}}</style>" for theme in THEMES
)
"""The colours of pictures by the theme of the page, and not of the reader's system."""


def _add_tables(app: Sphinx, name: str, source: list[str]) -> None:
    if name == "index":
        source[0] += tables_of_contents(source[0])
        source[0] += "\n:::{toctree}\n:hidden:\n:caption: Reference\n\nreference/index\n:::\n"


class InlinePictures(SphinxPostTransform):
    """Puts our SVG into the page itself, where it has the colours of the page's theme."""

    default_priority = 5  # before Sphinx collects images
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Replaces the images."""
        for image in list(self.document.findall(nodes.image)):
            path = self.app.srcdir / image["uri"]
            if path.suffix == ".svg" and path.parent.name == "pictures":
                text = path.read_text("utf-8")
                picture = re.sub(r"<style>.*?</style>", STYLE, text, flags=re.DOTALL)
                inline = f'<div class="rx-picture">{picture}</div>'
                image.replace_self(nodes.raw("", inline, format="html"))


class _Output(TextLexer):
    name = "What a block prints"
    aliases = ("output",)


class _TensorFlow(PythonLexer):
    name = "A program for TensorFlow"
    aliases = ("tensorflow",)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_lexer("output", _Output)
    app.add_lexer("tensorflow", _TensorFlow)
    app.add_lexer("pycon", PythonConsoleLexer)
    app.connect("source-read", _add_tables)
    app.add_post_transform(InlinePictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
