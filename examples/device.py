"""Installing one package is enough: `import torch` brings torch.npu, which is used like torch.cuda."""

import torch

print(f"{torch.npu.device_count()} device(s), first {torch.npu.get_device_name(0)!r}")
torch.npu.set_device(0)

matrix = torch.randn(3, 3)
on_npu = matrix.npu()
assert on_npu.device == torch.device("npu", 0)
assert torch.equal(on_npu.cpu(), matrix)

# Work of one stream runs in order. Work of two streams does not, unless one waits for an event of the other.
side, squared = torch.npu.Stream(), torch.npu.Event()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    square = on_npu @ on_npu
    squared.record()
torch.npu.current_stream().wait_event(squared)
fourth_power = square @ square

# Copies to the CPU and item() wait by themselves.
torch.testing.assert_close(fourth_power.cpu(), torch.linalg.matrix_power(matrix, 4))
print(f"mean of the fourth power: {fourth_power.mean().item():.4f}")

torch.npu.synchronize()
print(f"{torch.npu.memory_allocated()} bytes of device memory are in use")
