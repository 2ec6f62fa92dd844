import itertools
import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfl
from jaxfl import models
from jaxfl.models import networks
from jaxfl.models.fast.rewriting import replaceable
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)


def vgg16(channels, width, hidden, classes):
    widths = [channels, *(width * times for times in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8))]
    dense = [8 * width, hidden, hidden, classes]
    layers = [(9 * a, b) for a, b in itertools.pairwise(widths)] + list(itertools.pairwise(dense))
    return sum((inputs + 1) * outputs for inputs, outputs in layers)


# name, options, input shape, classes, parameters worked out by hand: (inputs + 1) * outputs for each layer
CASES = [
    ("logistic", {}, (60,), 10, 61 * 10),
    ("logistic", {}, (8, 8), 10, 65 * 10),
    ("auto", {}, (28, 28, 3), 10, 28 * 28 * 3 * 2048 + 2048 + 2049 * 10),
    ("auto", {"hidden": 7}, (100, 9), 10, 901 * 7 + 8 * 10),
    ("auto", {}, (32, 32, 3), 10, 28 * 32 + 289 * 64 + 4097 * 128 + 129 * 10),
    ("auto", {"hidden": (9, 8)}, (84, 84, 3), 2, 28 * 32 + 289 * 64 + 2 * 577 * 64 + 2305 * 9 + 10 * 8 + 9 * 2),
    ("auto", {}, (224, 9, 4), 10, 37 * 32 + 289 * 64 + 3 * 577 * 64 + 449 * 128 + 129 * 10),
    ("mlp", {"hidden": (200,)}, (28, 28), 10, 785 * 200 + 201 * 10),
    ("mlp", {"hidden": [64, 32]}, (8, 8, 1), 10, 65 * 64 + 65 * 32 + 33 * 10),
    ("mlp-batch-norm", {}, (28, 28), 10, 785 * 200 + 4 * 200 + 201 * 10),
    ("leaf-femnist-cnn", {}, (28, 28), 62, 26 * 32 + 801 * 64 + 3137 * 2048 + 2049 * 62),
    ("leaf-femnist-cnn", {"hidden": 248}, (28, 28, 1), 62, 26 * 32 + 801 * 64 + 3137 * 248 + 249 * 62),
    ("leaf-celeba-cnn", {}, (84, 84, 3), 2, 28 * 32 + 3 * 289 * 32 + 4 * 2 * 32 + 1153 * 2),
    ("stocfl-cifar-cnn", {}, (32, 32, 3), 10, 76 * 6 + 151 * 16 + 401 * 120 + 121 * 84 + 85 * 10),
    ("ifca-cifar-cnn", {}, (32, 32, 3), 10, 76 * 64 + 1601 * 64 + 2305 * 384 + 385 * 192 + 193 * 10),
    ("ifca-cifar-cnn", {"crop": 20}, (28, 28), 62, 26 * 64 + 1601 * 64 + 1601 * 384 + 385 * 192 + 193 * 62),
    ("stocfl-femnist-cnn", {}, (28, 28), 62, 10 * 32 + 289 * 64 + 9217 * 128 + 129 * 62),
    ("lenet-emnist", {}, (28, 28), 62, 26 * 6 + 151 * 16 + 257 * 62),
    ("cifar-benchmark-cnn", {}, (32, 32, 3), 10, 28 * 32 + 289 * 64 + 12545 * 128 + 129 * 10),
    ("vgg16", {}, (32, 32, 3), 10, vgg16(3, 64, 512, 10)),
    ("vgg16", {"hidden": 4096}, (32, 32, 3), 1000, vgg16(3, 64, 4096, 1000)),
    ("vgg16", {"width": 4, "hidden": 16}, (28, 28), 26, vgg16(1, 4, 16, 26)),
    ("vgg16", {"width": 4}, (32, 32, 1), 26, vgg16(1, 4, 512, 26)),
]
# name, options, input shape, classes, parameters as their codes have them; running averages are not counted
OF_CODES = [
    ("mlp200", {}, (28, 28), 10, 159_010),
    ("linear200", {}, (28, 28), 10, 159_010),
    ("genconv", {}, (28, 28), 10, 5_142),
    ("lenet-pfg", {}, (32, 32, 3), 10, 62_006),
    ("lenet5-flux", {}, (28, 28), 10, 61_706),
    ("lenet5-flux", {}, (28, 28, 3), 10, 62_006),
    ("lenet5-flux", {}, (32, 32, 3), 10, 83_126),
    ("pfllib-cnn", {}, (28, 28), 10, 582_026),
    ("pfllib-cnn", {}, (32, 32, 3), 10, 878_538),
    ("pfllib-cnn", {}, (32, 32, 3), 100, 924_708),
    ("pfllib-cnn", {}, (64, 64, 3), 200, 5_694_600),
    ("femnist-cnn", {}, (28, 28), 10, 2_171_786),
    ("femnist-cnn", {}, (28, 28), 62, 2_278_334),
    ("cnn-fedrep", {}, (32, 32, 3), 10, 307_842),
    ("cnn-rdp", {}, (28, 28), 10, 28_938),
    ("fedccfa-28", {}, (28, 28), 10, 117_066),
    ("fedccfa-32", {}, (32, 32, 3), 10, 107_690),
    ("clove-cifar", {}, (32, 32, 3), 10, 4_181_002),
    ("resnet9", {}, (32, 32, 3), 100, 6_775_140),
    ("resnet18", {}, (32, 32, 3), 10, 11_173_962),
    ("resnet18-gn", {}, (32, 32, 3), 10, 11_173_962),
    ("resnet18-tv", {}, (32, 32, 3), 10, 11_181_642),
    ("resnet18-tv", {}, (64, 64, 3), 200, 11_279_112),
    ("resnet18-tv", {}, (224, 224, 3), 1000, 11_689_512),
    ("mobilenetv2", {}, (32, 32, 3), 10, 3_504_872 - 1281 * 990),
    ("mobilenetv2", {"norm": "group"}, (32, 32, 3), 10, 3_504_872 - 1281 * 990),
    ("mobilenetv2", {"stem": "torchvision"}, (224, 224, 3), 1000, 3_504_872),
    ("vit", {}, (32, 32, 3), 10, 1_205_898),
    ("vit", {"width": 192, "heads": 3, "layers": 12, "patch": 16}, (224, 224, 3), 1000, 5_717_416),
]
AVERAGED = ("clove-cifar", "resnet9", "resnet18", "resnet18-tv", "mobilenetv2")  # have running averages
PUBLISHED = {"leaf-femnist-cnn": 6_603_710, "cifar-benchmark-cnn": 1_626_442}


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "options", "shape", "classes", "count"), CASES)
def test_parameter_count_and_output_shape(name, options, shape, classes, count):
    model = models.create(name, classes, **options)
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *shape)))
    assert set(variables) - {"params"} == ({"batch_stats"} if name == "mlp-batch-norm" else set())
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == count
    if not options and name in PUBLISHED:
        assert count == PUBLISHED[name]
    logits = jax.eval_shape(model.apply, variables, jax.ShapeDtypeStruct((5, *shape), jnp.uint8))
    assert (logits.shape, logits.dtype) == ((5, classes), jnp.float32)


