"""Losses as programs: value and gradient on sharded batches, classes and pixels equal one device.

What other systems get wrong without a word has a test of its own: means that are weighted, that leave places out, that
are smoothed, and those of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir

MESH = spmdir.Mesh({"dp": 2, "tp": 3})
SHARDED = ("dp: S(0)", "tp: S(1)", "dp: S(0), tp: S(1)")
REDUCTIONS = ("none", "mean", "sum")


def check(loss: Callable[..., Tensor], sharding: str, scores: Tensor, *rest: Tensor) -> None:
    """Value and gradient of `loss(scores, *rest)`, where only `scores` says how it is sharded."""

    def step(scores: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        leaf = scores.detach().requires_grad_()
        value = loss(leaf, *rest)
        return value.detach(), torch.autograd.grad(value.square().sum(), leaf)[0]

    module = spmdir.import_fx(make_fx(step)(scores, *rest), MESH, {"input:0": sharding}, out_shardings=[None, sharding])
    same(module, step(scores, *rest), scores, *rest)

    class Forward(torch.nn.Module):
        def forward(self, scores: Tensor, rest: list[Tensor]) -> Tensor:
            return loss(scores, *rest)

    exported = torch.export.export(Forward(), (scores, list(rest)))
    same(spmdir.import_fx(exported, MESH, {"input:0": sharding}), [loss(scores, *rest)], scores, *rest)


def same(module: Any, expected: Any, *inputs: Tensor) -> None:
    for found, right in zip(spmdir.simulate(module, list(inputs)), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12, equal_nan=True)


def classes(*shape: int, ignored: int = -100) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, targets of which a third is ignored, all in the first rows, and weights of the classes."""
    torch.manual_seed(0)
    scores = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    target[: shape[0] // 3] = ignored
    return scores, target, torch.rand(shape[1], dtype=torch.float64) + 0.1


@pytest.mark.parametrize("sharding", SHARDED)
def test_a_mean_weighted_by_class_divides_by_all_weights(sharding: str):
    scores, target, weight = classes(8, 7)
    check(lambda s, t, w: F.cross_entropy(s, t.abs() % 7, w), sharding, scores, target, weight)


@pytest.mark.parametrize("sharding", SHARDED)
def test_a_mean_divides_by_the_places_that_are_not_ignored(sharding: str):
    scores, target, _ = classes(8, 7)
    check(F.cross_entropy, sharding, scores, target)


@pytest.mark.parametrize("sharding", SHARDED)
def test_a_class_may_be_the_one_that_is_ignored(sharding: str):
    scores, target, weight = classes(8, 7, ignored=4)
    check(lambda s, t, w: F.cross_entropy(s, t, w, ignore_index=4), sharding, scores, target, weight)


@pytest.mark.parametrize(("sharding", "reduction"), [*zip(SHARDED, REDUCTIONS, strict=True)])
def test_smoothed_labels_are_spread_over_the_classes_of_all_ranks(sharding: str, reduction: str):
    def loss(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(scores, target, weight, reduction=reduction, label_smoothing=0.2)

    check(loss, sharding, *classes(8, 7))


@pytest.mark.parametrize("sharding", ["dp: S(0), tp: S(1)", "dp: S(2)", "dp: S(3), tp: S(1)"])
def test_the_mean_over_an_image_divides_by_the_weights_of_its_pixels(sharding: str):
    check(F.cross_entropy, sharding, *classes(4, 7, 3, 5))


@pytest.mark.parametrize("sharding", ["dp: S(0), tp: S(1)", "dp: S(2), tp: S(1)"])
def test_sequences_of_scores_are_images_of_one_row(sharding: str):
    check(F.cross_entropy, sharding, *classes(5, 7, 6))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_targets_may_be_probabilities(reduction: str):
    scores, _, weight = classes(8, 7)

    def loss(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(scores, target, weight, reduction=reduction, label_smoothing=0.1)

    check(loss, "dp: S(0), tp: S(1)", scores, torch.softmax(scores.flip(0), 1), weight)


def test_a_batch_of_which_nothing_counts_has_no_mean():
    scores, target, _ = classes(6, 7)
    check(F.cross_entropy, "dp: S(0), tp: S(1)", scores, torch.full_like(target, -100))


PAIRS: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "binary cross entropy": lambda x, y, **k: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y), **k),
    "with logits": lambda x, y, **k: F.binary_cross_entropy_with_logits(
        x, torch.sigmoid(y), torch.exp(y[:1]), pos_weight=torch.exp(y[0]), **k
    ),
    "kl": lambda x, y, **k: F.kl_div(torch.log_softmax(x, 1), torch.softmax(y, 1), **k),
    "soft margin": lambda x, y, **k: F.soft_margin_loss(x, torch.sign(y), **k),
    "poisson": lambda x, y, **k: F.poisson_nll_loss(x, torch.exp(y), full=True, **k),
    "hinge": lambda x, y, **k: F.hinge_embedding_loss(x, torch.sign(y), **k),
    "cosine": lambda x, y, **k: F.cosine_embedding_loss(x, y, torch.sign(y[:, 0]), **k),
    "ranking": lambda x, y, **k: F.margin_ranking_loss(x, y.flip(1), torch.sign(y), **k),
    "triplet": lambda x, y, **k: F.triplet_margin_loss(x, y, y.flip(0), **k),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss by both:UserWarning")  # of kl_div
@pytest.mark.parametrize("name", PAIRS)
def test_the_mean_of_uneven_shards_is_that_of_all_elements(name: str):
    torch.manual_seed(0)
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    check(lambda a, b: PAIRS[name](a, b, reduction="mean"), "dp: S(0), tp: S(1)", x, y)
