"""CelebA: a folder in its authors' format gives LEAF's persons, and each kind of damage has its own error."""

import io

import numpy as np
import pytest
from PIL import Image

from jaxfl import models
from jaxfl.data.sources import celeba
from tests.messages import mentions

NAMES = [f"{number:06d}.jpg" for number in range(1, 13)]
KNOWN = ["5_o_Clock_Shadow", *(f"Attribute_{number}" for number in range(38)), "Smiling"]
# Interleaved, as in the true file: 7 has five images, 2880 four, 11 two, 3 one.
PERSONS = [7, 2880, 7, 11, 2880, 7, 3, 2880, 7, 2880, 11, 7]
SMILES = [1, -1, -1, 1, 1, -1, 1, -1, 1, 1, -1, -1]
SHADOWS = [-1, 1] * 6
RNG = np.random.Generator(np.random.PCG64(0))
COLOURS = RNG.integers(0, 256, (12, 3), np.uint8)


def jpeg_bytes(pixels, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", **{"quality": 95, **options})
    return stream.getvalue()


def attribute_lines():
    values = np.ones((12, 40), int)
    values[:, 0], values[:, -1] = SHADOWS, SMILES
    rows = ["  ".join([name, *(f"{value:2d}" for value in row)]) for name, row in zip(NAMES, values, strict=True)]
    return ["12", " ".join(KNOWN) + " ", *rows]


def identity_lines():
    return [f"{name} {person}" for name, person in zip(NAMES, PERSONS, strict=True)]


def write(folder, inner=("", "", "")):
    texts = ((celeba.ATTRIBUTES, attribute_lines()), (celeba.IDENTITIES, identity_lines()))
    for (name, lines), place in zip(texts, inner, strict=False):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / name).write_text("\n".join(lines) + "\n")
    images = folder / inner[2] / celeba.IMAGES
    images.mkdir(parents=True)
    for name, colour in zip(NAMES, COLOURS, strict=True):
        (images / name).write_bytes(jpeg_bytes(np.tile(colour, (27, 22, 1))))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def test_persons_with_enough_images_are_the_clients(folder):
    source = celeba.load(folder, min_images=4)
    assert source.clients.tolist() == [7, 2880, 7, 2880, 7, 2880, 7, 2880, 7]
    rows = [row for row, person in enumerate(PERSONS) if person in (7, 2880)]
    assert source.labels.tolist() == [int(SMILES[row] > 0) for row in rows]
    assert source.inputs.shape == (9, 84, 84, 3) and source.inputs.dtype == np.uint8
    # Each image has one colour, so a row that belongs to another image shows; JPEG itself is off by a little.
    np.testing.assert_allclose(source.inputs.mean((1, 2)), COLOURS[rows], atol=3)
    assert (source.name, source.num_classes, source.mean, source.std) == ("celeba", 2, 0.0, 1.0)
    assert source.class_names == ("not smiling", "smiling") and source.test_inputs is None


@pytest.mark.parametrize(("min_images", "persons"), [(1, {3, 7, 11, 2880}), (2, {7, 11, 2880}), (5, {7})])
def test_min_images_counts_each_persons_images(folder, min_images, persons):
    source = celeba.load(folder, min_images=min_images, size=2)
    assert set(source.clients.tolist()) == persons
    assert len(source.inputs) == sum(person in persons for person in PERSONS)


def test_leaf_takes_five_images_and_smiling(folder):
    default, said = celeba.load(folder), celeba.load(folder, target="Smiling", min_images=5, size=84)
    assert set(default.clients.tolist()) == {7} and default.labels.tolist() == said.labels.tolist()
    np.testing.assert_array_equal(default.inputs, said.inputs)


def test_another_target(folder):
    source = celeba.load(folder, target="5_o_Clock_Shadow", min_images=1, size=2)
    assert source.labels.tolist() == [0, 1] * 6
    assert source.class_names == ("not 5 o clock shadow", "5 o clock shadow")


def test_images_are_scaled_whole_and_upright(folder):
    """Not cropped, not turned, rows before columns: four colours stay in their quarters."""
    quarters = np.zeros((218, 178, 3), np.uint8)
    quarters[:109, :89], quarters[:109, 89:], quarters[109:, :89] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    (folder / celeba.IMAGES / NAMES[0]).write_bytes(jpeg_bytes(quarters, subsampling=0))
    image = celeba.load(folder, size=10).inputs[0]
    corners = {(1, 1): (255, 0, 0), (1, 8): (0, 255, 0), (8, 1): (0, 0, 255), (8, 8): (0, 0, 0)}
    for place, colour in corners.items():
        np.testing.assert_allclose(image[place].astype(int), colour, atol=4)


def test_grey_images_become_colour(folder):
    (folder / celeba.IMAGES / NAMES[0]).write_bytes(jpeg_bytes(np.full((27, 22), 77, np.uint8)))
    np.testing.assert_allclose(celeba.load(folder, size=3).inputs[0].astype(int), 77, atol=1)


@pytest.mark.parametrize(
    "inner",
    [("", "", ""), ("Anno", "Anno", "Img"), ("Anno", "", "Img"), ("Anno", "Img", "Img"), ("", "", celeba.IMAGES)],
)
@pytest.mark.parametrize("top", ["", "celeba"])
def test_variants_of_the_folder(tmp_path, top, inner):
    write(tmp_path / top, inner)
    assert len(celeba.load(tmp_path, size=2).inputs) == 5
    assert celeba.ENTRY.find(tmp_path) == tmp_path / top


