"""PyTorch's operator database on device npu against the CPU. See README.md."""
