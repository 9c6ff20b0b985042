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

static uint64_t sum_of(dap_loan_t loan, uint64_t *bytes)
{
    const void *address;
    uint64_t sum = 0;
    int64_t length;
    *bytes = 0;
    while ((length = dap_loan_piece(loan, *bytes, &address)) > 0) {
        for (int64_t i = 0; i < length; i++)
            sum += ((const unsigned char *)address)[i];
        *bytes += (uint64_t)length;
    }
    IS(length, 0);
    return sum;
}

/* The server's cache is read in place, as it was, also after the file was written and closed. */
static void lent(void)
{
    static unsigned char own[LENGTH];
    dap_file_t file;
    dap_loan_t loan, other;
    uint64_t bytes;
    IS(dap_open(session, "lent", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    memset(own, 3, LENGTH);
    IS(dap_pwrite(file, own, LENGTH, 0, 0), LENGTH);
    IS(dap_lend(file, LENGTH / 4, LENGTH / 4, &loan), LENGTH / 4);
    IS(dap_loan_is_mapped(loan), 1);
    memset(own, 4, LENGTH);
    IS(dap_pwrite(file, own, LENGTH, 0, 0), LENGTH);
    IS(dap_lend(file, LENGTH / 4, LENGTH, &other), LENGTH / 4 * 3);
    IS(dap_close(file), 0);
    IS(sum_of(loan, &bytes), 3 * (LENGTH / 4));
    IS(bytes, LENGTH / 4);
    IS(sum_of(other, &bytes), 4 * (LENGTH / 4 * 3));
    IS(dap_return(other), 0);
    IS(dap_return(other), -EBADF);
    IS(dap_loan_is_mapped(other), -EBADF);
    IS(dap_mem_free(loan), -EBADF);
    IS(dap_lend(file, 0, 1, &other), -EBADF);
    pid_t child = fork();
    if (child == 0) {
        const void *address;
        IS(dap_loan_piece(loan, 0, &address), -ECHILD);
        IS(dap_return(loan), -ECHILD);
        _exit(0);
    }
    TRUE(child_is_good(child));
    IS(sum_of(loan, &bytes), 3 * (LENGTH / 4));
    IS(dap_return(loan), 0);
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
    lent();
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