@pytest.mark.rotating
@pytest.mark.parametrize(("name", "options", "shape", "classes", "count"), OF_CODES)
def test_parameter_count_is_that_of_the_code(name, options, shape, classes, count):
    model = models.create(name, classes, **options)
    variables = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, *shape)))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count
    assert ("batch_stats" in variables) == (name in AVERAGED and options.get("norm") != "group")
    logits = jax.eval_shape(model.apply, variables, jax.ShapeDtypeStruct((5, *shape), jnp.uint8))
    assert (logits.shape, logits.dtype) == ((5, classes), jnp.float32)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("lenet5-flux", {"convolution": 2, "sum pooling": 2}),
        ("cnn-fedrep", {"convolution": 2, "max pooling": 2}),
        ("fedccfa-32", {"convolution": 3, "max pooling": 3}),
        ("resnet18-gn", {"convolution": 20, "sum over groups": 40}),
    ],
)
def test_networks_of_codes_take_fast_forms(name, forms, key):
    model = models.create(name, 10)
    shapes = jax.eval_shape(model.init, key, jnp.zeros((1, 32, 32, 3)))
    found = dict(replaceable(model.apply, shapes, jnp.zeros((4, 32, 32, 3))))
    assert {kind: found[kind] for kind in forms} == forms


def filled(model, inputs):
    """Returns parameters of the model's shapes: drawing them as it does would be a program more."""
    rng, shapes = np.random.default_rng(0), jax.eval_shape(model.init, jax.random.key(0), inputs)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype), shapes)


