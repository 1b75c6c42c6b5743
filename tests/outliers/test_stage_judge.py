"""The judge of a network: equal to its parts put together by hand, for any network, without a trace in it."""

import copy
import io
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from momatch import AAGMM, Classifier, Judge, OutlierDetector, StageJudge, log_density, log_posterior
from momatch.outliers import StageReader, find_stages
from momatch.outliers.stages import INPUT, statistics
from tests.outliers.naive_answers import WEIGHT, naive_unusual
from tests.outliers.test_stages import ViT

K = 3


class Backbone(nn.Module):
    """Convolutions that declare no stages."""

    def __init__(self):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.two = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.three = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Dropout(0.5))

    def forward(self, x):
        return self.three(self.two(self.one(x))).mean((2, 3))


class Own(nn.Module):
    """A user's network: the backbone sees scaled pixels, and the last layer is a head."""

    def __init__(self):
        super().__init__()
        self.backbone, self.fc = Backbone(), AAGMM(8, K)

    def forward(self, x):
        return self.fc(self.backbone(2.0 * x))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Dropout(0.5), nn.Linear(8, K)),
    )


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 12), nn.ReLU(inplace=True), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, K)
    )


NETWORKS = {
    "cnn": cnn,
    "mlp": mlp,
    "vit": lambda: nn.Sequential(ViT(depth=3), nn.Linear(8, K)),
    "own": Own,
    "classifier": lambda: Classifier.build("cnn-tiny", num_classes=K),
    "classifier of an mlp": lambda: Classifier.build("mlp", num_classes=K, image_size=8),
}


def make(name):
    """A network with statistics of batch norm that are not the initial ones."""
    network = NETWORKS[name]()
    network.train()(torch.randn(64, 3, 8, 8))
    return network.train()


