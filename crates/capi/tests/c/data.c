/* Reads and writes that block, and registered memory. */
#include "check.h"

static dap_session_t session;
static dap_file_t file;

static void pattern(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(seed + i * 7 + (i >> 8));
}

static void plain(void)
{
    size_t length = 3000000;
    unsigned char *out = malloc(length), *in = calloc(1, length);
    TRUE(out && in);
    pattern(out, length, 1);
    IS(dap_pwrite(file, out, length, 10, 0), length);
    IS(dap_pread(file, in, length, 10), length);
    IS(memcmp(out, in, length), 0);
    IS(dap_pread(file, in, length, length), 10);
    IS(dap_pread(file, in, length, length + 10), 0);
    IS(dap_pread(file, in, 0, 0), 0);
    IS(dap_pread(file, NULL, 0, 0), 0);
    uint64_t at = 0;
    IS(dap_append(file, out, 100, &at), 100);
    IS(at, length + 10);
    IS(dap_pwrite(file, out, 10, 0, DAP_WRITE_DATA), 10);
    IS(dap_pwrite(file, out, 10, 0, DAP_WRITE_STABLE), 10);
    IS(dap_fsync(file), 0);
    IS(dap_fdatasync(file), 0);
    IS(dap_flush(file), 0);
    free(out);
    free(in);
}

static void registered(void)
{
    /* Of the library. */
    void *address = NULL;
    dap_mem_t mem;
    size_t length = 1 << 21;
    IS(dap_mem_alloc(session, length, &address, &mem), 0);
    unsigned char *bytes = address;
    IS(bytes[length - 1], 0);
    pattern(bytes, length, 9);
    IS(dap_write(file, mem, 0, length, 5, 0), length);
    memset(bytes, 0, length);
    IS(dap_read(file, mem, 3, 1000, 5), 1000);
    unsigned char wanted[1000];
    pattern(wanted, sizeof wanted, 9);
    IS(memcmp(bytes + 3, wanted, sizeof wanted), 0);
    IS(bytes[2], 0);
    IS(bytes[1003], 0);
    IS(dap_read(file, mem, 1, length, 5), -EINVAL);
    SAYS("not inside");
    IS(dap_deregister_mem(mem), -EINVAL);
    IS(dap_mem_free(mem), 0);
    IS(dap_mem_free(mem), -EBADF);

    /* Of the program, and not from a page on. */
    unsigned char own[5001] = {0};
    IS(dap_register_mem(session, own + 1, 5000, &mem), 0);
    IS(dap_read(file, mem, 10, 1000, 5), 1000);
    IS(memcmp(own + 11, wanted, sizeof wanted), 0);
    IS(own[10], 0);
    IS(dap_mem_free(mem), -EINVAL);
    IS(dap_deregister_mem(mem), 0);
    IS(dap_read(file, mem, 10, 1000, 5), -EBADF);
    IS(dap_deregister_mem(mem), -EBADF);
}

/* Read where it is, or copied: it is the same. */
static void lent(void)
{
    static unsigned char wanted[200000];
    int64_t length = dap_pread(file, wanted, sizeof wanted, 7), piece;
    TRUE(length > 100000);
    dap_loan_t loan;
    const void *address;
    IS(dap_lend(file, 7, sizeof wanted, &loan), length);
    int64_t at = 0;
    while ((piece = dap_loan_piece(loan, (uint64_t)at, &address)) > 0) {
        IS(memcmp(address, wanted + at, (size_t)piece), 0);
        at += piece;
    }
    IS(at, length);
    IS(dap_loan_piece(loan, UINT64_MAX, &address), 0);
    TRUE(dap_loan_piece(loan, (uint64_t)at - 1, &address) == 1 && *(const unsigned char *)address == wanted[at - 1]);
    IS(dap_loan_piece(loan, 0, NULL), -EINVAL);
    TRUE(dap_loan_is_mapped(loan) >= 0);
    IS(dap_close((dap_file_t)loan), -EBADF);
    IS(dap_return(loan), 0);
    IS(dap_lend(file, 0, 1, NULL), -EINVAL);
    IS(dap_lend(session, 0, 1, &loan), -EBADF);
    IS(dap_lend(file, 1u << 30, 100, &loan), 0);
    IS(dap_loan_piece(loan, 0, &address), 0);
    IS(dap_return(loan), 0);
}

/* What the network knows of memory is no use of it: over sessions where the server reads it. */
static void known(const char *url)
{
    char read_by_server[512];
    void *address;
    dap_session_t other;
    dap_file_t of;
    dap_mem_t mem, own;
    static unsigned char bytes[300001];
    snprintf(read_by_server, sizeof read_by_server, "%s%ctags=off", url, strchr(url, '?') ? '&' : '?');
    IS(dap_session_open(read_by_server, NULL, &other), 0);
    NEW(dap_session_info_t, info);
    IS(dap_session_query(other, &info), 0);
    IS(info.transfer_modes & DAP_TRANSFER_TAGGED, 0);
    TRUE(info.transfer_modes & DAP_TRANSFER_RDMA_READ);
    IS(dap_open(other, "known", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &of), 0);
    for (int round = 0; round < 3; round++) {
        IS(dap_mem_alloc(other, sizeof bytes, &address, &mem), 0);
        IS(dap_register_mem(session, bytes, sizeof bytes, &own), 0);
        IS(dap_write(of, mem, 0, sizeof bytes, 0, 0), sizeof bytes);
        IS(dap_write(of, own, 1, 200000, 0, 0), 200000);
        IS(dap_read(of, own, 0, sizeof bytes, 0), sizeof bytes);
        IS(dap_mem_free(mem), 0);
        IS(dap_deregister_mem(own), 0);
    }
    IS(dap_close(of), 0);
    IS(dap_session_close(other), 0);
}

