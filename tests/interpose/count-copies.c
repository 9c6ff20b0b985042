/* Counts the bytes of large copies in user space, from outside of the program: load it with
 * LD_PRELOAD; on SIGUSR2 it writes the number to the file named by COUNT_COPIES_FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Headers and names are smaller than this; payload is larger. */
enum { LARGE = 1024 };

static uint64_t copied;

static void count(size_t n) {
    if (n >= LARGE)
        __atomic_fetch_add(&copied, n, __ATOMIC_RELAXED);
}

static void *copy(void *to, const void *from, size_t n) {
    unsigned char *t = to;
    const unsigned char *f = from;
    count(n);
    if (t == f || n == 0)
        return to;
    if (t < f || t >= f + n)
        __asm__ volatile("rep movsb" : "+D"(t), "+S"(f), "+c"(n) : : "memory");
    else
        while (n--) {
            t[n] = f[n];
            __asm__ volatile("" : : : "memory");
        }
    return to;
}

void *memmove(void *to, const void *from, size_t n) { return copy(to, from, n); }

void *memcpy(void *restrict to, const void *restrict from, size_t n) { return copy(to, from, n); }

static void report(int signal) {
    (void)signal;
    char text[32];
    const char *path = getenv("COUNT_COPIES_FILE");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0)
        return;
    int n = snprintf(text, sizeof text, "%llu\n",
                     (unsigned long long)__atomic_load_n(&copied, __ATOMIC_RELAXED));
    if (write(fd, text, (size_t)n) != n)
        copied = 0;
    close(fd);
}

__attribute__((constructor)) static void start(void) { signal(SIGUSR2, report); }