def inputs(n, *, shift=0.0, seed=1):
    """Images of three classes that differ in brightness, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=generator)
    return torch.randn(n, 3, 8, 8, generator=generator) + y[:, None, None, None] + shift, y


def batches(x, y, size=32):
    return list(zip(x.split(size), y.split(size), strict=True))


def by_hand(network, x):
    """Output, statistics and stages of a copy in evaluation mode."""
    network = copy.deepcopy(network).eval()
    backbone = getattr(network, "backbone", network)
    seen = []
    handle = backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        output = network(x)
        handle.remove()
        names = find_stages(backbone, seen[0])
        return output, StageReader(backbone, names)(seen[0])[1], names


# --- Against its parts ---


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_a_judge_of_the_statistics(name):
    network, (x, y), (new, _) = make(name), inputs(120), inputs(40, seed=2)
    judge = StageJudge(network).fit(batches(x, y))
    output, statistics, names = by_hand(network, x)
    posterior = log_posterior(output).exp()
    expected = Judge(statistics.shape[1], K, names, judges_answers=True).fit([(statistics, y, posterior)])
    output, statistics, _ = by_hand(network, new)

    assert judge.judge.stage_names == names
    assert judge.judge.count == 120
    distance = expected.mahalanobis(statistics)
    torch.testing.assert_close(judge.mahalanobis(new), distance, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(judge(new), expected(statistics), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(judge.log_density(new), log_density(expected(statistics)), rtol=1e-3, atol=1e-2)
    score = expected.score(distance.amin(1), log_posterior(output).exp())
    torch.testing.assert_close(judge.score(new), score, rtol=1e-3, atol=1e-3)


def test_equals_the_definition_in_numpy():
    network, (x, y) = make("cnn").double(), inputs(100)
    x = x.double()
    judge = StageJudge(network, stage_names=("3", "6")).fit([(x, y)])
    layers = copy.deepcopy(network).eval()
    with torch.no_grad():
        outputs = [layers[:4](x), layers[:7](x)]
        logits = layers(x)
    columns = []
    for maps in (output.flatten(2).numpy() for output in outputs):
        deviation = maps.std(2)
        columns += [
            maps.mean(2),
            np.log(deviation + 1e-3 * (abs(maps.mean(2)) + deviation).mean(1, keepdims=True) + 1e-12),
        ]
    table = torch.from_numpy(np.concatenate(columns, 1))
    expected = Judge(table.shape[1], K).double().fit([(table, y)])
    nearest = expected.mahalanobis(table).amin(1)
    posterior = torch.softmax(logits, 1).numpy()
    of_answer = WEIGHT * torch.from_numpy(naive_unusual(posterior, y.numpy(), posterior))
    unusual = (nearest - expected.typical_distance) / expected.distance_deviation
    torch.testing.assert_close(judge.score(x), unusual + of_answer, rtol=1e-6, atol=1e-6)
    assert judge.score(x).dtype == torch.float64


def test_a_classifier_is_read_as_it_inspects_itself():
    normalization = ((0.5,) * 3, (0.25,) * 3)
    network = Classifier.build("mlp", num_classes=K, image_size=8, normalization=normalization)
    x = torch.randint(0, 256, (90, 3, 8, 8), dtype=torch.uint8)
    y = torch.arange(90) % K
    judge = StageJudge(network).fit(batches(x, y))
    assert INPUT in judge.judge.stage_names  # what the backbone gets, not the raw pixels
    with torch.no_grad():
        _, statistics = network.eval().inspect(x, judge.judge.stage_names)
    expected = Judge(statistics.shape[1], K).fit([(statistics, y)])
    torch.testing.assert_close(judge.mahalanobis(x), expected.mahalanobis(statistics), rtol=1e-3, atol=1e-3)


def test_no_stage_names_stand_for_the_output_of_the_backbone():
    network, (x, y) = make("own"), inputs(80)
    judge = StageJudge(network, stage_names=()).fit([(x, y)])
    with torch.no_grad():
        features = copy.deepcopy(network).eval().backbone(2.0 * x)
    expected = Judge(8, K).fit([(features, y)])
    torch.testing.assert_close(judge.mahalanobis(x), expected.mahalanobis(features))


def test_backbone_by_name():
    network, (x, y) = make("own"), inputs(80)
    of_part = StageJudge(network, backbone=network.backbone, stage_names=("one", "three")).fit([(x, y)])
    of_whole = StageJudge(network, backbone=network, stage_names=("backbone.one", "backbone.three")).fit([(x, y)])
    assert torch.equal(of_part.score(x), of_whole.score(x))


@pytest.mark.parametrize("part", ["network", "backbone"])
def test_compiled_networks_are_read(part):
    network, (x, y) = make("own"), inputs(80)
    expected = StageJudge(network).fit([(x, y)]).score(x)
    compiled = copy.deepcopy(network)
    if part == "network":
        compiled = torch.compile(compiled, backend="eager")
    else:
        compiled.backbone = torch.compile(compiled.backbone, backend="eager")
    torch.testing.assert_close(StageJudge(compiled).fit([(x, y)]).score(x), expected, rtol=1e-3, atol=1e-3)


# --- Which samples ---


def test_unlabelled_samples_count_by_their_confident_prediction():
    network, (x, y) = make("mlp"), inputs(200)
    network[-1].weight.data *= 20
    y[60:] = -1
    posterior, predicted = torch.softmax(network.eval()(x).detach().double(), 1).max(1)
    sure = (y >= 0) | (posterior >= 0.9)
    assert 60 < int(sure.sum()) < 200
    classes = torch.where(y >= 0, y, predicted)
    judge = StageJudge(network).fit(batches(x, y), cutoff=0.9)
    expected = StageJudge(network).fit(batches(x[sure], classes[sure]))
    assert judge.judge.count == expected.judge.count == sure.sum()
    torch.testing.assert_close(judge.score(x), expected.score(x))


def test_unlabelled_samples_alone_are_enough():
    network, (x, y) = make("cnn"), inputs(100)
    judge = StageJudge(network).fit([(x, torch.full_like(y, -1))], cutoff=0.0)
    assert judge.judge.count == 100


def test_order_and_batches_do_not_matter():
    network, (x, y) = make("cnn"), inputs(101)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    torch.testing.assert_close(
        StageJudge(network).fit(loader).score(x), StageJudge(network).fit([(x, y)]).score(x), rtol=1e-3, atol=1e-3
    )


def test_empty_batches_are_skipped():
    network, (x, y) = make("cnn"), inputs(50)
    judge = StageJudge(network).fit([(x[:0], y[:0]), (x, y), (x[:0], y[:0])])
    assert judge.judge.count == 50


def test_large_inputs_are_scored_in_parts():
    network, (x, y) = make("cnn"), inputs(700)
    sizes = []
    network.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    judge = StageJudge(network).fit(batches(x, y))
    sizes.clear()
    scores = judge.score(x)
    assert max(sizes) <= 256
    assert sum(sizes) == 700
    torch.testing.assert_close(scores[500:510], judge.score(x[500:510]), rtol=1e-3, atol=1e-3)


def test_loader_is_streamed():
    x, y = inputs(320)

    class Stream:
        def __init__(self):
            self.passes, self.most = 0, 0

        def __iter__(self):
            alive = []
            for start in range(0, 320, 32):
                self.most = max(self.most, sum(reference() is not None for reference in alive))
                batch = x[start : start + 32].clone()
                alive.append(weakref.ref(batch))
                yield batch, y[start : start + 32]
                del batch
            self.passes += 1

    loader = Stream()
    StageJudge(make("cnn")).fit(loader)
    assert loader.passes == 3
    assert loader.most <= 1


# --- The network is left alone ---


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_state_of_the_network_are_kept(fails):
    network, (x, y) = make("cnn"), inputs(60)
    network[1].eval()  # a frozen batch norm
    modes = [module.training for module in network.modules()]
    state, random = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    judge = StageJudge(network)
    if fails:
        with pytest.raises(ValueError, match="not finite"):
            judge.fit([(x.masked_fill(y[:, None, None, None] == 0, torch.nan), y)])
        assert judge.judge is None
    else:
        assert not judge.fit([(x, y)]).score(x).requires_grad
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_network_is_not_part_of_the_state():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    assert not list(judge.parameters())
    assert all(name.startswith("judge.") or name == "_extra_state" for name in judge.state_dict())
    judge.train()
    assert "Sequential" in repr(judge)


@pytest.mark.parametrize("name", ["cnn", "own"])
def test_state_dict_round_trip(name):
    network, (x, y) = make(name), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    file = io.BytesIO()
    torch.save(nn.ModuleDict({"a": judge}).state_dict(), file)
    file.seek(0)
    other = StageJudge(network)
    nn.ModuleDict({"a": other}).load_state_dict(torch.load(file, weights_only=True))
    assert other.judge.stage_names == judge.judge.stage_names
    assert torch.equal(other.score(x), judge.score(x))


def test_a_state_of_an_older_version_counts_the_entropy():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    state = {name: value for name, value in judge.state_dict().items() if not name.startswith("judge.answers.")}
    older = StageJudge(network)
    older.load_state_dict(state)
    assert older.judge.answers is None
    assert torch.equal(older.mahalanobis(x), judge.mahalanobis(x))
    with torch.no_grad():
        posterior = copy.deepcopy(network).eval()(x).softmax(1)
    unusual = (older.mahalanobis(x).amin(1) - judge.judge.typical_distance) / judge.judge.distance_deviation
    torch.testing.assert_close(older.score(x), unusual + torch.special.entr(posterior).sum(1), rtol=1e-4, atol=1e-4)


def test_state_of_another_network_is_refused():
    x, y = inputs(60)
    state = StageJudge(make("own")).fit([(x, y)]).state_dict()
    with pytest.raises(ValueError, match="stage_names: got"):
        StageJudge(make("cnn")).load_state_dict(state)
    with pytest.raises(RuntimeError, match="size mismatch"):
        StageJudge(make("own"), 7).load_state_dict(state)


def test_a_copy_judges_its_own_network():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    twin = copy.deepcopy(judge)
    assert twin.network is not network
    assert torch.equal(twin.score(x), judge.score(x))


# --- What goes wrong ---


def test_loaders_that_cannot_be_used():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network, K)
    cases = [
        (iter([(x, y)]), "loader: got a list_iterator, which can be read once"),
        ([], "loader: got no samples"),
        ([(x[:0], y[:0])], "loader: got no samples"),
        ([x], "loader: got a batch that is a Tensor, expected pairs"),
        ([{"x": x, "y": y}], "loader: got a batch that is a dict, expected pairs"),
        ([(x, y, y)], "loader: got a batch that is a tuple, expected pairs"),
        ([(x, y.tolist())], "loader: got a batch that is a tuple, expected pairs of tensors"),
        ([(x, y[:-1])], r"loader: got x \(60, 3, 8, 8\) with y \(59,\)"),
        ([(x, y.float())], "of torch.float32, expected"),
        ([(x, y + 1)], "loader: got class numbers from 1 to 3, expected 0 to 2, and -1"),
        ([(x, y - 2)], "loader: got class numbers from -2 to 0, expected 0 to 2, and -1"),
        (
            [(x, torch.full_like(y, -1))],
            "loader: got no labelled sample and no prediction with a posterior of at least 0.95",
        ),
        ([(torch.full_like(x, torch.inf), y)], "features that are not finite"),
    ]
    for loader, message in cases:
        with pytest.raises(ValueError, match=message):
            judge.fit(loader)
    with pytest.raises(ValueError, match=r"cutoff: got 1\.5"):
        judge.fit([(x, y)], cutoff=1.5)


def test_a_loader_that_changes_is_refused():
    x, y = inputs(60)

    class Shrinking:
        size = 60

        def __iter__(self):
            self.size -= 1
            yield x[: self.size], y[: self.size]

    with pytest.raises(ValueError, match="loader: got 58 samples to trust in the first pass and 57 in a later one"):
        StageJudge(make("cnn")).fit(Shrinking())


def test_a_failed_fit_keeps_the_one_before():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    before = judge.score(x)
    with pytest.raises(ValueError, match="expected some"):
        judge.fit([(x, torch.full_like(y, -1))], cutoff=1.0)
    assert torch.equal(judge.score(x), before)


class Pair(nn.Module):
    """Returns logits and something else."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, K, 1)

    def forward(self, x):
        return self.conv(x).mean((2, 3)), x


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("network", "got"),
    [
        (nn.Sequential(nn.Conv2d(3, K, 1)), r"shape \(8, 3, 8, 8\)"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(256, K + 1)), r"shape \(8, 4\)"),
        (Pair(), "a tuple"),
    ],
)
def test_networks_that_return_something_else(network, got):
    x, y = inputs(20)
    with pytest.raises(
        ValueError, match=rf"network: returned {got} for 8 inputs, expected logits or a log joint \(8, 3\)"
    ):
        StageJudge(network, K).fit([(x, y)])


