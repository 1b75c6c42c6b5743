"""Each algorithm against its naive version, and in its invariants. Whole steps: tests/training/test_family.py."""

import copy
import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from momatch.algorithms import ALGORITHMS, Algorithm, Guess, Output, Outputs, Sizes, Targets
from momatch.algorithms.alignment import LabelAlignment
from momatch.algorithms.memory import LabeledMemory, RecentMemory, similarity
from momatch.algorithms.projector import AveragedProjector, Projector
from momatch.algorithms.propagation import propagate
from momatch.config.algorithms import OPTIONS
from tests.algorithms.naive import NAIVE, projection

B, U, K, D_FEATURES = 4, 6, 3, 5
SIZES = Sizes(num_classes=K, num_samples=20, num_labeled=7, num_features=D_FEATURES)
#: Published values, but a cutoff and memories that small batches put to the test.
SMALL = {
    "cutoff": 0.6,
    "fairness_weight": 0.5,
    "memory_size": 13,
    "alignment_steps": 2,
    "ramp_up": 0.5,
    "contrast_cutoff": 0.4,
}


def options_of(name, **changed):
    published = {**OPTIONS[name], "cutoff": 0.6, "fairness_weight": 0.5}
    wanted = {**published, **{key: value for key, value in SMALL.items() if key in published}, **changed}
    taken = inspect.signature(ALGORITHMS[name].__init__).parameters
    return {key: value for key, value in wanted.items() if key in taken}


def built(name, **changed):
    torch.manual_seed(0)
    return ALGORITHMS[name](SIZES, **options_of(name, **changed)).double()


def guess_at(step, *, keep=None, exclude=None):
    generator = torch.Generator().manual_seed(step)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = torch.randint(7, (B,), generator=generator)  # one may occur twice
    return Guess(
        (2 * random(U, K)).softmax(-1),
        torch.randperm(20, generator=generator)[:U],
        rows % K,
        rows,
        progress=0.1 * step,
        exclude=exclude,
        trust=keep,
        features=random(U, D_FEATURES),
        labeled_features=random(B, D_FEATURES),
    )


def outputs_at(step, algorithm, guess, mixing=None):
    generator = torch.Generator().manual_seed(100 + step)
    wants = algorithm.wants
    sizes = {"labeled": B, **dict.fromkeys([*wants.trained, "rotated"], U)}
    sizes |= {f"mixed_{name}": B if name == "labeled" else U for name in ("labeled", *wants.mixed)}
    views = {}
    for name, n in sizes.items():
        log_joint, features = (
            torch.randn(n, size, generator=generator, dtype=torch.float64, requires_grad=True)
            for size in (K, D_FEATURES)
        )
        views[name] = Output(log_joint, features)
    turns = torch.randint(4, (U,), generator=generator)
    return Outputs(views, guess.labels, guess.progress, turns=turns, mixing=mixing)


def run(name, steps=4, changed=None, **kw):
    """Yield, for each step, the terms of the algorithm, those of its naive version, and both targets."""
    changed = changed or {}
    algorithm, naive = built(name, **changed), NAIVE[name](options_of(name, **changed), SIZES)
    twin = copy.deepcopy(algorithm)
    if hasattr(twin, "projector"):
        naive.project = naive.teach = projection(twin.projector)  # nothing is trained here
    if getattr(twin, "turn", None) is not None:
        naive.turn = twin.turn
    for step in range(steps):
        guess = guess_at(step, **kw)
        with torch.no_grad():
            targets = algorithm.label(guess)
        g = SimpleNamespace(
            p=guess.posterior, keep=guess.keep.tolist(), labels=guess.labels, rows=guess.labeled_indices
        )
        g.features, g.labeled_features = guess.features, guess.labeled_features
        q, weights = naive.targets(g)
        mixing = None
        if algorithm.wants.mixed:
            mixing = algorithm.mix(guess.labels, targets, seed=step)
            naive.mix(guess.labels.tolist(), seed=step)
            for view, target in mixing.targets.items():
                torch.testing.assert_close(target, torch.stack(naive.y[view]))
            assert mixing.partner.tolist() == naive.partner
        outputs = outputs_at(step, algorithm, guess, mixing)
        out = {view: output.log_joint for view, output in outputs.views.items()}
        out["features"] = {view: output.features for view, output in outputs.views.items()}
        out["turns"] = outputs.turns
        terms = {"supervised_loss": algorithm.supervised_loss(outputs), **algorithm.losses(outputs, targets)}
        expected = {"supervised_loss": naive.supervised(out, guess.labels), **naive.terms(out, guess.progress)}
        yield SimpleNamespace(
            terms=terms,
            expected=expected,
            targets=targets,
            q=q,
            weights=weights,
            outputs=outputs,
            algorithm=algorithm,
            twin=twin,
        )


