"""A plain PyTorch loop with a generative head and a moment constraint, on scikit-learn's digits (no download).

Prints the accuracy and the share of test digits rejected as outliers, and draws the latent space to out/latent.png.
"""

from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from momatch import AAGMM, MomentConstraint, OutlierDetector

matplotlib.use("Agg")
import matplotlib.pyplot as plt

torch.manual_seed(0)
x, y = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
x = x.float() / 16
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=500, stratify=y, random_state=0)

encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
head = AAGMM(embedding_dim=2, num_classes=10)  # instead of nn.Linear(2, 10)
constraint = MomentConstraint(order=2)
groups = [{"params": encoder.parameters()}, {"params": head.parameters(), "lr": 1e-2}]
optimizer = torch.optim.Adam(groups, lr=1e-3)

for epoch in range(40):
    for batch in torch.randperm(len(x_train)).split(128):
        z, labels = encoder(x_train[batch] + 0.1 * torch.randn(len(batch), 64)), y_train[batch]
        loss = F.cross_entropy(head(z), labels) + constraint(z, head.centers, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 8 == 7:
        print(f"epoch {epoch + 1:3d}  loss {loss.item():.3f}")

with torch.no_grad():
    z = encoder(x_test)
    predicted = head(z).argmax(-1)
    distance = (z - head.centers[predicted]).norm(dim=-1).mean()
    detector = OutlierDetector(head).calibrate(z[:250])
    rejected = detector.p_value(z[250:]) <= 0.05  # bounds the false-positive rate, whatever the scores are
    print(f"test accuracy            {(predicted == y_test).float().mean():.1%}")
    print(f"mean distance to center  {distance:.2f}")
    print(f"rejected at alpha = 5 %  {rejected.float().mean():.1%}")

    figure, axes = plt.subplots(figsize=(7, 6))
    points = axes.scatter(*z.T, c=y_test, cmap="tab10", vmin=-0.5, vmax=9.5, s=8)
    axes.scatter(*z[250:][rejected].T, facecolors="none", edgecolors="black", s=40, label="rejected as outliers")
    axes.scatter(*head.centers.T, c="black", marker="x", s=80, label="learned centers")
    axes.set(title="Test digits in the latent space", xlabel="z1", ylabel="z2")
    axes.legend()
    figure.colorbar(points, ticks=range(10), label="digit")
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/latent.png", dpi=120)
    print("latent space drawn to    out/latent.png")
