// What a product does to its input as it reads it: then(x * factor + shift), with factors and shifts for each channel; see Scaling in
// runtimes/vulkan/kernels/product_scaling.py. The inner dimension is one tap of all channels.
layout(constant_id = FORMS_ID + 1) const int VARIES = 0; // each image has factors of its own; it has no shifts of its own
layout(constant_id = FORMS_ID + 2) const int HAS_SHIFT = 0;
layout(constant_id = FORMS_ID + 3) const int THEN = MOVE;

#ifdef JOINS
READS(7, factors)
READS(8, shifts)
#else
READS(5, factors)
READS(6, shifts)
#endif

// Where the factors of a row start.
int scales_of(int row) { return VARIES != 0 ? row / (out_height * out_width) * inner : 0; }

vec4 scaled(vec4 value, int index) {
    value *= LOAD_FLOATS4(factors, WORDS, index);
    if (HAS_SHIFT != 0) value += LOAD_FLOATS4(shifts, WORDS, VARIES != 0 ? index % inner : index);
    return activated(THEN, value, vec4(0.0), vec4(0.0));
}
