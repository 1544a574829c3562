"""A manifest with the right checksum and wrong contents is refused as any other damage is."""

import copy
import json
import os
import pathlib
import random
import shutil

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import files
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import (
    CheckpointMismatchError,
    CheckpointObjectError,
    DamagedCheckpointError,
)
from replicax.checkpoint.reader import CheckpointReader
from tests.tiers import examples


class Stateful:
    """An object with all that a state can hold."""

    def __init__(self):
        self.state = {"a": [1, None, 2.5], "b": (b"bytes", np.arange(3)), 3: {"deep": "text"}}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def make(value=0.0):
    w = rx.Variable(np.full((4, 4), value, np.float32))
    empty = rx.Variable(np.zeros((0, 3), np.float32))
    return Checkpoint(w=w, again=w, empty=empty, n=3, name="x", state=Stateful())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return pathlib.Path(make(2.0).save(tmp_path_factory.mktemp("saved") / "ckpt"))


@pytest.fixture
def path(saved, tmp_path):
    return pathlib.Path(shutil.copytree(saved, tmp_path / "ckpt-1"))


def content_of(path):
    return json.loads((path / files.MANIFEST).read_text())["content"]


def rewrite(path, content):
    """Writes a manifest whose checksum is right."""
    document = {"crc32": files.crc_of(content), "content": content}
    (path / files.MANIFEST).write_text(json.dumps(document))


def nested(depth):
    node = {"value": 1}
    for _ in range(depth):
        node = {"list": [node]}
    return node


