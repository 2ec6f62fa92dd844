"""Shifts of images: what each client sees, restated step by step in NumPy, and which rows are copies of which."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from PIL import Image
from scipy import ndimage

import jaxfl
from jaxfl import data
from jaxfl.data import digest, divide, images, shift, stored
from jaxfl.data.views import image_shifts
from jaxfl.data.views.copies import without_copies
from jaxfl.data.views.corruptions import corrupt
from jaxfl.data.windows import Windows
from tests.messages import mentions
from tests.problems import batch_of

# products of few clients, in which some shifts have none
pytestmark = pytest.mark.filterwarnings("ignore:no client of")

RNG = np.random.Generator(np.random.PCG64(6))


def source(rows=60, test_rows=12, shape=(8, 8), high=256):
    """Random images, mostly dark, so that strokes and colours have something to change."""
    pixels = RNG.integers(0, high, (rows + test_rows, *shape)) * (RNG.random((rows + test_rows, *shape)) < 0.4)
    pixels = pixels.astype(np.uint8)
    pixels[0] = high - 1
    labels = np.arange(rows + test_rows) % 5
    test = (pixels[rows:], labels[rows:]) if test_rows else (None, None)
    return data.Source("made", pixels[:rows], labels[:rows], 5, *test)


def rows_of(split, client):
    return np.asarray(split.rows[split.start[client] : split.start[client] + split.size[client]])


def seen(fed, split, client):
    """Returns the client's images as it sees them, in the units of the pool, and their rows in the pool of before."""
    count = int(getattr(fed, split).size[client])
    plain = dataclasses.replace(fed, mean=np.float32(0), std=np.float32(1))
    rows = rows_of(getattr(fed, split), client)
    x = np.asarray(batch_of(jax.device_put(plain), split, np.int32(client), np.arange(count)).x)
    return x, rows if fed.origin is None else fed.origin[rows]


def in_colour(pixels, channel, ink=False, white=255):
    """Returns images with three channels, of which one (0 to 2, None for none) is white, or left alone."""
    full = np.stack([pixels] * 3, -1) if pixels.ndim == 3 else pixels.copy()
    for other in range(3):
        if channel is not None and (other != channel) == ink:
            full[..., other] = 0 if ink else white
    return full


