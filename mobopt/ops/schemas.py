"""Schemas of the operators that mobile builds of PyTorch have and stock torch lacks, of torchvision's, and of our own.

Source: ``aten/src/ATen/native/vulkan/ops/Register.cpp``, ``aten/src/ATen/native/metal/MetalPrepackOpRegister.cpp`` and
``aten/src/ATen/native/xnnpack/RegisterOpContextClass.cpp`` of PyTorch 1.13.1 and 2.6.0.
"""

from __future__ import annotations

from mobopt.ir.schemas import Argument, Schema, register_schema, resolve, schema_of, schemas_of

__all__ = ["PACKING_OPERATORS", "Argument", "Schema", "resolve", "schema_of", "schemas_of"]

_VULKAN = "__torch__.torch.classes.vulkan."
_METAL = "__torch__.torch.classes.metal."
_XNNPACK = "__torch__.torch.classes.xnnpack."
_CONV = "Tensor W, Tensor? B, int[2] stride, int[2] padding, int[2] dilation, int groups"
_TCONV = "Tensor W, Tensor? B, int[2] stride, int[2] padding, int[2] output_padding, int[2] dilation, int groups"
_CLAMP = "Scalar? output_min=None, Scalar? output_max=None"
_RNN = (
    "Tensor[] params_cpu, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_TWO_QUANTIZED = "Tensor qa, Tensor qb, float scale, int zero_point"

_SCHEMAS = (
    f"vulkan_prepack::create_conv2d_context({_CONV}, {_CLAMP}) -> {_VULKAN}Conv2dPackedContext",
    f"vulkan_prepack::run_conv2d_context(Tensor X, {_VULKAN}Conv2dPackedContext W_prepack) -> Tensor Y",
    f"vulkan_prepack::conv2d_clamp_prepack({_CONV}, {_CLAMP}) -> {_VULKAN}Conv2dOpContext",
    f"vulkan_prepack::conv2d_clamp_run(Tensor X, {_VULKAN}Conv2dOpContext W_prepack) -> Tensor Y",
    f"vulkan_prepack::create_tconv2d_context({_TCONV}, {_CLAMP}) -> {_VULKAN}Conv2dPackedContext",
    f"vulkan_prepack::run_tconv2d_context(Tensor X, {_VULKAN}Conv2dPackedContext W_prepack) -> Tensor Y",
    f"vulkan_prepack::create_conv1d_context({_CONV}) -> {_VULKAN}Conv1dPackedContext",
    f"vulkan_prepack::run_conv1d_context(Tensor X, {_VULKAN}Conv1dPackedContext W_prepack) -> Tensor Y",
    f"vulkan_prepack::create_linear_context(Tensor W, Tensor? B) -> {_VULKAN}LinearPackedContext",
    f"vulkan_prepack::run_linear_context(Tensor X, {_VULKAN}LinearPackedContext BW_prepack) -> Tensor Y",
    f"vulkan_prepack::create_layernorm_context(Tensor? W, Tensor? B, float eps) -> {_VULKAN}LayernormPackedContext",
    "vulkan_prepack::run_layernorm_context(Tensor X, SymInt[] normalized_shape, "
    f"{_VULKAN}LayernormPackedContext BW_prepack) -> Tensor Y",
    f"vulkan_prepack::create_gru_context({_RNN}) -> {_VULKAN}GruPackedContext",
    f"vulkan_prepack::run_gru_context(Tensor input_vk, Tensor hx_vk, {_VULKAN}GruPackedContext G_prepack) "
    "-> (Tensor next_input, Tensor hidden_layer)",
    f"vulkan_prepack::create_lstm_context({_RNN}) -> {_VULKAN}LstmPackedContext",
    "vulkan_prepack::run_lstm_context(Tensor input_vk, Tensor hx_vk, Tensor cx_vk, "
    f"{_VULKAN}LstmPackedContext L_prepack) "
    "-> (Tensor next_input, Tensor hidden_state, Tensor cell_state)",
    "vulkan_prepack::create_batchnorm_context(Tensor? weight_opt, Tensor? bias_opt, Tensor? running_mean_opt, "
    "Tensor? running_var_opt, bool training, float momentum, float eps, bool cudnn_enable) "
    f"-> {_VULKAN}BatchNormPackedContext",
    f"vulkan_prepack::run_batchnorm_context(Tensor input_vk, {_VULKAN}BatchNormPackedContext context) -> Tensor out",
    f"vulkan_prepack::run_qconv2d_context(Tensor X, float scale, int zero_point, "
    f"{_VULKAN}Conv2dPackedContext vk_context) -> Tensor Y",
    f"vulkan_prepack::run_qlinear_context(Tensor X, float scale, int zero_point, "
    f"{_VULKAN}LinearPackedContext vk_context) -> Tensor Y",
    f"vulkan_quantized::add({_TWO_QUANTIZED}) -> Tensor qc",
    f"vulkan_quantized::sub({_TWO_QUANTIZED}) -> Tensor qc",
    f"vulkan_quantized::mul({_TWO_QUANTIZED}) -> Tensor qc",
    f"vulkan_quantized::div({_TWO_QUANTIZED}) -> Tensor qc",
    f"metal_prepack::conv2d_prepack({_CONV}, {_CLAMP}) -> {_METAL}Conv2dOpContext",
    f"metal_prepack::conv2d_run(Tensor X, {_METAL}Conv2dOpContext W_prepack) -> Tensor Y",
    f"metal_prepack::linear_prepack(Tensor W, Tensor? B, {_CLAMP}) -> {_METAL}LinearOpContext",
    f"metal_prepack::linear_run(Tensor X, {_METAL}LinearOpContext W_prepack) -> Tensor Y",
    "metal::copy_to_host(Tensor X) -> Tensor Y",
    f"prepacked::linear_clamp_prepack(Tensor W, Tensor? B=None, {_CLAMP}) -> {_XNNPACK}LinearOpContext",
    f"prepacked::linear_clamp_run(Tensor X, {_XNNPACK}LinearOpContext W_prepack) -> Tensor Y",
    f"prepacked::conv2d_clamp_prepack({_CONV}, {_CLAMP}) -> {_XNNPACK}Conv2dOpContext",
    f"prepacked::conv2d_clamp_run(Tensor X, {_XNNPACK}Conv2dOpContext W_prepack) -> Tensor Y",
    f"prepacked::conv2d_transpose_clamp_prepack({_TCONV}, {_CLAMP}) -> {_XNNPACK}TransposeConv2dOpContext",
    f"prepacked::conv2d_transpose_clamp_run(Tensor X, {_XNNPACK}TransposeConv2dOpContext W_prepack) -> Tensor Y",
    "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "mobopt::dequantize(Tensor values, Tensor scales, Tensor? zero_points, int[] block_size, int bits, int columns) "
    "-> Tensor",
    "mobopt::fake_quantize(Tensor self, float scale, int quant_min, int quant_max, float? inverse_scale) -> Tensor",
    "mobopt::rounded_gate(Tensor self, str gate, float scale, int quant_min, int quant_max, float? inverse_scale) "
    "-> Tensor",
    "mobopt::l2_normalize(Tensor self, int dim, float eps, Tensor? weight) -> Tensor",
)

for _text in _SCHEMAS:
    register_schema(_text)

PACKING_OPERATORS = frozenset(
    text.partition("(")[0] for text in _SCHEMAS if text.rpartition("->")[2].strip().startswith("__torch__.")
)
"""The operators of every backend that make a packed context of constants."""