def test_every_model_is_covered():
    assert {case[0] for case in CASES + OF_CODES} == set(models.MODELS) - set(networks.SEQUENCES)


@pytest.mark.parametrize("name", ["stocfl-femnist-cnn", "lenet-emnist"])
def test_channel_axis_is_added_where_absent(name, key):
    model = models.create(name, 4)
    inputs = jax.random.normal(key, (2, 16, 16))
    params, apply = filled(model, inputs), jax.jit(model.apply)
    np.testing.assert_array_equal(apply(params, inputs), apply(params, inputs[..., None]))


def test_logistic_is_a_linear_map(key):
    model = models.create("logistic", 3)
    inputs = jax.random.normal(key, (2, 2, 2))
    params = filled(model, inputs)
    (dense,) = params["params"].values()
    expected = np.asarray(inputs).reshape(2, 4) @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])
    np.testing.assert_allclose(model.apply(params, inputs), expected, rtol=1e-5)


def test_vgg16_names_its_layers_and_lets_the_signal_through(key):
    model = models.create("vgg16", 10, width=4, hidden=32)

    @jax.jit
    def start(key):
        rows = jax.random.normal(key, (4, 28, 28))
        params = model.init(key, rows)
        return (
            params["params"],
            model.apply(params, rows),
            model.apply(params, jax.image.resize(rows, (4, 32, 32), "linear")),
        )

    params, logits, of_resized = start(key)
    assert set(params) == {*(f"Conv_{i}" for i in range(13)), *(f"Dense_{i}" for i in range(3))}
    np.testing.assert_allclose(logits, of_resized, rtol=1e-3, atol=1e-4)
    assert float(logits.std(axis=0).mean()) > 1e-2  # 15 layers of PyTorch's default would leave about 1e-6


def test_vgg16_has_the_parameters_of_torchvision_but_for_the_positions_of_the_last_pooling():
    ours = vgg16(3, 64, 4096, 1000)
    assert ours + 48 * 512 * 4096 == 138_357_544  # 7x7 positions there, one here


def test_padding_rows_change_nothing_in_a_network_with_batch_norm(key):
    model = models.create("leaf-celeba-cnn", 2)
    rows = jax.random.normal(key, (3, 16, 16, 3))
    padded = jnp.concatenate([rows, 50 * jnp.ones((2, 16, 16, 3))])
    mask = jnp.array([True] * 3 + [False] * 2)
    params = filled(model, rows)

    def loss(p, x, m):
        logits = model.apply(p, x, mask=m)[:3]
        return jax.nn.logsumexp(logits, axis=-1).sum() - logits[:, 0].sum()

    evaluate = jax.jit(jax.value_and_grad(loss))
    expected = evaluate(params, rows, None)
    found = evaluate(params, padded, mask)

    def close(a, b):  # rounding may turn a ReLU or the place of a maximum: up to 4e-4 of a leaf's largest number
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3 * np.abs(b).max() + 1e-6)  # biases before a norm have 0

    jax.tree.map(close, found, expected)
    unmasked, _ = evaluate(params, padded, jnp.ones(5, bool))
    assert abs(float(unmasked - expected[0])) > 1e-3  # the mask is what keeps the padding out


def test_dropout_only_in_training(key):
    model = models.create("stocfl-femnist-cnn", 5)
    inputs = jax.random.normal(key, (4, 12, 12))
    params, apply = filled(model, inputs), jax.jit(model.apply, static_argnames="train")
    one, two = (apply(params, inputs, train=True, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2))
    assert float(jnp.abs(one - two).max()) > 1e-3
    tested = apply(params, inputs)
    np.testing.assert_array_equal(tested, apply(params, inputs, train=False))
    without = models.create("stocfl-femnist-cnn", 5, dropout=(0.0, 0.0))
    trained = jax.jit(without.apply, static_argnames="train")(params, inputs, train=True, rngs={"dropout": key})
    np.testing.assert_allclose(trained, tested, rtol=1e-5, atol=1e-6)


