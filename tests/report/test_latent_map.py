"""Maps of the latent space: the principal plane, t-SNE, and which images are shown."""

import pytest
import torch
from sklearn.manifold import trustworthiness

from momatch.report.latent_map import MIN_TSNE_POINTS, Plane, images_per_origin, stratified_sample, tsne


def clusters(n=45, D=5):
    return 8 * torch.randn(3, D)[torch.arange(n) % 3] + torch.randn(n, D)


def test_the_plane_holds_the_largest_variance():
    z = torch.randn(200, 5).double() * torch.tensor([1.0, 9.0, 1.0, 5.0, 1.0]) + 3
    plane = Plane.fit(z)
    values = torch.linalg.svdvals(z - z.mean(0)).square()
    assert plane.explained == pytest.approx(float(values[:2].sum() / values.sum()))
    flat = plane.project(z)
    torch.testing.assert_close(flat.square().sum(0), values[:2])
    torch.testing.assert_close(flat.mean(0), torch.zeros(2).double(), atol=1e-9, rtol=0)
    # The picture does not turn round when samples come in another order.
    order = torch.randperm(200)
    torch.testing.assert_close(Plane.fit(z[order]).project(z), flat)


def test_one_dimension_and_one_sample():
    z = torch.randn(9, 1)
    places = Plane.fit(z).project(z)
    assert Plane.fit(z).explained == 1
    torch.testing.assert_close(places[:, 0].abs(), (z - z.mean(0))[:, 0].abs().double())
    assert bool((places[:, 1] == 0).all())
    alone = Plane.fit(torch.ones(1, 4))
    assert alone.explained == 1
    torch.testing.assert_close(alone.project(torch.ones(1, 4)), torch.zeros(1, 2).double())


@pytest.mark.parametrize("D", [1, 2, 20])
def test_neighbours_stay_neighbours(D):
    z = clusters(D=D)
    start = Plane.fit(z).project(z)
    places = tsne(z, start)
    assert trustworthiness(z.numpy(), places.numpy(), n_neighbors=5) > 0.9
    assert torch.equal(places, tsne(z, start))  # the same run gives the same picture


def test_the_scale_of_the_embeddings_does_not_matter():
    z = clusters()
    places = tsne(z, Plane.fit(z).project(z))
    for scale in (1e-25, 1e25):
        scaled = z.double() * scale + scale
        other = tsne(scaled, Plane.fit(scaled).project(scaled))
        assert bool(other.isfinite().all())
        assert trustworthiness(z.numpy(), other.numpy(), n_neighbors=5) > 0.9
    assert bool(places.isfinite().all())


def test_too_few_or_equal_points_lie_as_by_pca():
    for z in (torch.randn(MIN_TSNE_POINTS - 1, 3), torch.ones(20, 3), torch.ones(1, 3)):
        start = Plane.fit(z).project(z)
        assert torch.equal(tsne(z, start), start)
    z = torch.randn(MIN_TSNE_POINTS, 3)
    assert bool(tsne(z, Plane.fit(z).project(z)).isfinite().all())


def test_each_class_shows_its_share():
    labels = torch.cat([torch.full((300,), 2), torch.full((100,), 0), torch.full((200,), -1)])
    chosen = stratified_sample(labels, 60)
    assert len(chosen.unique()) == 60
    assert bool((chosen.diff() > 0).all())
    assert [int((labels[chosen] == k).sum()) for k in (2, 0, -1)] == [30, 10, 20]
    assert torch.equal(stratified_sample(labels, 600), torch.arange(600))
    assert torch.equal(stratified_sample(labels, 10**6), torch.arange(600))
    assert len(stratified_sample(labels[:0], 5)) == 0
    assert len(stratified_sample(labels, 0)) == 0


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([500], 2000, [500]),
        ([10_000], 2000, [2000]),
        ([10_000, 10_000], 2000, [1000, 1000]),
        ([10_000, 30], 2000, [1970, 30]),
        ([10_000, 10_000, 30], 2000, [1000, 970, 30]),
        ([100, 10_000], 2000, [100, 100]),  # outliers do not drown what belongs
        ([500, 300, 300], 2000, [500, 250, 250]),
        ([5, 5], 1, [1, 0]),
        ([5, 0, 5], 6, [3, 0, 3]),
    ],
)
def test_shares_of_the_origins(sizes, most, expected):
    assert images_per_origin(sizes, most) == expected
