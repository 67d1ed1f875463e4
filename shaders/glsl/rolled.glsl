// Stores of the sums that an invocation keeps: each in its place of the code, or, where ROLLED, in a loop that takes them from a copy in
// memory. Both are as fast, but Mesa 25 takes 20 ms to compile a store. ROLLED is for CPU drivers, so only variants with TEXELS have it.
#define EACH_UNROLLED(count, store_one) [[unroll]] for (int i = 0; i < (count); ++i) store_one(i)
#ifdef TEXELS
#define EACH_STORED(count, store_one)                                                                                  \
    if (ROLLED != 0) {                                                                                                 \
        [[dont_unroll]] for (int i = 0; i < (count); ++i) store_one(i)                                                 \
    } else {                                                                                                           \
        EACH_UNROLLED(count, store_one)                                                                                \
    }
#else
#define EACH_STORED(count, store_one) EACH_UNROLLED(count, store_one)
#endif