@pytest.mark.usefixtures("unchecked")
def test_a_network_without_stages_that_returns_something_else():
    class Alone(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :K], x

    x, y = inputs(20)
    with pytest.raises(ValueError, match="stage 'output': got a tuple, expected a tensor"):
        StageJudge(Alone(), K).fit([(x, y)])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, K)

    def forward(self, x):
        return self.fc(self.lstm(x.flatten(2).transpose(1, 2))[0].mean(1))


def test_volumes_and_recurrent_layers_are_stages():
    x, y = inputs(40)
    volume = nn.Sequential(
        nn.Conv3d(1, 5, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(5, K)
    )
    judge = StageJudge(volume).fit([(x.unsqueeze(1), y)])
    assert judge.judge.stage_names == ("0", "1")
    maps = volume[0](x.unsqueeze(1))
    expected = torch.cat([maps.mean((2, 3, 4)), maps.flatten(2).std(2, correction=0).log()], 1)
    torch.testing.assert_close(statistics(maps), expected, atol=1e-2, rtol=1e-2)
    x = torch.randn(40, 8, 3, 3)
    judge = StageJudge(Recurrent()).fit([(x, y)])
    assert judge.judge.stage_names == ("lstm",)
    assert judge.judge.num_features == 10


def test_a_network_of_which_only_the_output_can_be_read_is_warned_about():
    x, y = inputs(40)
    network = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), K))
    with pytest.warns(UserWarning, match="found no layers inside Sequential"):
        StageJudge(network).fit([(x, y)])
    StageJudge(network, stage_names=["1"]).fit([(x, y)])


