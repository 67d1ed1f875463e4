"""Operators that make tensors of numbers, and that draw them."""

from mobopt.ops.records.record import Entries, Trait, joined, operators

_FILLED = joined(
    [
        operators("full ones zeros", rank="size"),
        operators("full_like ones_like zeros_like", Trait.IGNORES_ELEMENTS, Trait.KEEPS_SIZES),
        operators("new_full new_ones new_zeros", Trait.IGNORES_ELEMENTS, rank="size"),
    ]
)
_EMPTY = joined(
    [
        operators("empty empty_permuted empty_strided", Trait.UNDEFINED, rank="size"),
        operators("empty_like", Trait.UNDEFINED, Trait.IGNORES_ELEMENTS, Trait.KEEPS_SIZES),
        operators("new_empty new_empty_strided", Trait.UNDEFINED, Trait.IGNORES_ELEMENTS, rank="size"),
    ]
)
_DRAWN = joined(
    [
        operators("rand randint randn", Trait.RANDOM, rank="size"),
        operators("rand_like randint_like randn_like", Trait.RANDOM, Trait.KEEPS_SIZES),
        operators("randperm", Trait.RANDOM, rank=1),
        operators(
            """
            _sample_dirichlet _standard_gamma bernoulli binomial cauchy exponential geometric log_normal multinomial
            normal normal_functional poisson random uniform
            """,
            Trait.RANDOM,
        ),
        operators("normal_", Trait.RANDOM, functional="aten::normal_functional"),
    ]
)

CREATION: Entries = joined([_FILLED, _EMPTY, _DRAWN])
