/* Copies a file within a server, by way of this program: copy dafs://HOST/ FROM TO */
#include <dafs.h>
#include <stdio.h>

#define BLOCK (1 << 20)

static int fail(const char *what)
{
    char text[512];
    dap_error_message(text, sizeof text);
    fprintf(stderr, "copy: %s: %s\n", what, text);
    return 1;
}

int main(int argc, char **argv)
{
    dap_session_t session;
    dap_file_t from, to;
    dap_mem_t mem;
    void *address;
    uint64_t offset = 0;
    int64_t bytes;

    if (argc != 4) {
        fprintf(stderr, "usage: copy URL FROM TO\n");
        return 2;
    }
    if (dap_session_open(argv[1], NULL, &session) < 0)
        return fail(argv[1]);
    if (dap_open(session, argv[2], DAP_OPEN_READ, 0, &from) < 0)
        return fail(argv[2]);
    if (dap_open(session, argv[3], DAP_OPEN_WRITE | DAP_OPEN_CREATE | DAP_OPEN_TRUNCATE, 0644, &to) < 0)
        return fail(argv[3]);
    /* The network reads and writes this memory: nothing is copied on the way. */
    if (dap_mem_alloc(session, BLOCK, &address, &mem) < 0)
        return fail("memory");
    while ((bytes = dap_read(from, mem, 0, BLOCK, offset)) > 0) {
        if (dap_write(to, mem, 0, (size_t)bytes, offset, 0) < 0)
            return fail(argv[3]);
        offset += (uint64_t)bytes;
    }
    if (bytes < 0)
        return fail(argv[2]);
    /* From here on it is on disk, also when the server's machine ends. */
    if (dap_fsync(to) < 0 || dap_close(to) < 0)
        return fail(argv[3]);
    dap_close(from);
    dap_mem_free(mem);
    dap_session_close(session);
    printf("%llu bytes\n", (unsigned long long)offset);
    return 0;
}
