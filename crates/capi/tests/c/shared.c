/* Shared memory: that it is used, what it saves, and what a child of fork finds in it. */
#include "check.h"

enum { LENGTH = 1 << 20 };

static dap_session_t session;
static dap_file_t file;

/* The server is asked for it at a socket, and has 100 ms to answer: not always enough on a busy machine. */
static void find(const char *url)
{
    for (int tries = 0; tries < 100; tries++) {
        NEW(dap_session_info_t, info);
        IS(dap_session_open(url, NULL, &session), 0);
        IS(dap_session_query(session, &info), 0);
        if (strcmp((char *)info.transport, "shm") == 0)
            return;
        IS(strcmp((char *)info.transport, "unix"), 0);
        IS(dap_session_close(session), 0);
    }
    TRUE(!"it was never found");
}

static uint64_t copied(void)
{
    NEW(dap_session_info_t, info);
    IS(dap_session_query(session, &info), 0);
    return info.copied_bytes;
}

static void copies(unsigned char *bytes, dap_mem_t mem)
{
    static unsigned char own[LENGTH];
    memset(bytes, 7, LENGTH);
    uint64_t before = copied();
    IS(dap_write(file, mem, 0, LENGTH, 0, 0), LENGTH);
    IS(dap_read(file, mem, 0, LENGTH, 0), LENGTH);
    /* Also by its address alone. */
    IS(dap_pwrite(file, bytes, LENGTH, 0, 0), LENGTH);
    IS(dap_pread(file, bytes, LENGTH, 0), LENGTH);
    TRUE(copied() - before < LENGTH / 4);
    /* Other memory is stood in for. */
    before = copied();
    IS(dap_pread(file, own, LENGTH, 0), LENGTH);
    TRUE(copied() - before >= LENGTH);
    IS(memcmp(own, bytes, LENGTH), 0);
    dap_mem_t registered;
    IS(dap_register_mem(session, own, LENGTH, &registered), 0);
    memset(own, 9, LENGTH);
    before = copied();
    IS(dap_write(file, registered, 0, LENGTH, 0, 0), LENGTH);
    TRUE(copied() - before >= LENGTH);
    IS(dap_read(file, mem, 0, LENGTH, 0), LENGTH);
    IS(memcmp(own, bytes, LENGTH), 0);
    IS(dap_deregister_mem(registered), 0);
}

/* A child has a view of its own of such memory; nothing that it stores reaches anybody. */
static void forked(unsigned char *bytes, dap_mem_t mem)
{
    memset(bytes, 5, LENGTH);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        IS(bytes[0], 5);
        IS(bytes[LENGTH - 1], 5);
        memset(bytes, 6, LENGTH);
        IS(bytes[LENGTH / 2], 6);
        IS(dap_read(file, mem, 0, LENGTH, 0), -ECHILD);
        IS(dap_mem_free(mem), -ECHILD);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            IS(bytes[LENGTH / 2], 6);
            _exit(0);
        }
        TRUE(child_is_good(grandchild));
        _exit(0);
    }
    TRUE(child_is_good(child));
    for (int i = 0; i < LENGTH; i++)
        IS(bytes[i], 5);
    IS(dap_read(file, mem, 0, LENGTH, 0), LENGTH);
    IS(bytes[LENGTH - 1], 9);
}

int main(int argc, char **argv)
{
    void *address;
    dap_mem_t mem;
    TRUE(argc == 2);
    find(argv[1]);
    IS(dap_open(session, "shared", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    IS(dap_mem_alloc(session, LENGTH, &address, &mem), 0);
    copies(address, mem);
    forked(address, mem);
    IS(dap_mem_free(mem), 0);
    /* What was used is zero for the next one. */
    IS(dap_mem_alloc(session, LENGTH, &address, &mem), 0);
    for (int i = 0; i < LENGTH; i++)
        IS(((unsigned char *)address)[i], 0);
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    /* It outlives the session. */
    memset(address, 1, LENGTH);
    IS(dap_mem_free(mem), 0);
    return done();
}
