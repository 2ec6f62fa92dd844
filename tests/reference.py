"""The methods once more, as their papers write them: NumPy, one client after the other, no masks, no slots.

Models are flat dictionaries of arrays; `clients[i]` is client i's training rows (x, y). Only the order of batches is
shared with the library: it is drawn at its documented addresses (`jaxfl.random.key_for`).
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from jaxfl.random import Stream, key_for
from jaxfl.simulation.evaluation.finetune import server
from tests.problems import sample


class Setting(NamedTuple):
    root: jax.Array  # the key of the run
    clients: list  # of (x, y)
    rate: float
    epochs: int = 1
    batch_size: int | None = None
    weighting: str = "rows"


def close(left, right, rtol=1e-10):
    """Sums in another order: a few roundings of float64 over some tens of steps."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12), left, right)


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def gradient(model, x, y):
    """Returns loss and gradient of softmax regression: x' (p - onehot(y)) / n."""
    scores = x @ model["kernel"] + model["bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    residual = p - np.eye(p.shape[1])[y]
    return -np.log(p[range(len(y)), y]).mean(), {"bias": residual.mean(0), "kernel": x.T @ residual / len(y)}


def combine(pairs):
    """Returns the sum of weight * model."""
    pairs = list(pairs)
    return {name: sum(weight * model[name] for weight, model in pairs) for name in pairs[0][1]}


def average(models, weights):
    return combine((weight / sum(weights), model) for weight, model in zip(weights, models, strict=True))


@functools.partial(jax.jit, static_argnums=2)
def _bits(key, epoch, count):
    return jax.random.bits(key_for(key, Stream.BATCHES, epoch), (count,), np.uint32)


def batches(key, size, epochs, batch_size):
    """Yields the positions of every batch: a shuffled pass an epoch, the last batch whatever is left."""
    for epoch in range(epochs):
        if batch_size is None:
            yield np.arange(size)
            continue
        bits = np.asarray(_bits(key, epoch, -(-size // 16) * 16))[:size] >> 1  # those of a row are its place's
        order = np.argsort(bits, kind="stable")
        yield from (order[start : start + batch_size] for start in range(0, size, batch_size))


def train(setting, round, client, model, *, pull=0.0, anchor=None, stream=Stream.BATCHES):
    """Returns the locally trained model and the mean loss of the rows on the way."""
    x, y = setting.clients[client]
    losses = []
    key = key_for(setting.root, stream, round, client)
    for rows in batches(key, len(y), setting.epochs, setting.batch_size):
        loss, slope = gradient(model, x[rows], y[rows])
        losses += [loss] * len(rows)
        step = combine([(1, slope), (pull, model), (-pull, anchor)]) if pull else slope
        model = combine([(1, model), (-setting.rate, step)])
    return model, np.mean(losses)


def with_rows(setting, cohort):
    return [i for i in cohort if len(setting.clients[i][1])]


def weights(setting, cohort):
    return [len(setting.clients[i][1]) if setting.weighting == "rows" else 1 for i in cohort]


@functools.partial(jax.jit, static_argnums=0)
def adapted_models(method, key, state, data):
    everyone = np.arange(data.num_clients, dtype=np.int32)
    return jax.lax.map(lambda client: server(method)(key, state, data, client)[0], everyone)


def served_models(method, key, state, data):
    """Returns the models that all clients are served `[N, ...]`, which a method with `adapt` makes of their rows."""
    if method.adapt is None:
        return method.client_params(state, np.arange(data.num_clients))
    return adapted_models(method, key, state, data)


def follow(method, loop, data, key, *, rounds=5, cohort=4):
    """Returns the last state, after every client was served the loop's model after every round."""
    state, everyone = method.init(key, data), np.arange(data.num_clients)
    for number in range(rounds):
        chosen = sample(key, state.round, data, cohort)
        state, _ = method.round(key, state, data, chosen)
        loop.round(number, chosen.ids.tolist())
        served = (
            method.client_params(state, everyone) if method.adapt is None else served_models(method, key, state, data)
        )
        served = jax.tree.map(np.asarray, served)
        for client in everyone:
            for leaf, value in loop.served(client).items():
                # rounding of float64 (1e-16), amplified by ten steps
                np.testing.assert_allclose(
                    served[leaf][client], value, rtol=1e-9, atol=1e-12, err_msg=f"round {number}, client {client}"
                )
    return state


class Local:
    def __init__(self, setting, model):
        self.setting, self.models = setting, [model] * len(setting.clients)

    def round(self, number, cohort):
        for i in with_rows(self.setting, cohort):
            self.models[i], _ = train(self.setting, number, i, self.models[i])

    def served(self, client):
        return self.models[client]


class FedSGD:
    def __init__(self, setting, model):
        self.setting, self.model = setting, model

    def round(self, number, cohort):
        cohort = with_rows(self.setting, cohort)
        slopes = [gradient(self.model, *self.setting.clients[i])[1] for i in cohort]
        step = average(slopes, weights(self.setting, cohort))
        self.model = combine([(1, self.model), (-self.setting.rate, step)])

    def served(self, client):
        return self.model


class FedProx:
    """FedAvg is FedProx without the pull."""

    def __init__(self, setting, model, pull=0.0):
        self.setting, self.model, self.pull = setting, model, pull

    def round(self, number, cohort):
        cohort = with_rows(self.setting, cohort)
        trained = [train(self.setting, number, i, self.model, pull=self.pull, anchor=self.model)[0] for i in cohort]
        self.model = average(trained, weights(self.setting, cohort))

    def served(self, client):
        return self.model


class IFCA:
    def __init__(self, setting, models, option):
        self.setting, self.models, self.option = setting, list(models), option
        self.cluster = [0] * len(setting.clients)

    def round(self, number, cohort):
        cohort = with_rows(self.setting, cohort)
        for i in cohort:
            self.cluster[i] = int(np.argmin([gradient(model, *self.setting.clients[i])[0] for model in self.models]))
        everybody = sum(weights(self.setting, cohort))
        for k, model in enumerate(list(self.models)):
            members = [i for i in cohort if self.cluster[i] == k]
            shares = weights(self.setting, members)
            if not members:
                continue
            if self.option == "models":
                self.models[k] = average([train(self.setting, number, i, model)[0] for i in members], shares)
            else:
                slopes = [gradient(model, *self.setting.clients[i])[1] for i in members]
                step = combine((share / everybody, slope) for share, slope in zip(shares, slopes, strict=True))
                self.models[k] = combine([(1, model), (-self.setting.rate, step)])

    def served(self, client):
        return self.models[self.cluster[client]]


def merge(parts, similar):
    """Returns the connected components of `parts` under the relation `similar(a, b)`, as lists of indices."""
    groups = [[i] for i in range(len(parts))]
    for a in range(len(parts)):
        for b in range(a):
            if similar(parts[a], parts[b]):
                one, two = (next(group for group in groups if i in group) for i in (a, b))
                if one is not two:
                    one.extend(two)
                    groups.remove(two)
    return groups


def cosine(a, b):
    norm = np.linalg.norm(a) * np.linalg.norm(b)
    return a @ b / norm if norm else 0.0


class StoCFL:
    """Clusters are a list of (members, model), oldest first."""

    def __init__(self, setting, model, threshold, pull):
        self.setting, self.threshold, self.pull = setting, threshold, pull
        self.anchor = self.omega = model
        self.psi, self.clusters = {}, []

    def round(self, number, cohort):
        cohort = with_rows(self.setting, cohort)
        for i in [i for i in cohort if i not in self.psi]:
            slope = gradient(self.anchor, *self.setting.clients[i])[1]
            vector = np.concatenate([slope[name].ravel() for name in sorted(slope)])
            self.psi[i] = vector / np.linalg.norm(vector)
            self.clusters.append(([i], self.anchor))
        old, self.clusters = self.clusters, []
        for group in merge(old, lambda a, b: cosine(self.mean(a), self.mean(b)) >= self.threshold):
            keeper = max(sorted(group), key=lambda k: len(old[k][0]))  # the larger one, the older one of equals
            self.clusters.append((sorted(sum((old[k][0] for k in group), [])), old[keeper][1], keeper))
        self.clusters = [(members, model) for members, model, _ in sorted(self.clusters, key=lambda c: c[2])]

        omega = self.omega
        for k, (members, model) in enumerate(self.clusters):
            chosen = [i for i in members if i in cohort]
            if chosen:
                trained = [train(self.setting, number, i, model, pull=self.pull, anchor=omega)[0] for i in chosen]
                self.clusters[k] = members, average(trained, weights(self.setting, chosen))
        trained = [train(self.setting, number, i, omega)[0] for i in cohort]
        self.omega = average(trained, weights(self.setting, cohort))

    def mean(self, cluster):
        return np.mean([self.psi[i] for i in cluster[0]], 0)

    def served(self, client):
        return next((model for members, model in self.clusters if client in members), self.omega)
