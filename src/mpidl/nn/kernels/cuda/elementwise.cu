// Activation functions and their derivatives, in place. Comparisons keep NaN wherever the CPU does.

KERNEL relu(Index count, Real *values) {
    EACH(i, count) values[i] = values[i] < 0 ? 0 : values[i];
}

KERNEL backprop_relu(Index count, const Real *outputs, Real *gradient) {
    EACH(i, count) gradient[i] = outputs[i] > 0 ? gradient[i] : 0;
}

KERNEL leaky_relu(Index count, Real *values, Real leak) {
    EACH(i, count) values[i] = values[i] < 0 ? leak * values[i] : values[i];
}

KERNEL backprop_leaky_relu(Index count, const Real *outputs, Real *gradient, Real leak) {
    EACH(i, count) gradient[i] = outputs[i] > 0 ? gradient[i] : leak * gradient[i];
}

KERNEL backprop_sigmoid(Index count, const Real *outputs, Real *gradient) {
    EACH(i, count) gradient[i] *= outputs[i] * (1 - outputs[i]);
}

KERNEL backprop_tanh(Index count, const Real *outputs, Real *gradient) {
    EACH(i, count) gradient[i] *= 1 - outputs[i] * outputs[i];
}

// Phi(z) as erfc(-z / sqrt(2)) / 2: for large negative z, 1 + erf(z / sqrt(2)) would cancel.
static __device__ Real phi(Real z) {
    return Real(0.5) * erfc(z * Real(-0.70710678118654752440));
}

KERNEL gelu(Index count, Real *values) {
    EACH(i, count) values[i] *= phi(values[i]);
}

KERNEL backprop_gelu(Index count, const Real *inputs, Real *gradient) {
    EACH(i, count) {
        const Real z = inputs[i];
        gradient[i] *= phi(z) + z * Real(0.39894228040143267794) * exp(Real(-0.5) * z * z);
    }
}
