"""Sample moments against their definition cell by cell, their noise against simulation, quantiles against scipy."""

from itertools import product
from math import sqrt

import pytest
import torch
from scipy import stats

from momatch import AAGMM, KMeans
from momatch.report import gaussianity
from momatch.report.gaussianity import PAIRS, cluster_moments, distance_quantiles, moment_noise, moment_rows
from tests.constraints.naive_moments import normal_moment


def naive_rows(u):
    """Partition -> mean and root mean square error over its cells, from the D^p cells themselves."""
    classes = {}
    for order in range(1, 5):
        for cell in product(range(u.shape[1]), repeat=order):
            key = tuple(sorted((cell.count(d) for d in set(cell)), reverse=True))
            moment = float(torch.stack([u[:, d] for d in cell]).prod(0).mean())
            classes.setdefault(key, []).append((moment, normal_moment(cell)))
    return {
        key: (
            sum(moment for moment, _ in cells) / len(cells),
            sqrt(sum((moment - target) ** 2 for moment, target in cells) / len(cells)),
            cells[0][1],
        )
        for key, cells in classes.items()
    }


@pytest.mark.parametrize(("n", "D"), [(1, 1), (7, 1), (30, 2), (25, 3), (40, 5)])
@pytest.mark.parametrize("pairs", [1, 1 << 20])
def test_moments_are_those_of_the_cells(n, D, pairs, monkeypatch):
    monkeypatch.setattr(gaussianity, "PAIRS_AT_ONCE", pairs)
    u = 1.5 * torch.randn(n, D, dtype=torch.float64) + torch.linspace(-1, 1, D)
    expected = naive_rows(u)
    rows = moment_rows(u)
    assert len(rows) == len(expected) == {1: 4, 2: 8, 3: 10}.get(D, 11)
    for row in rows:
        partition = tuple(int(q) for q in row.cells[1:-1].split(","))
        mean, error, target = expected[partition]
        assert row.order == sum(partition)
        assert row.target == target
        assert row.mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
        assert row.error == pytest.approx(error, rel=1e-7, abs=1e-7)


def test_noise_is_what_chance_gives():
    n, trials = 50, 300
    squares = dict.fromkeys(PAIRS, 0.0)
    for _ in range(trials):
        for partition, row in zip(PAIRS, moment_rows(torch.randn(n, 6)), strict=True):
            assert row.cells == f"({','.join(map(str, partition))})"
            assert row.noise == moment_noise(partition, n)
            squares[partition] += row.error**2 / trials
    # Fourth powers have heavy tails: their mean square over the trials is known to a tenth or so.
    for partition, square in squares.items():
        assert sqrt(square) == pytest.approx(moment_noise(partition, n), rel=0.12), partition


def test_many_dimensions_take_no_cells():
    u = torch.randn(40, 512)
    rows = moment_rows(u)
    assert len(rows) == 11
    assert all(row.error == pytest.approx(row.noise, rel=0.25) for row in rows)


def test_values_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="fourth powers of the embeddings overflow"):
        moment_rows(torch.full((3, 2), 1e300, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 2, 99, 5000])
def test_quantiles_of_gaussian_distances_lie_on_the_diagonal(n):
    d2 = torch.randn(n, 3, dtype=torch.float64).square().sum(1)
    expected, observed = distance_quantiles(d2, 3)
    q = min(n, gaussianity.MAX_QUANTILES)
    assert len(expected) == len(observed) == q
    torch.testing.assert_close(expected[0], torch.tensor(stats.chi2(3).ppf(0.5 / q)).double())
    if n <= gaussianity.MAX_QUANTILES:
        torch.testing.assert_close(observed, d2.sort().values)  # then the points are the samples themselves
    else:
        torch.testing.assert_close(observed, expected, rtol=0.2, atol=0.1)


def test_clusters_are_taken_about_the_heads_own_centers():
    head = AAGMM(3, 4).requires_grad_(False)
    head.log_variances.copy_(torch.randn(4, 3))
    labels = torch.tensor([0] * 50 + [2] * 30 + [-1] * 5)
    z = head.centers[labels.clamp_min(0)] + torch.randn(85, 3)
    found = cluster_moments(head, z, labels, ("a", "b", "c", "d"), whiten=False)
    assert [(cluster.name, cluster.n) for cluster in found] == [("a", 50), ("c", 30)]
    u = z[50:80].double() - head.centers[2].double()
    assert found[1].moments == moment_rows(u)
    d2 = head.mahalanobis(z[50:80].double())[:, 2].square()
    torch.testing.assert_close(found[1].observed, d2.sort().values, rtol=1e-5, atol=1e-6)
    whitened = cluster_moments(head, z, labels, ("a", "b", "c", "d"), whiten=True)
    means = [row.mean for row in moment_rows(u / head.variances[2].double().sqrt())]
    assert [row.mean for row in whitened[1].moments] == pytest.approx(means)
    torch.testing.assert_close(whitened[1].observed, found[1].observed)


def test_gaussian_clusters_are_within_the_noise():
    head = KMeans(8, 2)
    labels = torch.arange(1000) % 2
    z = head.centers[labels].detach() + torch.randn(1000, 8)
    for cluster in cluster_moments(head, z, labels, ("a", "b"), whiten=False):
        assert all(row.error < 2 * row.noise for row in cluster.moments)
