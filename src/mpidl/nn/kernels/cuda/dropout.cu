// Dropout by Philox4x32-10: element i of the whole array has word i % 4 of the counter i / 4.

typedef unsigned int Word;
typedef unsigned long long Wide;

static __device__ Word philox(Wide index, Word key0, Word key1, Word key2, Word key3) {
    const Wide group = index / 4;
    Word a = (Word)group, b = (Word)(group >> 32), c = key2, d = key3;
    for (int round = 0; round < 10; ++round) {
        const Wide p = (Wide)0xD2511F53u * a, q = (Wide)0xCD9E8D57u * c;
        a = (Word)(q >> 32) ^ b ^ key0;
        b = (Word)q;
        c = (Word)(p >> 32) ^ d ^ key1;
        d = (Word)p;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    const int word = (int)(index % 4);
    return word < 2 ? (word == 0 ? a : b) : (word == 2 ? c : d);
}

KERNEL dropout(
    Index count, const Real *inputs, Real *factors, Real *outputs, Real kept, Word threshold, Word key0, Word key1,
    Word key2, Word key3, Index rows, Index columns, Index length, long long first, long long of_sample,
    long long of_row, long long of_column
) {
    EACH(i, count) {
        const Index run = i / length, row = run / columns;
        const long long place =
            first + i % length + run % columns * of_column + row % rows * of_row + row / rows * of_sample;
        factors[i] = philox((Wide)place, key0, key1, key2, key3) >= threshold ? kept : 0;
        outputs[i] = inputs[i] * factors[i];
    }
}
