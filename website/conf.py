"""The settings of Sphinx, which reads them by their names."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for website and benchmarks, which are not installed

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when replicax.integrations.keras is imported

import replicax  # noqa: E402
from website import inventories  # noqa: E402

project = "Replicax"
author = "The Replicax Authors"
version = release = replicax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "website.pages",
    "website.reference",
]

html_theme = "sphinx_book_theme"
html_title = "Replicax"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"home_page_in_toc": False, "show_toc_level": 2, "use_download_button": False}
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# A tutorial is run at each build: what it shows is what this version does.
nb_execution_mode = "force"
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"  # docstrings write names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

intersphinx_mapping = inventories.reachable(
    {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "jax": "https://docs.jax.dev/en/latest/",
        "flax": "https://flax.readthedocs.io/en/latest/",
        "optax": "https://optax.readthedocs.io/en/latest/",
        "grain": "https://google-grain.readthedocs.io/en/latest/",
        "orbax": "https://orbax.readthedocs.io/en/latest/",
        "keras": "https://keras.io/api/",
    }
)
