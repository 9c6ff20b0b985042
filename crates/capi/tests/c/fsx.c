/* Random operations on a file, each against a model in memory, while servers come and go.
 *
 *   fsx URL NAME OPERATIONS SEED [restart|kill...]
 *
 * For each of the words it prints the word at some time, goes on, and reads a line when it is done. What a
 * call reports as lost, or as unknown, is written again from the model; nothing else may differ. The last
 * line counts, and has size and checksum of the file. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

#define FILE_BYTES (1 << 20)
#define BLOCK 4096
#define BLOCKS (FILE_BYTES / BLOCK)
#define BATCH 8
#define MEMORY_BYTES (2 * FILE_BYTES)

static unsigned char model[FILE_BYTES];
static size_t model_bytes;
/* What was changed since the last fsync that succeeded. */
static unsigned char is_dirty[BLOCKS];

static dap_session_t session;
static dap_file_t file;
static dap_mem_t mem;
static dap_cg_t group;
static unsigned char *memory;
static const char *name;
static uint64_t dice;
static unsigned long operation, rewritten, losses, unknowns, different;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (dice >> 11) % below;
}

static void stop(const char *what, int64_t value)
{
    char text[512] = "";
    dap_error_message(text, sizeof text);
    fprintf(stderr, "operation %lu: %s: %lld (%s)\n", operation, what, (long long)value, text);
    exit(1);
}

static void changed(size_t offset, size_t length)
{
    if (length > 0)
        memset(is_dirty + offset / BLOCK, 1, (offset + length - 1) / BLOCK - offset / BLOCK + 1);
}

/* The model has these bytes from now on. */
static void put(size_t offset, const unsigned char *bytes, size_t length)
{
    if (offset > model_bytes)
        changed(model_bytes, offset - model_bytes);
    memcpy(model + offset, bytes, length);
    if (offset + length > model_bytes)
        model_bytes = offset + length;
    changed(offset, length);
}

static void resize(size_t bytes)
{
    size_t least = bytes < model_bytes ? bytes : model_bytes;
    memset(model + least, 0, FILE_BYTES - least);
    changed(least, FILE_BYTES - least);
    model_bytes = bytes;
}

/* True: the last error says that something is lost, or unknown. Every other one ends the program. */
static int is_loss(const char *what, int64_t value, uint32_t reason)
{
    if (reason == DAP_REASON_WRITES_LOST)
        losses++;
    else if (reason == DAP_REASON_OUTCOME_UNKNOWN)
        unknowns++;
    else
        stop(what, value);
    return 1;
}

/* Writes again what is not known to be durable, until nothing more is lost. */
static void write_again(void)
{
    int lost = 1;
    while (lost) {
        lost = 0;
        int64_t value = dap_ftruncate(file, model_bytes);
        if (value < 0)
            lost |= is_loss("truncate again", value, dap_error_reason());
        for (size_t block = 0; block < BLOCKS; block++) {
            size_t at = block * BLOCK;
            if (!is_dirty[block] || at >= model_bytes)
                continue;
            size_t length = model_bytes - at < BLOCK ? model_bytes - at : BLOCK;
            rewritten++;
            value = dap_pwrite(file, model + at, length, at, 0);
            if (value < 0)
                lost |= is_loss("write again", value, dap_error_reason());
            else if (value != (int64_t)length)
                stop("write again", value);
        }
        value = dap_fsync(file);
        if (value < 0)
            lost |= is_loss("fsync again", value, dap_error_reason());
    }
    memset(is_dirty, 0, sizeof is_dirty);
}

/* A call failed, or answered something else than the model: right only where writes were lost. */
static void explain(const char *what, int64_t value)
{
    if (value < 0) {
        is_loss(what, value, dap_error_reason());
    } else {
        different++;
        int64_t flushed = dap_fsync(file);
        if (flushed == 0)
            stop(what, value);
        is_loss("fsync", flushed, dap_error_reason());
    }
    write_again();
}

static void expect(const char *what, int64_t value, int64_t wanted)
{
    if (value != wanted)
        explain(what, value);
}

/* Bytes that the file has from an offset on. */
static size_t present(size_t offset, size_t length)
{
    if (offset >= model_bytes)
        return 0;
    return model_bytes - offset < length ? model_bytes - offset : length;
}

static void random_range(size_t *offset, size_t *length)
{
    size_t most = roll(20) == 0 ? 300000 : roll(2) ? 20000 : 200;
    *offset = roll(FILE_BYTES);
    if (roll(3) == 0)
        *offset -= *offset % BLOCK;
    *length = 1 + roll(most);
    if (*offset + *length > FILE_BYTES)
        *length = FILE_BYTES - *offset;
}

