"""Tensors of npu as text."""

import torch


class Formatter(torch._tensor_str._Formatter):
    """How the elements that are shown are formatted follows from a copy of them on the host: it takes many
    small operators, which npu need not have.
    """

    def __init__(self, tensor):
        super().__init__(tensor.cpu() if tensor.device.type == "npu" else tensor)


def format_on_the_host():
    torch._tensor_str._Formatter = Formatter
