"""FLOPs of a model by hand formula from the shapes that its modules see: a second count, independent of the tracer.

Forward hooks on real modules in a real forward pass; nothing of ``trainpilot`` is used. Products that belong to no
module (attention in models that write it out, rotary frequencies) are formulas of the caller.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import torch
from torch import nn


class HookCounter:
    """Counts forward and backward FLOPs of layers while it is attached.

    The backward pass of a product costs one forward pass for each operand that needs a gradient.
    """

    def __init__(self, model: nn.Module) -> None:
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        self._inside_attention: set[int] = set()
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                self._inside_attention |= {id(child) for child in module.modules() if child is not module}
        for module in model.modules():
            hook = self._hook_for(module)
            if hook is not None and id(module) not in self._inside_attention:
                module.register_forward_hook(hook, with_kwargs=True)

    def _hook_for(self, module: nn.Module) -> Any:
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            return self._linear
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            return self._transposed
        if isinstance(module, nn.modules.conv._ConvNd):
            return self._convolution
        if isinstance(module, nn.LSTM):
            return self._lstm
        if isinstance(module, nn.GRU | nn.RNN):
            return self._unfused_recurrent
        if isinstance(module, nn.MultiheadAttention):
            return self._attention
        return None

    def _add(self, kind: str, flops: int, *operands: torch.Tensor) -> None:
        self.forward[kind] += flops
        self.backward[kind] += flops * sum(operand.requires_grad for operand in operands)

    def _linear(self, module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        x = args[0] if args else kwargs["input"]
        self._add("matmul", 2 * output.numel() * x.shape[-1], x, module.weight)

    def _convolution(self, module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        per_output = module.in_channels // module.groups * prod(module.kernel_size)
        self._add("conv", 2 * output.numel() * per_output, args[0], module.weight)

    def _transposed(self, module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        per_input = module.out_channels // module.groups * prod(module.kernel_size)
        self._add("conv", 2 * args[0].numel() * per_input, args[0], module.weight)

    @staticmethod
    def _layers_of(module: Any, x: torch.Tensor) -> list[int]:
        directions = 2 if module.bidirectional else 1
        first = x.shape[-1]
        return [first if layer == 0 else directions * module.hidden_size for layer in range(module.num_layers)]

    def _lstm(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Fused on the CPU: all gradients are computed, whether needed or not."""
        x, hidden = args[0], module.hidden_size
        rows = x.numel() // x.shape[-1]
        directions = 2 if module.bidirectional else 1
        flops = sum(2 * rows * 4 * hidden * (width + hidden) * directions for width in self._layers_of(module, x))
        self.forward["rnn"] += flops
        self.backward["rnn"] += 2 * flops

    def _unfused_recurrent(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        x, hidden = args[0], module.hidden_size
        assert len(args) == 1, "an initial state would need a gradient"
        rows = x.numel() // x.shape[-1]
        batch = x.shape[0] if module.batch_first else x.shape[1]
        gates = 3 if isinstance(module, nn.GRU) else 1
        directions = 2 if module.bidirectional else 1
        for layer, width in enumerate(self._layers_of(module, x)):
            by_input = 2 * rows * gates * hidden * width * directions
            by_state = 2 * rows * gates * hidden * hidden * directions
            self.forward["rnn"] += by_input + by_state
            needs_input = layer > 0 or x.requires_grad
            first_step = 2 * batch * gates * hidden * hidden * directions  # the zero state needs no gradient
            self.backward["rnn"] += by_input * (1 + needs_input) + 2 * by_state - first_step

    def _attention(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        query, key, value = (args[i] if len(args) > i else kwargs[("query", "key", "value")[i]] for i in range(3))
        rows = query.numel() // query.shape[-1]
        key_rows = key.numel() // key.shape[-1]
        batch = query.shape[0] if module.batch_first else query.shape[1]
        width = module.embed_dim
        weight = module.in_proj_weight
        self._add("matmul", 2 * rows * width * width, query, weight)
        self._add("matmul", 2 * key_rows * width * width, key, weight)
        self._add("matmul", 2 * key_rows * width * width, value, weight)
        scores = 2 * rows * (key_rows // batch) * width
        # Scores and their product with the values; both operands of both products need a gradient.
        self.forward["attention"] += 2 * scores
        self.backward["attention"] += 4 * scores
        self.forward["matmul"] += 2 * rows * width * width
        self.backward["matmul"] += 4 * rows * width * width
