"""A file with a factory of a small network with batch norms, for commands."""

SMALL_NETWORK = """
import torch
from torch import nn


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def small():
    torch.manual_seed(0)
    net = nn.Sequential(
        block(1, 16, 2), block(16, 16), block(16, 32, 2), block(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )
    return net, torch.zeros(1, 1, 16, 16)
"""
