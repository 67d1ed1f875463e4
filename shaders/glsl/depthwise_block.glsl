// A block of OUT_HIGH x OUT_WIDE pixels of a depthwise convolution: each pixel that they read is loaded once. The shader that includes this
// has the constants of the filter, says what FILTER(tap) is (of groups of two channels, first those of the first), and reads the input:

// Of the channels of this invocation, at a distance from the first pixel that its block reads; zero outside of the image.
vec4 input_at(int row, int column);

const int TAPS = TAPS_HIGH * TAPS_WIDE;
// Rows and columns between those that a block reads: a single pixel leaves out what lies between its taps.
const int STEP_HIGH = OUT_HIGH == 1 ? DILATION_HIGH : 1;
const int STEP_WIDE = OUT_WIDE == 1 ? DILATION_WIDE : 1;
const int IN_HIGH = (OUT_HIGH - 1) * STRIDE_HIGH + (TAPS_HIGH - 1) * DILATION_HIGH / STEP_HIGH + 1;
const int IN_WIDE = (OUT_WIDE - 1) * STRIDE_WIDE + (TAPS_WIDE - 1) * DILATION_WIDE / STEP_WIDE + 1;

vec4 filtered[OUT_HIGH * OUT_WIDE];

// Output o reads input i with tap (i - o * stride) / dilation, if that is a whole number in range; else -1.
int tap_of(int i, int o, int stride, int dilation, int taps) {
    int distance = i - o * stride;
    return distance >= 0 && distance % dilation == 0 && distance / dilation < taps ? distance / dilation : -1;
}

// All sums of the block, from `start` on.
void filter_block(vec4 start) {
    [[unroll]] for (int o = 0; o < OUT_HIGH * OUT_WIDE; ++o) filtered[o] = start;
    [[unroll]] for (int i = 0; i < IN_HIGH; ++i)
        [[unroll]] for (int j = 0; j < IN_WIDE; ++j) {
            vec4 value = input_at(i * STEP_HIGH, j * STEP_WIDE);
            [[unroll]] for (int o = 0; o < OUT_HIGH; ++o)
                [[unroll]] for (int p = 0; p < OUT_WIDE; ++p) {
                    int tap_y = tap_of(i * STEP_HIGH, o, STRIDE_HIGH, DILATION_HIGH, TAPS_HIGH);
                    int tap_x = tap_of(j * STEP_WIDE, p, STRIDE_WIDE, DILATION_WIDE, TAPS_WIDE);
                    // Each channel reads those of its group, and no others: what is no number stays within it.
                    if (tap_y >= 0 && tap_x >= 0) {
                        int tap = tap_y * TAPS_WIDE + tap_x;
                        if (GROUP == 1) {
                            filtered[o * OUT_WIDE + p] += value * FILTER(tap);
                        } else {
                            filtered[o * OUT_WIDE + p] += value.xxzz * FILTER(tap);
                            filtered[o * OUT_WIDE + p] += value.yyww * FILTER(TAPS + tap);
                        }
                    }
                }
        }
}