def check_every_client(fed, pool, expected):
    """Asserts that each client sees `expected(client, images, rows)` of images of the pool."""
    for client in range(fed.num_clients):
        for split in fed.splits:
            x, rows = seen(fed, split, client)
            np.testing.assert_array_equal(x, expected(client, pool[rows], rows))


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (6, 8, 3)])
@pytest.mark.parametrize("tint", ["channel", "ink"])
def test_coloured_clients_see_a_channel_white_or_alone(shape, tint):
    origin = source(shape=shape)
    fed = data.coloured(origin, num_clients=8, rows_per_client=10, tint=tint, colours="none,blue,red,green")
    assert fed.input_shape == (*shape[:2], 3) and fed.inputs.shape[1:] == shape and fed.origin is None
    assert fed.group_names == ("no colour", "blue", "red", "green")

    def expected(client, pixels, rows):
        pixels = pixels[..., 0] if pixels.shape[3:] == (1,) else pixels
        return in_colour(pixels, (None, 2, 0, 1)[client // 2], tint == "ink")

    check_every_client(fed, origin.pool[0], expected)


def test_corrupted_clients_see_copies_with_the_noise_of_their_rows():
    origin = source()
    words = "none,gaussian_noise,jpeg,invert,gaussian_noise"
    fed = data.corrupted(origin, num_clients=10, rows_per_client=10, corruptions=words, level=(1, 2, 3, 1, 5), seed=4)
    assert fed.group_names == ("clean", "gaussian_noise 2", "jpeg 3", "invert", "gaussian_noise 5")

    def expected(client, pixels, rows):
        kind = words.split(",")[client // 2]
        if kind in ("none", "invert"):
            return pixels if kind == "none" else 255 - pixels
        return corrupt(pixels, kind, (1, 2, 3, 1, 5)[client // 2], seed=4, rows=rows)

    check_every_client(fed, origin.pool[0], expected)
    # 20 training rows of each of three groups, and one copy of the 12 test rows that its clients share
    assert len(fed.inputs) == 72 + 3 * (20 + 12) == len(fed.labels)
    np.testing.assert_array_equal(fed.labels, origin.pool[1][fed.origin])
    again = data.corrupted(origin, num_clients=10, rows_per_client=10, corruptions=words, level=(1, 2, 3, 1, 5), seed=5)
    assert not np.array_equal(again.inputs, fed.inputs)


def test_levels_are_drawn_for_each_client_and_scales_differ():
    fed = data.corrupted(source(), num_clients=40, rows_per_client=2, corruptions="contrast,pixelate", level="2-4")
    kinds = {
        name: {int(code) for code in fed.corruption[fed.group == group]} for group, name in enumerate(fed.group_names)
    }
    assert kinds == {"contrast 2-4": {72, 73, 74}, "pixelate 2-4": {102, 103, 104}}
    large = data.corrupted(source(), num_clients=2, corruptions=["contrast"], level=4, scale="imagenet")
    x, rows = seen(large, "test", 1)
    np.testing.assert_array_equal(x, corrupt(large.inputs[rows], "contrast", 4, scale="imagenet"))


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_thickened_clients_see_minima_and_maxima(shape):
    origin = source(shape=shape)
    fed = data.thickened(origin, num_clients=6, rows_per_client=10)
    size = (1, 3, 3, 1)[: 1 + len(shape)]
    changes = (lambda x: x, lambda x: ndimage.grey_erosion(x, size), lambda x: ndimage.grey_dilation(x, size))
    check_every_client(fed, origin.pool[0], lambda client, pixels, rows: changes[client // 2](pixels))


@pytest.mark.parametrize("each_client", [False, True])
@pytest.mark.parametrize("of", ["rotated", "coloured"])
def test_classwise_clients_see_some_classes_rotated_or_coloured(of, each_client):
    origin = source()
    fed = data.classwise(origin, num_clients=8, rows_per_client=6, of=of, classes=2, each_client=each_client, seed=3)
    table = fed.class_rotation if of == "rotated" else fed.class_colour
    chosen = np.flatnonzero(table.any(0))
    assert table.shape == (8, 5) and len(chosen) == 2 and table.max() <= 3
    if each_client:
        assert fed.group is None and len(np.unique(table[:, chosen], axis=0)) > 4
    else:
        np.testing.assert_array_equal(table[:, chosen], np.repeat(np.arange(4), 2)[:, None] * np.ones((1, 2), int))

    def expected(client, pixels, rows):
        numbers = table[client, origin.pool[1][rows]]
        pairs = zip(pixels, numbers.tolist(), strict=True)
        if of == "rotated":
            return np.stack([np.rot90(image, number) for image, number in pairs])
        return np.stack([in_colour(image[None], number - 1 if number else None)[0] for image, number in pairs])

    check_every_client(fed, origin.pool[0], expected)


def test_classes_are_those_of_the_pool_whatever_their_labels():
    fed = shift.relabel(data.classwise(source(), num_clients=4, classes=[2], num_groups=2), shifts=(1,))
    plain = dataclasses.replace(fed, mean=None, std=None)
    rows = rows_of(fed.test, 2)
    batch = batch_of(jax.device_put(plain), "test", np.int32(2), np.arange(len(rows)))
    np.testing.assert_array_equal(batch.y, (fed.labels[rows] + 1) % 5)
    for image, y, row in zip(np.asarray(batch.x), np.asarray(batch.y), rows, strict=True):
        np.testing.assert_array_equal(image, np.rot90(fed.inputs[row], 1 if y == 3 else 0))


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["rotated+thickened+coloured+corrupted", "corrupted+coloured+thickened+rotated"])
@pytest.mark.parametrize("angles", [(90, 180), (0, 30)])
def test_views_have_one_order_whatever_the_order_of_the_name(name, angles, monkeypatch):
    """A class's rotation, the client's, strokes, colours, corruption: each step in NumPy."""
    origin = source()
    fed = data.classwise(origin, num_clients=16, classes=[1, 2], num_groups=2)
    steps = {
        "rotated": lambda fed: shift.rotate(fed, angles=angles),
        "thickened": lambda fed: image_shifts.redraw_images(fed, strokes="none,dilate"),
        "coloured": lambda fed: image_shifts.colour_images(fed, colours="none,green"),
        "corrupted": lambda fed: image_shifts.corrupt_images(fed, corruptions="none,contrast", seed=1),
    }
    for word in name.split("+"):
        fed = steps[word](fed)
    assert len(fed.group_names) == 16 and len(np.unique(fed.group)) == 16  # 32 combinations have no clients for all
    for client in range(16):
        x, rows = seen(fed, "test", client)
        classes, pixels = origin.pool[1][rows], origin.pool[0][rows].astype(np.float32)
        turned = fed.class_rotation[client, classes]
        pixels = np.stack([np.rot90(image, turn) for image, turn in zip(pixels, turned, strict=True)])
        angle = 90 * float(fed.rotation[client]) + (0 if fed.tilt is None else float(fed.tilt[client]))
        if angle == 30:
            pixels = np.asarray(images.rotate_by_degrees(pixels, np.float32(30)))  # by SciPy in test_images
        else:
            pixels = np.rot90(pixels, round(angle / 90), axes=(1, 2))
        if fed.stroke[client]:
            pixels = ndimage.grey_dilation(pixels, (1, 3, 3))
        pixels = in_colour(pixels, 1 if fed.colour[client] else None)
        if fed.corruption[client]:
            mean = pixels.astype(np.float64).mean((1, 2), keepdims=True)
            pixels = (pixels - mean) * 0.4 + mean
        if fed.stroke[client] or fed.corruption[client]:
            pixels = np.floor(pixels + 1e-4)  # copies are whole grey levels
        np.testing.assert_allclose(x, pixels, atol=1 if angle == 30 else 1e-4)


def test_copies_are_shared_and_gone_again_without_a_trace():
    origin = source()
    plain = data.rotated(origin, num_clients=8, rows_per_client=15)
    fed = image_shifts.corrupt_images(plain, corruptions="impulse_noise", seed=2)  # all clients, in four rotations
    assert len(fed.inputs) == 72 + 4 * (30 + 12)
    back = image_shifts.with_copies(dataclasses.replace(fed, corruption=None))
    for one, other in zip(jax.tree.leaves(back.train), jax.tree.leaves(plain.train), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(back.inputs, plain.inputs)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_nobody_trains_on_an_image_that_somebody_validates_or_tests_on(shape):
    fed = data.corrupted(source(shape=shape), num_clients=8, rows_per_client=20)
    fed = divide.set_apart(image_shifts.redraw_images(fed, strokes="none,erode"), 0.3)
    train, test, validation = (
        set(np.concatenate([seen(fed, split, client)[1] for client in range(8)]).tolist()) for split in fed.splits
    )
    assert not train & test and not train & validation and validation


@pytest.mark.parametrize(
    ("shift", "shape"), [(None, (8, 8)), ("coloured", (8, 8)), ("coloured", (8, 8, 1)), ("classwise", (8, 8))]
)
def test_what_is_saved_comes_back(tmp_path, shift, shape):
    made = source(shape=shape)
    fed = data.corrupted(made, num_clients=4, rows_per_client=10)
    if shift is not None:  # with colours, copies give the pool three channels
        fed = data.SHIFTS[shift](fed, seed=1)
    assert fed.inputs.shape[1:] == ((8, 8, 3) if shift == "coloured" else shape)
    np.testing.assert_array_equal(without_copies(fed).inputs, made.pool[0])
    stored.save(fed, tmp_path / "a")
    again = stored.load(tmp_path / "a")
    assert jax.tree.structure(again) == jax.tree.structure(fed)
    for wanted, got in zip(jax.tree.leaves(fed), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for name, code in (("corruption", 79), ("stroke", 3), ("colour", 7)):
        wrong = dataclasses.replace(fed, **{name: np.full(4, code, np.int32)})
        stored.save(wrong, tmp_path / name)
        with pytest.raises(ValueError, match=mentions(name, code)):
            stored.load(tmp_path / name)


def test_digests_are_of_rows_and_views_and_not_of_copies(tmp_path):
    made = source()
    options = [{}, {"level": 4}, {"scale": "imagenet"}, {"corruptions": "none,gaussian_noise,gaussian_blur,jpeg"}]
    feds = [data.corrupted(made, num_clients=4, rows_per_client=10, **one) for one in options]
    for tint in ("channel", "ink"):
        feds.append(image_shifts.colour_images(feds[0], colours="red", tint=tint))
    feds.append(image_shifts.redraw_images(feds[0], strokes="dilate"))
    feds += [image_shifts.transform_classes(feds[0], of=of, each_client=True) for of in ("rotated", "coloured")]
    assert len({digest.digest(fed) for fed in feds}) == len(feds)
    bare = map(without_copies, feds)  # also of one whose copies have three channels
    pool = [digest._pool_digest(fed, with_inputs=True) for fed in bare]
    assert len(set(pool)) == 1
    for number, fed in enumerate(feds[-5:]):
        stored.save(fed, tmp_path / str(number))
        again = stored.load(tmp_path / str(number))
        assert digest.digest(again) == digest.digest(fed) and digest.pixel_digest(again) == digest.pixel_digest(fed)
    noise = [data.corrupted(made, num_clients=4, corruptions=["shot_noise"], seed=seed) for seed in (1, 1, 2)]
    first, same, other = map(digest.pixel_digest, noise)
    assert first == same != other


def test_causes_are_named():
    fed = data.load("corrupted+coloured+classwise-digits", num_clients=64, rows_per_client=20, level=5)
    assert sorted(fed.causes) == ["classwise", "colour", "corruption"]
    assert {name: len(known) for name, known in fed.cause_names} == {"classwise": 4, "colour": 4, "corruption": 4}
    assert len(fed.group_names) == 64
    truth = data.load("corrupted+shifted-digits", num_clients=16, rows_per_client=20, truth="labels")
    assert truth.group_names == ("shift 0", "shift 3", "shift 6", "shift 9")


def test_white_is_the_brightest_pixel_of_sixteen_grey_levels():
    fed = data.load("coloured-digits", num_clients=4, rows_per_client=20)
    assert fed.white == 16
    x, _ = seen(fed, "train", 1)
    assert (x[..., 0] == 16).all() and x.max() == 16
    inverted = data.load("corrupted-digits", num_clients=4, rows_per_client=20, corruptions="none,invert")
    x, rows = seen(inverted, "train", 3)
    np.testing.assert_array_equal(x, 16 - inverted.inputs[rows])


def test_drift_exchanges_views_with_the_rows():
    fed = data.load("corrupted+coloured-digits", num_clients=16, rows_per_client=20, drift="swap", drift_round=3)
    before, after = fed.phases
    changed = np.flatnonzero(np.asarray(before.group) != np.asarray(after.group))
    assert len(changed) >= 6
    for client in changed:
        x, rows = seen(after, "train", client)
        givers = [other for other in range(16) if np.array_equal(seen(before, "train", other)[1], rows)]
        assert givers and any(np.array_equal(seen(before, "train", other)[0], x) for other in givers)
    turned = data.load("coloured-digits", num_clients=8, rows_per_client=20, drift="rotate", drift_round=3)
    for client in range(8):
        one, other = (seen(phase, "test", client)[0] for phase in turned.phases)
        np.testing.assert_array_equal(other, np.rot90(one, axes=(1, 2)))


def test_windows_have_the_copies_of_their_clients():
    fed = data.corrupted(source(), num_clients=8, rows_per_client=10)
    window = Windows(fed.in_programs(), clients=3, splits=("train", "test")).of([1, 4, 7])
    for client in (1, 4, 7):
        for split in ("train", "test"):
            full, small = (
                batch_of(each, split, np.int32(client), np.arange(10)) for each in (jax.device_put(fed), window)
            )
            np.testing.assert_array_equal(full.x, small.x)
            np.testing.assert_array_equal(full.y, small.y)


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["coloured-digits", "corrupted+classwise-digits", "thickened-digits"])
def test_a_run_trains_and_predicts(name):
    fed = data.load(name, num_clients=12, rows_per_client=40, held_out=0.25)
    task = jaxfl.classification(jaxfl.models.MLP(hidden=(8,), num_classes=10), fed)
    result = jaxfl.run(jaxfl.methods.fedavg(task, optax.sgd(0.1)), fed, rounds=2, seed=0, eval_every=2)
    assert np.isfinite(result.history.to_pandas()["loss"].iloc[-1])
    assert result.predict(fed.inputs[:3], client=0).shape == (3, 10)


@pytest.mark.parametrize("shape", [(2, 9, 9), (2, 8, 8), (2, 9, 9, 3)])
def test_the_nearest_pixel_is_that_of_pillow(shape):
    x = RNG.integers(1, 256, shape, np.uint8)
    for degrees in (15, 195, 33, -40):
        found = np.asarray(images.rotate_to_nearest(x, np.float32(degrees)))
        assert found.dtype == np.uint8
        for image, result in zip(x, found, strict=True):
            expected = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST))
            assert (expected == 0).any() and (result == expected).mean() > 0.97  # Pillow's places have 16 binary digits


def test_rotated_may_take_the_nearest_pixel():
    origin = source()
    near = data.rotated(origin, num_clients=4, rows_per_client=10, angles=(0, 90, 15, 105), resample="nearest")
    assert near.nearest and near.tilt.tolist() == [0, 0, 15, 15]
    for client in range(4):
        x, rows = seen(near, "train", client)
        turned = np.rot90(origin.pool[0][rows], client % 2, axes=(1, 2))
        np.testing.assert_array_equal(x, images.rotate_to_nearest(turned, np.float32(15)) if client > 1 else turned)
    assert not data.rotated(origin, num_clients=4, rows_per_client=10, resample="nearest").nearest  # no angle between


FLAT = data.Source("flat", RNG.standard_normal((20, 64)).astype(np.float32), np.arange(20) % 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.coloured(source(), num_clients=4, colours="red,pink"), ("colours", "pink", "green")),
        (lambda: data.coloured(source(), num_clients=4, colours="red,red"), ("colours", "red")),
        (lambda: data.coloured(source(), num_clients=4, tint="paper"), ("tint", "paper", "ink")),
        (lambda: data.coloured(FLAT, num_clients=4), ("coloured", "(20, 64)")),
        (lambda: data.corrupted(FLAT, num_clients=4), ("corrupted", "float32", "(20, 64)")),
        (lambda: data.corrupted(source(), num_clients=4, corruptions="none,fog"), ("corruptions", "fog")),
        (lambda: data.corrupted(source(), num_clients=4, corruptions="none,none"), ("corruptions", "clean")),
        (lambda: data.corrupted(source(), num_clients=4, level=6), ("level", 6, "1-5")),
        (lambda: data.corrupted(source(), num_clients=4, level="5-1"), ("level", "5-1")),
        (lambda: data.corrupted(source(), num_clients=4, level=(1, 2)), ("level", "(1, 2)", 4)),
        (lambda: data.corrupted(source(), num_clients=4, scale="mnist"), ("scale", "mnist")),
        (lambda: data.corrupted(source(), num_clients=6), ("num_clients", 6, 4, 8)),
        (lambda: data.thickened(FLAT, num_clients=4), ("thickened", "(20, 64)")),
        (lambda: data.thickened(source(), num_clients=3, strokes="thin"), ("strokes", "thin", "erode")),
        (lambda: data.classwise(source(), num_clients=4, classes=6), ("classes", 6, 5)),
        (lambda: data.classwise(source(), num_clients=4, classes=(1, 5)), ("classes", "(1, 5)", 4)),
        (lambda: data.classwise(source(), num_clients=4, classes=(1, 1)), ("classes", "(1, 1)")),
        (lambda: data.classwise(source(), num_clients=4, num_groups=5), ("num_groups", 5, 4)),
        (lambda: data.classwise(source(shape=(6, 8)), num_clients=4), ("rotation", "(60, 6, 8)")),
        (lambda: data.classwise(FLAT, num_clients=4, of="coloured"), ("classwise", "(20, 64)")),
        (lambda: data.rotated(source(), num_clients=4, resample="cubic"), ("resample", "cubic", "nearest")),
        (
            lambda: image_shifts.corrupt_images(data.corrupted(source(), num_clients=4)),
            ("corrupted", "corrupted-made"),
        ),
    ],
)
def test_refusals_name_argument_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        call()
