/* Counts syncs between two marks (failing truncate calls), and writes "calls dsync_writes" to $BENCH_SYNCS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int counting;
static volatile long calls, dsync_writes;

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real)                                                                                                         \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void wrote(int fd)
{
    int flags;
    if (counting && (flags = fcntl(fd, F_GETFL)) != -1 && (flags & O_DSYNC))
        __sync_fetch_and_add(&dsync_writes, 1);
}

static void synced(void)
{
    if (counting)
        __sync_fetch_and_add(&calls, 1);
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    synced();
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(int, "fdatasync", int);
    synced();
    return real(fd);
}

int msync(void *at, size_t size, int flags)
{
    REAL(int, "msync", void *, size_t, int);
    if (flags & MS_SYNC)
        synced();
    return real(at, size, flags);
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    wrote(fd);
    return real(fd, bytes, size);
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at)
{
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    wrote(fd);
    return real(fd, bytes, size, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at)
{
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    wrote(fd);
    return real(fd, bytes, size, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
    wrote(fd);
    return real(fd, parts, count, at);
}

static void mark(const char *path)
{
    const char *log = getenv("BENCH_SYNCS");
    FILE *file;
    if (strstr(path, "detent-bench-begin"))
        counting = 1;
    if (!strstr(path, "detent-bench-end") || !log)
        return;
    counting = 0;
    if ((file = fopen(log, "w"))) {
        fprintf(file, "%ld %ld\n", calls, dsync_writes);
        fclose(file);
    }
}

int truncate(const char *path, off_t size)
{
    REAL(int, "truncate", const char *, off_t);
    mark(path);
    return real(path, size);
}

int truncate64(const char *path, off64_t size)
{
    REAL(int, "truncate64", const char *, off64_t);
    mark(path);
    return real(path, size);
}
