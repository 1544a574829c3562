"""Two classes do not share a name, and modules do not import each other in a circle."""

import ast
import collections

from tests.architecture.source_tree import (
    display_name,
    imported_names,
    imports,
    module_name,
    module_names,
    src_files,
    tree,
)


def test_no_two_classes_share_a_name():
    places = collections.defaultdict(list)
    for path in src_files():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{display_name(path)}:{node.lineno}")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert not shared, "a reader takes them for one: give each its own name"


def test_no_modules_import_each_other_in_a_circle():
    modules = module_names()
    needs = {}
    for path in src_files():
        # What is imported for type checkers only is no need of the module.
        own = [node for node in tree(path).body if not isinstance(node, ast.If)]
        names = [name for node in own for s in imports(node) for name in imported_names(s)]
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        needs[module_name(path)] = found & modules
    while True:  # takes away what needs nothing that is left
        free = {module for module, found in needs.items() if not found & needs.keys()}
        if not free:
            break
        needs = {module: found for module, found in needs.items() if module not in free}
    assert not needs, "these, or some of them, need each other"