static void random_bytes(unsigned char *bytes, size_t length)
{
    uint64_t start = roll(UINT64_MAX);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(start + i * 31 + (i >> 9));
}

static void read_once(void)
{
    static unsigned char own[FILE_BYTES];
    size_t offset, length;
    random_range(&offset, &length);
    int registered = (int)roll(2);
    unsigned char *bytes = registered ? memory : own;
    /* A second time where the first one showed what was lost. */
    for (int attempt = 0; attempt < 2; attempt++) {
        memset(bytes, 0xee, length);
        int64_t value = registered ? dap_read(file, mem, 0, length, offset)
                                   : dap_pread(file, bytes, length, offset);
        size_t wanted = present(offset, length);
        if (value == (int64_t)wanted && memcmp(bytes, model + offset, wanted) == 0)
            return;
        explain("read", value);
    }
    /* Servers may be killed more often than that. */
    write_again();
}

static void write_once(void)
{
    size_t offset, length;
    random_range(&offset, &length);
    random_bytes(memory, length);
    put(offset, memory, length);
    uint32_t flags = roll(200) == 0 ? DAP_WRITE_DATA : 0;
    int64_t value = roll(2) ? dap_write(file, mem, 0, length, offset, flags)
                            : dap_pwrite(file, model + offset, length, offset, flags);
    expect("write", value, (int64_t)length);
}

static void append_once(void)
{
    size_t length = 1 + roll(5000), end = model_bytes;
    uint64_t at = 0;
    if (end + length > FILE_BYTES)
        return;
    random_bytes(memory, length);
    put(end, memory, length);
    int64_t value = dap_append(file, memory, length, &at);
    if (value == (int64_t)length && at == end)
        return;
    if (value == (int64_t)length && at < FILE_BYTES)
        changed(at, at + length > FILE_BYTES ? FILE_BYTES - at : length);
    explain("append", value);
}

static void truncate_once(void)
{
    size_t bytes = roll(4) == 0 ? roll(FILE_BYTES) : model_bytes - roll(model_bytes / 4 + 1);
    resize(bytes);
    expect("truncate", dap_ftruncate(file, bytes), 0);
}

/* Pieces of the file that do not overlap, in any order of memory. */
static int pieces(dap_segment_t *segments)
{
    int count = 1 + (int)roll(BATCH);
    size_t room = FILE_BYTES / (size_t)count;
    for (int i = 0; i < count; i++) {
        size_t length = 1 + roll(room < 30000 ? room - 1 : 30000);
        segments[i].offset = (uint64_t)i * room + roll(room - length + 1);
        segments[i].length = length;
        segments[i].mem = mem;
        segments[i].mem_offset = (uint64_t)(count - 1 - i) * room;
    }
    return count;
}

static void put_pieces(const dap_segment_t *segments, int count)
{
    for (int i = 0; i < count; i++) {
        random_bytes(memory + segments[i].mem_offset, segments[i].length);
        put(segments[i].offset, memory + segments[i].mem_offset, segments[i].length);
    }
}

static int64_t all_bytes(const dap_segment_t *segments, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += (int64_t)segments[i].length;
    return bytes;
}

static void list_once(void)
{
    dap_segment_t segments[BATCH];
    int count = pieces(segments);
    if (roll(2)) {
        put_pieces(segments, count);
        expect("write list", dap_writev(file, segments, (uint32_t)count, 0),
               all_bytes(segments, count));
        return;
    }
    int64_t wanted = 0;
    for (int i = 0; i < count; i++) {
        size_t here = present(segments[i].offset, segments[i].length);
        wanted += (int64_t)here;
        if (here < segments[i].length)
            break;
    }
    int64_t value = dap_readv(file, segments, (uint32_t)count);
    int64_t left = value;
    int good = value == wanted;
    for (int i = 0; i < count && left > 0 && good; i++) {
        size_t here = left < (int64_t)segments[i].length ? (size_t)left : segments[i].length;
        good = memcmp(memory + segments[i].mem_offset, model + segments[i].offset, here) == 0;
        left -= (int64_t)here;
    }
    if (!good)
        explain("read list", value);
}