@pytest.mark.usefixtures("unchecked")
def test_arguments_and_inputs_that_cannot_be_used():
    network, (x, y) = make("own"), inputs(60)
    with pytest.raises(ValueError, match="network: got a function"):
        StageJudge(lambda x: x)
    with pytest.raises(ValueError, match="num_classes: got 0"):
        StageJudge(network, 0)
    with pytest.raises(ValueError, match="stage_names: got 'four'"):
        StageJudge(network, stage_names=("four",))
    with pytest.raises(ValueError, match="backbone: got a Backbone that is not in the Own"):
        StageJudge(network, backbone=Backbone())
    judge = StageJudge(network)
    with pytest.raises(ValueError, match="judge: got no fit"):
        judge.score(x)
    judge.fit([(x, y)])
    with pytest.raises(ValueError, match=r"x: got shape \(0, 3, 8, 8\)"):
        judge.score(x[:0])


def test_damaged_inputs_are_as_outlying_as_can_be():
    network, (x, y) = make("cnn"), inputs(60)
    judge = StageJudge(network).fit([(x, y)])
    new = x[:5].clone()
    new[2, 0, 0, 0] = torch.nan
    assert judge.score(new).isinf().tolist() == [False, False, True, False, False]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda network: torch.jit.trace(network, inputs(2)[0])])
