/* Adds up the bytes of a file, with several reads under way: sum dafs://HOST/ FILE */
#include <dafs.h>
#include <stdio.h>

#define BLOCK (256 << 10)
#define READS 8

static int fail(const char *what)
{
    char text[512];
    dap_error_message(text, sizeof text);
    fprintf(stderr, "sum: %s: %s\n", what, text);
    return 1;
}

static unsigned long long add(const unsigned char *bytes, int64_t count)
{
    unsigned long long sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += bytes[i];
    return sum;
}

int main(int argc, char **argv)
{
    dap_session_t session;
    dap_file_t file;
    dap_mem_t mem;
    dap_cg_t group;
    void *address;
    dap_stat_t stat = {.size = sizeof stat};
    dap_op_t reads[READS];
    unsigned long long sum = 0;
    uint64_t next = 0, under_way = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: sum URL FILE\n");
        return 2;
    }
    if (dap_session_open(argv[1], NULL, &session) < 0)
        return fail(argv[1]);
    if (dap_open(session, argv[2], DAP_OPEN_READ, 0, &file) < 0 || dap_fstat(file, &stat) < 0)
        return fail(argv[2]);
    if (dap_mem_alloc(session, READS * BLOCK, &address, &mem) < 0)
        return fail("memory");
    if (dap_cg_create(session, READS, &group) < 0)
        return fail("completion group");

    for (uint64_t i = 0; i < READS; i++)
        reads[i] = (dap_op_t){.size = sizeof reads[i], .op = DAP_OP_READ, .file = file, .mem = mem,
                              .mem_offset = i * BLOCK, .length = BLOCK, .user = i};
    /* A read begins for each place in memory; when it has ended, the next one begins there. */
    for (uint64_t i = 0; i < READS && next < stat.bytes; i++, next += BLOCK, under_way++) {
        reads[i].offset = next;
        if (dap_submit(group, &reads[i], 1, 0) < 0)
            return fail(argv[2]);
    }
    while (under_way > 0) {
        dap_result_t result = {.size = sizeof result};
        if (dap_cg_wait(group, &result, 1, 1, -1) < 0)
            return fail("completion group");
        under_way--;
        if (result.value < 0)
            return fail(argv[2]);
        sum += add((unsigned char *)address + result.user * BLOCK, result.value);
        if (next < stat.bytes) {
            reads[result.user].offset = next;
            if (dap_submit(group, &reads[result.user], 1, 0) < 0)
                return fail(argv[2]);
            next += BLOCK;
            under_way++;
        }
    }
    printf("%llu\n", sum);
    dap_cg_destroy(group);
    dap_mem_free(mem);
    dap_close(file);
    dap_session_close(session);
    return 0;
}