/* Several operations under way: all of them writes, or all of them reads. */
static void asynchronous_once(void)
{
    dap_segment_t segments[BATCH];
    dap_op_t ops[BATCH];
    dap_result_t results[BATCH];
    int count = pieces(segments), writes = (int)roll(2), trouble = 0;
    if (writes)
        put_pieces(segments, count);
    memset(ops, 0, sizeof ops);
    for (int i = 0; i < count; i++) {
        ops[i].size = sizeof ops[i];
        ops[i].op = writes ? DAP_OP_WRITE : DAP_OP_READ;
        ops[i].file = file;
        ops[i].mem = mem;
        ops[i].mem_offset = segments[i].mem_offset;
        ops[i].length = segments[i].length;
        ops[i].offset = segments[i].offset;
        ops[i].user = (uint64_t)i;
    }
    int64_t value = dap_submit(group, ops, (uint32_t)count, 0);
    if (value != count)
        stop("submit", value);
    results[0].size = sizeof results[0];
    for (int left = count; left > 0;) {
        value = dap_cg_wait(group, results, BATCH, 1, -1);
        if (value <= 0)
            stop("wait", value);
        left -= (int)value;
        for (int64_t i = 0; i < value; i++) {
            const dap_segment_t *of = &segments[results[i].user];
            size_t wanted = writes ? of->length : present(of->offset, of->length);
            if (results[i].value < 0) {
                is_loss("asynchronous", results[i].value, results[i].reason);
                trouble |= 2;
            } else if (results[i].value != (int64_t)wanted ||
                       (!writes && memcmp(memory + of->mem_offset, model + of->offset, wanted))) {
                trouble |= 1;
            }
        }
    }
    if (trouble & 2)
        write_again();
    else if (trouble)
        explain("asynchronous", 0);
}

static void sync_once(void)
{
    int64_t value = roll(2) ? dap_fsync(file) : dap_fdatasync(file);
    if (value == 0)
        memset(is_dirty, 0, sizeof is_dirty);
    else
        explain("fsync", value);
}

static void open_file(void)
{
    int64_t value = dap_open(session, name, DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE, 0600, &file);
    if (value != 0)
        stop("open", value);
}

static void reopen_once(void)
{
    int64_t value = dap_close(file);
    uint32_t reason = dap_error_reason();
    open_file();
    if (value < 0) {
        is_loss("close", value, reason);
        write_again();
    }
    /* Who closes a file is told then, and not by the next open: so it is made durable here. */
    value = dap_fsync(file);
    if (value == 0)
        memset(is_dirty, 0, sizeof is_dirty);
    else
        explain("fsync", value);
}

static void stat_once(void)
{
    NEW(dap_stat_t, stat);
    int64_t value = dap_fstat(file, &stat);
    if (value < 0 || stat.bytes != model_bytes)
        explain("stat", value);
}

static void one(void)
{
    uint64_t kind = roll(1000);
    if (kind < 330)
        read_once();
    else if (kind < 600)
        write_once();
    else if (kind < 680)
        append_once();
    else if (kind < 740)
        truncate_once();
    else if (kind < 820)
        list_once();
    else if (kind < 930)
        asynchronous_once();
    else if (kind < 985)
        stat_once();
    else if (kind < 995)
        sync_once();
    else
        reopen_once();
}

static void check_all(void)
{
    static unsigned char found[FILE_BYTES];
    int64_t value = dap_fsync(file);
    if (value != 0)
        explain("fsync", value);
    value = dap_pread(file, found, FILE_BYTES, 0);
    if (value != (int64_t)model_bytes || memcmp(found, model, model_bytes) != 0)
        stop("all of the file", value);
}

int main(int argc, char **argv)
{
    TRUE(argc >= 5);
    name = argv[2];
    unsigned long operations = strtoul(argv[3], NULL, 10);
    dice = strtoull(argv[4], NULL, 10) * 2 + 1;
    unsigned long events = (unsigned long)(argc - 5), told = 0;
    char line[16];
    void *address;
    IS(dap_session_open(argv[1], NULL, &session), 0);
    open_file();
    IS(dap_mem_alloc(session, MEMORY_BYTES, &address, &mem), 0);
    IS(dap_cg_create(session, BATCH, &group), 0);
    memory = address;
    for (operation = 0; operation < operations; operation++) {
        if (told < events && operation >= operations / (events + 1) * (told + 1)) {
            puts(argv[5 + told++]);
            fflush(stdout);
        }
        one();
    }
    /* All of them have happened, however slow they were. */
    for (unsigned long i = 0; i < told; i++)
        TRUE(fgets(line, sizeof line, stdin));
    check_all();
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < model_bytes; i++)
        sum = (sum ^ model[i]) * 1099511628211u;
    IS(dap_close(file), 0);
    IS(dap_cg_destroy(group), 0);
    IS(dap_mem_free(mem), 0);
    IS(dap_session_close(session), 0);
    printf("end %lu %lu %lu %lu %lu %zu %llu\n", operation, losses, unknowns, different, rewritten,
           model_bytes, (unsigned long long)sum);
    return 0;
}
