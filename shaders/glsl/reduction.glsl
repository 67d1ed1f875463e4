// What kernels share that combine the elements of some dimensions ("reduced") at each place of the others ("kept").
// Four lanes lie along the innermost kept dimension, or, with LANES_REDUCED, along the innermost reduced one. THREADS invocations of
// a workgroup share the reduced elements of one item; with THREADS = 1 there is neither shared memory nor a barrier.
#extension GL_GOOGLE_include_directive : require
#include "access.glsl"

layout(constant_id = 1) const int KEPT_RANK = 1;
layout(constant_id = 2) const int REDUCED_RANK = 1;
layout(constant_id = 3) const int THREADS = 1;
layout(constant_id = 4) const int LANES_REDUCED = 0;
layout(constant_id = 5) const int MODE = 0;
layout(constant_id = 6) const int STORE_MODE = 0;
layout(constant_id = 7) const int LONG = 0; // an invocation walks many steps

const int DIMS = KEPT_RANK + REDUCED_RANK;
#include "reduction_push.glsl"

float number_at(int word) { return intBitsToFloat(words[word]); }

struct Item {
    bool exists;
    int thread;  // which of the THREADS this invocation is
    int last;    // the last lane that exists, for lanes along a kept dimension
    int place[4];
};

Item this_item() {
    int sharing = LOCAL_SIZE / THREADS;
    int local = local_index();
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    Item item;
    // Neighbouring invocations read neighbouring elements.
    item.thread = LANES_REDUCED != 0 ? local % THREADS : local / sharing;
    int index = group * sharing + (LANES_REDUCED != 0 ? local / THREADS : local % sharing);
    int inner = words[KEPT_RANK - 1];
    int runs = LANES_REDUCED != 0 ? inner : (inner + 3) >> 2;
    int items = runs;
    for (int d = 0; d < KEPT_RANK - 1; ++d) items *= words[d];
    item.exists = index < items;
    int rest = item.exists ? index : 0;
    for (int d = KEPT_RANK - 1; d >= 0; --d) {
        int size = d == KEPT_RANK - 1 ? runs : words[d];
        int quotient = d > 0 ? divide(rest, size) : 0;
        item.place[d] = rest - quotient * size;
        rest = quotient;
    }
    if (LANES_REDUCED == 0) item.place[KEPT_RANK - 1] *= 4;
    item.last = LANES_REDUCED != 0 ? 0 : min(inner - item.place[KEPT_RANK - 1] - 1, 3);
    return item;
}

// Where a tensor's elements of the item start; `word` is the place of its offset.
int kept_offset(Item item, int word) {
    int offset = words[word];
    for (int d = 0; d < KEPT_RANK; ++d) offset += item.place[d] * words[word + 1 + d];
    return offset;
}

int inner_reduced() { return words[DIMS - 1]; }
int reduced_runs() { return LANES_REDUCED != 0 ? (inner_reduced() + 3) >> 2 : inner_reduced(); }

int reduced_steps() {
    int steps = reduced_runs();
    for (int d = KEPT_RANK; d < DIMS - 1; ++d) steps *= words[d];
    return steps;
}

struct Step {
    int offset; // from where the item starts in the tensor
    int index;  // of the first lane, counted in row-major order over the reduced dimensions
    int last;   // the last lane that exists
};

// Step number `step` of the reduced elements, in a tensor whose strides of reduced dimensions start at `word`.
Step reduced_step(int step, int word) {
    Step result;
    int run = step;
    int outer = 0;
    result.offset = 0;
    if (REDUCED_RANK > 1) {
        outer = divide(step, reduced_runs());
        run = step - outer * reduced_runs();
        int rest = outer;
        for (int d = REDUCED_RANK - 2; d >= 0; --d) {
            int quotient = d > 0 ? divide(rest, words[KEPT_RANK + d]) : 0;
            result.offset += (rest - quotient * words[KEPT_RANK + d]) * words[word + d];
            rest = quotient;
        }
    }
    int lane = LANES_REDUCED != 0 ? run * 4 : run;
    result.offset += lane * words[word + REDUCED_RANK - 1];
    result.index = outer * inner_reduced() + lane;
    result.last = LANES_REDUCED != 0 ? min(inner_reduced() - lane - 1, 3) : 3;
    return result;
}

int lane_stride(int word) { return words[word + (LANES_REDUCED != 0 ? DIMS : KEPT_RANK)]; }

#define LOAD_STEP(name, start, step, item)                                                                             \
    LOAD_LANES4(name, MODE, (start) + (step).offset, lane_stride(INPUT_WORD), LANES_REDUCED != 0 ? (step).last : (item).last)

// A walk over an item's steps, in stretches if it is LONG: what a stretch adds up is added to the total as one, so that rounding errors
// grow with the length and the number of stretches, not with their product.
const int STRETCH = 32 * THREADS;
#define STRETCHES(first, steps)                                                                                        \
    for (int first = item.thread, number = 0; LONG != 0 ? first < (steps) : number == 0; first += STRETCH, ++number)
#define STEPS_OF(s, first, steps) for (int s = first; s < (LONG != 0 ? min(first + STRETCH, steps) : (steps)); s += THREADS)

// Which lanes of a step are elements.
bvec4 lanes_of(Step step) { return lessThanEqual(ivec4(0, 1, 2, 3), ivec4(step.last)); }

// Combines a value of all threads of an item, after which each of them has the result. COMBINE is a function of two ivec4s.
#define SHARE(buffer_name, value, COMBINE)                                                                             \
    if (THREADS > 1) {                                                                                                 \
        int local = int(gl_LocalInvocationID.x);                                                                       \
        int step_size = LANES_REDUCED != 0 ? 1 : LOCAL_SIZE / THREADS;                                    \
        int thread = LANES_REDUCED != 0 ? local % THREADS : local / step_size;                                         \
        barrier();                                                                                                     \
        buffer_name[local] = value;                                                                                    \
        for (int width = THREADS / 2; width > 0; width /= 2) {                                                         \
            barrier();                                                                                                 \
            if (thread < width) buffer_name[local] = COMBINE(buffer_name[local], buffer_name[local + width * step_size]); \
        }                                                                                                              \
        barrier();                                                                                                     \
        value = buffer_name[local - thread * step_size];                                                               \
    }
