// Normalisation of a matrix's columns or rows by their mean and variance.

KERNEL normalise_columns(
    Index count, const Real *values, const Real *mean, const Real *inverse, const Real *scale, const Real *shift,
    Real *outputs, Index columns
) {
    EACH(i, count) {
        const Index j = i % columns;
        outputs[i] = (values[i] - mean[j]) * (inverse[j] * scale[j]) + shift[j];
    }
}

KERNEL backprop_columns(
    Index count, const Real *values, const Real *mean, const Real *inverse, const Real *scale,
    const Real *scale_gradient, const Real *shift_gradient, const Real *gradient, Real *value_gradient, Index columns
) {
    EACH(i, count) {
        const Index j = i % columns;
        const Real rows = (Real)(count / columns);
        const Real along = (values[i] - mean[j]) * inverse[j] * scale_gradient[j];
        value_gradient[i] = scale[j] * inverse[j] * (gradient[i] - (shift_gradient[j] + along) / rows);
    }
}

// One thread per row.
KERNEL normalise_rows(
    Index count, const Real *values, Real epsilon, const Real *scale, const Real *shift, Real *outputs, Real *mean,
    Real *inverse, Index columns
) {
    EACH(i, count) {
        const Real *row = values + i * columns;
        Real total = 0, squares = 0;
        for (Index j = 0; j < columns; j++) total += row[j];
        const Real centre = total / (Real)columns;
        for (Index j = 0; j < columns; j++) squares += (row[j] - centre) * (row[j] - centre);
        mean[i] = centre;
        inverse[i] = 1 / sqrt(squares / (Real)columns + epsilon);
        for (Index j = 0; j < columns; j++) outputs[i * columns + j] = (row[j] - centre) * inverse[i] * scale[j] + shift[j];
    }
}

KERNEL backprop_rows(
    Index count, const Real *values, const Real *mean, const Real *inverse, const Real *scale, const Real *gradient,
    Real *value_gradient, Index columns
) {
    EACH(i, count) {
        const Real *row = values + i * columns, *own = gradient + i * columns;
        Real *result = value_gradient + i * columns;
        Real across = 0, along = 0;
        for (Index j = 0; j < columns; j++) {
            const Real slope = own[j] * scale[j];
            across += slope;
            along += slope * (row[j] - mean[i]) * inverse[i];
        }
        across /= (Real)columns;
        along /= (Real)columns;
        for (Index j = 0; j < columns; j++)
            result[j] = inverse[i] * (own[j] * scale[j] - across - (row[j] - mean[i]) * inverse[i] * along);
    }
}