static void lists(void)
{
    void *address;
    dap_mem_t mem;
    size_t length = 4 << 20;
    IS(dap_mem_alloc(session, length, &address, &mem), 0);
    unsigned char *bytes = address;
    pattern(bytes, length, 77);
    IS(dap_ftruncate(file, 0), 0);
    dap_segment_t segments[3] = {
        {.offset = 5000, .mem = mem, .mem_offset = 100, .length = 2000},
        {.offset = 100000, .mem = mem, .mem_offset = 0, .length = 1500000},
        {.offset = 7000, .mem = mem, .mem_offset = 2100, .length = 1},
    };
    IS(dap_writev(file, segments, 3, 0), 1502001);
    memset(bytes, 0, length);
    unsigned char wanted[4000];
    pattern(wanted, sizeof wanted, 77);
    segments[0].mem_offset = 2000000;
    segments[2].mem_offset = 2002000;
    IS(dap_readv(file, segments, 3), 1502001);
    IS(memcmp(bytes + 2000000, wanted + 100, 2001), 0);
    IS(memcmp(bytes, wanted, sizeof wanted), 0);
    /* The second one goes beyond the end: what is read without a gap counts. */
    segments[1].offset = 1600000 - 50;
    segments[1].length = 100;
    IS(dap_readv(file, segments, 3), 2050);
    IS(dap_readv(file, segments, 0), -EINVAL);
    IS(dap_readv(file, segments, DAP_SEGMENTS_MAX + 1), -EINVAL);
    IS(dap_mem_free(mem), 0);
}

static void holes(void)
{
    IS(dap_ftruncate(file, 0), 0);
    IS(dap_ftruncate(file, 1 << 20), 0);
    IS(dap_pwrite(file, "x", 1, 1 << 19, 0), 1);
    IS(dap_fsync(file), 0);
    int64_t data = dap_seek_data(file, 0);
    TRUE(data >= 0 && data <= 1 << 19);
    TRUE(dap_seek_hole(file, 0) >= 0);
    IS(dap_seek_data(file, 1 << 21), -ENXIO);
    int result = dap_allocate(file, 3, 0, 1 << 20);
    TRUE(result == 0 || result == -EOPNOTSUPP);
    dap_file_t other;
    IS(dap_open(session, "copy", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &other), 0);
    IS(dap_pwrite(file, "copied", 6, 0, 0), 6);
    IS(dap_copy_range(file, 0, other, 2, 6), 6);
    char text[8];
    IS(dap_pread(other, text, 8, 0), 8);
    IS(memcmp(text, "\0\0copied", 8), 0);
    IS(dap_close(other), 0);
    IS(dap_advise(file, 0, 0, DAP_ADVISE_SEQUENTIAL) >= 0, 1);
    IS(dap_advise(file, 0, 0, DAP_ADVISE_RANDOM) >= 0, 1);
    IS(dap_advise(file, 0, 4096, DAP_ADVISE_WILLNEED) >= 0, 1);
    IS(dap_advise(file, 0, 0, DAP_ADVISE_DONTNEED) >= 0, 1);
    IS(dap_advise(file, 0, 0, 99), -EINVAL);
}

static void whole(void)
{
    char text[64] = "";
    NEW(dap_stat_t, stat);
    IS(dap_read_file(session, "copy", text, sizeof text, &stat), 8);
    IS(memcmp(text, "\0\0copied", 8), 0);
    IS(stat.bytes, 8);
    IS(dap_read_file(session, "copy", text, 4, NULL), 4);
    IS(dap_read_file(session, "none", text, 4, NULL), -ENOENT);
    /* One round trip each. */
    NEW(dap_session_info_t, before);
    NEW(dap_session_info_t, after);
    IS(dap_session_query(session, &before), 0);
    IS(dap_read_file(session, "copy", text, sizeof text, NULL), 8);
    IS(dap_session_query(session, &after), 0);
    IS(after.round_trips - before.round_trips, 2);
}

static void attributes(const char *transport)
{
    NEW(dap_session_info_t, info);
    uint64_t nanoseconds = 0;
    IS(dap_session_ping(session, &nanoseconds), 0);
    TRUE(nanoseconds > 0);
    IS(dap_session_query(session, &info), 0);
    TRUE(info.protocol_version >= 6);
    IS(info.credits, 32);
    TRUE(info.transfer_modes & DAP_TRANSFER_INLINE);
    IS(info.data_bytes_max, 1 << 20);
    TRUE(info.server_cache_bytes > 0 && info.lease_ms > 0);
    IS(strcmp((char *)info.transport, transport), 0);
    IS(info.size, sizeof info);
}

int main(int argc, char **argv)
{
    TRUE(argc == 3);
    NEW(dap_options_t, options);
    options.credits = 32;
    IS(dap_session_open(argv[1], &options, &session), 0);
    IS(dap_open(session, "data", DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file), 0);
    plain();
    registered();
    lent();
    known(argv[1]);
    lists();
    holes();
    whole();
    attributes(argv[2]);
    IS(dap_close(file), 0);
    IS(dap_session_close(session), 0);
    return done();
}
