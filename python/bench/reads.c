/* What reads.py compares with: reads SIZE bytes at a time from the beginning of a file to its end, again and again.
 * For each line "SIZE COUNT" on standard input it prints "WALL USER", the nanoseconds of one of COUNT reads. */
#include <dafs.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static double wall(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static double user(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec * 1e9 + usage.ru_utime.tv_usec * 1e3;
}

static int fail(const char *what)
{
    char text[512];
    dap_error_message(text, sizeof text);
    fprintf(stderr, "reads: %s: %s\n", what, text);
    return 1;
}

int main(int argc, char **argv)
{
    dap_session_t session;
    dap_file_t file;
    dap_mem_t mem;
    void *address;
    dap_stat_t stat = {.size = sizeof stat};
    unsigned long size, count;

    if (argc != 3) {
        fprintf(stderr, "usage: reads URL FILE\n");
        return 2;
    }
    if (dap_session_open(argv[1], NULL, &session) < 0)
        return fail(argv[1]);
    if (dap_open(session, argv[2], DAP_OPEN_READ, 0, &file) < 0 || dap_fstat(file, &stat) < 0)
        return fail(argv[2]);
    while (scanf("%lu %lu", &size, &count) == 2) {
        uint64_t offset = 0;
        if (dap_mem_alloc(session, size, &address, &mem) < 0)
            return fail("memory");
        double wall_start = wall(), user_start = user();
        for (unsigned long i = 0; i < count; i++) {
            if (offset + size > stat.bytes)
                offset = 0;
            if (dap_read(file, mem, 0, size, offset) != (int64_t)size)
                return fail(argv[2]);
            offset += size;
        }
        printf("%.1f %.1f\n", (wall() - wall_start) / count, (user() - user_start) / count);
        fflush(stdout);
        dap_mem_free(mem);
    }
    dap_close(file);
    dap_session_close(session);
    return 0;
}
