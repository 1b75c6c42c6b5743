"""torch.compile and ONNX export, each in a process of its own.

The test run decorates every function with shape checks, which the compiler cannot see through; a user's process has none. The
processes compile without graph breaks (``fullgraph=True``), so a data-dependent branch or a read-back would raise.
"""

import subprocess
import sys
import textwrap

import pytest


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_heads_constraints_and_policies_compile_without_graph_breaks():
    run("""
        import torch
        from momatch import *

        # A graph without breaks is what dynamo finds; the backward graphs of a head are traced as well.
        compile = lambda module, backend="eager": torch.compile(module, fullgraph=True, backend=backend)
        z, y = torch.randn(40, 4, requires_grad=True), torch.arange(40) % 3
        for head in (AAGMM(4, 3), KMeans(4, 3), Linear(4, 3)):
            fast = compile(head, "aot_eager")(z)
            torch.testing.assert_close(fast, head(z))
            (got,) = torch.autograd.grad(fast.square().sum(), z)
            (expected,) = torch.autograd.grad(head(z).square().sum(), z)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert compile(head)(z).dtype == torch.float32

        head = AAGMM(4, 3)
        soft = torch.softmax(head(z), -1).detach()
        constraints = [MomentConstraint(4, method=m, whiten=True) for m in ("gram", "explicit")]
        constraints += [MomentConstraint(2, variant="published"), MMDConstraint(), KLConstraint()]
        for constraint in constraints:
            for assignment in (y, soft):
                arguments = (z, head.centers, assignment, head.variances)
                torch.testing.assert_close(compile(constraint)(*arguments), constraint(*arguments), rtol=1e-4, atol=1e-5)

        indices, exclude = torch.arange(40), torch.rand(40) < 0.2
        for make in (FixMatchPolicy, lambda: FlexMatchPolicy(3, 40), lambda: FreeMatchPolicy(3), lambda: SoftMatchPolicy(3)):
            plain, compiled = make(), compile(make())
            for _ in range(3):
                torch.testing.assert_close(compiled(soft, indices, exclude), plain(soft, indices, exclude))

        # And with the default backend. Without vector instructions some C++ that inductor writes does not compile (torch 2.13).
        torch.compiler.reset()
        backend = "aot_eager" if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else "inductor"
        torch.testing.assert_close(compile(head, backend)(z), head(z))
        constraint = MomentConstraint(4, method="gram")
        compiled = compile(constraint, backend)
        torch.testing.assert_close(compiled(z, head.centers, y), constraint(z, head.centers, y), rtol=1e-4, atol=1e-5)
    """)


@pytest.mark.slow
def test_heads_export_to_onnx_with_any_batch_size():
    run("""
        import io, numpy, onnxruntime, torch
        from torch import nn
        from momatch import AAGMM, KMeans, Linear, log_density, log_posterior

        class Scored(nn.Module):
            def __init__(self, head):
                super().__init__()
                self.embed, self.head = nn.Linear(5, 8), head

            def forward(self, x):
                z = self.embed(x)
                log_joint = self.head(z)
                scores = [log_joint, log_posterior(log_joint), log_density(log_joint)]
                return (*scores, self.head.mahalanobis(z)) if self.head.has_centers else tuple(scores)

        class All(nn.Module):
            def __init__(self, *heads):
                super().__init__()
                self.scored = nn.ModuleList(map(Scored, heads))

            def forward(self, x):
                return tuple(output for scored in self.scored for output in scored(x))

        model = All(AAGMM(8, 3), KMeans(8, 3), Linear(8, 3), AAGMM(8, 600)).eval()
        program = torch.onnx.export(
            model, (torch.randn(4, 5),), dynamo=True, verbose=False,
            input_names=["x"], dynamic_shapes={"x": {0: torch.export.Dim("n")}},
        )
        file = io.BytesIO()
        program.save(file)
        session = onnxruntime.InferenceSession(file.getvalue())
        for n in (1, 7, 300):
            x = torch.randn(n, 5)
            with torch.no_grad():
                expected = model(x)
            for got, one in zip(session.run(None, {"x": x.numpy()}), expected, strict=True):
                numpy.testing.assert_allclose(got, one.numpy(), rtol=1e-4, atol=1e-4)
    """)
