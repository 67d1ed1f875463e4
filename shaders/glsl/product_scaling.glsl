// What a product does to its input as it reads it: then(x * factor + shift), with factors and shifts for each channel; see Scaling in
// runtimes/vulkan/kernels/product_scaling.py. The inner dimension is one tap of all channels.
layout(constant_id = FORMS_ID + 1) const int VARIES = 0; // each image has factors of its own; it has no shifts of its own
layout(constant_id = FORMS_ID + 2) const int HAS_SHIFT = 0;
layout(constant_id = FORMS_ID + 3) const int THEN = MOVE;
layout(constant_id = FORMS_ID + 4) const float THEN_FIRST = 0.0;
layout(constant_id = FORMS_ID + 5) const float THEN_SECOND = 0.0;

#ifdef JOINS
READS(7, factors)
READS(8, shifts)
#else
READS(5, factors)
READS(6, shifts)
#endif

// Where the factors of a row start.
int scales_of(int row) { return VARIES != 0 ? row / (out_height * out_width) * inner : 0; }

struct Scale {
    vec4 factor, shift;
};

Scale scale_at(int index) {
    Scale scale = Scale(LOAD_FLOATS4(factors, WORDS, index), vec4(0.0));
    if (HAS_SHIFT != 0) scale.shift = LOAD_FLOATS4(shifts, WORDS, VARIES != 0 ? index % inner : index);
    return scale;
}

vec4 scaled(vec4 value, Scale scale) {
    value *= scale.factor;
    if (HAS_SHIFT != 0) value += scale.shift;
    return exact_activation(THEN, value, THEN_FIRST, THEN_SECOND);
}

vec4 scaled(vec4 value, int index) { return scaled(value, scale_at(index)); }
