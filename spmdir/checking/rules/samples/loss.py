"""Losses: every reduction, with and without weights, with ignored targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample, b, f, h, i, positive, sample

IGNORED = -100

POINTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div")


def _number() -> Tensor:
    """Return a random 0-d tensor."""
    return f(1).sum()


def _targets(classes: int, *shape: int) -> Tensor:
    """Return class indices, one of which is ignored."""
    target = i(classes, *shape)
    target.view(-1)[1] = IGNORED
    return target


def _pointwise() -> Iterator[Sample]:
    """Yield calls of losses of pairs of elements or rows, and of their backward, with each reduction `r`."""
    chance, truth = torch.rand(5, 4, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)
    sign = torch.where(b(5, 4), 1.0, -1.0).double()
    for r in (0, 1, 2):
        yield from (sample(op, f(5, 4), positive(5, 4), reduction=r) for op in POINTWISE)
        yield sample("kl_div", f(5, 4), f(5, 4), reduction=r, log_target=True)
        yield sample("poisson_nll_loss", f(6, 4), positive(6, 4), log_input=True, full=True, eps=1e-8, reduction=r)
        yield from (sample("binary_cross_entropy", chance, truth, w, reduction=r) for w in (None, positive(5, 4)))
        yield sample("binary_cross_entropy_with_logits", f(5, 4), truth, None, None, reduction=r)
        yield sample("binary_cross_entropy_with_logits", f(5, 4), truth, positive(5, 1), positive(4), reduction=r)
        yield sample("hinge_embedding_loss", f(5, 4), sign, reduction=r)
        yield sample("margin_ranking_loss", f(5, 4), f(5, 4), sign, margin=0.1, reduction=r)
        yield sample("cosine_embedding_loss", f(5, 4), f(5, 4), sign[:, 0], margin=0.1, reduction=r)
        yield sample("triplet_margin_loss", f(6, 4), f(6, 4), f(6, 4), swap=True, reduction=r)
        yield sample("multi_margin_loss", f(5, 4), i(4, 5), positive(4), reduction=r)
        members = torch.tensor([[1, 0, -1, 2]] * 6)
        yield sample("multilabel_margin_loss", f(6, 4), members, reduction=r)
        yield sample("multilabel_margin_loss_forward", f(6, 4), members, reduction=r)
        grad = _number() if r else f(6, 4)
        truth6 = torch.rand(6, 4, dtype=torch.float64)
        yield from (sample(f"{op}_loss_backward", grad, f(6, 4), f(6, 4), reduction=r) for op in ("mse", "soft_margin"))
        yield sample("smooth_l1_loss_backward", grad, f(6, 4), f(6, 4), reduction=r, beta=0.7)
        yield sample("huber_loss_backward", grad, f(6, 4), f(6, 4), reduction=r, delta=0.7)
        yield sample("binary_cross_entropy_backward", grad, truth6, truth6.flip(0), positive(6, 4), reduction=r)
        rows = _number() if r else f(6)
        yield sample("multi_margin_loss_backward", rows, f(6, 4), i(4, 6), p=1, margin=1.0, reduction=r)
        yield sample("multilabel_margin_loss_backward", rows, f(6, 4), members, truth6, reduction=r)
    yield sample("mse_loss", h(6, 4), h(6, 4))


def _likelihood() -> Iterator[Sample]:
    """Yield calls whose targets are class numbers: for rows, for images as in segmentation, for tensors of any rank."""
    logits, target = torch.log_softmax(f(5, 6), 1), torch.tensor([0, 5, 2, IGNORED, 3])
    image, places = torch.log_softmax(f(2, 6, 3, 5), 1), _targets(6, 2, 3, 5)
    weight, total = positive(6), torch.tensor(4.0, dtype=torch.float64)
    for r in (0, 1, 2):
        options: dict[str, Any] = {"reduction": r, "ignore_index": IGNORED}
        for w in (None, weight):
            yield sample("nll_loss_forward", logits, target, w, **options)
            yield sample("nll_loss2d_forward", image, places, w, **options)
            yield sample("nll_loss_nd", torch.log_softmax(f(5, 6, 4), 1), _targets(6, 5, 4), w, **options)
        grad, grads = (_number(), _number()) if r else (f(5), f(2, 3, 5))
        yield sample("nll_loss_backward", grad, logits, target, weight, total_weight=total, **options)
        yield sample("nll_loss2d_backward", grads, image, places, weight, total_weight=total, **options)
        yield sample("nll_loss", logits, target, weight, **options)
        yield sample("nll_loss2d", image, places, weight, **options)
        yield sample("nll_loss_nd", logits, target, weight, **options)
    positive_only = target.abs() % 6
    yield sample("nll_loss_forward", logits, positive_only, None, reduction=2, ignore_index=2)
    yield sample("nll_loss_backward", _number(), logits, positive_only, None, total, reduction=1, ignore_index=2)
    yield sample("nll_loss_forward", logits[0], target[0], None, reduction=1, ignore_index=IGNORED)


def _cross_entropy() -> Iterator[Sample]:
    """Yield calls with class numbers and class probabilities: of batches, sequences, images, and of one position."""
    for r in (0, 1, 2):
        for w in (None, positive(6)):
            for smoothing in (0.0, 0.2):
                options: dict[str, Any] = {"reduction": r, "label_smoothing": smoothing}
                yield sample("cross_entropy_loss", f(5, 6), _targets(6, 5), w, **options)
                yield sample("cross_entropy_loss", f(4, 6, 5), _targets(6, 4, 5), w, **options)
                yield sample("cross_entropy_loss", f(5, 6), torch.softmax(f(5, 6), 1), w, **options)
                yield sample("cross_entropy_loss", f(4, 6, 3), torch.softmax(f(4, 6, 3), 1), w, **options)
        yield sample("cross_entropy_loss", f(6), i(6), positive(6), reduction=r)
        yield sample("cross_entropy_loss", f(6), torch.softmax(f(6), 0), reduction=r)
        yield sample("cross_entropy_loss", f(2, 6, 3, 2), _targets(6, 2, 3, 2), positive(6), reduction=r)
        yield sample("cross_entropy_loss", f(5, 6), i(6, 5), reduction=r, ignore_index=2)


def _distances() -> Iterator[Sample]:
    """Yield calls of distances between rows."""
    yield sample("cosine_similarity", f(5, 4, 3), f(5, 4, 3))
    yield sample("cosine_similarity", f(6, 4), f(1, 4), dim=-1)
    yield from (sample("pairwise_distance", f(6, 5, 3), f(5, 3), keepdim=keep) for keep in (False, True))


def _labels() -> Iterator[Sample]:
    """Yield calls of the CTC loss."""
    scores, labels = torch.log_softmax(f(6, 4, 5), 2), i(4, 4, 3) + 1
    lengths: dict[str, Any] = {"input_lengths": (6, 5, 6, 4), "target_lengths": (3, 2, 3, 1)}
    tensors = tuple(torch.tensor(length) for length in lengths.values())
    lost, table = torch.ops.aten._ctc_loss(scores, labels, *lengths.values())
    backward = lost.new_ones(4), scores, labels
    yield sample("ctc_loss.IntList", scores, labels, **lengths)
    yield sample("ctc_loss.Tensor", scores, labels, *tensors)
    # The table has entries that no path uses; they stay uninitialised.
    yield sample("_ctc_loss", scores, labels, compare=False, **lengths)
    yield sample("_ctc_loss.Tensor", scores, labels, *tensors, compare=False)
    yield sample("_ctc_loss_backward", *backward, lost, table, blank=0, **lengths)
    yield sample("_ctc_loss_backward.Tensor", *backward, *tensors, lost, table, blank=0)


def samples() -> list[Sample]:
    return [*_pointwise(), *_likelihood(), *_cross_entropy(), *_distances(), *_labels()]
