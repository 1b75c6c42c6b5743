"""What a run of the paper's presets would cost on a GPU: counted operations and bytes, at rates that others reached.

    python benchmarks/gpu_estimate.py

Seconds, without data: the networks are on the device "meta", where nothing is computed. An estimate, not a measurement.
"""

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from _record import write_result
from momatch.config import TrainConfig
from momatch.config.presets import preset_settings
from momatch.models.backbones import build_backbone

#: Preset -> side of its images.
SIDES = {"paper-cifar10": 32, "paper-stl10": 96}
#: Share of the step that the network takes: benchmarks/results/step.md, AAGMM 8-D, order 1.
NETWORK_SHARE = 0.979
#: Operations a second, in tera, that an A100 has, and the least and the most of it that we expect. USB's 110 hours for CIFAR-10
#: on a V100 (15.7 tera) are 0.21 of it, and 6 hours, reported of a tuned program in mixed precision on an A100, 0.19 of 312.
#: The other two shares are guesses.
RATES = {"float32": (19.5, 0.21, 0.45), "bfloat16": (312.0, 0.08, 0.19)}


def images_a_step(config):
    return config.labeled_batch_size + 2 * config.unlabeled_batch_size  # one joint pass, also backwards


def count(config, side):
    """Operations of a step, and bytes that its forward pass keeps for the backward pass."""
    options = {} if config.backbone_variant == "default" else {"variant": config.backbone_variant}
    network = build_backbone(config.backbone, 3, **options).to("meta")
    x = torch.empty(images_a_step(config), 3, side, side, device="meta")
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x).sum().backward()
    parameters = sum(parameter.numel() for parameter in network.parameters())
    kept = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    return counter.get_total_flops(), kept, parameters


def hours_on_an_a100(operations, precision):
    """The least and the most that we expect for so many operations of a network within its training step."""
    peak, least, most = RATES[precision]
    return [operations / (share * peak * 1e12) / NETWORK_SHARE / 3600 for share in (most, least)]


def main():
    rows = []
    for preset, side in SIDES.items():
        config = TrainConfig.from_dict(preset_settings(preset)).resolved()
        operations, kept, parameters = count(config, side)
        for precision in RATES:
            hours = hours_on_an_a100(operations * config.steps, precision)
            rows.append(
                {
                    "preset": preset,
                    "images a step": images_a_step(config),
                    "parameters (M)": round(parameters / 1e6, 2),
                    "operations a step (tera)": round(operations / 1e12, 2),
                    "steps": f"{config.steps:,}",
                    "precision": precision,
                    "hours a run on an A100": f"{hours[0]:.0f} to {hours[1]:.0f}",
                    "activations (GiB)": round(kept / 2**30 / (1 if precision == "float32" else 2), 1),
                }
            )
    notes = (
        "An estimate, never run on a GPU. Operations: counted on the network's forward and backward pass over labelled, weak "
        "and strong images together; two a multiplication with addition. Hours: at the least and the most of the peak that "
        "we expect (float32: 0.21, as USB on a V100, to 0.45 of 19.5 tera; bfloat16: 0.08 to 0.19, as reported of a tuned "
        f"program, of 312), the network taking {NETWORK_SHARE} of the step (step.md). Activations: "
        "what the forward pass keeps, half of it in bfloat16; workspaces of the convolutions come on top."
    )
    write_result("gpu_estimate", rows, notes)


if __name__ == "__main__":
    main()
