"""USB's side of family_usb.py, called by it in an environment with semilearn.

Runs the real `train_step` of each algorithm on given weights, views and memories, and prints its losses as JSON. Datasets,
loaders and optimisers are not built: `train_step` needs none of them.
"""

import contextlib
import io
import json
import sys
from collections import OrderedDict
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn

#: Our name -> (its name, arguments of `train_step` by view of ours).
CASES = {
    "pseudolabel": ("PseudoLabel", {"x_ulb_w": "weak"}),
    "meanteacher": ("MeanTeacher", {"x_ulb_w": "weak", "x_ulb_s": "weak_1"}),
    "uda": ("UDA", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
    "mixmatch": ("MixMatch", {"x_ulb_w": "weak", "x_ulb_s": "weak_1"}),
    "remixmatch": (
        "ReMixMatch",
        {"x_ulb_w": "weak", "x_ulb_s_0": "strong", "x_ulb_s_1": "strong_1", "x_ulb_s_0_rot": "rotated"},
    ),
    "fixmatch": ("FixMatch", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
    "flexmatch": ("FlexMatch", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
    "freematch": ("FreeMatch", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
    "softmatch": ("SoftMatch", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
    "comatch": ("CoMatch", {"x_ulb_w": "weak", "x_ulb_s_0": "strong", "x_ulb_s_1": "strong_1"}),
    "simmatch": ("SimMatch", {"x_ulb_w": "weak", "x_ulb_s": "strong"}),
}


class Network(nn.Module):
    """The network of family_usb.py with the interface of USB's."""

    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, 16),
            nn.Tanh(),
        )
        self.fc = nn.Linear(16, num_classes)
        self.num_features = 16

    def forward(self, x, only_fc=False, only_feat=False, **options):
        if only_fc:
            return self.fc(x)
        features = self.body(x)
        return features if only_feat else {"logits": self.fc(features), "feat": features}


class Shadow:
    """Puts the teacher's weights in the student's place and back."""

    def __init__(self, model, teacher):
        self.model, self.teacher = model, teacher

    def apply_shadow(self):
        self.backup = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict({**self.backup, **self.teacher})

    def restore(self):
        self.model.load_state_dict(self.backup)


def weights(given, prefix):
    """The network's weights, under USB's names."""
    names = {"backbone.0": "body.0", "backbone.4": "body.4", "head": "fc"}
    found = {
        key.removeprefix(prefix): torch.from_numpy(value) for key, value in given.items() if key.startswith(prefix)
    }
    return {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in found.items()}


def build(name, given, options, num_classes):  # noqa: PLR0915 # one line for each setting of eleven algorithms
    """USB's algorithm without what only its training loop needs."""
    from semilearn.algorithms import hooks, name2alg
    from semilearn.algorithms.comatch.comatch import CoMatch_Net
    from semilearn.algorithms.flexmatch.utils import FlexMatchThresholdingHook
    from semilearn.algorithms.freematch.utils import FreeMatchThresholdingHook
    from semilearn.algorithms.remixmatch.remixmatch import ReMixMatch_Net
    from semilearn.algorithms.simmatch.simmatch import SimMatch_Net
    from semilearn.algorithms.softmatch.utils import SoftMatchWeightingHook
    from semilearn.core.criterions import CELoss, ConsistencyLoss
    from semilearn.core.utils import Bn_Controller

    kind = name2alg[name]
    alg = kind.__new__(kind)
    o = SimpleNamespace(**options)
    student = weights(given, "student.")
    network = Network(num_classes)
    network.load_state_dict(student)
    net = {"comatch": CoMatch_Net, "simmatch": SimMatch_Net}.get(name)
    prefix = ""
    if net is not None:
        network, prefix = net(network, proj_size=o.contrast_dim), "backbone."
        projector = {
            f"mlp_proj.{key}": given[f"algorithm.projector.layers.{key}"]
            for key in ("0.weight", "0.bias", "2.weight", "2.bias")
        }
        network.load_state_dict({key: torch.from_numpy(value) for key, value in projector.items()}, strict=False)
    if name == "remixmatch":
        network, prefix = ReMixMatch_Net(network, True), "backbone."
        network.rot_classifier.load_state_dict(
            {key: torch.from_numpy(given[f"algorithm.turn.{key}"]) for key in ("weight", "bias")}
        )
    teacher = {prefix + key: value for key, value in weights(given, "teacher.").items()}
    vars(alg).update(
        args=SimpleNamespace(
            uratio=o.u // o.b, batch_size=o.b, proj_size=getattr(o, "contrast_dim", 0), num_classes=num_classes, gpu=None
        ),
        num_classes=num_classes, model=network, ema=Shadow(network, teacher), bn_controller=Bn_Controller(),
        amp_cm=contextlib.nullcontext, ce_loss=CELoss(), consistency_loss=ConsistencyLoss(), hooks_dict=OrderedDict(),
        lambda_u=o.unlabeled_weight, use_cat=True, it=int(1000 * o.progress), num_train_iter=1000, epoch=1, gpu=None,
        distributed=False, world_size=1, use_hard_label=True, T=0.5, p_cutoff=o.cutoff,
    )  # fmt: skip
    register = alg.hooks_dict.__setitem__
    policy = "algorithm.policy."
    state = {
        key.removeprefix(policy): torch.from_numpy(value) for key, value in given.items() if key.startswith(policy)
    }
    register("PseudoLabelingHook", hooks.PseudoLabelingHook())
    register("MaskingHook", hooks.FixedThresholdingHook())
    if name in ("pseudolabel", "meanteacher"):
        alg.init(**({"p_cutoff": o.cutoff} if name == "pseudolabel" else {}), unsup_warm_up=o.ramp_up)
    elif name == "uda":
        alg.init(T=o.temperature, p_cutoff=o.cutoff)
    elif name == "mixmatch":
        alg.init(T=o.temperature, unsup_warm_up=o.ramp_up, mixup_alpha=o.mix_alpha)
    elif name == "remixmatch":
        alg.init(T=o.temperature, unsup_warm_up=o.ramp_up, mixup_alpha=o.mix_alpha)
        alg.lambda_rot, alg.lambda_kl, alg.use_rot = o.rotation_weight, o.anchor_weight, True
        even = np.full(num_classes, 1 / num_classes)
        register("DistAlignHook", hooks.DistAlignEMAHook(num_classes, p_target_type="gt", p_target=even))
    elif name == "flexmatch":
        late = FlexMatchThresholdingHook(ulb_dest_len=o.pool, num_classes=num_classes, thresh_warmup=True)
        late.selected_label, late.classwise_acc = state["selected"].clone(), state["beta"].clone()
        register("MaskingHook", late)
    elif name == "freematch":
        alg.init(T=0.5, use_quantile=False)
        alg.lambda_e = o.fairness_weight
        late = FreeMatchThresholdingHook(num_classes=num_classes)
        names = {"time_p": "tau", "p_model": "mean_posterior", "label_hist": "mean_histogram"}
        vars(late).update({key: state[value].clone() for key, value in names.items()})
        register("MaskingHook", late)
    elif name == "softmatch":
        alignment, late = (
            hooks.DistAlignEMAHook(num_classes, p_target_type="uniform"),
            SoftMatchWeightingHook(num_classes),
        )
        alignment.p_model = state["mean_posterior"].clone()
        late.prob_max_mu_t, late.prob_max_var_t = state["mean"].clone(), state["variance"].clone()
        register("DistAlignHook", alignment)
        register("MaskingHook", late)
    elif name == "comatch":
        alg.init(T=o.contrast_temperature, p_cutoff=o.cutoff, contrast_p_cutoff=o.contrast_cutoff, hard_label=False,
                 queue_batch=o.memory_size // (o.b + o.u), smoothing_alpha=o.smoothing, da_len=o.alignment_steps)  # fmt: skip
        alg.lambda_c = o.contrast_weight
        alg.queue_feats, alg.queue_probs = (
            torch.from_numpy(given[f"memory.{key}"]) for key in ("embeddings", "posteriors")
        )
        register("DistAlignHook", hooks.DistAlignQueueHook(num_classes, queue_length=o.alignment_steps))
    elif name == "simmatch":
        alg.use_ema_teacher, alg.ema_bank, alg.lambda_in = False, 0.7, o.contrast_weight
        alg.init(
            T=o.contrast_temperature,
            p_cutoff=o.cutoff,
            proj_size=o.contrast_dim,
            K=o.num_labeled,
            smoothing_alpha=o.smoothing,
        )
        register("DistAlignHook", hooks.DistAlignQueueHook(num_classes, queue_length=o.alignment_steps))
    return alg


def main():
    # USB imports it for sounds, and it must be of the very build of torch.
    sys.modules["torchaudio"] = MagicMock(__spec__=ModuleSpec("torchaudio", None))
    torch.Tensor.cuda = lambda self, *arguments, **options: self
    given = dict(np.load(sys.argv[1]))
    spec = json.loads(str(given.pop("spec")))
    answers = {}
    for name in spec["options"]:
        kind = name.partition(",")[0]
        _, arguments = CASES[kind]
        case = {key.removeprefix(f"{name}/"): value for key, value in given.items() if key.startswith(f"{name}/")}
        with contextlib.redirect_stdout(io.StringIO()):
            alg = build(kind, case, spec["options"][name], spec["num_classes"])
        answers[name] = []
        for step in range(spec["steps"]):
            batch = {
                key: torch.from_numpy(case[f"{step}.{view}"]) for key, view in {"x_lb": "labeled", **arguments}.items()
            }
            batch["y_lb"] = torch.from_numpy(case[f"{step}.labels"])
            if kind == "flexmatch":
                batch["idx_ulb"] = torch.from_numpy(case[f"{step}.indices"])
            if kind == "remixmatch":
                batch["rot_v"] = torch.from_numpy(case[f"{step}.turns"])
            if kind == "simmatch":
                batch["idx_lb"] = torch.from_numpy(case[f"{step}.labeled_indices"])
                alg.mem_bank = torch.from_numpy(case[f"{step}.memory.embeddings"]).T.contiguous()
                alg.labels_bank = torch.from_numpy(case[f"{step}.memory.labels"])
            if f"{step}.partner" in case:
                share, partner = float(case[f"{step}.share"]), torch.from_numpy(case[f"{step}.partner"])
                np.random.beta = lambda *a, share=share: share
                torch.randperm = lambda *a, partner=partner, **k: partner
            _, log = alg.train_step(**batch)
            answers[name].append({key.removeprefix("train/"): float(value) for key, value in log.items()})
    print(json.dumps({"torch": torch.__version__, "losses": answers}))


if __name__ == "__main__":
    main()