def assert_same(found):
    assert found.terms.keys() == found.expected.keys() == {"supervised_loss", *found.algorithm.terms}
    for key, value in found.terms.items():
        torch.testing.assert_close(value, torch.as_tensor(found.expected[key], dtype=torch.float64), msg=key)
    classes = found.targets.target if found.targets.target.ndim == 2 else F.one_hot(found.targets.target, K).double()
    torch.testing.assert_close(classes, torch.stack([*found.q]))
    torch.testing.assert_close(found.targets.weight, torch.tensor(found.weights, dtype=torch.float64))


def gradients(terms, tensors):
    return torch.autograd.grad(sum(terms.values()), tensors, allow_unused=True, retain_graph=True)


@pytest.mark.parametrize("name", NAIVE)
def test_targets_terms_and_gradients_are_the_naive_ones(name):
    for found in run(name):
        assert_same(found)
        inputs = [tensor for output in found.outputs.views.values() for tensor in (output.log_joint, output.features)]
        ours = gradients(found.terms, [*inputs, *found.algorithm.parameters()])
        theirs = gradients(found.expected, [*inputs, *found.twin.parameters()])
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None) or float((one if other is None else other).abs().max()) == 0
            if one is not None and other is not None:
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", NAIVE)
def test_some_samples_count_and_some_do_not(name):
    """Otherwise the weights would not have been put to the test."""
    weights = torch.cat([found.targets.weight for found in run(name)])
    has_cutoff = name not in ("meanteacher", "mixmatch", "remixmatch")
    assert (0 < float(weights.mean()) < 1) if has_cutoff else bool((weights == 1).all())


@pytest.mark.parametrize("name", NAIVE)
def test_outliers_and_trust_are_those_of_the_naive_version(name):
    exclude = torch.tensor([False, True, False, False, True, False])
    trust = torch.tensor([1.0, 0.2, 0.9, 0.6, 0.0, 1.0], dtype=torch.float64)
    for found in run(name, exclude=exclude, keep=trust):
        assert_same(found)
        assert (found.targets.weight[exclude] == 0).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_all_weights_zero_nothing_is_left_of_the_pool(name):
    algorithm = built(name)
    if not algorithm.wants.guessed:
        return
    state = {
        key: value.clone() for key, value in algorithm.state_dict().items() if "alignment" in key and "label" not in key
    }
    guess = guess_at(1, exclude=torch.ones(U, dtype=torch.bool))
    targets = algorithm.label(guess)
    assert (targets.weight == 0).all()
    mixing = algorithm.mix(guess.labels, targets, seed=3) if algorithm.wants.mixed else None
    outputs = outputs_at(0, algorithm, guess, mixing)
    for key, value in algorithm.losses(outputs, targets).items():
        assert float(value.detach()) == 0.0, key
    for key, value in state.items():
        assert torch.equal(algorithm.state_dict()[key], value), key


@pytest.mark.parametrize("name", ["comatch", "simmatchv2"])
@pytest.mark.parametrize("size", [1, 3, 9, 10, 11])
def test_a_memory_may_be_smaller_than_the_batch(name, size):
    for found in run(name, changed={"memory_size": size}):
        assert_same(found)