def test_torchscript_takes_no_hooks_so_its_output_is_judged(compiled):
    plain, (x, y) = make("mlp").eval(), inputs(60)
    with pytest.warns(UserWarning, match="found no layers"):
        judge = StageJudge(compiled(plain)).fit([(x, y)])
    assert judge.judge.stage_names == ()
    expected = StageJudge(plain, stage_names=()).fit([(x, y)])
    torch.testing.assert_close(judge.score(x), expected.score(x))


# --- With the detector ---


@pytest.mark.parametrize("name", NETWORKS)
def test_p_values_of_inliers_are_uniform_and_outliers_are_found(name):
    network, (x, y), (held_out, _) = make(name), inputs(400), inputs(500, seed=2)
    detector = OutlierDetector(StageJudge(network).fit(batches(x, y))).calibrate(held_out)
    p_values = detector.p_value(inputs(2000, seed=3)[0])
    for alpha in (0.05, 0.1, 0.25, 0.5, 0.75):
        assert abs((p_values <= alpha).float().mean().item() - alpha) < 0.08
    outliers, _ = inputs(50, shift=20.0, seed=4)
    assert (detector.p_value(outliers) < 0.02).all()
    assert detector.select_outliers(torch.cat([held_out[:50], outliers]), fdr=0.1)[50:].all()


def test_false_positive_rate_is_bounded_on_average():
    network, (x, y) = make("mlp"), inputs(100)
    detector = OutlierDetector(StageJudge(network).fit([(x, y)]))
    new, _ = inputs(4000, seed=9)
    parts = new.split(50)
    rates = [
        (detector.calibrate(one).p_value(two) <= 0.1).float().mean().item()
        for one, two in zip(parts[::2], parts[1::2], strict=True)
    ]
    assert sum(rates) / len(rates) < 0.1 + 3 * (0.1 * 0.9 / 50 * 2 / len(rates)) ** 0.5