WRONG = {
    "no dict": (lambda c: 3, "the manifest is 3 instead of a dict"),
    "a field missing": (lambda c: c.pop("aliases") and c, "has the fields .* instead of"),
    "a field too many": (lambda c: c | {"more": 1}, "has the fields .* instead of"),
    "version": (lambda c: c | {"version": "2"}, "version is '2'"),
    "saved": (lambda c: c | {"saved": 10**400}, "saved is 1000"),
    "data": (lambda c: c | {"data": "../other"}, r"data is '\.\./other'"),
    "records": (lambda c: c | {"records": []}, r"records is \[\]"),
    "files": (lambda c: c | {"files": {"arrays/x": [1]}}, r"files\['arrays/x'\] is \[1\]"),
    "/dev/zero": (
        lambda c: c | {"files": {"/dev/zero": [0, "00000000"]}},
        "the name of a file is '/dev/zero'",
    ),
    "a file outside": (
        lambda c: c | {"files": {"../../x": [0, "00000000"]}},
        r"the name of a file is '\.\./\.\./x'",
    ),
    "a negative size": (lambda c: c | {"files": {"x": [-1, "00000000"]}}, r"is \[-1"),
    "an alias to nothing": (lambda c: c | {"aliases": {"v": "u"}}, r"aliases\['v'\] is 'u'"),
    "a kind": (lambda c: c["records"].update(w={"kind": "x"}) or c, "is of kind 'x' instead of"),
    "no shape": (lambda c: c["records"]["w"].update(shape=4) or c, "has the shape 4"),
    "a dim": (lambda c: c["records"]["w"].update(shape=[-4, 4]) or c, r"has the shape \[-4"),
    "a size": (
        lambda c: c["records"]["empty"].update(shape=[0, 10**30]) or c,
        r"has the shape \[0, 10",
    ),
    "a dtype": (lambda c: c["records"]["w"].update(dtype="object") or c, "has the dtype 'object'"),
    "copies": (lambda c: c["records"]["w"].update(copies=0) or c, "copies is 0"),
    "no value": (
        lambda c: c["records"]["w"].update(has_value=False) or c,
        "has neither a value nor copies",
    ),
    "a value": (lambda c: c["records"]["n"].update(value=[1]) or c, r"value is \[1\]"),
    "workers": (
        lambda c: c["records"].update(state={"kind": "state", "workers": 1}) or c,
        "workers is 1",
    ),
    "a state": (
        lambda c: c["records"]["state"].update(state={"dict": [["a"]]}) or c,
        "has a part of kind 'dict'",
    ),
    "bytes": (
        lambda c: c["records"]["state"].update(state={"bytes": "\u2603"}) or c,
        "has wrong contents",
    ),
    "a deep state": (
        lambda c: c["records"]["state"].update(state=nested(300)) or c,
        "is nested more than 200 deep",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_field_is_checked(name, path):
    change, reason = WRONG[name]
    rewrite(path, change(content_of(path)))
    target = make()

    with pytest.raises(DamagedCheckpointError, match=f"is damaged: .*{reason}"):
        target.restore(path)
    with pytest.raises(DamagedCheckpointError, match=f"is damaged: .*{reason}"):
        CheckpointReader(path)

    assert target.w.numpy().max() == 0


@pytest.mark.parametrize("text", ["[" * 100_000, '{"crc32": ' + "9" * 5000 + "}", "null", "\ud800"])
def test_text_that_is_no_manifest_is_refused(text, path):
    (path / files.MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))

    with pytest.raises(DamagedCheckpointError, match="json cannot be read"):
        make().restore(path)


def places(node, at=()):
    """The way to every value in a manifest."""
    yield at
    if isinstance(node, (dict, list)):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(child, (*at, key))


REPLACEMENTS = (
    None, True, -1, 0, 3, 2**40, 10**400, 1.5, float("nan"), float("inf"), "", "x", "../x",
    "/dev/zero", "\0", "\ud800", "float32", "object", "data-0000000000000000", [], [1], [[]], {},
    {"kind": "variable"}, {"kind": []}, {"value": 1}, {"dict": [[[], 1]]}, {"array": "x"},
)  # fmt: skip


def mutated(content, chance):
    """The content with one to three values replaced, deleted or put elsewhere."""
    content = copy.deepcopy(content)
    for _ in range(chance.randint(1, 3)):
        ways = [way for way in places(content) if way]
        if not ways:
            break
        *way, last = chance.choice(ways)
        node = content
        for step in way:
            node = node[step]
        action = chance.random()
        if action < 0.2:
            del node[last]
        elif action < 0.3 and isinstance(node, dict):
            node[chance.choice(["x", "", "kind", "copies", "../x", "\ud800"])] = node[last]
        else:
            node[last] = copy.deepcopy(chance.choice(REPLACEMENTS))
    return content


def test_wrong_contents_give_one_kind_of_error_and_change_nothing(path):
    content = content_of(path)
    chance = random.Random(17)
    refused = 0
    target = make()
    for _ in range(examples(2000)):
        rewrite(path, mutated(content, chance))
        try:
            target.restore(path).expect_partial()
            target = make()
        except (DamagedCheckpointError, CheckpointMismatchError):
            refused += 1
            assert (target.w.numpy().max(), target.n, target.name) == (0, 3, "x")
            continue
    assert refused > examples(2000) // 2


def test_an_array_must_be_what_the_manifest_says(path):
    content = content_of(path)
    content["records"]["w"]["shape"] = [2, 8]
    rewrite(path, content)
    target = Checkpoint(w=rx.Variable(np.zeros((2, 8), np.float32)))

    with pytest.raises(DamagedCheckpointError, match=r"the array w has \(4, 4\) and float32; .*"):
        target.restore(path)
    with pytest.raises(DamagedCheckpointError, match=r"the array w has \(4, 4\) and float32; .*"):
        CheckpointReader(path).get_tensor("w")


def test_an_array_must_be_there(path):
    content = content_of(path)
    content["records"]["v"] = dict(content["records"]["w"])
    rewrite(path, content)

    with pytest.raises(DamagedCheckpointError, match=r"is damaged: (the array v|its arrays)"):
        make().restore(path)


# -- files -------------------------------------------------------------------------------------


def data_of(path):
    return path / content_of(path)["data"]


def in_place_of(file, what):
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_only_files_are_read(what, path):
    in_place_of(data_of(path) / files.ARRAYS / "_METADATA", what)

    with pytest.raises(DamagedCheckpointError, match=r"_METADATA is a .* instead of a file"):
        make().restore(path)


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_a_manifest_is_a_file(what, path):
    in_place_of(path / files.MANIFEST, what)

    with pytest.raises(DamagedCheckpointError, match=r"json cannot be read: .* instead of a file"):
        make().restore(path)
    assert not files.is_complete(path)


def test_a_link_beside_the_files_is_refused(path):
    (data_of(path) / files.ARRAYS / "zarr.json").symlink_to("/dev/zero")

    with pytest.raises(DamagedCheckpointError, match=r"zarr\.json is a link or a device"):
        make().restore(path)


def test_data_elsewhere_is_not_read(path, tmp_path):
    data_of(path).rename(tmp_path / "moved")
    data_of(path).symlink_to(tmp_path / "moved")

    with pytest.raises(DamagedCheckpointError, match=r"data-.* cannot be read: .* is no folder"):
        make().restore(path)


def test_a_huge_manifest_is_not_read(path):
    with (path / files.MANIFEST).open("w") as file:
        file.truncate(1 << 40)

    with pytest.raises(DamagedCheckpointError, match=r"has 1099511627776 bytes; \d+ are too many"):
        make().restore(path)


def test_a_state_that_contains_itself_is_refused(tmp_path):
    owner = Stateful()
    owner.state["self"] = owner.state

    with pytest.raises(CheckpointObjectError, match="nested more than 200 deep at 'state/self"):
        Checkpoint(state=owner).write(tmp_path / "c")


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "best"
    make(1.0).write(path)
    newer = make(2.0)
    real = files.verify

    def verify(where, manifest):
        monkeypatch.setattr(files, "verify", real)
        newer.write(path)
        real(where, manifest)

    monkeypatch.setattr(files, "verify", verify)
    target = make()
    target.read(path).assert_consumed()

    assert target.w.numpy().min() == 2
