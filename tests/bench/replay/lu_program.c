/* A program with a real sparse LU factorisation at its heart, all of whose memory comes from a numacre pool: what a
 * trace is recorded from (NUMACRE_TRACE). UMFPACK factorises the parts of a domain, keeps the factors to solve with
 * them, and does those again that change: a block preconditioner of an adaptive computation.
 *
 * The matrices are of the Harwell-Boeing kinds: 5-point stencils with convection (as gre_1107's grids, unsymmetric),
 * 7-point stencils in three dimensions, and unsymmetric ones with entries at random (as power systems' gemat11).
 * usage: lu_program [STEPS [SEED]] */
#include <numacre/numacre.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <umfpack.h>

enum { PARTS = 16, ROW_ENTRIES_MAX = 8 };

static numacre_pool *pool;

static void *pool_malloc(size_t size_bytes) {
    void *block = NULL;
    return numacre_alloc(pool, size_bytes != 0 ? size_bytes : 1, &block) == 0 ? block : NULL;
}
static void *pool_calloc(size_t count, size_t size_bytes) {
    void *const block = pool_malloc(count * size_bytes);
    return block != NULL ? memset(block, 0, count * size_bytes) : NULL;
}
static void pool_free(void *block) {
    if (block != NULL && numacre_free(pool, block) != 0) {
        fprintf(stderr, "lu_program: %s\n", numacre_last_error());
        abort();
    }
}
static void *pool_realloc(void *block, size_t size_bytes) {
    if (block == NULL) return pool_malloc(size_bytes);
    const size_t had = numacre_usable_size(pool, block);
    void *const larger = pool_malloc(size_bytes);
    if (larger == NULL) return NULL;
    memcpy(larger, block, had < size_bytes ? had : size_bytes);
    pool_free(block);
    return larger;
}

static uint64_t random_state = 1107;
static uint32_t random_below(uint32_t limit) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % limit);
}

struct matrix {
    int n;
    int *column_begins, *rows;
    double *values;
};

/* Entries of a column go in with their rows ascending and without repetition, as UMFPACK wants them. */
static void add_entry(struct matrix *matrix, int column, int row, double value) {
    int at = matrix->column_begins[column + 1];
    for (int i = matrix->column_begins[column]; i < at; ++i)
        if (matrix->rows[i] == row) return;
    for (; at > matrix->column_begins[column] && matrix->rows[at - 1] > row; --at) {
        matrix->rows[at] = matrix->rows[at - 1];
        matrix->values[at] = matrix->values[at - 1];
    }
    matrix->rows[at] = row;
    matrix->values[at] = value;
    ++matrix->column_begins[column + 1];
}

static void make_matrix(struct matrix *matrix, int kind, int side) {
    const int planes = kind == 1 ? side : 1;
    const int n = matrix->n = side * side * planes;
    matrix->column_begins = pool_calloc((size_t)n + 1, sizeof(int));
    matrix->rows = pool_malloc((size_t)n * ROW_ENTRIES_MAX * sizeof(int));
    matrix->values = pool_malloc((size_t)n * ROW_ENTRIES_MAX * sizeof(double));
    if (matrix->column_begins == NULL || matrix->rows == NULL || matrix->values == NULL) abort();
    for (int column = 0; column < n; ++column) {
        matrix->column_begins[column + 1] = matrix->column_begins[column];
        add_entry(matrix, column, column, 8.0 + random_below(100) / 100.0);
        if (kind == 2) {
            for (uint32_t i = 1 + random_below(6); i != 0; --i)
                add_entry(matrix, column, (int)random_below((uint32_t)n), -1.0 - random_below(100) / 100.0);
            continue;
        }
        const int x = column % side, y = column / side % side, z = column / side / side;
        if (x > 0) add_entry(matrix, column, column - 1, -1.3);
        if (x < side - 1) add_entry(matrix, column, column + 1, -0.7);
        if (y > 0) add_entry(matrix, column, column - side, -1.1);
        if (y < side - 1) add_entry(matrix, column, column + side, -0.9);
        if (z > 0) add_entry(matrix, column, column - side * side, -1.0);
        if (z < planes - 1) add_entry(matrix, column, column + side * side, -1.0);
    }
}

struct part {
    struct matrix matrix;
    void *numeric;
};

static void drop(struct part *part) {
    if (part->numeric != NULL) umfpack_di_free_numeric(&part->numeric);
    pool_free(part->matrix.column_begins);
    pool_free(part->matrix.rows);
    pool_free(part->matrix.values);
    memset(part, 0, sizeof *part);
}

/* Factorises, and solves A x = A 1 to see that the factors are right. Returns the largest error. */
static double work_on(struct part *part) {
    const struct matrix *const m = &part->matrix;
    void *symbolic = NULL;
    int status = umfpack_di_symbolic(m->n, m->n, m->column_begins, m->rows, m->values, &symbolic, NULL, NULL);
    if (status == UMFPACK_OK)
        status = umfpack_di_numeric(m->column_begins, m->rows, m->values, symbolic, &part->numeric, NULL, NULL);
    umfpack_di_free_symbolic(&symbolic);
    if (status != UMFPACK_OK) return 1e9;
    double *const b = pool_calloc((size_t)m->n, sizeof(double));
    double *const x = pool_calloc((size_t)m->n, sizeof(double));
    if (b == NULL || x == NULL) abort();
    for (int i = 0; i < m->column_begins[m->n]; ++i) b[m->rows[i]] += m->values[i];
    umfpack_di_solve(UMFPACK_A, m->column_begins, m->rows, m->values, x, b, part->numeric, NULL, NULL);
    double worst = 0;
    for (int i = 0; i < m->n; ++i) {
        const double error = x[i] > 1 ? x[i] - 1 : 1 - x[i];
        if (!(error <= worst)) worst = error;
    }
    pool_free(b);
    pool_free(x);
    return worst;
}

int main(int argc, char **argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 200;
    if (argc > 2) random_state = strtoull(argv[2], NULL, 0);
    const numacre_private_options options = {sizeof options, (uint64_t)1 << 30, 64, (uint64_t)64 << 20, 0, 0, 0};
    if (numacre_open_private(&options, &pool) != 0) {
        fprintf(stderr, "lu_program: %s\n", numacre_last_error());
        return 1;
    }
    SuiteSparse_config.malloc_func = pool_malloc;
    SuiteSparse_config.calloc_func = pool_calloc;
    SuiteSparse_config.realloc_func = pool_realloc;
    SuiteSparse_config.free_func = pool_free;

    static struct part parts[PARTS];
    double worst = 0;
    for (int step = 0; step < steps; ++step) {
        struct part *const part = &parts[step < PARTS ? (uint32_t)step : random_below(PARTS)];
        drop(part);
        const int kind = (int)random_below(3);
        const int side = kind == 1 ? 5 + (int)random_below(8) : 12 + (int)random_below(kind == 0 ? 60 : 24);
        make_matrix(&part->matrix, kind, side);
        const double error = work_on(part);
        if (error > worst) worst = error;
    }
    for (int i = 0; i < PARTS; ++i) drop(&parts[i]);
    numacre_detach(pool);
    printf("%d factorisations, largest error of a solution %.1e\n", steps, worst);
    return worst < 1e-8 ? 0 : 1;
}
