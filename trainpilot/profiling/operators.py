"""What kind of operator each one is: its class, whether it moves data, and whether it does counted arithmetic.

Classes group operators whose cost has one form (``OP_CLASSES``). The tables name operators as ATen does, without
overload and without the trailing underscore of in-place variants. An operator that no table knows and that PyTorch
does not tag as pointwise or as a reduction is taken to do arithmetic without a formula: it is reported, never
silently counted as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainpilot.profiling.formulas import FORMULAS, Formula


def _names(text: str) -> list[str]:
    return text.split()


_NORM = _names("""
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional
    _batch_norm_no_update cudnn_batch_norm cudnn_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward
    _weight_norm_interface _weight_norm_interface_backward renorm
""")

_SOFTMAX = _names("""
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax _masked_softmax
    _masked_softmax_backward logsumexp
""")

_EMBEDDING = _names("""
    embedding embedding_dense_backward embedding_sparse_backward embedding_renorm _embedding_bag
    _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward
""")

_ELEMENTWISE = _names("""
    _prelu_kernel _prelu_kernel_backward elu_backward glu glu_backward hardsigmoid_backward hardswish
    hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_forward log_sigmoid_backward
    softplus_backward mish mish_backward gelu gelu_backward silu_backward threshold threshold_backward
    rrelu_with_noise rrelu_with_noise_backward rrelu_with_noise_functional masked_fill complex polar copysign
    floor_divide heaviside eq ne lt le gt ge addr abs _add_relu _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _masked_scale bucketize searchsorted isin linalg_cross ldexp
    native_dropout_backward quantize_per_tensor quantize_per_channel dequantize fake_quantize_per_tensor_affine
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_tensor_affine_cachemask_backward
    _fake_quantize_learnable_per_tensor_affine fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_channel_affine_cachemask_backward view_as_real_copy view_as_complex_copy _conj_physical
    resolve_conj resolve_neg foreach_add _fused_moving_avg_obs_fq_helper
""")

_REDUCTION = _names("""
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits mse_loss mse_loss_backward
    smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward soft_margin_loss soft_margin_loss_backward
    multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward _ctc_loss _ctc_loss_backward
    cummax cummin cumprod cumsum logcumsumexp _cummax_helper _cummin_helper kthvalue median nanmedian mode sort topk
    trace bincount histc _unique _unique2 unique_dim unique_consecutive nonzero dist linalg_vector_norm
    _amp_foreach_non_finite_check_and_unscale segment_reduce _segment_reduce_backward scatter_reduce index_reduce
    aminmax equal _is_all_true _is_any_true is_nonzero count_nonzero allclose std_mean var_mean sum mean amax amin
    argmax argmin any all max min
    prod var std
""")

_POOL = _names("""
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward
    max_unpool2d max_unpool3d grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
    affine_grid_generator
""")  # and every upsample_*

_COPY = _names("""
    copy _to_copy clone cat stack constant_pad_nd fill full full_like ones ones_like zeros zeros_like zero new_full
    new_ones new_zeros arange linspace logspace eye scalar_tensor flip roll rot90 repeat repeat_interleave tril triu
    tril_indices triu_indices gather scatter scatter_add index index_select index_add index_copy index_fill index_put
    _index_put_impl _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate take put
    masked_scatter masked_scatter_backward masked_select select_backward slice_backward diagonal_backward
    select_scatter slice_scatter diagonal_scatter as_strided_scatter unfold_backward im2col col2im pixel_shuffle
    pixel_unshuffle channel_shuffle native_channel_shuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d
    reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward block_diag diag_embed one_hot lift_fresh_copy lift _pin_memory narrow contiguous
    _nested_tensor_from_mask_left_aligned _nested_tensor_from_mask _pack_padded_sequence _to_dense to_sparse _to_sparse
    _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc
    to_padded_tensor _coalesce _chunk_cat unsafe_split unsafe_split_with_sizes
    hann_window hamming_window resize resize_as nonzero_static view_as cartesian_prod _reshape_copy
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward expand t permute transpose view squeeze
    unsqueeze alias as_strided diagonal slice select split split_with_sizes unbind unfold detach
""")  # the last two lines also stand for their *_copy forms

_RANDOM = _names("""
    native_dropout bernoulli cauchy exponential geometric log_normal multinomial normal poisson rand rand_like
    randint randint_like randn randn_like randperm uniform random _standard_gamma _sample_dirichlet binomial
    normal_functional _dirichlet_grad _standard_gamma_grad
""")

# Bookkeeping: dispatched, but neither data nor arithmetic of any size.
_DISPATCH_ONLY = _names("""
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided _unsafe_view _reshape_alias detach
    alias lift_fresh set as_strided t transpose unsqueeze squeeze swapaxes _local_scalar_dense _assert_async
    _assert_scalar _assert_tensor_metadata _functional_assert_async is_pinned is_same_size is_coalesced sparse_dim
    dense_dim _indices _values _coalesced sym_size sym_stride sym_numel sym_storage_offset
    sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _has_compatible_shallow_copy_type _sparse_coo_tensor_with_dims_and_tensors
    _nested_tensor_size _version _fw_primal is_strides_like_format is_non_overlapping_and_dense _print
    _nested_view_from_buffer _nested_view_from_jagged _sparse_coo_tensor_unsafe _make_dual _unpack_dual
    _efficientzerotensor _has_same_storage_numel