@pytest.mark.parametrize("name", [celeba.ATTRIBUTES, celeba.IDENTITIES, celeba.IMAGES])
def test_missing_file_says_which_where_and_how(folder, name):
    (folder / name).rename(folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match=mentions("celeba", name, "data_dir")):
        celeba.load(folder)
    assert celeba.ENTRY.find(folder) is None


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=mentions("celeba", "list_attr_celeba.txt", "img_align_celeba.zip")):
        celeba.load(tmp_path)


def undecodable(*_):
    raise AssertionError("decoded an image before the files were checked")


def test_missing_image(folder, monkeypatch):
    for name in NAMES[2:6]:
        (folder / celeba.IMAGES / name).unlink()
    monkeypatch.setattr(celeba, "_decode_images", undecodable)
    # 7 has images 3 and 6 of these; the others belong to persons with too few.
    with pytest.raises(FileNotFoundError, match=mentions("2 of 5", "000003.jpg", "img_align_celeba")):
        celeba.load(folder)


@pytest.mark.parametrize("content", [b"", b"<!doctype html>", jpeg_bytes(np.zeros((27, 22, 3), np.uint8))[:-40]])
def test_damaged_image(folder, content):
    (folder / celeba.IMAGES / NAMES[2]).write_bytes(content)
    with pytest.raises(ValueError, match=mentions("000003.jpg", "JPEG", "img_align_celeba.zip")):
        celeba.load(folder)


def test_first_damaged_image_ends_the_reading(folder, monkeypatch):
    """Nobody waits minutes for an error: blocks that were not begun are not read."""
    monkeypatch.setattr(celeba, "BLOCK", 1)
    names = [NAMES[1]] + [NAMES[0]] * 3000
    (folder / celeba.IMAGES / NAMES[1]).write_bytes(b"no image")
    opened = []
    true_open = Image.open
    monkeypatch.setattr(Image, "open", lambda path, formats: opened.append(path) or true_open(path, formats=formats))
    with pytest.raises(ValueError, match=mentions("000002.jpg", "JPEG")):
        celeba._decode_images(folder / celeba.IMAGES, names, 84)
    assert len(opened) < 1500


def changed(lines, number, line):
    return [*lines[: number - 1], *([] if line is None else [line]), *lines[number:]]


ROW_3 = attribute_lines()[2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], ("list_attr_celeba.txt", "number of images", "''")),
        (attribute_lines()[1:], ("list_attr_celeba.txt", "5_o_Clock_Shadow")),
        (["12"], ("list_attr_celeba.txt", "truncated", "line 2")),
        (changed(attribute_lines(), 1, "13"), ("line 1", 13, 12)),
        (attribute_lines()[:-1], ("line 1", 12, 11)),
        (["0", " ".join(KNOWN)], ("list_attr_celeba.txt", "0 images")),
        (changed(attribute_lines(), 3, ROW_3[:-4]), ("line 3", "40 words")),
        (changed(attribute_lines(), 3, ROW_3 + " 1"), ("line 3", "42 words")),
        (changed(attribute_lines(), 3, ROW_3[:-2] + " 0"), ("line 3", "Smiling", 0)),
        (changed(attribute_lines(), 4, ROW_3), ("line 4", "000001.jpg")),
        (
            changed(changed(attribute_lines(), 14, None), 1, "11"),
            ("list_attr_celeba.txt", "identity_CelebA.txt", "000012.jpg"),
        ),
    ],
)
def test_damaged_attributes(folder, lines, message, monkeypatch):
    monkeypatch.setattr(celeba, "_decode_images", undecodable)
    (folder / celeba.ATTRIBUTES).write_text("\n".join(lines))
    with pytest.raises(ValueError, match=mentions(*message)):
        celeba.load(folder)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], ("identity_CelebA.txt", "list_attr_celeba.txt", "12 of 12", "000001.jpg")),
        (identity_lines()[:-2], ("list_attr_celeba.txt", "2 of 12", "000011.jpg")),
        (changed(identity_lines(), 12, "000012.jpg"), ("line 12", "000012.jpg")),
        (changed(identity_lines(), 2, "000002.jpg -4"), ("line 2", "000002.jpg -4")),
        (
            changed(identity_lines(), 2, "000002.jpg " + "9" * 30),
            ("line 2", "000002.jpg 99999999999999999999999999999"),
        ),
        (changed(identity_lines(), 2, "000001.jpg 4"), ("line 2", "000001.jpg")),
    ],
)
def test_damaged_identities(folder, lines, message, monkeypatch):
    monkeypatch.setattr(celeba, "_decode_images", undecodable)
    (folder / celeba.IDENTITIES).write_text("\n".join(lines))
    with pytest.raises(ValueError, match=mentions(*message)):
        celeba.load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "smiling"},
            ("target", "smiling", "Smiling", "5_o_Clock_Shadow"),
        ),
        ({"target": "Smile"}, ("Smile", "Smiling")),
        ({"target": "xyz"}, ("target", "xyz")),
        ({"min_images": 6}, ("min_images", 5, 6)),
        ({"min_images": 0}, ("min_images", 0)),
        ({"size": 0}, ("size", 0)),
        ({"size": 8.5}, ("size", 8.5)),
    ],
)
def test_options_that_cannot_be(folder, options, message, monkeypatch):
    monkeypatch.setattr(celeba, "_decode_images", undecodable)
    with pytest.raises(ValueError, match=mentions(*message)):
        celeba.load(folder, **options)


def test_the_row_names_a_model_that_exists():
    name, options = celeba.ENTRY.model
    assert isinstance(models.create(name, 2, **options), models.LeafCelebaCNN)
    assert not celeba.ENTRY.remotes  # its hosts want a browser
