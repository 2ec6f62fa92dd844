import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxfl
from jaxfl.models import cropped
from jaxfl.tasks import classification
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)


def test_responses_are_divided_by_those_of_their_neighbours():
    inputs = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    expected = np.empty_like(inputs)
    for channel in range(7):
        near = inputs[..., max(0, channel - 2) : channel + 3]
        expected[..., channel] = inputs[..., channel] / (0.5 + 0.1 * (near**2).sum(-1)) ** 0.75
    found = cropped.local_response(jnp.asarray(inputs), radius=2, bias=0.5, alpha=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_crops_are_windows_of_the_image_flipped_or_not_at_all_places(key):
    image = np.arange(2 * 25, dtype=np.float32).reshape(1, 5, 5, 2)
    images = jnp.asarray(np.repeat(image, 400, 0))
    windows = {}
    for top in range(3):
        for left in range(3):
            window = image[0, top : top + 3, left : left + 3]
            windows |= {(top, left, False): window, (top, left, True): window[:, ::-1]}
    seen, slopes = {}, []
    for crop in np.asarray(cropped.distorted(key, images, 3)):
        means = crop.mean((0, 1))
        centred = {place: window - window.mean((0, 1)) for place, window in windows.items()}
        (place,) = [
            place
            for place, window in windows.items()  # the contrast leaves the means, and so tells the place
            if np.allclose(window.mean((0, 1)), means, atol=1e-3)
            and np.allclose(np.sign(np.round(crop - means, 3)), np.sign(centred[place]))
        ]
        slope = (crop - means)[0, 0, 0] / centred[place][0, 0, 0]
        np.testing.assert_allclose(crop - means, slope * centred[place], atol=1e-3)
        seen[place] = seen.get(place, 0) + 1
        slopes.append(slope)
    assert set(seen) == set(windows)  # each of 18 is expected 22 times
    assert 120 < sum(count for (_, _, flip), count in seen.items() if flip) < 280  # 200, five deviations are 50
    assert cropped.CONTRAST[0] <= min(slopes) < 0.4 and 1.6 < max(slopes) <= cropped.CONTRAST[1]


def test_a_brightness_would_be_taken_out_again():
    images = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (3, 6, 6, 3)), jnp.float32)
    brighter = images + jnp.asarray([0.1, -0.2, 0.25]).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(cropped.standardised(brighter), cropped.standardised(images), atol=1e-5)


def test_rows_are_distorted_each_by_itself_whatever_stands_behind_them(key):
    images = jax.random.normal(key, (4, 6, 6, 1))
    padded = jnp.concatenate([images, jnp.zeros((3, 6, 6, 1))])
    np.testing.assert_array_equal(cropped.distorted(key, padded, 4)[:4], cropped.distorted(key, images, 4))


@pytest.fixture(scope="module")
def small():
    """Returns a federation of eight clients, and the network's task on it."""
    data = jaxfl.data.load("rotated-digits", num_clients=8, rows_per_client=20)
    return data, classification(cropped.IFCACifarCNN(crop=6), data)


@pytest.mark.slow
def test_the_dense_layers_decay_as_if_the_loss_had_their_squares(small, key):
    data, task = small
    plain = classification(cropped.IFCACifarCNN(crop=6, decay=0), data)
    model, batch = task.init(key), data.batch(data.train, 0, jnp.arange(4))

    def penalised(model):
        kernels = [model[name]["kernel"] for name in ("DecayedDense_0", "DecayedDense_1")]
        return plain.loss(model, batch, key) + 0.002 * sum(jnp.square(kernel).sum() for kernel in kernels)

    found, expected = jax.jit(lambda m: (jax.grad(task.loss)(m, batch, key), jax.grad(penalised)(m)))(model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


def test_it_is_distorted_in_training_alone_and_learns(small, key):
    data, task = small
    batch = data.batch(data.train, 0, jnp.arange(20))
    tested = jax.jit(lambda model: task.loss(model, batch, None))

    @jax.jit
    def train(model):
        def step(model, number):
            loss, gradient = jax.value_and_grad(task.loss)(model, batch, jax.random.fold_in(key, number))
            return optax.apply_updates(model, jax.tree.map(lambda leaf: -0.1 * leaf, gradient)), loss

        return jax.lax.scan(step, model, jnp.arange(60))

    model, losses = train(task.init(key))
    assert float(losses[-10:].mean()) < 0.9 * float(losses[0])
    cropped_before = batch._replace(x=batch.x[:, 1:7, 1:7])
    middles = jax.jit(lambda model: task.loss(model, cropped_before, None))
    np.testing.assert_allclose(tested(model), middles(model), rtol=1e-6)
    assert abs(float(tested(model)) - float(losses[-1])) > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0}, ("crop", 0)),
        ({"decay": -1.0}, ("decay", -1.0)),
        ({"crop": 9}, ("crop", 9, "(8, 8)")),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        jax.eval_shape(cropped.IFCACifarCNN(**options).init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
