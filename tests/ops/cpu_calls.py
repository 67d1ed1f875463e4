"""Calls on which the conditions of the CPU's rows are true, and such on which they are false."""

from row_calls import RowCall, call, stored, tensor

CALLS: tuple[RowCall, ...] = (
    call("cpu 2.2", "aten::_assert_tensor_metadata", "native", a=tensor(1, 6, 5, 7)),
    call("cpu 2.2", "aten::_assert_tensor_metadata", "missing", a=tensor(1, 6, 5, 7), layout=7),
    call("cpu 1.13", "aten::linear", "native", input=tensor(5, 6), weight=tensor(3, 6)),
    call(
        "cpu 2.2", "aten::linear", "missing", input=tensor(2, 5, dtype="float16"), weight=stored(3, 5, dtype="float16")
    ),
    call("cpu 2.2", "aten::pad_sequence", "missing", sequences=[tensor(3, 2), tensor(4, 2)], padding_side="left"),
    call("cpu 2.2", "aten::pad_sequence", "native", sequences=[tensor(3, 2), tensor(4, 2)]),
    call("cpu 1.13", "aten::relu", "native", self=tensor(2, dtype="int64")),
    call("cpu 2.2", "aten::relu", "missing", self=tensor(1, 2, 5, 4, dtype="float16")),
    call(
        "cpu 2.0",
        "aten::scaled_dot_product_attention",
        "missing:attention_by_products",
        scale=0.5,
        query=tensor(1, 2, 5, 4),
        key=tensor(1, 2, 5, 4),
        value=tensor(1, 2, 5, 4),
    ),
    call(
        "cpu 2.0",
        "aten::scaled_dot_product_attention",
        "native",
        query=tensor(2, 7, 5),
        key=tensor(2, 7, 5),
        value=tensor(2, 7, 5),
        is_causal=True,
    ),
    call(
        "cpu 2.2",
        "aten::scaled_dot_product_attention",
        "missing:attention_by_products",
        scale=0.5,
        enable_gqa=True,
        query=tensor(1, 2, 5, 4),
        key=tensor(1, 2, 5, 4),
        value=tensor(1, 2, 5, 4),
    ),
    call(
        "cpu 2.2",
        "aten::scaled_dot_product_attention",
        "native",
        query=tensor(1, 2, 5, 4),
        key=tensor(1, 2, 5, 4),
        value=tensor(1, 2, 5, 4),
    ),
    call("cpu 1.13", "aten::std.correction", "missing", dim=[1], correction=0.5, self=tensor(1, 6, 5, 7)),
    call("cpu 2.6", "aten::stft.center", "native", n_fft=4, self=tensor(32)),
    call("cpu 2.6", "aten::stft.center", "missing", n_fft=4, align_to_window=True, self=tensor(32)),
    call(
        "cpu 1.13",
        "aten::upsample_nearest2d.vec",
        "native",
        input=tensor(1, 3, 5, 7),
        output_size=None,
        scale_factors=[2.0, 2.0],
    ),
    call(
        "cpu 2.2",
        "aten::upsample_nearest2d.vec",
        "missing",
        input=tensor(1, 2, 5, 4, dtype="float16"),
        output_size=[10, 8],
        scale_factors=None,
    ),
    call("cpu 1.13", "aten::var.correction", "native", self=tensor(1, 6, 7, 5), dim=[1], correction=0),
)