def test_stocfl_femnist_weights_start_xavier_uniform(key):
    params = jax.jit(models.create("stocfl-femnist-cnn", 62).init)(key, jnp.zeros((1, 28, 28)))["params"]
    bound = (6 / (9216 + 128)) ** 0.5
    kernel = params["Dense_0"]["kernel"]
    assert 0.99 * bound < float(jnp.abs(kernel).max()) <= bound


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("lenet", 10), {}, ("lenet", "lenet-emnist")),
        (("mlp", 10), {"hiden": 3}, ("hiden", "hidden")),
        (("logistic", 10), {"hidden": 3}, ("logistic", "hidden")),
        (("mlp", 0), {}, ("num_classes", "got 0")),
        (("stocfl-femnist-cnn", 62), {"dropout": (0.3,)}, ("dropout", 0.3)),
        (("stocfl-femnist-cnn", 62), {"dropout": (0.2, 0.5, 0.9)}, ("dropout", "(0.2, 0.5, 0.9)")),
        (("char-rnn", 80), {"embedding": 0}, ("embedding", 0)),
        (("char-rnn", 80), {"vocabulary": -3}, ("vocabulary", -3)),
        (("transformer", 80), {"layers": 0}, ("layers", 0)),
        (("resnet18", 10), {"stem": "imagenet"}, ("stem", "imagenet", "torchvision")),
        (("resnet18-gn", 10), {"width": 40}, ("groups", 32, "width=40")),
        (("resnet9", 10), {"norm": "layer"}, ("norm", "layer", "group")),
        (("clove-cifar", 10), {"norm": "group", "width": 48}, ("groups", 48, 32)),
        (("mobilenetv2", 10), {"width": 0.0}, ("width", 0.0)),
        (("mobilenetv2", 10), {"norm": "group", "groups": 16}, ("groups", 16, 8)),
        (("vit", 10), {"heads": 3}, ("width", 128, "heads=3")),
        (("pfllib-cnn", 10), {"hidden": 0}, ("hidden", 0)),
        (("textcnn", 4), {"lengths": (3, 0)}, ("lengths", "(3, 0)")),
        (("fasttext", 4), {"vocabulary": -1}, ("vocabulary", -1)),
    ],
)
def test_create_errors_name_argument_value_and_remedy(arguments, options, message):
    with pytest.raises(ValueError, match=mentions(*message)):
        models.create(*arguments, **options)


@pytest.mark.parametrize("hidden", ["20", 20.0, (20, "20")])
def test_widths_are_whole_numbers(hidden):
    with pytest.raises(TypeError, match=mentions("hidden", hidden)):
        models.MLP(hidden=hidden, num_classes=10)


@pytest.mark.parametrize("make", [models.MLP, models.NormalisedMLP])
def test_a_single_width_may_be_numpys(make, key):
    shapes = [jax.eval_shape(make(hidden=hidden).init, key, jnp.zeros((1, 8))) for hidden in (6, np.int64(6))]
    assert jax.tree.map(jnp.shape, shapes[0]) == jax.tree.map(jnp.shape, shapes[1])


def test_convolution_on_vectors_says_what_to_do(key):
    with pytest.raises(ValueError, match=mentions("inputs", "(2, 64)", "mlp", "logistic")):
        models.create("lenet-emnist", 10).init(key, jnp.zeros((2, 64)))


@pytest.mark.parametrize("cell", ["lstm", "gru", None])
def test_networks_of_tokens_look_back_alone(cell, key):
    options = {"width": 8, "heads": 2, "layers": 1} if cell is None else {"hidden": (6, 5), "cell": cell}
    name, tokens = "transformer" if cell is None else "char-rnn", jax.random.randint(key, (2, 5), 0, 7)
    model, at_last = (models.create(name, 7, last=last, **options) for last in (False, True))

    params = filled(model, tokens)

    @jax.jit
    def outputs(tokens):
        return model.apply(params, tokens), at_last.apply(params, tokens)

    logits, last = outputs(tokens)
    np.testing.assert_allclose(last, logits[:, -1], rtol=1e-4, atol=1e-6)
    changed, _ = outputs(tokens.at[:, 3].set((tokens[:, 3] + 1) % 7))
    differs = np.abs(changed - logits).max(-1) > 0
    np.testing.assert_array_equal(differs, [[False] * 3 + [True] * 2] * 2)


