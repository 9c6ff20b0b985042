/* A system that has io_uring when it is asked, and none for the threads that then want one: load
 * it into a server with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

static int asked;

long syscall(long number, ...) {
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_uring_setup && __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED) > 0) {
        errno = EPERM;
        return -1;
    }
    return real(number, a, b, c, d, e, f);
}
