"""A network of a user's own, with tied weights."""

import torch
from torch import Tensor, nn


class Tied(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 4, 3)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(self.stem(x).mean((2, 3)))))


def tied(in_channels: int) -> Tied:
    return Tied(in_channels)
