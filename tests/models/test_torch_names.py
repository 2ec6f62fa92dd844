"""Files with PyTorch's names: a network of torchvision computes from them what it computes there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import jaxfl
from jaxfl import models, tree
from jaxfl.models import torch_names
from tests.messages import mentions

pytestmark = pytest.mark.rotating("function", weeks=4)

WIDTH, BLOCKS, CLASSES = 4, (1, 2), 5


def of_torchvision(classes=CLASSES, blocks=BLOCKS):
    """Returns the parameters of a small ResNet-18 as torchvision names and shapes them."""
    rng, found = np.random.default_rng(0), {}

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean"):
            found[f"{name}.{part}"] = rng.normal(0.5, 0.3, channels)
        found[f"{name}.running_var"] = rng.uniform(0.5, 2, channels)
        found[f"{name}.num_batches_tracked"] = np.array(7)

    def conv(name, *shape):
        found[f"{name}.weight"] = rng.normal(0, 0.3, shape)

    conv("conv1", WIDTH, 3, 7, 7)
    norm("bn1", WIDTH)
    before = WIDTH
    for stage, count in enumerate(blocks):
        width = WIDTH * 2**stage
        for block in range(count):
            layer = f"layer{stage + 1}.{block}"
            conv(f"{layer}.conv1", width, before, 3, 3)
            norm(f"{layer}.bn1", width)
            conv(f"{layer}.conv2", width, width, 3, 3)
            norm(f"{layer}.bn2", width)
            if before != width:
                conv(f"{layer}.downsample.0", width, before, 1, 1)
                norm(f"{layer}.downsample.1", width)
            before = width
    found |= {"fc.weight": rng.normal(0, 0.3, (classes, before)), "fc.bias": rng.normal(size=classes)}
    return {name: array if array.dtype.kind == "i" else array.astype(np.float32) for name, array in found.items()}


def outputs_of_torchvision(held, images):
    """Returns the logits of images `[B, channels, H, W]` as torchvision's code computes them in eval mode."""

    def conv_norm(x, name, norm, stride=1):
        weight, bias, mean, var = (
            held[f"{norm}.{part}"][None, :, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        padded = jax.lax.conv_general_dilated(
            x,
            held[f"{name}.weight"],
            (stride, stride),
            [(held[f"{name}.weight"].shape[-1] // 2,) * 2] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )
        return (padded - mean) / jnp.sqrt(var + 1e-5) * weight + bias

    x = jax.nn.relu(conv_norm(images, "conv1", "bn1", 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            layer, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = jax.nn.relu(conv_norm(x, f"{layer}.conv1", f"{layer}.bn1", stride))
            y = conv_norm(y, f"{layer}.conv2", f"{layer}.bn2")
            if f"{layer}.downsample.0.weight" in held:
                x = conv_norm(x, f"{layer}.downsample.0", f"{layer}.downsample.1", stride)
            x = jax.nn.relu(x + y)
    return x.mean((2, 3)) @ held["fc.weight"].T + held["fc.bias"][None]


def network(**options):
    return models.create("resnet18-tv", CLASSES, **{"width": WIDTH, "blocks": BLOCKS, **options})


def shapes_of(module, side=40):
    """Returns the shapes of a task's model: parameters and running averages of a layer are beside each other."""
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, side, side, 3)))
    merged = {}
    for part in variables.values():
        for name, leaf in zip(tree.names(part), jax.tree.leaves(part), strict=True):
            node = merged
            *layers, last = name.split("/")
            for layer in layers:
                node = node.setdefault(layer, {})
            node[last] = leaf
    return merged


@pytest.fixture
def saved(tmp_path):
    def save(held):
        save_file({name: np.ascontiguousarray(array) for name, array in held.items()}, tmp_path / "net.safetensors")
        return tmp_path / "net.safetensors"

    return save


def test_a_file_of_torchvision_computes_what_it_does_there(saved, key):
    held, module = of_torchvision(), network()
    model = models.load_weights(saved(held), shapes_of(module))
    images = np.asarray(jax.random.normal(key, (2, 40, 40, 3)))

    def part(node, wanted):
        found = {}
        for name, child in node.items():
            if isinstance(child, dict):
                found |= {name: below} if (below := part(child, wanted)) else {}
            elif (name in ("mean", "var")) == wanted:
                found[name] = child
        return found

    @jax.jit
    def both(images):
        ours = module.apply({"params": part(model, False), "batch_stats": part(model, True)}, images)
        return ours, outputs_of_torchvision(held, images.transpose(0, 3, 1, 2))

    np.testing.assert_allclose(*both(images), rtol=1e-3, atol=1e-4)


def test_another_number_of_classes_draws_the_last_layer(saved):
    """Of each model by itself; all else is the file's."""
    path = saved(of_torchvision(classes=1000))
    with pytest.raises(ValueError, match=mentions("fc", "[5]", "[1000]")):
        models.load_weights(path, shapes_of(network()))
    grouped = {name: array for name, array in of_torchvision(1000, (1,)).items() if "running" not in name}
    rows, images = np.split(np.arange(4), 2), np.zeros((4, 40, 40, 3), np.float32)
    data = jaxfl.data.federate(images, np.arange(4), rows, rows, num_classes=CLASSES)
    task = jaxfl.classification(network(norm="group", groups=2, blocks=(1,)), data)
    with pytest.warns(UserWarning, match=mentions("fc", "net.safetensors", "classes")):
        task = jaxfl.start_from(task, saved(grouped))
    one, two = jax.jit(lambda: [task.init(jax.random.key(seed)) for seed in (0, 1)])()
    leaves = zip(tree.names(one), jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    assert {name for name, a, b in leaves if (a != b).any()} == {"fc/kernel", "fc/bias"}
    np.testing.assert_array_equal(one["bn1"]["scale"], grouped["bn1.weight"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"layer2.0.downsample.0.weight": None}, {}, ("layer2.0.downsample.0.weight", "[1, 1, 4, 8]")),
        ({"layer3.0.conv1.weight": np.zeros((8, 4, 3, 3), np.float32)}, {}, ("layer3.0.conv1.weight",)),
        ({"bn1.weight": np.zeros(9, np.float32)}, {}, ("bn1/scale", "[4]", "[9]")),
        ({}, {"norm": "group", "groups": 2}, ("bn1.running_mean",)),
    ],
)
def test_a_file_of_another_network_is_refused(change, options, message, saved):
    held = {name: array for name, array in (of_torchvision() | change).items() if array is not None}
    with pytest.raises(ValueError, match=mentions("net.safetensors", *message)):
        models.load_weights(saved(held), shapes_of(network(**options)))


@pytest.mark.parametrize(
    ("name", "options", "classes", "true"),
    [
        # what timm 1.0 and torchvision 0.20 print of their models
        (
            "vit",
            {"layers": 1, "width": 8, "heads": 2},
            3,
            {
                "cls_token": (1, 1, 8),
                "pos_embed": (1, 65, 8),
                "patch_embed.proj.weight": (8, 3, 4, 4),
                "patch_embed.proj.bias": (8,),
                "blocks.0.norm1.weight": (8,),
                "blocks.0.norm1.bias": (8,),
                "blocks.0.attn.qkv.weight": (24, 8),
                "blocks.0.attn.qkv.bias": (24,),
                "blocks.0.attn.proj.weight": (8, 8),
                "blocks.0.attn.proj.bias": (8,),
                "blocks.0.norm2.weight": (8,),
                "blocks.0.norm2.bias": (8,),
                "blocks.0.mlp.fc1.weight": (32, 8),
                "blocks.0.mlp.fc1.bias": (32,),
                "blocks.0.mlp.fc2.weight": (8, 32),
                "blocks.0.mlp.fc2.bias": (8,),
                "norm.weight": (8,),
                "norm.bias": (8,),
                "head.weight": (3, 8),
                "head.bias": (3,),
            },
        ),
        (
            "mobilenetv2",
            {},
            1000,
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.0.1.running_var": (32,),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.1.conv.2.running_mean": (16,),
                "features.2.conv.0.0.weight": (96, 16, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.2.conv.1.1.bias": (96,),
                "features.2.conv.2.weight": (24, 96, 1, 1),
                "features.2.conv.3.weight": (24,),
                "features.17.conv.2.weight": (320, 960, 1, 1),
                "features.18.0.weight": (1280, 320, 1, 1),
                "features.18.1.weight": (1280,),
                "classifier.1.weight": (1000, 1280),
                "classifier.1.bias": (1000,),
            },
        ),
    ],
)
def test_layers_have_the_true_names(name, options, classes, true, saved):
    module = models.create(name, classes, **options)
    like = shapes_of(module, 32)
    leaves = dict(zip(tree.names(like), jax.tree.leaves(like), strict=True))
    held = {theirs: np.random.default_rng(0).normal(size=shape).astype(np.float32) for theirs, shape in true.items()}
    found = torch_names.from_torch(held, leaves)
    assert not set(found) & set(held) - {"cls_token", "pos_embed"}  # each is a parameter of the network
    for ours, array in found.items():
        assert array.shape == leaves[ours].shape
    if name == "vit":  # all of them are above
        assert set(found) == set(leaves)
        model = models.load_weights(saved(held), like)
        np.testing.assert_array_equal(model["blocks.0"]["attn"]["qkv"]["kernel"], held["blocks.0.attn.qkv.weight"].T)
    else:
        kernel = found["features.2/conv.1.0/kernel"]
        assert kernel[1, 2, 0, 7] == held["features.2.conv.1.0.weight"][7, 0, 1, 2]


def test_flattened_images_are_refused(saved):
    """PyTorch flattens channels first: the rows of a dense layer would be those of other places."""
    like = jax.eval_shape(models.PFLlibCNN().init, jax.random.key(0), jnp.zeros((1, 28, 28)))["params"]
    held = {"Conv_0.weight": np.zeros((32, 1, 5, 5), np.float32)}
    with pytest.raises(ValueError, match=mentions("Dense_0/kernel", "[1024, 512]")):
        models.load_weights(saved(held), like)