@pytest.mark.parametrize("name", NAIVE)
def test_a_class_that_is_never_seen_does_no_harm(name):
    algorithm = built(name)
    for step in range(3):
        guess = guess_at(step)
        posterior = torch.cat([guess.posterior[:, :2], torch.zeros(U, 1, dtype=torch.float64)], 1)
        posterior = posterior / posterior.sum(-1, keepdim=True)
        guess = Guess(
            posterior, guess.indices, guess.labels % 2, guess.labeled_indices, 0.5,
            features=guess.features, labeled_features=guess.labeled_features,
        )  # fmt: skip
        with torch.no_grad():
            targets = algorithm.label(guess)
        mixing = algorithm.mix(guess.labels, targets, seed=3) if algorithm.wants.mixed else None
        outputs = outputs_at(step, algorithm, guess, mixing)
        total = sum(algorithm.losses(outputs, targets).values()) + algorithm.supervised_loss(outputs)
        assert total.isfinite()
        total.backward()
        assert all(p.grad.isfinite().all() for p in algorithm.parameters())
        assert all(out.log_joint.grad is None or out.log_joint.grad.isfinite().all() for out in outputs.views.values())


@pytest.mark.parametrize("name", ["mixmatch", "remixmatch"])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_mixing_share_at_its_ends(name, share, monkeypatch):
    monkeypatch.setattr("momatch.algorithms.mixing.draw_share", lambda alpha, seed: share)
    algorithm, guess = built(name), guess_at(0)
    targets = algorithm.label(guess)
    mixing = algorithm.mix(guess.labels, targets, seed=5)
    whole = torch.cat([F.one_hot(guess.labels, K).double(), *[targets.target] * len(algorithm.wants.mixed)])
    expected = whole if share == 1.0 else whole[mixing.partner]
    torch.testing.assert_close(torch.cat([*mixing.targets.values()]), expected)
    assert sorted(mixing.partner.tolist()) == list(range(len(whole)))


def test_no_alpha_mixes_nothing():
    for found in run("mixmatch", changed={"mix_alpha": 0.0}):
        assert_same(found)
        assert found.outputs.mixing.share == 1.0


def test_an_outlier_is_mixed_into_nothing():
    algorithm, exclude = built("mixmatch"), torch.tensor([True] * 5 + [False])
    guess = guess_at(0, exclude=exclude)
    partner = algorithm.mix(guess.labels, algorithm.label(guess), seed=0).partner
    outliers = {B + i for i in range(5)} | {B + U + i for i in range(5)}
    assert all(int(j) not in outliers or int(j) == i for i, j in enumerate(partner))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_state_is_in_the_state_dict(name):
    """A copy that loads it goes on as the original does."""
    algorithm = built(name)
    if not algorithm.wants.guessed:
        return
    for step in range(3):
        algorithm.label(guess_at(step))
    other = built(name)
    other.load_state_dict(algorithm.state_dict())
    one, two = (a.label(guess_at(7)) for a in (algorithm, other))
    assert torch.equal(one.target, two.target)
    assert torch.equal(one.weight, two.weight)
    for key, value in one.notes.items():
        assert torch.equal(value, two.notes[key])


@pytest.mark.parametrize("schedule", ["linear", "log", "exp"])
def test_signal_annealing_leaves_out_what_is_learned_too_soon(schedule):
    algorithm = built("uda", signal_annealing=schedule)
    # Learned well, hardly, and not at all: the last is sure of a wrong class.
    log_joint = torch.tensor([[4.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 6.0]], dtype=torch.float64)
    labels = torch.zeros(3, dtype=torch.int64)
    losses = -log_joint.log_softmax(-1)[:, 0]

    def supervised(progress, some=slice(None)):
        outputs = Outputs({"labeled": Output(log_joint[some])}, labels[some], progress)
        return float(algorithm.supervised_loss(outputs))

    assert algorithm.annealed(1.0) == pytest.approx(1.0, abs=0.01)
    assert algorithm.annealed(0.0) == pytest.approx(1 / K, abs=0.01)
    assert supervised(1.0) == pytest.approx(float(losses.mean()))  # of a confidence of 0.96
    some = losses[1:] if algorithm.annealed(0.2) > 0.46 else losses[2:]
    assert supervised(0.2) == pytest.approx(float(some.mean()))
    assert supervised(0.2, slice(1)) == 0.0
    rises = [algorithm.annealed(step / 10) for step in range(11)]
    assert rises == sorted(rises)