""")

_CLASS_OF: dict[str, str] = {
    **dict.fromkeys(_NORM, "norm"),
    **dict.fromkeys(_SOFTMAX, "softmax"),
    **dict.fromkeys(_EMBEDDING, "embedding"),
    **dict.fromkeys(_ELEMENTWISE, "elementwise"),
    **dict.fromkeys(_REDUCTION, "reduction"),
    **dict.fromkeys(_POOL, "pool"),
    **dict.fromkeys(_COPY, "copy"),
    **dict.fromkeys(_RANDOM, "random"),
}

# Fused optimizers are pointwise work; _foreach_ operators are the list form of the pointwise one.
_POINTWISE_PREFIXES = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")

# Fills its first argument without reading it.
_OVERWRITES = frozenset(
    _names("copy fill zero normal uniform bernoulli random exponential cauchy geometric log_normal set resize")
)

# Output shapes follow from values, which PyTorch does not tag.
_VALUE_DEPENDENT = frozenset(
    _names("_nested_tensor_from_mask _to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc")
)

# Internal to tracing or to the profiler of PyTorch: a real step pays nothing for them.
_IGNORED_NAMESPACES = frozenset({"prim", "profiler", "debugprims"})


@dataclass(frozen=True, slots=True, eq=False)
class OpKind:
    """What is known about one operator overload.

    Attributes:
        name: Name as dispatched, without overload, e.g. ``aten.addmm``.
        base: Name without namespace and in-place underscore, e.g. ``addmm``.
        op_class: Class, before the formula refines it (``conv`` may become ``depthwise_conv``).
        formula: Counts FLOPs and sizes; None where the convention counts none.
        ignored: Not part of a real step.
        moves_data: False for views and allocations.
        uncounted: Does arithmetic, but has no formula.
        mutated: Positions of positional arguments that are written to.
        overwrites: The mutated arguments are not read.
        stable: Output shapes follow from input shapes, so that counts may be remembered.
        composite: PyTorch splits it into other operators, which are the ones to count.
    """

    name: str
    base: str
    op_class: str
    formula: Formula | None
    ignored: bool
    moves_data: bool
    uncounted: bool
    mutated: tuple[int, ...]
    overwrites: bool
    stable: bool
    composite: bool


_kinds: dict[Any, OpKind] = {}


def kind_of(func: Callable[..., Any]) -> OpKind:
    """Classify an operator overload as PyTorch dispatches it."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = _classify(func)
    return kind


def refine_class(op_class: str, sizes: Mapping[str, int]) -> str:
    """The class with the sizes known: a convolution with one input channel per group is a depthwise one."""
    if op_class == "conv" and sizes["groups"] > 1 and sizes["groups"] == sizes["cin"]:
        return "depthwise_conv"
    return op_class


def _classify(func: Any) -> OpKind:
    if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator: its body is not visible
        return OpKind(f"higher_order.{func}", str(func), "other", None, False, True, True, (), False, False, False)
    packet = str(func.overloadpacket)
    namespace, _, name = packet.partition(".")
    ignored = namespace in _IGNORED_NAMESPACES
    base = name if name.endswith("__") else name.rstrip("_")
    if base.startswith("_foreach_") and base.removeprefix("_foreach_") in FORMULAS:
        formula: Formula | None = None
    else:
        formula = FORMULAS.get(packet) or (FORMULAS.get(f"aten.{base}") if namespace == "aten" else None)
    op_class = formula.op_class if formula else _class_of(base, func.tags) if namespace == "aten" else None
    arguments = func._schema.arguments
    mutated = tuple(
        position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    dispatch_only = formula is None and (func.is_view or (namespace == "aten" and base in _DISPATCH_ONLY))
    return OpKind(
        name=packet,
        base=base,
        op_class="other" if dispatch_only or op_class is None else op_class,
        formula=formula,
        ignored=ignored,
        moves_data=not dispatch_only,
        uncounted=formula is None and not dispatch_only and op_class is None,
        mutated=mutated,
        overwrites=base in _OVERWRITES,
        stable=base not in _VALUE_DEPENDENT
        and torch.Tag.dynamic_output_shape not in func.tags
        and torch.Tag.data_dependent_output not in func.tags,
        composite=formula is None and not ignored and _is_composite(func),
    )


def _class_of(base: str, tags: Any) -> str | None:
    if base.startswith(_POINTWISE_PREFIXES):
        return "elementwise"
    if base.startswith(("upsample_", "_upsample_")):
        return "pool"
    known = _CLASS_OF.get(base) or _CLASS_OF.get(base.removesuffix("_copy"))
    if known is not None:
        return known
    if torch.Tag.pointwise in tags:
        return "elementwise"
    # A tag of newer versions; for older ones the table above has the usual reductions.
    if getattr(torch.Tag, "reduction", None) in tags:
        return "reduction"
    return None


def _is_composite(func: torch._ops.OpOverload) -> bool:
    # A kernel for the device comes first: PyTorch then uses the decomposition only where gradients are recorded.
    return _has_kernel(func, torch._C.DispatchKey.CompositeImplicitAutograd) and not _has_kernel(
        func, torch._C.DispatchKey.CPU
    )


def _has_kernel(func: torch._ops.OpOverload, key: torch._C.DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)  # type: ignore[no-untyped-call]
