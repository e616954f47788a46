/* Heat conduction on a grid: a program that is no training and not in Python. Prints each time step. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
  int rows = argc > 1 ? atoi(argv[1]) : 1000, columns = 2000;
  double *from = calloc((size_t)rows * columns, sizeof *from), *to = calloc((size_t)rows * columns, sizeof *to);
  from[rows / 2 * columns + columns / 2] = 1e6;
  double before = now();
  for (long step = 1;; step++) {
    for (int i = 1; i < rows - 1; i++)
      for (int j = 1; j < columns - 1; j++) {
        long k = (long)i * columns + j;
        to[k] = 0.25 * (from[k - 1] + from[k + 1] + from[k - columns] + from[k + columns]);
      }
    double *swap = from;
    from = to, to = swap;
    double after = now();
    printf("step %ld %.6f: %.4f ms\n", step, after, 1e3 * (after - before));
    before = after;
  }
}
