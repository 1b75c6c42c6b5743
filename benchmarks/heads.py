"""Heads against nn.Linear: forward + backward side by side, and float32 against float64.

Run alone on an idle machine: python benchmarks/heads.py
"""

import torch
from torch import nn

from _record import medians, write_result
from momatch import AAGMM, KMeans
from momatch.heads.gaussian import _plain_log_joint

SIZES = [(960, 8, 10), (960, 128, 10), (960, 128, 100), (960, 512, 10), (960, 512, 1000)]


def step(head, z, cotangent):
    def run():
        z.grad = None
        head.zero_grad(set_to_none=True)
        head(z).backward(cotangent)

    return run


class PlainAAGMM(AAGMM):
    """The same head by plain autograd, to show what the hand-written gradient gains."""

    def forward(self, z):
        """The log joint."""
        return _plain_log_joint(z, self.centers, self.log_variances, self.log_prior)


def products(head, z, cotangent):
    """The matrix products that the log joint and its gradients need, and nothing else: the floor for any implementation."""
    x, weight = z.detach(), head.centers.detach()

    def run():
        for _ in range(2):
            torch.addmm(head.log_prior, x, weight.t())
            torch.mm(cotangent, weight)
            torch.mm(cotangent.t(), x)

    return run


def relative_error(head, z):
    """Largest relative error of the float32 log joint against torch.distributions in float64."""
    normal = torch.distributions.Normal(head.centers.double(), head.variances.double().sqrt())
    with torch.no_grad():
        rows = [normal.log_prob(one.double()).sum(-1) + head.log_prior.double() for one in z]
        exact = torch.stack(rows)
        return ((head(z) - exact).abs() / exact.abs()).max().item()


def main():
    torch.manual_seed(0)
    rows = []
    for n, D, K in SIZES:
        z, cotangent = torch.randn(n, D, requires_grad=True), torch.randn(n, K)
        heads = {"linear": nn.Linear(D, K), "kmeans": KMeans(D, K), "aagmm": AAGMM(D, K), "plain": PlainAAGMM(D, K)}
        contenders = {name: step(head, z, cotangent) for name, head in heads.items()}
        contenders["products"] = products(heads["aagmm"], z, cotangent)
        seconds = medians(contenders, repeats=400, warmup=20)
        row = {"n": n, "D": D, "K": K, "linear ms": 1e3 * seconds["linear"], "aagmm ms": 1e3 * seconds["aagmm"]}
        row |= {f"{name} / linear": seconds[name] / seconds["linear"] for name in contenders if name != "linear"}
        row["aagmm relative error"] = relative_error(heads["aagmm"], z)
        rows.append(row)
    notes = (
        "Forward + backward (embedding and parameters), float32, medians of interleaved rounds. plain: AAGMM by plain "
        "autograd; products: the six matrix products that AAGMM needs, where nn.Linear needs three, and nothing else. "
        "Targets at n = 960, D = 128, K = 100: aagmm / linear at most 2, relative error at most 1e-5."
    )
    write_result("heads", rows, notes, threads=torch.get_num_threads(), seed=0)


if __name__ == "__main__":
    main()
