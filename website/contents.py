"""The table of contents of the site: the lists of links in ``index.md``, and not one more list.

The pages are written to be read without the site, too. Knows nothing of Sphinx.
"""

import re

LINK = re.compile(r"^(?:- |\d+\. )\[[^\]]+\]\((?P<page>[\w/]+)\.md\)", re.MULTILINE)


def tables_of_contents(index: str) -> str:
    """The hidden tables of contents of an index page: a section is a part, each listed link a page.

    Args:
        index: The text of the page.

    Returns:
        What to put at its end.
    """
    tables = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = [match["page"] for match in LINK.finditer(section)]
        if pages:
            caption = section.partition("\n")[0]
            head = [":::{toctree}", ":hidden:", f":caption: {caption}", ""]
            tables.append("\n".join([*head, *pages, ":::"]))
    return "\n\n" + "\n\n".join(tables) + "\n"
