"""Which inventories of other projects can be had, so that a build without network passes.

Sphinx takes an inventory that it cannot load for a warning, and warnings fail the build.
"""

import concurrent.futures
import urllib.request
from collections.abc import Mapping

from sphinx.util import logging

SECONDS = 5

_log = logging.getLogger(__name__)


def reachable(projects: Mapping[str, str]) -> dict[str, tuple[str, None]]:
    """The projects whose inventory answers; a note names the others.

    Args:
        projects: The address of each project's documentation.

    Returns:
        What ``intersphinx_mapping`` takes.
    """
    with concurrent.futures.ThreadPoolExecutor(len(projects)) as pool:
        found = dict(zip(projects, pool.map(_answers, projects.values()), strict=True))
    missing = [name for name, answers in found.items() if not answers]
    if missing:
        _log.info("note: no links to %s, whose inventory does not answer", ", ".join(missing))
    return {name: (projects[name], None) for name, answers in found.items() if answers}


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}objects.inv", timeout=SECONDS) as reply:
            return reply.read(11) == b"# Sphinx in"
    except (OSError, ValueError):
        return False
