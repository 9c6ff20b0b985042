/* A client of NFS by libnfs, for compare.sh: nfs URL read FILE SIZE DEPTH SECONDS, or nfs URL create DIR COUNT.
 * Prints operations, seconds, and processor seconds of its own. */
#include <fcntl.h>
#include <sys/time.h>
#include <nfsc/libnfs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static struct nfs_context *nfs;
static struct nfsfh *file;
static unsigned long long size, blocks, done, failed, state = 88172645463325252ull;
static int in_flight;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, nfs_get_error(nfs));
    exit(1);
}

static void answer(int status, struct nfs_context *context, void *data, void *private_data) {
    (void)context, (void)data, (void)private_data;
    in_flight--;
    if (status == (int)size) done++; else failed++;
}

static void ask(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    if (nfs_pread_async(nfs, file, state % blocks * size, size, answer, NULL)) die("read");
    in_flight++;
}

static void serve(void) {
    struct pollfd fd = {.fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs)};
    if (poll(&fd, 1, 1000) < 0 || nfs_service(nfs, fd.revents) < 0) die("service");
}

static void read_all(char **args) {
    struct nfs_stat_64 found;
    size = strtoull(args[1], NULL, 10);
    int depth = atoi(args[2]);
    if (nfs_open(nfs, args[0], O_RDONLY, &file)) die("open");
    if (nfs_fstat64(nfs, file, &found)) die("stat");
    blocks = found.nfs_size / size;
    double end = now() + atof(args[3]);
    while (now() < end) {
        while (in_flight < depth) ask();
        serve();
    }
    while (in_flight) serve();
}

static void create(char **args) {
    static char data[2048];
    int count = atoi(args[1]);
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%d", args[0], i);
        if (nfs_open(nfs, name, O_CREAT | O_WRONLY, &file)) die(name);
        if (nfs_write(nfs, file, sizeof data, data) != sizeof data || nfs_close(nfs, file)) die(name);
        done++;
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: nfs URL read FILE SIZE DEPTH SECONDS\n"), 2;
    nfs = nfs_init_context();
    struct nfs_url *url = nfs_parse_url_dir(nfs, argv[1]);
    if (!url || nfs_mount(nfs, url->server, url->path)) die(argv[1]);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double start = now();
    if (!strcmp(argv[2], "read")) read_all(argv + 3); else create(argv + 3);
    double seconds = now() - start;
    getrusage(RUSAGE_SELF, &after);
    double cpu = after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec - before.ru_stime.tv_sec +
        (after.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_utime.tv_usec - before.ru_stime.tv_usec) / 1e6;
    if (failed) return fprintf(stderr, "%llu reads failed\n", failed), 1;
    printf("%llu %.3f %.3f\n", done, seconds, cpu);
    return 0;
}