def test_recent_memory_keeps_the_last_samples_in_turn():
    memory = RecentMemory(4, 1, 2)
    kept = []
    for step in range(6):
        values = torch.arange(3.0) + 10 * step
        keep = torch.tensor([True, step % 2 == 0, True])
        memory.write(values.unsqueeze(1), torch.zeros(3, 2), keep)
        kept += values[keep].tolist()
        embeddings, _, seen = memory.read()
        assert sorted(embeddings[seen, 0].tolist()) == sorted(kept[-4:])


def test_labeled_memory_averages_what_occurs_twice():
    memory = LabeledMemory(3, 2, momentum=0.7)
    memory.write(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1]), torch.tensor([2, 2]))
    embeddings, labels, seen = memory.read()
    assert seen.tolist() == [False, False, True]
    assert labels.tolist() == [0, 0, 1]
    torch.testing.assert_close(embeddings[2], torch.full((2,), 0.5**0.5))


def test_similarity_of_an_empty_memory_is_finite():
    weights = similarity(torch.randn(2, 3), torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool), 0.1)
    torch.testing.assert_close(weights, torch.full((2, 4), 0.25))


@pytest.mark.parametrize("neighbors", [1, 3, 6])
def test_labels_are_propagated_over_the_nearest_neighbors_alone(neighbors, monkeypatch):
    monkeypatch.setattr("momatch.algorithms.simmatchv2.NEIGHBORS", neighbors)
    monkeypatch.setattr(NAIVE["simmatchv2"], "neighbors", neighbors)
    for found in run("simmatchv2", steps=6):
        assert_same(found)


def graph_of(smoothing, num_seen, num_memory=4):
    """Propagated probabilities of samples over a memory, and the samples' own."""
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(U, K, generator=generator, dtype=torch.float64).softmax(-1)
    embeddings, memory = (
        F.normalize(torch.randn(n, 5, generator=generator, dtype=torch.float64), dim=-1) for n in (U, num_memory)
    )
    labels, seen = torch.arange(num_memory) % K, torch.arange(num_memory) < num_seen
    found = propagate(
        own, embeddings, memory, labels, seen, neighbors=128, temperature=0.1, smoothing=smoothing
    )  # fmt: skip
    return found, own


