/* Preloaded by a test: while the file that DETENT_FAIL_WHILE names is there, writes to the meta pages of a data.mdb
   fail with an input/output error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/types.h>
static int strikes(int fd, off_t at, size_t size) {
  char link[64], path[512]; const char *flag = getenv("DETENT_FAIL_WHILE");
  if (!flag || at >= 8192 || size > 4096 || access(flag, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1); if (n < 0) return 0; path[n] = 0;
  return n > 8 && !strcmp(path + n - 8, "data.mdb");
}
ssize_t pwrite64(int fd, const void *b, size_t n, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t); if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
  if (strikes(fd, at, n)) { errno = EIO; return -1; }
  return real(fd, b, n, at);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return pwrite64(fd, b, n, at); }
