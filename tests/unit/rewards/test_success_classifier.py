"""The success classifier: numbers worked by hand, and properties that hold for any batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodyflow.rewards.progress.classifier_config import ClassifierConfig
from embodyflow.rewards.progress.success_classifier import (
    SuccessClassifier,
    area_under_roc,
    draw_labelled,
    logistic_loss,
    rewards_of,
    train_classifier,
)

DRAWS = (7, 1, "classifier")


def test_the_logistic_loss_and_its_gradient() -> None:
    # softplus(0) - 0 = ln 2 and softplus(ln 3) - ln 3 = ln 4 - ln 3; the gradients are (σ(f) - y) / 2.
    logits = torch.tensor([0.0, math.log(3)], dtype=torch.float64, requires_grad=True)
    loss = logistic_loss(logits, torch.tensor([0.0, 1.0], dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    assert logits.grad.tolist() == pytest.approx([(0.5 - 0) / 2, (0.75 - 1) / 2])


def test_an_untrained_classifier_standardises_and_knows_nothing() -> None:
    embeddings = torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64)
    classifier = SuccessClassifier.begin(embeddings, 4, DRAWS)
    assert classifier.mean.tolist() == [2, 5] and classifier.scale.tolist() == [1, math.inf]
    assert classifier.probabilities(embeddings).tolist() == [0.5, 0.5]


def test_the_first_step_of_training() -> None:
    # AdamW's first step moves each weight by the learning rate against the sign of its gradient. At the start the
    # output weights are 0, so only they and the output bias move: the bias by the mean of y - 1/2 = +1/6.
    embeddings = torch.tensor([[0.0], [2.0], [4.0]], dtype=torch.float64)
    config = ClassifierConfig(steps=1, learning_rate=0.1, weight_decay=0.0, hidden_size=1)
    classifier, loss = train_classifier(embeddings, torch.tensor([False, True, True]), config, DRAWS)
    assert loss == pytest.approx(math.log(2))
    assert classifier.output_bias.item() == pytest.approx(0.1, rel=1e-5)
    assert classifier.output.item() == pytest.approx(math.copysign(0.1, classifier.hidden.item()), rel=1e-5)
    assert classifier.hidden_bias.item() == 0


def test_it_learns_what_no_line_separates_and_repeats_bit_by_bit() -> None:
    embeddings = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(1)
    success = embeddings[:, 0].abs() < 0.4
    trained = [train_classifier(embeddings, success, ClassifierConfig(), DRAWS)[0] for _ in range(2)]
    first, second = (each.probabilities(embeddings) for each in trained)
    assert torch.equal(first, second)
    assert torch.equal(first >= 0.5, success)


@pytest.mark.parametrize(
    ("scores", "success", "area"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 3 / 4),
        ([0.5, 0.5, 0.5, 0.9], [0, 1, 1, 0], (0.5 + 0.5 + 0 + 0) / 4),
        ([0.2, 0.2], [0, 1], 0.5),
        ([0.2, 0.3], [1, 1], None),
        ([], [], None),
    ],
)
def test_the_area_under_the_roc_curve_counts_ties_half(scores, success, area) -> None:
    assert area_under_roc(np.array(scores, float), np.array(success, bool)) == area


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 5))
def test_the_draw_has_its_share_and_repeats(num_rows: int, share: float, iteration: int) -> None:
    draws = (7, iteration, "classifier")
    mask = draw_labelled(num_rows, share, draws)
    assert mask.sum() == math.ceil(share * num_rows)
    np.testing.assert_array_equal(mask, draw_labelled(num_rows, share, draws))


def test_draws_differ_between_iterations_and_seeds() -> None:
    masks = [draw_labelled(40, 0.5, draws) for draws in (DRAWS, (7, 2, "classifier"), (8, 1, "classifier"))]
    assert len({mask.tobytes() for mask in masks}) == 3


SIZES = st.shared(st.integers(1, 12), key="rows")


@settings(max_examples=40)
@given(
    SIZES.flatmap(lambda n: arrays(np.float64, n, elements=st.floats(0, 1))),
    SIZES.flatmap(lambda n: arrays(bool, n)),
    SIZES.flatmap(lambda n: arrays(bool, n)),
    st.none() | st.floats(0.1, 0.9),
)
def test_an_episode_with_a_label_is_worth_its_success(probabilities, success, labelled, threshold) -> None:
    rewards = rewards_of(probabilities, success[labelled], labelled, threshold)
    assert (rewards[labelled] == success[labelled]).all()
    guessed = probabilities[~labelled]
    assert (rewards[~labelled] == (guessed if threshold is None else guessed >= threshold)).all()
