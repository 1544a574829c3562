"""Whatever happened to the files of a saved model, loading it is one error that names them."""

import json
import pathlib
import random
import shutil

import pytest

import replicax as rx
from replicax.checkpoint import files
from replicax.saved_model import description
from replicax.saved_model.loading import SavedFiles

Error = rx.saved_model.SavedModelError
NUM_DAMAGED = {True: 200, False: 30}


def flip(file, rng):
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    file.write_bytes(data)


def cut(file, rng):
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data))])


def lose(file, rng):
    file.unlink()


def become_noise(file, rng):
    file.write_bytes(rng.randbytes(rng.randrange(500)))


def become_a_folder(file, rng):
    file.unlink()
    file.mkdir()


def become_a_link(file, rng):
    elsewhere = file.parents[len(file.parents) - 2] / "nowhere"
    file.unlink()
    file.symlink_to(elsewhere)


DAMAGE = [flip, flip, cut, cut, lose, become_noise, become_a_folder, become_a_link]


def test_damaged_or_cut_files_are_one_kind_of_error_that_names_the_path(saved, tmp_path, is_full):
    originals = [p for p in sorted(pathlib.Path(saved.path).rglob("*")) if p.is_file()]
    originals = [p for p in originals if p.stat().st_size]
    for number in range(NUM_DAMAGED[is_full]):
        rng = random.Random(number)
        path = tmp_path / "model"
        shutil.copytree(saved.path, path)
        file = path / originals[number % len(originals)].relative_to(saved.path)
        damage = rng.choice(DAMAGE)
        damage(file, rng)
        with pytest.raises(Error, match=str(path)) as info:
            SavedFiles(path).programs()
        is_manifest = file.name == files.MANIFEST
        assert is_manifest or file.name in str(info.value), (damage, file)
        shutil.rmtree(path)


def with_right_checksums(path):
    """Lets the manifest say of every file what it is now, as somebody would who means harm."""
    manifest = path / files.MANIFEST
    content = json.loads(manifest.read_text())["content"]
    data = path / content["data"]
    for name in content["files"]:
        file = data / name
        content["files"][name] = [file.stat().st_size, files.checksum_of(file)]
    manifest.write_text(json.dumps({"crc32": files.crc_of(content), "content": content}))


@pytest.fixture
def copy(saved, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(saved.path, path)
    return path


def in_data(path, name):
    (data,) = path.glob("data-*")
    return data / name


def change(says, number):
    """One field of the description, replaced by something else."""
    rng = random.Random(number)
    holders = [says]
    while holders:
        place = rng.choice(holders)
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and rng.random() < 0.8:
            holders = [place[key]]
            continue
        old = place[key]
        options = [None, 7, -1, "x", [], {}, [[]], {"a": 1}, 1e400, "../../x"]
        place[key] = rng.choice([o for o in options if o != old])
        return


@pytest.mark.parametrize("number", range(40))
def test_a_description_that_makes_no_sense_is_refused_although_its_checksum_is_right(number, copy):
    file = in_data(copy, description.FILE)
    says = json.loads(file.read_text())
    before = json.dumps(says)
    change(says, number)
    file.write_text(json.dumps(says))
    with_right_checksums(copy)
    try:
        model = rx.saved_model.load(copy)
    except Error as error:
        assert str(copy) in str(error)
    else:  # a name, or whether a variable is trainable, may be anything of its kind
        assert json.dumps(says) != before
        assert sorted(model.functions) == ["loss", "predict"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_cut_program_is_refused_although_its_checksum_is_right(share, copy):
    file = in_data(copy, description.program_file("predict"))
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with_right_checksums(copy)
    with pytest.raises(Error, match=r"functions/predict\.jax_export: this release of JAX cannot"):
        rx.saved_model.load(copy)


def test_the_program_of_another_function_is_refused(copy):
    other = in_data(copy, description.program_file("loss")).read_bytes()
    in_data(copy, description.program_file("predict")).write_bytes(other)
    with_right_checksums(copy)
    with pytest.raises(Error, match=r"functions/predict\.jax_export: it takes .* instead of"):
        rx.saved_model.load(copy)


def test_what_is_no_saved_model_is_refused(tmp_path):
    with pytest.raises(Error, match=f"there is no checkpoint {tmp_path}/none"):
        rx.saved_model.load(tmp_path / "none")
    with pytest.raises(Error, match=f"{tmp_path} is damaged: replicax.json is missing"):
        rx.saved_model.load(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(Error, match="it is a file, a device or a link"):
        rx.saved_model.load(tmp_path / "file")
    path = rx.Checkpoint(w=rx.Variable(1.0)).write(tmp_path / "checkpoint")
    with pytest.raises(Error, match="is a checkpoint without functions, and no saved model"):
        rx.saved_model.load(path)


def test_a_saved_model_of_a_newer_format_says_so(copy):
    file = in_data(copy, description.FILE)
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 9}))
    with_right_checksums(copy)
    with pytest.raises(Error, match="it has format 9; this release reads format 1"):
        rx.saved_model.load(copy)
