// Rows of a matrix by their number.

KERNEL take_rows(Index count, const Real *matrix, const long long *ids, Real *outputs, Index columns) {
    EACH(i, count) outputs[i] = matrix[ids[i / columns] * columns + i % columns];
}

// A thread for each element of the matrix looks through all ids: always the same sum, bit for bit.
KERNEL add_to_rows(Index count, Real *matrix, const long long *ids, const Real *rows, Index columns, Index length) {
    EACH(i, count) {
        Real sum = 0;
        for (Index j = 0; j < length; j++)
            if (ids[j] == i / columns) sum += rows[j * columns + i % columns];
        matrix[i] += sum;
    }
}