def test_images_that_do_not_fit_are_refused(key):
    with pytest.raises(ValueError, match=mentions("patch", 4, "(30, 28)")):
        models.create("vit", 10).init(key, jnp.zeros((1, 30, 28)))
    with pytest.raises(ValueError, match=mentions("kernel_size", "(2, 2)", "padding 1")):
        models.create("fedccfa-28", 10).init(key, jnp.zeros((1, 8, 8)))
    with pytest.raises(ValueError, match=mentions("lengths", 4, "(3, 4, 5)")):
        models.create("textcnn", 10).init(key, jnp.zeros((1, 4), int))


@pytest.mark.parametrize(("name", "options"), [("fasttext", {}), ("textcnn", {"channels": 4, "lengths": (2, 3)})])
def test_padding_of_a_text_has_no_embedding(name, options, key):
    """Its embedding may be anything; a mean is of the other tokens, and maxima are of convolutions of zeros."""
    model = models.create(name, 3, vocabulary=9, embedding=5, pad=0, **options)
    tokens = jnp.array([[4, 7, 7, 2, 0, 0], [1, 0, 0, 0, 0, 0]])
    params = filled(model, tokens)

    @jax.jit
    def logits(params, tokens):
        return model.apply(params, tokens)

    found = logits(params, tokens)
    table = params["params"]["Embed_0"]["embedding"]
    other = {"params": params["params"] | {"Embed_0": {"embedding": jnp.asarray(table).at[0].set(100.0)}}}
    np.testing.assert_array_equal(found, logits(other, tokens))
    if name == "fasttext":
        np.testing.assert_allclose(found[0], logits(params, tokens[:, :4])[0], rtol=1e-5)
        dense = [params["params"][f"Dense_{layer}"] for layer in (0, 1)]
        outputs = table[np.array([4, 7, 7, 2])].mean(0)
        for layer in dense:
            outputs = outputs @ layer["kernel"] + layer["bias"]
        np.testing.assert_allclose(found[0], outputs, rtol=1e-4)


def test_networks_of_tokens_refuse_what_is_none(key):
    for name in networks.SEQUENCES:
        with pytest.raises(ValueError, match=mentions("inputs", "float32", "[B, T]")):
            models.create(name, 10).init(key, jnp.zeros((2, 64)))
    with pytest.raises(ValueError, match=mentions("cell", "rnn", "lstm", "gru")):
        models.CharRNN(cell="rnn")
    with pytest.raises(ValueError, match=mentions("width", 6, "heads=4")):
        models.create("transformer", 10, width=6)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_no_model_starts_from_numbers_that_are_not_finite(tmp_path, value):
    task = jaxfl.classification(models.Logistic(num_classes=10), jaxfl.data.load("rotated-digits", num_clients=4))
    model = jax.tree.map(np.array, task.init(jax.random.key(0)))
    model["Dense_0"]["kernel"][3, 2] = value
    models.save_weights(tmp_path / "a.safetensors", model)
    with pytest.raises(ValueError, match=mentions("a.safetensors", "finite", "Dense_0/kernel")):
        jaxfl.start_from(task, tmp_path / "a.safetensors")


@pytest.mark.parametrize("change", [{"dtype": "F8_E4M3", "shape": [40]}, {"shape": [10] + [1] * 80}])
def test_types_and_ranks_that_numpy_does_not_have_are_refused(tmp_path, change):
    entry = {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]} | change
    head = json.dumps({"bias": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(40))
    with pytest.raises(ValueError, match=mentions("a.safetensors", "float32")):
        models.load_weights(tmp_path / "a.safetensors", {"bias": np.zeros(10, np.float32)})


def test_weights_keep_the_shape_of_a_scalar(tmp_path):
    model = {"kernel": np.ones((2, 3), np.float32).T, "scale": np.float32(2.0)}
    with pytest.raises(ValueError, match=mentions("path", "none/a.safetensors")):
        models.save_weights(tmp_path / "none" / "a.safetensors", model)
    models.save_weights(tmp_path / "a.safetensors", model)
    again = models.load_weights(tmp_path / "a.safetensors", model)
    assert again["scale"].shape == () and again["scale"] == 2 and again["kernel"].shape == (3, 2)
