"""Operators that give the elements of tensors in other shapes, orders and numbers, and compute nothing."""

from mobopt.ops.records.record import Entries, Like, Trait, joined, operators

_MOVES, _DISTINCT = Trait.MOVES_ELEMENTS, Trait.DISTINCT

_SHAPES = joined(
    [
        operators("view", _MOVES, _DISTINCT, Trait.KEEPS_ORDER, Trait.READS_STRIDES, rank="size"),
        operators("view.dtype", Trait.READS_STRIDES, Trait.READS_BITS, rank=Like.FIRST),
        operators(
            "_unsafe_view",
            *(_MOVES, _DISTINCT, Trait.KEEPS_ORDER, Trait.READS_STRIDES, Trait.HANDS_BACK),
            rank="size",
        ),
        operators("_reshape_alias", _MOVES, Trait.OWN_STRIDES, Trait.UNCHECKED, Trait.READS_STRIDES, rank="size"),
        operators("reshape", _MOVES, _DISTINCT, Trait.KEEPS_ORDER, rank="shape"),
        operators("view_as", _MOVES, _DISTINCT, Trait.KEEPS_ORDER, Trait.READS_STRIDES),
        operators("view_as_complex view_as_real", Trait.READS_STRIDES),
        operators("flatten ravel reshape_as unflatten unsqueeze", _MOVES, _DISTINCT, Trait.KEEPS_ORDER),
        operators("squeeze", _MOVES, _DISTINCT, Trait.KEEPS_ORDER, Trait.RANK_BY_SIZES),
        operators("view_copy", _MOVES, Trait.READS_STRIDES, rank="size"),
        operators("view_copy.dtype", Trait.READS_STRIDES, Trait.READS_BITS, rank=Like.FIRST),
        operators("squeeze_copy", _MOVES, Trait.RANK_BY_SIZES),
        operators("unsqueeze_copy", _MOVES),
        operators("atleast_1d atleast_2d atleast_3d", _MOVES, Trait.HANDS_BACK),
        operators(
            "as_strided as_strided_copy",
            *(_MOVES, Trait.OWN_STRIDES, Trait.READS_STRIDES, Trait.COUNTS_PLACES),
            rank="size",
        ),
        operators("as_strided_scatter", _MOVES, Trait.READS_STRIDES, Trait.COUNTS_PLACES, rank=Like.FIRST),
    ]
)
_ORDERS = joined(
    [
        operators(
            """
            adjoint fliplr flipud flip mT matrix_H movedim moveaxis mH numpy_T permute roll rot90 swapaxes swapdims t
            transpose
            """,
            _MOVES,
            _DISTINCT,
            rank=Like.FIRST,
        ),
        operators("permute_copy t_copy transpose_copy", _MOVES, rank=Like.FIRST),
        operators("channel_shuffle native_channel_shuffle", _MOVES, Trait.KEEPS_SIZES),
        operators("msort", _MOVES, Trait.KEEPS_SIZES),
        operators("pixel_shuffle pixel_unshuffle", _MOVES, rank=Like.FIRST),
    ]
)
_IN_PLACE = joined(
    [
        operators("swapaxes_ swapdims_ t_ transpose_", _MOVES, Trait.VIEWS_IN_PLACE, rank=Like.FIRST),
        operators("squeeze_", _MOVES, Trait.VIEWS_IN_PLACE, Trait.RANK_BY_SIZES),
        operators("unsqueeze_", _MOVES, Trait.VIEWS_IN_PLACE),
        operators(
            "as_strided_",
            *(_MOVES, Trait.OWN_STRIDES, Trait.VIEWS_IN_PLACE, Trait.READS_STRIDES, Trait.COUNTS_PLACES),
            rank="size",
        ),
    ]
)
_PARTS = joined(
    [
        operators("slice", _MOVES, _DISTINCT, Trait.COMPUTES, rank=Like.FIRST),
        operators("narrow narrow_copy slice_copy", _MOVES, _DISTINCT, rank=Like.FIRST),
        operators("select", _MOVES, _DISTINCT, Trait.COMPUTES),
        operators("diagonal diagonal_copy select_copy", _MOVES, _DISTINCT),
        operators("unfold unfold_copy", _MOVES),
        operators("split", _MOVES, _DISTINCT, Trait.COMPUTES),
        operators(
            "chunk split_copy split_with_sizes split_with_sizes_copy unbind unbind_copy",
            _MOVES,
            _DISTINCT,
        ),
        operators("dsplit hsplit tensor_split vsplit", _MOVES),
        operators("tensor_split.tensor_indices_or_sections", _MOVES, Trait.SIZES_BY_ELEMENTS),
        operators("unsafe_chunk unsafe_split unsafe_split_with_sizes", _MOVES, _DISTINCT, Trait.HANDS_BACK),
    ]
)
_REPETITIONS = joined(
    [
        operators("expand expand_copy", _MOVES, rank="size"),
        operators("expand_as", _MOVES),
        operators("broadcast_to", _MOVES, Trait.HANDS_BACK, rank="size"),
        operators("broadcast_tensors", _MOVES, Trait.HANDS_BACK),
        operators("meshgrid", _MOVES, Trait.HANDS_BACK, Trait.COMPUTES),
        operators("repeat", _MOVES, rank="repeats"),
        operators("repeat_interleave tile", _MOVES),
        operators("repeat_interleave.Tensor repeat_interleave.self_Tensor", _MOVES, Trait.SIZES_BY_ELEMENTS),
        operators("sum_to_size", Trait.HANDS_BACK, rank="size"),
    ]
)
_JOINS = joined(
    [
        operators("cat concat concatenate", _MOVES, Trait.CONCATENATION, rank=Like.PARTS, channels=Like.PARTS),
        operators("column_stack dstack hstack row_stack stack vstack", _MOVES),
        operators("cartesian_prod", _MOVES, Trait.HANDS_BACK),
        operators("diagonal_scatter select_scatter slice_scatter", _MOVES, Trait.KEEPS_SIZES),
        operators("chain_matmul", Trait.PRODUCT, Trait.HANDS_BACK),
    ]
)
_CHOICES = joined(
    [
        operators("embedding gather index_select take", _MOVES),
        operators("take_along_dim", _MOVES, Trait.READS_STRIDES),
        operators("index", _MOVES, Trait.COMPUTES),
        operators("argwhere nonzero nonzero_numpy where", Trait.SIZES_BY_ELEMENTS),
        operators("masked_select", _MOVES, Trait.SIZES_BY_ELEMENTS),
        operators("index_copy masked_scatter", _MOVES),
        operators("_pack_padded_sequence _pad_packed_sequence", Trait.SIZES_BY_ELEMENTS),
        operators("pad_sequence", Trait.COMPUTES),
    ]
)
_EDGES = joined(
    [
        operators("constant_pad_nd", Trait.PADDING, rank=Like.FIRST),
        operators("pad", Trait.PADDING, Trait.HANDS_BACK, Trait.COMPUTES, rank=Like.FIRST),
        *(
            operators(
                f"reflection_pad{rank}d replication_pad{rank}d",
                _MOVES,
                rank=Like.FIRST,
                spatial=rank,
                channels=Like.FIRST,
            )
            for rank in (1, 2, 3)
        ),
    ]
)
_RESAMPLED = joined(
    [
        *(
            operators(f"upsample_nearest{rank}d", Trait.RESAMPLING, _MOVES, rank=rank + 2, channels=Like.FIRST)
            for rank in (1, 2, 3)
        ),
        *(
            operators(f"_upsample_nearest_exact{rank}d", Trait.RESAMPLING, _MOVES, rank=rank + 2, channels=Like.FIRST)
            for rank in (1, 2, 3)
        ),
    ]
)

MOVING: Entries = joined([_SHAPES, _ORDERS, _IN_PLACE, _PARTS, _REPETITIONS, _JOINS, _CHOICES, _EDGES, _RESAMPLED])
