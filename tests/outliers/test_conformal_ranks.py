import pytest
import torch

from momatch.outliers.conformal import _bisect, count_below


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8, 9, 255, 256, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_count_as_the_naive_one(m, dtype):
    # Few different values, so that there are ties; infinities, as scores of embeddings that are no numbers.
    ordered = torch.randint(-9, 9, (m,)).to(dtype).sort().values
    ordered[-1] = torch.inf
    values = torch.cat([torch.arange(-10, 11).to(dtype), torch.tensor([0.5, torch.inf, -torch.inf], dtype=dtype)])
    naive = torch.tensor([sum(one < value for one in ordered.tolist()) for value in values.tolist()])
    assert torch.equal(count_below(ordered, values), naive)
    assert torch.equal(_bisect(ordered, values), naive)


def test_a_traced_graph_does_not_search():
    ordered, values = torch.randn(100).sort().values, torch.randn(7)

    class Count(torch.nn.Module):
        def forward(self, values):
            return count_below(ordered, values)

    program = torch.export.export(Count(), (values,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert "searchsorted" not in str(program.graph)
    assert torch.equal(program.module()(values[:3]), count_below(ordered, values[:3]))
