"""Writes the pages of the reference: one for each public name, one for each group, and the index.

An extension of Sphinx, which reads the docstrings when it finds what is written here. The pages are
made at each build in ``docs/reference`` and are not kept.
"""

import inspect
import pathlib
import shutil
from collections.abc import Iterable

from sphinx.application import Sphinx

from website import tensorflow_table
from website.names import GROUPS, LAST_GROUP, PublicName, documented_names, public_names


def pages() -> dict[str, str]:
    """The text of each page of the reference, by its name without ending."""
    names = public_names()
    groups = {
        group: [name for name in names if name.group == group] for group in [*GROUPS, LAST_GROUP]
    }
    groups = {group: members for group, members in groups.items() if members}
    found = {"index": _index(groups)}
    for group, members in groups.items():
        found[_slug(group)] = _group_page(group, members)
    for name in names:
        found[name.name] = _page(name)
    found["tf"] = _tensorflow_page(names)
    found["distribute"] = _distribute_page()
    return found


def _slug(group: str) -> str:
    return group.lower().replace(",", "").replace(" ", "-")


def _short(name: str) -> str:
    return f"rx.{name.removeprefix('replicax.')}"


def _heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [".. list-table::", "   :header-rows: 1", "   :class: names", ""]
    for row in [head, *rows]:
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def _toctree(names: Iterable[str]) -> str:
    return "\n".join([".. toctree::", "   :hidden:", "", *(f"   {name}" for name in names)]) + "\n"


def _summary(name: PublicName) -> str:
    if name.is_constant:
        return f"The constant ``{name.thing!r}``."
    return " ".join(name.docstring.partition("\n\n")[0].split())


def _documented(name: PublicName) -> str:
    return f"``{name.documented[0]}``" if name.documented else ""


def _index(groups: dict[str, list[PublicName]]) -> str:
    parts = [
        _heading("Reference"),
        "Every public name, from its docstring; ``rx`` is ``import replicax as rx``. The names",
        "that ``import replicax.tf as tf`` gives are in :doc:`a list of their own <tf>`.",
        "Another has :doc:`every name of tf.distribute <distribute>`, and what is missing.\n",
    ]
    for group, members in groups.items():
        links = " · ".join(f":doc:`{_short(name.name)} <{name.name}>`" for name in members)
        parts.append(f":doc:`{_slug(group)}`\n    {links}\n")
    return "\n".join([*parts, _toctree([*map(_slug, groups), "tf", "distribute"])])


def _group_page(group: str, members: list[PublicName]) -> str:
    rows = [
        (f":doc:`{_short(name.name)} <{name.name}>`", _documented(name), _summary(name))
        for name in members
    ]
    table = _table(("name", "in TensorFlow", "what it is"), rows)
    return "\n".join([_heading(group), table, _toctree(name.name for name in members)])


def _page(name: PublicName) -> str:
    parts = [_heading(_short(name.name))]
    if name.documented:
        parts.append(f"In TensorFlow: {', '.join(f'``{each}``' for each in name.documented)}\n")
    if name.is_constant:
        parts += [f".. py:data:: {name.name}", f"   :value: {name.thing!r}", ""]
    elif inspect.isclass(name.thing):
        parts += [f".. autoclass:: {name.name}", "   :members:", "   :show-inheritance:", ""]
        if _has_values(name.thing):
            parts.insert(-1, "   :undoc-members:")
    else:
        parts += [f".. autofunction:: {name.name}", ""]
    return "\n".join(parts)


def _has_values(cls: type) -> bool:
    return hasattr(cls, "__members__")


def _tensorflow_page(names: list[PublicName]) -> str:
    """The documented names: where each is described, or what it is if it is only here."""
    own = {id(name.thing): name for name in names if not name.is_constant}
    rows = []
    for documented, thing in sorted(documented_names(), key=lambda each: each[0].lower()):
        name = own.get(id(thing))
        if name is not None:
            is_, text = f":doc:`{_short(name.name)} <{name.name}>`", _summary(name)
        elif getattr(thing, "__module__", "").startswith("replicax."):
            is_ = ""
            text = " ".join(inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0].split())
        else:
            is_, text = "", f"``{thing!r}``"
        rows.append((f"``{documented}``", is_, text))
    return "\n".join([
        _heading("Names of TensorFlow"),
        "What ``import replicax.tf as tf`` has. A name that is not here raises an error that says",
        "what to write instead. :doc:`/migrating_from_tf_distribute` has the patterns.\n",
        _table(("name", "described at", "what it is"), rows),
    ])  # fmt: skip


def _distribute_page() -> str:
    """Every name that TensorFlow has under ``tf.distribute``, and what became of it."""
    table = tensorflow_table.rows()
    return "\n".join([
        _heading("Names under tf.distribute"),
        tensorflow_table.counted(table),
        "What is missing says why. A parameter after *without* is one of TensorFlow's that is not",
        "taken here, one after *also* is taken here only.\n",
        _table(("name", "here"), [(f"``{row.name}``", row.status) for row in table]),
    ])  # fmt: skip


def _write(app: Sphinx) -> None:
    folder = pathlib.Path(app.srcdir) / "reference"
    wanted = {f"{name}.rst": text for name, text in pages().items()}
    if folder.exists() and any(path.name not in wanted for path in folder.iterdir()):
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:  # else Sphinx reads it again
            path.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
