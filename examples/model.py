"""Model code stays as it is; the device's name is all that changes."""

import copy

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 16, 3),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 10),
).eval()
images = torch.randn(2, 3, 32, 32)

with torch.no_grad():
    on_cpu = model(images)
    on_npu = copy.deepcopy(model).npu()(images.npu())

torch.testing.assert_close(on_npu.cpu(), on_cpu, rtol=1e-4, atol=1e-5)
print(f"the largest difference from the CPU is {(on_npu.cpu() - on_cpu).abs().max().item():.1e}")
