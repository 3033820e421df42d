// Operations on the rows of matrices.

KERNEL take_rows(Index count, const Real *matrix, const long long *ids, Real *outputs, Index columns) {
    EACH(i, count) outputs[i] = matrix[ids[i / columns] * columns + i % columns];
}

// One thread per column and `length` rows.
KERNEL sum_rows(Index count, const Real *matrix, Real *sums, Index rows, Index columns, Index length) {
    EACH(i, count) {
        const Index first = i / columns * length, last = first + length < rows ? first + length : rows;
        Real sum = 0;
        for (Index row = first; row < last; row++) sum += matrix[row * columns + i % columns];
        sums[i] = sum;
    }
}

// One thread per element of the matrix goes through all ids, so that every run sums in the same order.
KERNEL add_to_rows(Index count, Real *matrix, const long long *ids, const Real *rows, Index columns, Index length) {
    EACH(i, count) {
        Real sum = 0;
        for (Index j = 0; j < length; j++)
            if (ids[j] == i / columns) sum += rows[j * columns + i % columns];
        matrix[i] += sum;
    }
}
