"""Another opinion mixed into the pseudo-labels."""

import pytest
import torch

from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.heads import AAGMM, log_posterior
from momatch.pseudo_labels import FixMatchPolicy
from momatch.training.objective import BatchFacts, Embeddings, Guide, Objective


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_mixture_against_its_definition(weight):
    model = torch.softmax(torch.randn(20, 4, dtype=torch.float64), -1)
    guide = torch.softmax(3 * torch.randn(20, 4, dtype=torch.float64), -1)
    expected = model ** (1 - weight) * guide**weight
    mixed = Guide(guide, weight).mix(model.log())
    torch.testing.assert_close(mixed, expected / expected.sum(1, keepdim=True))


def test_certainty_of_one_side_can_be_overruled():
    certain, guide = torch.tensor([[0.0, -1e4]]), torch.tensor([[0.0, 1.0]])
    mixed = Guide(guide, 0.6).mix(certain)
    assert mixed.isfinite().all()
    assert mixed.argmax(1).item() == 1
    assert Guide(guide, 0.4).mix(certain).argmax(1).item() == 0


def test_guide_decides_label_weight_and_cluster():
    head = AAGMM(3, 2)
    z = Embeddings(torch.randn(4, 3), torch.randn(6, 3), torch.randn(6, 3))
    labels, indices, unknown = torch.tensor([0, 1, 0, 1]), torch.arange(6), torch.full((6,), -1)
    objective = Objective(WeightedPseudoLabels(FixMatchPolicy(cutoff=0.9)))
    opinion = torch.tensor([[0.99, 0.01], [0.01, 0.99], [0.5, 0.5]]).repeat(2, 1)
    losses = objective(head, z, BatchFacts(labels, indices, unknown, 0.0, Guide(opinion, 1.0)))
    errors = -log_posterior(head(z.strong))
    expected = (errors[0, 0] + errors[1, 1] + errors[3, 0] + errors[4, 1]) / 6
    torch.testing.assert_close(losses.parts["unlabeled_loss"], expected)
    torch.testing.assert_close(losses.means["utilisation"], torch.tensor(4 / 6))
