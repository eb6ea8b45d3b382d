"""What a trace of one training step tells about a workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["forward", "loss", "backward", "optimizer"]

# Classes of operators whose cost has one form. Names are part of the dataset: add, never rename.
OP_CLASSES = (
    "matmul",
    "conv",
    "depthwise_conv",
    "attention",
    "rnn",
    "embedding",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "pool",
    "copy",
    "random",
    "optimizer",
    "other",
)

# The keys of the documented API come first.
DOCUMENTED_KEYS = ("params", "layers", "has_conv", "has_rnn", "depth", "avg_layer_size")


@dataclass(frozen=True)
class OpGroup:
    """Operations of one step that are alike: the same operator, phase and shapes.

    Attributes:
        phase: Part of the step.
        op: Name of the operator as PyTorch dispatches it, e.g. ``aten.convolution_backward``.
        op_class: Class of operators with similar cost (see ``OP_CLASSES``).
        calls: Number of dispatches.
        flops: Floating-point operations of all calls; one multiply-add is 2; 0 for classes whose cost is traffic.
        bytes_read: Bytes of all input tensors of all calls.
        bytes_written: Bytes of all output tensors of all calls.
        shape: Sizes that decide speed, by name, e.g. ``{"m": 64, "n": 10, "k": 128, "batch": 1}`` for a matrix
            product or ``{"kernel": 9, "stride": 1, "groups": 1, "cin": 64, ...}`` for a convolution.
    """

    phase: Phase
    op: str
    op_class: str
    calls: int
    flops: int
    bytes_read: int
    bytes_written: int
    shape: Mapping[str, int]


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory of one training step by part, in bytes.

    ``peak_bytes`` is the largest sum that is alive at one moment, so it is at most the sum of the parts. The workspace
    of convolutions was measured with AVX2; elsewhere it is assumed, and a note of the profile says so.
    """

    weights_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    workspace_bytes: int
    peak_bytes: int


@dataclass(frozen=True, eq=False)
class WorkloadProfile(Mapping[str, Any]):
    """Counts of one training step.

    As a mapping it holds everything that ``to_dict()`` gives, so the documented API reads it like a dict.

    Attributes:
        name: What the workload is called.
        family: Zoo family, or ``custom``.
        workload_hash: Identity of the training step.
        model_hash: Identity of the model alone.
        batch_size: Samples in the traced step.
        dataset_size: Samples of the plan.
        epochs: Epochs of the plan.
        optimizer: Name of the optimizer.
        dtype: Compute type.
        input_signature: ``[[shape, dtype], ...]`` of all input tensors.
        params: Parameters over unique storages.
        trainable_params: Those that require a gradient.
        buffers: Elements of all buffers.
        param_bytes: Bytes of all parameters.
        layers: Unique leaf modules that hold parameters.
        depth: Calls of leaf modules with parameters in one forward pass.
        has_conv: A convolution is dispatched.
        has_rnn: A recurrent layer is called.
        avg_layer_size: params / layers, 0.0 without layers.
        forward_flops: FLOPs of the forward pass, loss included.
        backward_flops: FLOPs of the backward pass.
        optimizer_flops: FLOPs of the optimizer step.
        uncounted_ops: ``{operator: calls}`` of operators that do arithmetic but have no formula.
        data_dependent: True if the step depends on input values, so that the counts are those of one input.
        forward_flops_range: (least, most) ``forward_flops`` seen for a data-dependent step, else None.
        op_groups: The table of operations.
        memory: Estimated peak memory.
        features: Numbers for the predictors by name, all finite.
        notes: What a reader of the counts should know.
    """

    name: str
    family: str
    workload_hash: str
    model_hash: str
    batch_size: int
    dataset_size: int
    epochs: int
    optimizer: str
    dtype: str
    input_signature: tuple[Any, ...]
    params: int
    trainable_params: int
    buffers: int
    param_bytes: int
    layers: int
    depth: int
    has_conv: bool
    has_rnn: bool
    avg_layer_size: float
    forward_flops: int
    backward_flops: int
    optimizer_flops: int
    uncounted_ops: Mapping[str, int]
    data_dependent: bool
    forward_flops_range: tuple[int, int] | None
    op_groups: tuple[OpGroup, ...]
    memory: MemoryEstimate
    features: Mapping[str, float]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types."""
        content = asdict(self)
        content["op_groups"] = [asdict(group) for group in self.op_groups]
        content["uncounted_ops"] = dict(self.uncounted_ops)
        content["features"] = dict(self.features)
        content["notes"] = list(self.notes)
        content["input_signature"] = list(self.input_signature)
        return {key: content[key] for key in (*DOCUMENTED_KEYS, *(k for k in content if k not in DOCUMENTED_KEYS))}

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        yield from DOCUMENTED_KEYS
        yield from (key for key in self.__dataclass_fields__ if key not in DOCUMENTED_KEYS)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