@pytest.mark.parametrize("smoothing", [0.01, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("num_seen", [0, 1, 3, 4])
def test_propagated_labels_are_distributions(smoothing, num_seen):
    found, own = graph_of(smoothing, num_seen)
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(U, dtype=torch.float64))
    if num_seen == 0 or smoothing == 1.0:
        torch.testing.assert_close(found, own)


def test_entries_that_were_not_written_have_no_say_in_the_propagation():
    generator = torch.Generator().manual_seed(1)
    own = torch.rand(2, K, generator=generator, dtype=torch.float64).softmax(-1)
    z, memory = (F.normalize(torch.randn(n, 5, generator=generator, dtype=torch.float64), dim=-1) for n in (2, 6))
    labels, how = torch.arange(6) % K, {"neighbors": 4, "temperature": 0.1, "smoothing": 0.5}
    some = propagate(own, z, memory, labels, torch.arange(6) < 3, **how)
    torch.testing.assert_close(some, propagate(own, z, memory[:3], labels[:3], torch.ones(3, dtype=torch.bool), **how))


def test_simmatchv2_without_a_share_of_its_own_is_refused():
    with pytest.raises(ValueError, match=r"smoothing: got 0 with algorithm 'simmatchv2', expected more than 0"):
        built("simmatchv2", smoothing=0.0)


def test_averaged_projector_follows_the_trained_one():
    torch.manual_seed(0)
    live = Projector(D_FEATURES, 2, normalize=True).double()
    average = AveragedProjector(live).double()
    features = torch.randn(3, D_FEATURES, dtype=torch.float64)
    torch.testing.assert_close(average(live, features), live(features))
    expected = [p.detach().clone() for p in live.parameters()]
    for step in range(8):
        with torch.no_grad():
            for p in live.parameters():
                p.add_(torch.randn_like(p))
        decay = 0.1 * step
        expected = [decay * old + (1 - decay) * p.detach() for old, p in zip(expected, live.parameters(), strict=True)]
        average.follow(live, torch.tensor(1.0 - decay))
    twin = copy.deepcopy(live)
    with torch.no_grad():
        for p, value in zip(twin.parameters(), expected, strict=True):
            p.copy_(value)
    torch.testing.assert_close(average(live, features), twin(features), rtol=1e-6, atol=1e-6)  # the decay is a float32
    assert not [*average.parameters()]
    assert not average(live, features).requires_grad


def test_simmatchv2_sees_weak_views_as_its_teacher_does():
    algorithm = built("simmatchv2")
    algorithm.label(guess_at(0))
    with torch.no_grad():
        for p in algorithm.projector.parameters():
            p.add_(torch.randn_like(p))
    guess = guess_at(1)
    algorithm.label(guess)
    written = algorithm.memory.read()[0][U : 2 * U]
    torch.testing.assert_close(written, algorithm.teacher(algorithm.projector, guess.features))
    assert not torch.allclose(written, algorithm.projector(guess.features))


def test_moving_alignment_does_not_know_its_own_batch():
    alignment = built("simmatchv2").alignment
    first, second = guess_at(0).posterior, guess_at(1).posterior
    keep = torch.ones(U, dtype=torch.float64)
    torch.testing.assert_close(alignment(first, keep), first)
    mean = 0.9 / K + 0.1 * first.mean(0)
    expected = second * (1 / K + 1e-6) / (mean + 1e-6)
    torch.testing.assert_close(alignment(second, keep), expected / expected.sum(-1, keepdim=True))


def test_an_algorithm_must_define_its_parts():
    class Nothing(Algorithm):
        pass

    guess = guess_at(0)
    with pytest.raises(TypeError, match=r"Nothing: an algorithm must define label\(guess\)"):
        Nothing().label(guess)
    targets = built("uda").label(guess)
    with pytest.raises(TypeError, match=r"Nothing: an algorithm that wants mixed views must define mix"):
        Nothing().mix(guess.labels, targets, 0)
    with pytest.raises(TypeError, match=r"Nothing: an algorithm must define losses"):
        Nothing().losses(outputs_at(0, Nothing(), guess), targets)
    assert Nothing().thresholds(3) is None


def test_names_are_those_of_the_config():
    assert [*ALGORITHMS] == [*OPTIONS]
    for name, kind in ALGORITHMS.items():
        taken = set(inspect.signature(kind.__init__).parameters) - {"self", "sizes", "cutoff", "fairness_weight"}
        assert taken == OPTIONS[name].keys(), name


def test_labels_are_counted_beyond_what_a_float_can():
    alignment = LabelAlignment(2)
    alignment.label_counts.copy_(torch.tensor([2**24, 2**22]))
    alignment(torch.full((3, 2), 0.5), torch.ones(3), torch.tensor([0, 0, 0, 1]))
    assert alignment.label_counts.tolist() == [2**24 + 3, 2**22 + 1]


def test_comatch_outliers_are_neither_like_nor_unlike_others():
    algorithm = built("comatch")
    target, keep = torch.full((4, K), 1.0 / K).double(), torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    features = [torch.randn(4, D_FEATURES, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    views = {
        name: Output(torch.zeros(4, K, dtype=torch.float64), of_view)
        for name, of_view in zip(("strong", "strong_1"), features, strict=True)
    }
    terms = algorithm.losses(Outputs(views, torch.zeros(1, dtype=torch.int64)), Targets(target, keep, keep))
    terms["contrast_loss"].backward()
    for of_view in features:
        assert (of_view.grad[2] == 0).all()
        assert (of_view.grad[[0, 1, 3]] != 0).any()
